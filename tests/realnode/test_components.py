"""What components of the manifests change, on a node that runs them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from tests.e2e.api import JSON
from tests.e2e.install import NAMESPACE, REPOSITORY
from tests.e2e.node.cluster import RealNode
from tests.e2e.node.webhook import DEPLOYMENT, Webhook
from tests.e2e.status import finished
from tests.manifests import manifest
from tests.realnode.arms import PATIENCE
from webhook.cli import manifests

pytestmark = pytest.mark.realnode
USER = 1000670000
"""Of the range that OpenShift gave some namespace."""
REPORT_CRDS = REPOSITORY / "tests" / "e2e" / "scan_crds.yaml"


@pytest.fixture
def changeable(webhook: Webhook) -> Iterator[Webhook]:
    """The webhook, as it was again afterwards."""
    yield webhook
    webhook.install()


def under_restricted_v2(deployment: JSON) -> JSON:
    """What OpenShift makes of a pod that names no user: one of the namespace's range, in the group 0."""
    spec = deployment["spec"]["template"]["spec"]
    assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(spec["securityContext"])
    spec["securityContext"] |= {"runAsUser": USER, "runAsGroup": 0, "fsGroup": USER}
    return deployment


def test_it_serves_under_the_user_that_openshift_chooses(node: RealNode, changeable: Webhook) -> None:
    (deployment,) = (it for it in manifests.render(components=["openshift"]) if it["kind"] == "Deployment")
    node.apply(under_restricted_v2(deployment))
    changeable.wait_until_it_serves()
    for replica in changeable.pods():
        inside = ["exec", replica["metadata"]["name"], "--", "sh", "-c", "id -u; id -g; touch /opt/x"]
        shown = node.kubectl("-n", NAMESPACE, *inside, check=False)
        assert shown.stdout.split() == [str(USER), "0"]
        assert "Read-only file system" in shown.stderr
        (status,) = replica["status"]["containerStatuses"]
        assert status["restartCount"] == 0
    assert node.api.get("deployments.apps", DEPLOYMENT, NAMESPACE)["spec"]["replicas"] == 2


def test_the_nightly_scan_writes_reports(node: RealNode, webhook: Webhook, bare: str) -> None:
    hazard = {"exec": {"command": ["curl", "http://payments/health"]}, "timeoutSeconds": 5}
    main = {"name": "main", "image": "registry.example/x:1", "livenessProbe": hazard}
    spec = {
        "replicas": 0,
        "selector": {"matchLabels": {"app": "x"}},
        "template": {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [main]}},
    }
    item = manifest("Deployment", "x", spec)
    node.api.create(item, bare)
    node.kubectl("label", "namespace", bare, "mlchassis.dev/admission-")
    node.kubectl("apply", "-f", str(REPORT_CRDS))
    before = {(it["kind"], it["metadata"]["name"]) for it in manifests.render()}
    brought = manifests.render(components=["scan"])
    added = [it for it in brought if (it["kind"], it["metadata"]["name"]) not in before]
    node.apply(added)
    node.kubectl("-n", NAMESPACE, "create", "job", "scan-now", "--from=cronjob/mlchassis-scan")
    done = node.api.wait(
        "jobs.batch",
        "scan-now",
        finished,
        namespace=NAMESPACE,
        timeout=PATIENCE,
    )
    output = node.kubectl("-n", NAMESPACE, "logs", "job/scan-now").stdout
    assert done["status"].get("succeeded"), output
    report = node.api.get("policyreports.wgpolicyk8s.io", "mlchassis", bare)
    assert {it["rule"] for it in report["results"] if it["result"] == "fail"} == {
        "liveness-external-dependency"
    }
    node.kubectl("-n", NAMESPACE, "delete", "job/scan-now")
    node.kubectl("delete", "-f", "-", stdin=yaml.safe_dump_all(added))
