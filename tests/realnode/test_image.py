"""The two images of the Dockerfile: how large they are, what they need, and that the manifests run them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from policies.models.model_puller_settings import ModelPuller
from tests.e2e.api import JSON
from tests.e2e.install import NAMESPACE
from tests.e2e.node import images
from tests.e2e.node.cluster import CONTAINERD_STATE, RealNode
from tests.e2e.node.webhook import DEPLOYMENT, Webhook
from tests.e2e.workloads import PROBES, container, pod, probes
from tests.manifests import manifest

pytestmark = pytest.mark.realnode
PULLER = ModelPuller().image
MEGABYTE = 1 << 20


def layers(name: str) -> dict[str, int]:
    """The digests of an image's layers and their bytes, unpacked."""
    listed = images.ctr(CONTAINERD_STATE, "images", "list", f"name=={name}").stdout
    digest = re.findall(r"sha256:[0-9a-f]{64}", listed)[0]
    manifest = json.loads(images.ctr(CONTAINERD_STATE, "content", "get", digest).stdout)
    return {layer["digest"]: layer["size"] for layer in manifest["layers"]}


@pytest.mark.parametrize(("name", "most"), [(images.webhook_name(), 130), (PULLER, 70)])
def test_what_an_image_adds_to_its_base(node: RealNode, name: str, most: int) -> None:
    base, whole = layers(images.base_name()), layers(name)
    assert base.items() <= whole.items()
    added = sum(whole.values()) - sum(base.values())
    assert added < most * MEGABYTE, f"{added / MEGABYTE:.0f} MB"


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


def held(pid: int) -> int:
    """Bytes of memory of a process; what it shares with others counts for its share."""
    found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10


def test_an_idle_process_holds_less_than_60_megabytes(node: RealNode, webhook: Webhook) -> None:
    for replica in webhook.pods():
        processes = {pid: held(pid) for pid in node.pids(replica, "chassis")}
        assert processes
        assert max(processes.values()) < 60 * MEGABYTE, processes


def run_to_its_end(node: RealNode, namespace: str, item: JSON) -> str:
    """Create a pod, wait for its success, and return what it printed."""
    name = node.api.create(item, namespace).body["metadata"]["name"]
    done = node.api.wait("pods", name, _ended, namespace=namespace, timeout=120)
    output = node.kubectl("-n", namespace, "logs", name).stdout
    assert done["status"]["phase"] == "Succeeded", output
    return output


def _ended(item: JSON) -> bool:
    return item["status"]["phase"] in ("Succeeded", "Failed")


def restricted(name: str, image: str, *command: str, **spec: object) -> JSON:
    """A pod as the strictest namespaces ask for it, with nothing to write to."""
    security = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    mounts = {"volumeMounts": spec.pop("mounts")} if "mounts" in spec else {}
    main = container(image, None, command=list(command), securityContext=security, **mounts)
    return pod(name, main, restartPolicy="Never", **spec)


def test_the_puller_starts_and_carries_nothing_of_the_webhook(node: RealNode, bare: str) -> None:
    code = "import puller.cli, os, sys; print(os.listdir(sys.path[-1]))"
    present = run_to_its_end(node, bare, restricted("puller", PULLER, "python", "-c", code))
    assert "'puller'" in present
    assert "'obstore'" in present
    for absent in ("kubernetes", "webhook", "policies", "pydantic", "pip"):
        assert f"'{absent}'" not in present
    assert "--config-dir" in run_to_its_end(
        node, bare, restricted("usage", PULLER, "chassis-puller", "--help")
    )


@pytest.mark.parametrize(
    ("image", "module"), [(images.webhook_name(), "webhook.server.worker"), (PULLER, "puller.cli")]
)
def test_nothing_is_compiled_when_a_program_starts(
    node: RealNode, bare: str, image: str, module: str
) -> None:
    code = (
        f"import os, sys, {module}\n"
        "of = [getattr(each, '__cached__', None) for each in list(sys.modules.values())]\n"
        "print(len(of), [path for path in of if path and not os.path.exists(path)])"
    )
    assert run_to_its_end(node, bare, restricted("start", image, "python", "-c", code)).endswith(" []\n")


PLUGIN = """\
#!/bin/sh
echo "{\\"apiVersion\\": \\"client.authentication.k8s.io/v1\\", \\"kind\\": \\"ExecCredential\\",
       \\"status\\": {\\"token\\": \\"$(cat /account/token)\\"}}"
"""


def test_the_command_line_in_the_image_logs_in_by_an_exec_plugin(node: RealNode, namespace: str) -> None:
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "/config/plugin",
        "interactiveMode": "Never",
    }
    cluster = {"server": "https://10.0.0.1", "certificate-authority": "/account/ca.crt"}
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "it", "user": {"exec": plugin}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    }
    node.apply(
        [
            manifest(
                "ConfigMap",
                "config",
                data={"kubeconfig": json.dumps(kubeconfig), "plugin": PLUGIN},
                namespace=namespace,
            ),
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": f"reads-{namespace}"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
                "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": "default"}],
            },
        ]
    )
    account = [{"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": "kube-root-ca.crt"}}]
    scan = restricted(
        "scan", images.webhook_name(),
        "chassis", "scan", "-n", namespace, "-o", "json", "--kubeconfig", "/config/kubeconfig",
        mounts=[{"name": "config", "mountPath": "/config"}, {"name": "account", "mountPath": "/account"}],
        automountServiceAccountToken=False,
        volumes=[
            {"name": "config", "configMap": {"name": "config", "defaultMode": 0o555}},
            {"name": "account", "projected": {"sources": account}},
        ],
    )  # fmt: skip
    assert '"scan"' in run_to_its_end(node, namespace, scan), "it found itself"
