"""The shipped manifests and the image of the Dockerfile, on a node that runs them."""

from __future__ import annotations

import pytest

from tests.e2e.install import NAMESPACE
from tests.e2e.node.cluster import RealNode
from tests.e2e.node.webhook import DEPLOYMENT, Webhook
from tests.e2e.workloads import PROBES, pod, probes

pytestmark = pytest.mark.realnode


def test_two_replicas_serve_from_the_image_behind_the_service(node: RealNode, webhook: Webhook) -> None:
    replicas = webhook.pods()
    assert len(replicas) == 2
    before = [webhook.metric(replica, "chassis_admission_requests_total") for replica in replicas]
    for number in range(40):
        answer = node.api.create(pod(f"pod-{number}"), "default", dry_run=True)
        assert probes(answer.body) == set(PROBES)
    after = [webhook.metric(replica, "chassis_admission_requests_total") for replica in replicas]
    assert sum(after) - sum(before) >= 40, "the API server asked these very pods"


def test_it_runs_under_the_security_context_and_limits_of_the_deployment(
    node: RealNode, webhook: Webhook
) -> None:
    spec = node.api.get("deployments.apps", DEPLOYMENT, NAMESPACE)["spec"]["template"]["spec"]
    user = spec["securityContext"]["runAsUser"]
    assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"]
    for replica in webhook.pods():
        [status] = replica["status"]["containerStatuses"]
        assert status["restartCount"] == 0
        inside = ["exec", replica["metadata"]["name"], "--", "sh", "-c", "id -u; touch /opt/x"]
        shown = node.kubectl("-n", NAMESPACE, *inside, check=False)
        assert int(shown.stdout) == user
        assert "Read-only file system" in shown.stderr
