"""LeaderWorkerSet's real operator in a test cluster, with its webhooks."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml

from tests.e2e.api import JSON
from tests.e2e.binaries import binary, module_directory
from tests.e2e.controlplane import HOST, ControlPlane
from tests.e2e.pki import Authority
from tests.e2e.processes import Process, free_port

NAME = "lws"
START_TIMEOUT = 120


class Operator:
    """The operator as a separate process, with cluster-admin's rights, and its webhooks on 127.0.0.1."""

    def __init__(self, control_plane: ControlPlane, directory: Path) -> None:
        self._control_plane, self._directory = control_plane, directory
        self._log = control_plane.logs / "lws.log"
        self._port, self._health = free_port(), free_port()
        self._authority = Authority("lws")
        self._webhooks: list[tuple[str, str]] = []

    def __enter__(self) -> Self:
        pair = self._authority.server("lws", [HOST])
        (self._directory / "tls.crt").write_bytes(pair.certificate)
        (self._directory / "tls.key").write_bytes(pair.key)
        config = self._directory / "config.yaml"
        config.write_text(yaml.safe_dump(self._configuration()))
        self._install()
        command: list[str | Path] = [binary(NAME), f"--config={config}", "--zap-log-level=info"]
        environment = {**os.environ, "KUBECONFIG": str(self._control_plane.kubeconfig)}
        self._process = Process(NAME, command, self._log, environment)
        self._process.wait_until(lambda: "Starting workers" in self._log.read_text(), START_TIMEOUT)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for resource, name in self._webhooks:
            self._control_plane.api.delete(resource, name)
        self._process.terminate(timeout=5)

    def _configuration(self) -> JSON:
        return {
            "apiVersion": "config.lws.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "internalCertManagement": {"enable": False},
            "leaderElection": {"leaderElect": False},
            "webhook": {"host": HOST, "port": self._port, "certDir": str(self._directory)},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": f"{HOST}:{self._health}"},
        }

    def _install(self) -> None:
        """The definitions and the webhook configurations, with a URL in place of the Service."""
        api, root = self._control_plane.api, module_directory(NAME) / "config"
        for file in sorted((root / "crd" / "bases").glob("*.yaml")):
            definition = yaml.load(file.read_text(), yaml.CSafeLoader)
            name = definition["metadata"]["name"]
            if not api.exists("customresourcedefinitions", name):
                api.create(definition)
            api.wait("customresourcedefinitions", name, _is_established)
        bundle = base64.b64encode(self._authority.certificate).decode()
        for item in yaml.load_all((root / "webhook" / "manifests.yaml").read_text(), yaml.CSafeLoader):
            for webhook in item["webhooks"]:
                path = webhook["clientConfig"].pop("service")["path"]
                webhook["clientConfig"] = {
                    "url": f"https://{HOST}:{self._port}{path}",
                    "caBundle": bundle,
                }
                webhook["failurePolicy"] = "Ignore"
                if "pod" in webhook["name"]:  # as the project's own patch has it: only pods of its sets
                    webhook["objectSelector"] = {
                        "matchExpressions": [
                            {"key": "leaderworkerset.sigs.k8s.io/name", "operator": "Exists"}
                        ]
                    }
            item["metadata"]["name"] = f"lws-{item['metadata']['name']}"
            api.create(item)
            self._webhooks.append((f"{item['kind'].lower()}s", item["metadata"]["name"]))


def _is_established(definition: JSON) -> bool:
    conditions = definition.get("status", {}).get("conditions") or ()
    return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)
