"""The webhook in Go (`peers/main.go`), and other webhooks registered next to ours."""

from __future__ import annotations

import base64
import copy
import os
import shutil
import subprocess
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from policies.kube.json import Json
from tests.e2e.api import Api
from tests.e2e.controlplane import HOST
from tests.e2e.install import CONFIGURATIONS
from tests.e2e.processes import Process, free_port
from webhook.server import pki

PEER = Path(__file__).with_name("peers")


def built(directory: Path) -> Path | None:
    """The peer, built from its module; None if Go is not installed."""
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if go is None:
        return None
    binary = directory / "peer"
    env = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-mod=readonly"}
    subprocess.run(
        [go, "build", "-trimpath", "-ldflags", "-s -w", "-o", str(binary), "."], cwd=PEER, env=env, check=True
    )
    return binary


def certify(directory: Path) -> bytes:
    """Write `tls.crt` and `tls.key` for 127.0.0.1; return the CA."""
    bundle = pki.issue([HOST], datetime.now(UTC))
    (directory / "tls.crt").write_bytes(bundle.certificate)
    (directory / "tls.key").write_bytes(bundle.key)
    return bundle.ca


def started(peer: Path, directory: Path, stack: ExitStack) -> tuple[Process, str]:
    """The peer with the certificate in the directory, and its URL."""
    port = free_port()
    command: list[str | Path] = [peer, "-certs", directory, "-port", str(port)]
    process = Process("peer", command, directory / "peer.log", {**os.environ, "GOMAXPROCS": "1"})
    stack.callback(process.kill)
    return process, f"https://{HOST}:{port}"


def register(api: Api, url: str, ca: bytes, domain: str, namespace: str) -> None:
    """Our entries for pods, with another server and for one namespace; their names end with `domain`."""
    for resource in CONFIGURATIONS:
        ours = api.get(resource, "chassis.mlchassis.dev")
        entry: Json = copy.deepcopy(ours["webhooks"][0])
        path = entry["clientConfig"]["url"].rpartition("/")[2]
        entry |= {
            "name": f"{path}.{domain}",
            "clientConfig": {"url": f"{url}/{path}", "caBundle": base64.b64encode(ca).decode()},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "failurePolicy": "Fail",  # a webhook that does not answer is not measured
        }
        api.create({**ours, "metadata": {"name": domain}, "webhooks": [entry]})
