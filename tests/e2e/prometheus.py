"""A real Prometheus for the tests."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError

import yaml

from tests.e2e.binaries import binary
from tests.e2e.controlplane import HOST
from tests.e2e.processes import Process, free_port


class Prometheus:
    """A Prometheus that scrapes once a second."""

    def __init__(self, state: Path, jobs: list[dict[str, object]], rules: object = None) -> None:
        self.url = f"http://{HOST}:{free_port()}"
        alerts, config = state / "rules.yaml", state / "prometheus.yaml"
        alerts.write_text(yaml.safe_dump(rules or {"groups": []}))
        document = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(alerts)],
            "scrape_configs": jobs,
        }
        config.write_text(yaml.safe_dump(document))
        command: list[str | Path] = [
            binary("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={state / 'data'}",
            f"--web.listen-address={self.url.removeprefix('http://')}",
        ]
        self.process = Process("prometheus", command, state / "prometheus.log")

    def ready(self) -> bool:
        """Whether it answers queries."""
        with suppress(URLError):
            return bool(self.get("status/buildinfo"))
        return False

    def get(self, path: str, **query: str) -> object:
        """The data of an answer."""
        with urllib.request.urlopen(
            f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=10
        ) as answer:
            return json.load(answer)["data"]

    def values(self, expression: str) -> list[float]:
        """The present numbers of an expression."""
        found = self.get("query", query=expression)
        assert isinstance(found, dict)
        values = [float(sample["value"][1]) for sample in found["result"]]
        return [value for value in values if value == value]
