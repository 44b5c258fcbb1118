"""standard-probes as users meet it: through the API server, its controllers and kubectl."""

from __future__ import annotations

import pytest
import yaml

from policies.probes.liveness_program import is_program
from tests.e2e.api import JSON, Api
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.workloads import PROBES, UNKNOWN, container, job, named, pod, probes, workload

pytestmark = pytest.mark.e2e
ALL = set(PROBES)
# Every field is set: the API server's defaulting has none to fill in.
OWN_READINESS: JSON = {
    "httpGet": {
        "path": "/my/ready?deep=no",
        "port": 8000,
        "scheme": "HTTP",
        "httpHeaders": [{"name": "X-Probe", "value": "mine"}],
    },
    "initialDelaySeconds": 7,
    "timeoutSeconds": 3,
    "periodSeconds": 11,
    "successThreshold": 2,
    "failureThreshold": 5,
}


def owned_pod(api: Api, name: str) -> JSON:
    """The first pod that a controller makes for a workload."""
    return api.wait_for("pods", bool, labels=f"app={name}")[0]


@pytest.mark.parametrize(
    ("kind", "owner"),
    [("Deployment", "ReplicaSet"), ("StatefulSet", "StatefulSet"), ("DaemonSet", "DaemonSet")],
)
def test_the_pods_of_a_workload_get_all_three_probes(
    api: Api, control_plane: ControlPlane, chassis: Chassis, namespace: str, kind: str, owner: str
) -> None:
    control_plane.apply(workload(kind, "model"), "-n", namespace)
    made = owned_pod(api, "model")
    assert made["metadata"]["ownerReferences"][0]["kind"] == owner
    assert probes(made) == ALL
    main = made["spec"]["containers"][0]
    assert main["readinessProbe"]["httpGet"] == {"path": "/health", "port": 8000, "scheme": "HTTP"}
    assert is_program(main["livenessProbe"])
    stored = api.get(f"{kind.lower()}s", "model")
    assert probes(stored["spec"]["template"]) == set(), "pod-level policies leave the workload alone"


def test_liveness_waits_for_startup_and_is_more_patient_than_readiness(api: Api, chassis: Chassis) -> None:
    main = api.create(pod("model")).body["spec"]["containers"][0]

    def patience(probe: str) -> int:
        return int(main[probe]["periodSeconds"] * main[probe]["failureThreshold"])

    assert patience("readinessProbe") < patience("livenessProbe") < patience("startupProbe")
    assert main["startupProbe"]["httpGet"] == main["readinessProbe"]["httpGet"]


def test_a_job_gets_none(api: Api, control_plane: ControlPlane, chassis: Chassis, namespace: str) -> None:
    control_plane.apply(job("batch"), "-n", namespace)
    made = owned_pod(api, "batch")
    assert made["metadata"]["ownerReferences"][0]["kind"] == "Job"
    assert probes(made) == set()


def test_what_the_user_wrote_stays(api: Api, chassis: Chassis) -> None:
    mine = pod("mine", container(readinessProbe=OWN_READINESS))
    stored = api.create(mine).body
    assert stored["spec"]["containers"][0]["readinessProbe"] == OWN_READINESS
    assert probes(stored) == ALL


def test_every_serving_container_gets_its_own(api: Api, chassis: Chassis) -> None:
    second = container("nvcr.io/nvidia/tritonserver:25.09-py3", 8001) | {
        "name": "triton",
        "args": ["tritonserver", "--http-port=8001"],
    }
    stored = api.create(pod("two", container(), second)).body
    assert probes(stored, 0) == probes(stored, 1) == ALL


def test_a_server_side_dry_run_shows_the_probes_and_stores_nothing(
    api: Api, control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    shown = control_plane.apply(pod("model"), "-n", namespace, "--dry-run=server", "-o", "yaml").stdout
    answer = yaml.safe_load(shown)
    assert probes(answer["items"][0] if answer["kind"] == "List" else answer) == ALL
    assert not api.exists("pods", "model")


def test_kubectl_diff_shows_the_probes_of_a_new_pod(
    control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    diff = control_plane.kubectl(
        "diff", "-n", namespace, "-f", "-", stdin=yaml.safe_dump(pod("model")), check=False
    )
    assert diff.returncode == 1, diff.stderr  # 1 means "there are differences", above 1 is an error
    assert {line[1:].strip() for line in diff.stdout.splitlines()} >= {f"{probe}:" for probe in PROBES}


@pytest.mark.parametrize("item", [workload("Deployment", "model"), pod("model")], ids=["deployment", "pod"])
def test_kubectl_diff_sees_no_drift_in_applied_objects(
    control_plane: ControlPlane, chassis: Chassis, namespace: str, item: JSON
) -> None:
    manifest = yaml.safe_dump(item)
    control_plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=manifest)
    again = control_plane.kubectl("diff", "-n", namespace, "-f", "-", stdin=manifest, check=False)
    assert (again.returncode, again.stdout) == (0, "")
    reapplied = control_plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=manifest)
    assert "unchanged" in reapplied.stdout


def test_server_side_apply_can_be_repeated(
    api: Api, control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    """Were the probes ours to the applier, its second apply would take them away, and a pod's are fixed."""
    for _ in range(2):
        control_plane.apply(pod("model"), "-n", namespace, "--server-side")
    assert probes(api.get("pods", "model")) == ALL


def test_kubectl_shows_our_warnings(
    api: Api, control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    changed = control_plane.apply(pod("known"), "-n", namespace).stderr
    assert "Warning: standard-probes added " in changed
    assert "liveness-missing" not in changed, "what was mended is not complained about"
    warned = control_plane.apply(workload("Deployment", "unknown", container(UNKNOWN, 9000)), "-n", namespace)
    assert "Warning: " in warned.stderr
    assert "mlchassis.dev/health-path" in warned.stderr, "how to mend it"
    control_plane.apply(pod("unknown", container(UNKNOWN, 9000)), "-n", namespace)
    assert probes(api.get("pods", "unknown")) == set(), "nothing is guessed"


def test_a_workload_is_warned_about_where_a_person_sees_it(
    control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    """The pods of a Deployment are created by a controller, whose warnings nobody reads."""
    unknown = workload("Deployment", "unknown", container(UNKNOWN, 9000))
    assert "Warning: liveness-missing: " in control_plane.apply(unknown, "-n", namespace).stderr


def test_a_pod_in_kube_system_is_not_sent_to_us(api: Api, chassis: Chassis) -> None:
    def reviewed() -> float:
        return chassis.metric("chassis_admission_requests_total", endpoint="mutate", kind="Pod")

    before = reviewed()
    for number in range(5):
        made = api.create(named(pod("x"), f"system-{number}"), "kube-system", dry_run=True).body
        assert probes(made) == set()
    assert reviewed() == before
    api.create(pod("model"), dry_run=True)
    assert reviewed() == before + 1, "the counter counts what is sent"
