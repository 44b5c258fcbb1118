"""ML Chassis installed in a test cluster: the shipped manifests and a real `chassis serve` process.

No kubelet runs, so the webhook's Deployment makes pods that only seem to run. The server therefore
runs next to the control plane, as the ServiceAccount of the manifests and only with its RBAC,
and the webhook configurations carry a URL in place of the Service. Everything else is as shipped.
"""

from __future__ import annotations

import os
import re
import ssl
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import HTTPError, URLError

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.api import JSON
from tests.e2e.controlplane import HOST, ControlPlane
from tests.e2e.processes import Process, ProcessFailedError, free_port

REPOSITORY = Path(__file__).parents[2]
BASE = REPOSITORY / "manifests" / "base"
NAMESPACE = "mlchassis-system"
SERVICE_ACCOUNT = "mlchassis"
POLICY = "mlchassis-policy"
CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
START_TIMEOUT = 60
UNVERIFIED = ssl.create_default_context()
"""The API server checks the certificate, since it calls; in the tests only the answers count."""
UNVERIFIED.check_hostname = False
UNVERIFIED.verify_mode = ssl.CERT_NONE
FIELDS = {
    "metadata.namespace": NAMESPACE,
    "metadata.name": "mlchassis-0",
    "status.podIP": HOST,
    "spec.nodeName": "node-0",
}
"""Fields of a replica's pod."""


