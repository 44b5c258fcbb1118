"""`kubectl chassis why` with real kubectl, of what a real API server and its controllers made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.api import JSON, Api
from tests.e2e.binaries import binary
from tests.e2e.controlplane import LEFT_ALONE, ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.workloads import container, job, pod, workload

pytestmark = pytest.mark.e2e

Shell = Callable[..., str]
LLM = container("vllm/vllm-openai:v0.10.2", args=["--model", "Qwen/Qwen3-32B"])
START = "spec.containers[main].startupProbe"


@pytest.fixture(scope="module")
def shell(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A shell as a user has it: kubectl and its plugin in PATH, the kubeconfig in the environment."""
    directory = tmp_path_factory.mktemp("bin")
    (directory / "kubectl").symlink_to(binary("kubectl"))
    path = os.pathsep.join((str(directory), str(Path(sys.executable).parent), os.environ["PATH"]))
    env = os.environ | {"PATH": path, "KUBECONFIG": str(control_plane.kubeconfig)}

    def run(command: str, status: int = 0) -> str:
        done = subprocess.run(["bash", "-ceu", command], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == status, done.stderr
        return done.stdout if not status else done.stderr

    return run


def fields(shell: Shell, arguments: str) -> tuple[JSON, dict[str, JSON]]:
    [answer] = json.loads(shell(f"kubectl chassis why {arguments} -o json"))
    return answer, {each["path"]: each for each in answer["fields"]}


def made(api: Api, name: str) -> JSON:
    return api.wait_for("pods", bool, labels=f"app={name}")[0]


def test_the_answer_for_a_pod_has_setters_and_commands_that_work(
    api: Api, control_plane: ControlPlane, chassis: Chassis, namespace: str, shell: Shell
) -> None:
    deployment = workload("Deployment", "llm", LLM)
    deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 90
    control_plane.apply(deployment, "-n", namespace)
    running = made(api, "llm")
    name = running["metadata"]["name"]

    answer, by_path = fields(shell, f"pod/{name} -n {namespace}")
    assert answer["title"] == f"Pod {namespace}/{name}"
    assert answer["writtenIn"] == f"Deployment {namespace}/llm"
    assert answer["policy"]["changed"] is False
    start = by_path[START]
    assert (start["by"], start["policy"], start["setting"]) == (
        "mlchassis",
        "standard-probes",
        "startupFactor",
    )
    assert start["why"].startswith("101 min: six times the 17 min that 64 GB take at 64 MiB/s")
    assert start["today"] is None
    assert by_path["spec.terminationGracePeriodSeconds"]["by"] == "user"
    assert by_path["spec.tolerations[node.kubernetes.io/not-ready]"]["by"] == "default"
    assert by_path["spec.restartPolicy"]["by"] in ("user", "default")
    text = shell(f"kubectl chassis why po/{name} -n {namespace}")
    assert f"Pod {namespace}/{name}, created for Deployment {namespace}/llm" in text
    why = "101 min: six times the 17 min that 64 GB take at 64 MiB/s"
    assert f"  by      standard-probes of ML Chassis\n  why     {why}" in text

    # Unedited a command makes no change; with another value it changes that.
    shell(start["commands"]["here"])
    _, same = fields(shell, f"deployment/llm -n {namespace}")
    assert same["spec.template." + START]["why"].startswith("101 min: ")
    expected = start["annotation"].partition("=")[2]
    shell(start["commands"]["here"].replace(expected, "10m"))
    _, shorter = fields(shell, f"deploy/llm -n {namespace}")
    assert (
        shorter["spec.template." + START]["why"]
        == "30 min: three times 10 min (mlchassis.dev/expected-start)"
    )

    shell(answer["without"]["standard-probes"])
    _, exempted = fields(shell, f"deploy/llm -n {namespace}")
    assert "spec.template." + START not in exempted


def test_a_later_change_of_the_policy_is_shown_and_its_command_works(
    control_plane: ControlPlane, namespace: str, shell: Shell
) -> None:
    control_plane.apply(pod("llm", LLM), "-n", namespace)
    try:
        _, fresh = fields(shell, f"pod/llm -n {namespace}")
        command = fresh[START]["commands"]["everywhere"]
        assert "startupFactor: 3.0" in command
        shell(command.replace("startupFactor: 3.0", "startupFactor: 2.0"))
        answer, later = fields(shell, f"pod/llm -n {namespace}")
        assert answer["policy"]["changed"] is True
        assert later[START]["why"].startswith("101 min: ")
        assert later[START]["today"].startswith("68 min: ")
        assert "  today   68 min: " in shell(f"kubectl chassis why pod/llm -n {namespace}")
    finally:
        reset = "kubectl -n mlchassis-system patch configmap mlchassis-override --type=json -p "
        shell(reset + """'[{"op": "remove", "path": "/data"}]'""")


def test_a_job_and_what_others_set(
    control_plane: ControlPlane, chassis: Chassis, namespace: str, shell: Shell
) -> None:
    control_plane.apply(job("train", container("train:1")), "-n", namespace)
    _, by_path = fields(shell, f"job/train -n {namespace}")
    policy = by_path["spec.podFailurePolicy"]
    assert (policy["by"], policy["policy"]) == ("mlchassis", "job-retries")
    assert policy["why"].startswith("an evicted pod is replaced and doesn't count")

    control_plane.create_namespace(f"{namespace}-off", LEFT_ALONE)
    control_plane.apply(
        pod("own", container("x:1", livenessProbe={"tcpSocket": {"port": 8000}})), "-n", f"{namespace}-off"
    )
    _, own = fields(shell, f"pod/own -n {namespace}-off")
    live = own["spec.containers[main].livenessProbe"]
    assert (live["by"], live["manager"]) == ("user", "kubectl-client-side-apply")


def test_a_missing_object_is_reported(namespace: str, shell: Shell) -> None:
    for named, said in (("pod/none", "there is no Pod none in namespace"), ("none", "use KIND/NAME")):
        assert said in shell(f"kubectl chassis why {named} -n {namespace}", status=2)
