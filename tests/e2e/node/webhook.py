"""ML Chassis on a real node: the shipped manifests unchanged, the Dockerfile's image, behind its Service."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.api import JSON, ApiError
from tests.e2e.install import BASE, CONFIGURATIONS, NAMESPACE, POLICY
from tests.e2e.node.cluster import RealNode
from tests.e2e.status import rolled_out
from tests.e2e.workloads import PROBES, injected

DEPLOYMENT = "mlchassis"
START_TIMEOUT = 180


class Webhook:
    """The webhook in the cluster itself.

    Args:
        node: a running one.
        manifests: the kustomization to install, the base by default.
    """

    def __init__(self, node: RealNode, manifests: Path = BASE) -> None:
        self.node = node
        self.manifests = manifests

    def install(self) -> None:
        """Apply the manifests and wait until a created pod is changed."""
        self.node.kubectl("apply", "-k", str(self.manifests))
        self.wait_until_it_serves()

    def wait_until_it_serves(self, timeout: float = START_TIMEOUT) -> None:
        """Wait until every replica is ready, every entry trusts it, and the API server reaches it."""
        self.node.api.wait("deployments.apps", DEPLOYMENT, rolled_out, namespace=NAMESPACE, timeout=timeout)
        for resource in CONFIGURATIONS:
            self.node.api.wait_for(resource, _trusted, timeout=timeout)
        # kube-proxy learns of the endpoints from its own watch.
        for _ in range(1000):
            if self.changes_pods():
                return
        raise AssertionError("the API server never reached the webhook through its Service")

    def changes_pods(self) -> bool:
        """Whether a pod created now, by dry run, gets its probes."""
        try:
            return injected(self.node.api) == set(PROBES)
        except ApiError as error:
            if self.manifests.name == "strict" and "connection refused" in str(error):
                return False  # it fails closed, and kube-proxy has no endpoint yet
            raise AssertionError("a pod was refused") from error

    def pods(self) -> list[JSON]:
        """Its replicas that are not going away."""
        found = self.node.api.items("pods", NAMESPACE, f"app.kubernetes.io/name={DEPLOYMENT}")
        return [item for item in found if "deletionTimestamp" not in item["metadata"]]

    def restart(self) -> None:
        """`kubectl rollout restart`, and wait until it is through."""
        self.node.kubectl("-n", NAMESPACE, "rollout", "restart", f"deployment/{DEPLOYMENT}")
        self.wait_until_it_serves()

    def metric(self, replica: JSON, name: str, **labels: str) -> float:
        """The sum of a replica's samples of a metric that carry these labels."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/https:{replica['metadata']['name']}:8443/proxy/metrics"
        text = self.node.kubectl("get", "--raw", path).stdout
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def write_policy(self, **files: str) -> None:
        """Set keys of the policy's ConfigMap (`standard_probes` is standard-probes.yaml)."""
        data = {f"{key.replace('_', '-')}.yaml": text for key, text in files.items()}
        self.node.api.patch("configmaps", POLICY, {"data": data}, NAMESPACE)


def _trusted(configurations: list[JSON]) -> bool:
    clients = [entry["clientConfig"] for item in configurations for entry in item["webhooks"]]
    ours = [client for client in clients if client.get("service", {}).get("namespace") == NAMESPACE]
    return bool(ours) and all(client.get("caBundle") for client in ours)