class Chassis:
    """The webhook, installed and running.

    Args:
        control_plane: a running one.
        manifests: the kustomization to install, the base by default.
        arguments: further arguments for `chassis serve`.
        program: what Python runs as `chassis`.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        manifests: Path = BASE,
        arguments: list[str] | None = None,
        program: Sequence[str] = ("-m", "webhook.cli"),
    ):
        self.control_plane = control_plane
        self.manifests = manifests
        self.port = free_port()
        self.url = f"https://{HOST}:{self.port}"
        self.log = control_plane.logs / f"chassis-{self.port}.log"
        self._arguments, self._program = arguments or [], program
        self._process: Process | None = None
        self._kubeconfig: Path | None = None

    # Life cycle

    def install(self) -> None:
        """Apply the manifests, with the URL of this server in place of the Service."""
        documents = self._rendered()
        # The namespace first and by itself: its ServiceAccounts need it to be there.
        self.control_plane.apply(item for item in documents if item["kind"] == "Namespace")
        self.control_plane.apply(at_url(item, self.url) for item in documents if item["kind"] != "Namespace")

    def start(self) -> None:
        """Start the server and wait until it is ready and every webhook entry trusts it."""
        self.exec()
        self.process.wait_until(self.ready, START_TIMEOUT)
        self.process.wait_until(self._trusted, START_TIMEOUT)

    def exec(self) -> None:
        """Start the server without waiting."""
        deployment = next(item for item in self._rendered() if item["kind"] == "Deployment")
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        environment = environment_of(container, FIELDS)
        if self._kubeconfig is None:
            account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
            self._kubeconfig = self.control_plane.service_account(NAMESPACE, account)
        command = [
            sys.executable, *self._program, *expanded(container["args"], environment),
            # The last word wins: where it listens, who it is, and no replica to wait for.
            f"--kubeconfig={self._kubeconfig}",
            f"--host={HOST}",
            f"--port={self.port}",
            f"--tls-host={HOST}",
            "--drain-grace=0",
            *self._arguments,
        ]  # fmt: skip
        # The administrator's KUBECONFIG must not stand in for the ServiceAccount's.
        inherited = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
        self._process = Process("chassis serve", command, self.log, inherited | environment)

    def stop(self) -> int:
        """SIGTERM it and return its exit status, which is 0 after an orderly drain."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        return process.terminate()

    @property
    def process(self) -> Process:
        """The running server."""
        if self._process is None:
            raise ProcessFailedError("chassis serve is not running")
        return self._process

    def restart(self) -> int:
        """Stop and start it again on the same port; the exit status of the one that was stopped."""
        status = self.stop()
        self.start()
        return status

    # Its own reports

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a GET from the server."""
        try:
            with urllib.request.urlopen(self.url + path, context=UNVERIFIED, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def ready(self) -> bool:
        """Whether `/readyz` answers 200."""
        with suppress(URLError, OSError):
            return self.get("/readyz")[0] == 200
        return False

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry these labels; 0 if there are none."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def wait_metric(self, name: str, value: float, timeout: float = 60, **labels: str) -> None:
        """Wait until a metric has a value.

        Raises:
            ProcessFailedError: it has not within `timeout` seconds, or the server ended.
        """
        self.process.wait_until(lambda: self.metric(name, **labels) == value, timeout)

    def log_lines(self) -> Iterator[str]:
        """What the server has logged so far."""
        yield from self.log.read_text().splitlines()

    # The policy

    def policy(self) -> JSON:
        """The policy's ConfigMap as it is in the cluster."""
        return self.control_plane.api.get("configmaps", POLICY, NAMESPACE)

    def policy_with(self, **files: str) -> JSON:
        """The ConfigMap to apply: the present one, with keys set (`standard_probes` is
        standard-probes.yaml)."""
        current = self.policy()
        data = {f"{key.replace('_', '-')}.yaml": text for key, text in files.items()}
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {key: current["metadata"].get(key, {}) for key in ("name", "namespace", "labels")},
            "data": {**current.get("data", {}), **data},
        }

    @contextmanager
    def policy_restored(self) -> Iterator[JSON]:
        """The ConfigMap, for the use of `kubectl apply`; afterwards it is as before, in spite of any edit.

        This includes the annotation with what kubectl applied last, which commands of the documentation read.
        """
        before = self.policy()
        try:
            yield self.policy_with()
        finally:
            current = self.policy()
            kept = {key: before["metadata"].get(key, {}) for key in ("labels", "annotations")}
            self.control_plane.api.replace(
                {**current, "data": before.get("data", {}), "metadata": {**current["metadata"], **kept}}
            )

    def _trusted(self) -> bool:
        return all(entry["clientConfig"].get("caBundle") for entry in self.entries())

    def entries(self) -> Iterator[JSON]:
        """The entries of our webhook configurations."""
        for resource in CONFIGURATIONS:
            for configuration in self.control_plane.api.items(resource):
                for entry in configuration["webhooks"]:
                    if entry["clientConfig"].get("url", "").startswith(self.url):
                        yield entry

    def _rendered(self) -> list[JSON]:
        text = self.control_plane.kubectl("kustomize", str(self.manifests)).stdout
        return [document for document in yaml.safe_load_all(text) if document]


@contextmanager
def running_chassis(control_plane: ControlPlane) -> Iterator[Chassis]:
    """The webhook, installed from the shipped manifests and running; it must end in order."""
    installed = Chassis(control_plane)
    installed.install()
    installed.start()
    yield installed
    assert installed.stop() == 0, "chassis serve did not end in order:\n" + "\n".join(installed.log_lines())


def at_url(item: JSON, url: str) -> JSON:
    """A webhook configuration that calls `url` in place of its Service; anything else as it is."""
    for entry in item.get("webhooks", ()):
        service = entry["clientConfig"].pop("service")
        entry["clientConfig"]["url"] = url + service["path"]
    return item


def environment_of(container: JSON, fields: Mapping[str, str]) -> dict[str, str]:
    """The variables of a container of a pod with these fields, as the kubelet would set them."""
    return {
        entry["name"]: entry["value"]
        if "value" in entry
        else fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        for entry in container.get("env", ())
    }


def expanded(arguments: list[str], environment: dict[str, str]) -> list[str]:
    """The arguments with `$(VAR)` replaced, as the kubelet does."""
    return [re.sub(r"\$\((\w+)\)", lambda it: environment[it[1]], argument) for argument in arguments]
