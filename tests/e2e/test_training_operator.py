"""Jobs of the real Training Operator: their retries and ends are as `lifecycles.yaml` has them, what the
rules warn about happens, and the operator leaves what the webhook adds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from policies.core.lifecycles import Evictions, Lifecycle, Retry, known_lifecycles
from policies.kube.group_kinds import GroupKind
from tests.e2e.api import JSON, Api
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.operators import (
    TRAINING,
    TRAINING_OPERATOR,
    Operator,
    added,
    bound_pods,
    drain,
    end,
    first_of_two,
    fixture,
    new_pods,
    place,
    plain_and_changed,
    restarted,
    run,
)
from tests.e2e.status import has_condition
from tests.e2e.workloads import probes
from tests.manifests import manifest

pytestmark = [pytest.mark.e2e, pytest.mark.operators]

LABEL = "training.kubeflow.org/job-name"
TYPE = "training.kubeflow.org/replica-type"
WRITTEN = ("pods", "services", "configmaps", "pytorchjobs.kubeflow.org")
failed, succeeded = has_condition("Failed"), has_condition("Succeeded")
T = 60


operator = fixture("training", TRAINING_OPERATOR)


@dataclass(frozen=True)
class Kind:
    """A kind of the operator, with the names that its specs need."""

    name: str
    replicas: str
    """The field with its roles."""
    container: str
    """The container whose exit code the operator reads."""
    roles: tuple[str, ...]
    """The first one ends the job, if there are two."""

    @property
    def resource(self) -> str:
        return f"{self.name.lower()}s.kubeflow.org"


KINDS = (
    Kind("PyTorchJob", "pytorchReplicaSpecs", "pytorch", ("Master", "Worker")),
    Kind("TFJob", "tfReplicaSpecs", "tensorflow", ("Chief", "PS")),
    Kind("XGBoostJob", "xgbReplicaSpecs", "xgboost", ("Master", "Worker")),
    Kind("PaddleJob", "paddleReplicaSpecs", "paddle", ("Master", "Worker")),
    Kind("JAXJob", "jaxReplicaSpecs", "jax", ("Worker",)),
    Kind("MPIJob", "mpiReplicaSpecs", "mpi", ("Launcher", "Worker")),
)
PYTORCH = KINDS[0]
POLICIES = (None, "OnFailure", "ExitCode", "Never")
MPI = KINDS[-1]


def kinds(*chosen: Kind) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", chosen, ids=[each.name for each in chosen])


def made_of(kind: Kind, name: str, namespace: str, policy: str | None = None, **run_policy: object) -> JSON:
    """A job with one pod of each role, all with one restart policy; without one, it is the kind's default."""
    container: JSON = {"name": kind.container, "image": "registry.example/train:1"}
    replica: JSON = {"replicas": 1, "template": {"spec": {"containers": [container], **place("training")}}}
    if policy is not None:
        replica["restartPolicy"] = policy
    roles = dict.fromkeys(kind.roles, replica)
    spec = {kind.replicas: roles, "runPolicy": run_policy}
    return manifest(kind.name, name, spec, version="kubeflow.org/v1", namespace=namespace)


def life_of_kind(kind: Kind) -> Lifecycle:
    lives = known_lifecycles()[GroupKind("kubeflow.org", kind.name)]
    return next(each for each in lives if each.api_versions in ((), ("v1",)))


def retry_of(kind: Kind, policy: str | None) -> Retry:
    """What the table says about a restart policy."""
    life = life_of_kind(kind)
    written = policy or next(each.default for each in life.retries if each.default)
    return next(each for each in life.retries if written in each.values)


def member(api: Api, namespace: str, name: str, role: str, *, besides: str = "") -> JSON:
    """The bound pod of a role, another than the one with that uid."""
    labels = f"{LABEL}={name},{TYPE}={role.lower()}"
    (pod,) = new_pods(api, labels, besides={besides}, namespace=namespace)
    return pod


def running(api: Api, namespace: str, kind: Kind, name: str) -> dict[str, JSON]:
    """The pods of a job by role, once all run and the operator has seen that."""
    pods = {role: member(api, namespace, name, role) for role in kind.roles}
    for pod in pods.values():
        run(api, pod)

    def seen(job: JSON) -> bool:
        status = job.get("status", {}).get("replicaStatuses", {})
        return all(status.get(role, {}).get("active") == 1 for role in kind.roles)

    api.wait(kind.resource, name, seen, namespace=namespace, timeout=T)
    return pods


def seen_failed(role: str) -> Callable[[JSON], object]:
    return lambda it: failed(it) or it["status"]["replicaStatuses"].get(role, {}).get("failed")


@pytest.mark.parametrize(
    ("kind", "role"),
    [(kind, role) for kind in KINDS for role in kind.roles],
    ids=lambda it: getattr(it, "name", it),
)
def test_an_eviction_does_what_the_table_says(
    kind: Kind, role: str, control_plane: ControlPlane, operator: Operator, bare: str
) -> None:
    """Twice with a limit of one retry: the pod is replaced and no retry is used, or the job fails."""
    api = control_plane.api
    names = {policy: str(policy or "default").lower() for policy in POLICIES}
    for policy, name in names.items():
        api.create(made_of(kind, name, bare, policy, backoffLimit=1))
    for policy, name in names.items():
        pods = running(api, bare, kind, name)
        evicted = pods.pop(role)
        retried = retry_of(kind, policy).evictions is Evictions.FREE
        for _ in range(2 if retried else 1):
            with drain(api, evicted):
                api.wait(kind.resource, name, seen_failed(role), namespace=bare, timeout=T)
            if retried:
                evicted = member(api, bare, name, role, besides=evicted["metadata"]["uid"])
                run(api, evicted)
        job = api.get(kind.resource, name, bare)
        assert failed(job) is not retried, (kind.name, policy, job["status"]["conditions"])
        for other, pod in pods.items():
            assert member(api, bare, name, other)["metadata"]["uid"] == pod["metadata"]["uid"]


@kinds(*KINDS)
def test_with_never_a_limit_of_retries_has_no_effect(
    kind: Kind, control_plane: ControlPlane, operator: Operator, bare: str
) -> None:
    api, role = control_plane.api, kind.roles[-1]
    assert "runPolicy.backoffLimit" in retry_of(kind, "Never").useless
    api.create(made_of(kind, "once", bare, "Never", backoffLimit=5))
    pod = running(api, bare, kind, "once")[role]
    end(api, pod, {kind.container: 1})
    api.wait(kind.resource, "once", failed, namespace=bare, timeout=T)
    assert member(api, bare, "once", role)["metadata"]["uid"] == pod["metadata"]["uid"], "not replaced"


@kinds(*KINDS[:-1])
def test_with_exit_code_a_limit_of_retries_has_no_effect(
    kind: Kind, control_plane: ControlPlane, operator: Operator, bare: str
) -> None:
    """Each pod that ends with 137 is replaced, whatever the limit; one that ends with 1 fails the job."""
    api, role = control_plane.api, kind.roles[-1]
    assert "runPolicy.backoffLimit" in retry_of(kind, "ExitCode").useless
    api.create(made_of(kind, "memory", bare, "ExitCode", backoffLimit=1))
    pod = running(api, bare, kind, "memory")[role]
    for _ in range(3):
        end(api, pod, {kind.container: 137})
        pod = member(api, bare, "memory", role, besides=pod["metadata"]["uid"])
        run(api, pod)
    assert not failed(api.get(kind.resource, "memory", bare))
    end(api, pod, {kind.container: 1})
    api.wait(kind.resource, "memory", failed, namespace=bare, timeout=T)


@pytest.mark.parametrize("role", MPI.roles)
def test_an_mpi_job_of_v1_never_ends_after_a_failure_with_exit_code(
    role: str, control_plane: ControlPlane, operator: Operator, bare: str
) -> None:
    api = control_plane.api
    assert retry_of(MPI, "ExitCode").broken
    api.create(made_of(MPI, "stuck", bare, "ExitCode"))
    pods = running(api, bare, MPI, "stuck")
    end(api, pods[role], {MPI.container: 137})
    api.wait(MPI.resource, "stuck", has_condition("Restarting"), namespace=bare, timeout=T)
    (other,) = set(MPI.roles) - {role}
    restarted(api, pods[other], 1)  # the operator looks at the job again
    api.create(made_of(MPI, "later", bare))
    running(api, bare, MPI, "later")
    left = {pod["metadata"]["uid"] for pod in api.items("pods", bare, f"{LABEL}=stuck")}
    assert left == {pod["metadata"]["uid"] for pod in pods.values()}, "none is replaced, none is deleted"
    job = api.get(MPI.resource, "stuck", bare)
    assert not failed(job)
    assert not succeeded(job)


@kinds(*KINDS)
def test_only_a_limit_of_retries_ends_restarts_in_place(
    kind: Kind, control_plane: ControlPlane, operator: Operator, bare: str
) -> None:
    """And it then deletes the pods with their logs, although cleanPodPolicy keeps them."""
    api, resource = control_plane.api, kind.resource
    api.create(made_of(kind, "endless", bare, "OnFailure"))
    api.create(made_of(kind, "limited", bare, "OnFailure", backoffLimit=3, cleanPodPolicy="None"))
    endless, limited = (running(api, bare, kind, name) for name in ("endless", "limited"))
    restarted(api, limited[kind.roles[-1]], 3)
    restarted(api, endless[kind.roles[-1]], 1000)
    api.wait(resource, "limited", failed, namespace=bare, timeout=T)
    api.wait_for(
        "pods",
        lambda pods: all("deletionTimestamp" in pod["metadata"] for pod in pods),
        namespace=bare,
        labels=f"{LABEL}=limited",
        timeout=T,
    )
    end(api, endless[kind.roles[0]])
    api.wait(resource, "endless", succeeded, namespace=bare, timeout=T)
    assert not failed(api.get(resource, "endless", bare)), "1000 restarts, and it still ran"


@kinds(*(each for each in KINDS if len(each.roles) == 2))
def test_the_pods_that_still_run_stay_unless_the_policy_deletes_them(
    kind: Kind, control_plane: ControlPlane, operator: Operator, bare: str
) -> None:
    """The program of the first role has ended, and with it the job; the one of the other role never ends."""
    api, (ends, stays) = control_plane.api, kind.roles
    life = life_of_kind(kind)
    assert life.ending is not None
    api.create(made_of(kind, "default", bare))
    for policy in (str(life.ending.instead), *life.ending.deletes):
        api.create(made_of(kind, policy.lower(), bare, cleanPodPolicy=policy))
    wanted = {"default": {ends, stays}, str(life.ending.instead).lower(): {ends}}
    wanted |= {each.lower(): set() for each in life.ending.deletes}
    for name in wanted:
        end(api, running(api, bare, kind, name)[ends])
    for name, roles in wanted.items():
        api.wait(kind.resource, name, succeeded, namespace=bare, timeout=T)
        kept = {role.lower() for role in roles}
        labels = f"{LABEL}={name}"
        api.wait_for("pods", partial(are_left, kept), namespace=bare, labels=labels, timeout=T)
    assert left(api.items("pods", bare, f"{LABEL}=default")) == {ends.lower(), stays.lower()}


def are_left(roles: set[str], pods: list[JSON]) -> bool:
    return left(pods) == roles


def left(pods: list[JSON]) -> set[str]:
    """The roles of the pods that nobody deletes."""
    return {pod["metadata"]["labels"][TYPE] for pod in pods if "deletionTimestamp" not in pod["metadata"]}


def test_a_job_ends_after_all_containers_of_its_master(
    control_plane: ControlPlane, operator: Operator, bare: str
) -> None:
    """The operator has seen the exit code of the program, and waits for the container next to it."""
    api = control_plane.api
    made = made_of(PYTORCH, "joined", bare)
    template = made["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    proxy = {"name": "proxy", "image": "registry.example/proxy:1"}
    made["spec"]["pytorchReplicaSpecs"] = {
        role: {
            "replicas": 1,
            "template": {"spec": {**template, "containers": [*template["containers"], *more]}},
        }
        for role, more in (("Master", [proxy]), ("Worker", []))
    }
    api.create(made)
    master = running(api, bare, PYTORCH, "joined")["Master"]
    end(api, master, running={"proxy"})
    api.wait_for(
        "events",
        lambda found: any("exited with code 0" in each["message"] for each in found),
        namespace=bare,
        timeout=T,
    )
    assert not succeeded(api.get(PYTORCH.resource, "joined", bare))
    end(api, master)
    api.wait(PYTORCH.resource, "joined", succeeded, namespace=bare, timeout=T)


def test_suspended_and_delegated_jobs_have_no_pods(
    control_plane: ControlPlane, operator: Operator, bare: str
) -> None:
    api = control_plane.api
    api.create(made_of(PYTORCH, "delegated", bare, managedBy="kueue.x-k8s.io/multikueue"))
    api.create(made_of(PYTORCH, "suspended", bare, suspend=True))
    api.wait(PYTORCH.resource, "suspended", has_condition("Suspended"), namespace=bare, timeout=T)
    api.create(made_of(PYTORCH, "own", bare, managedBy="kubeflow.org/training-operator"))
    running(api, bare, PYTORCH, "own")
    assert {pod["metadata"]["labels"][LABEL] for pod in api.items("pods", bare)} == {"own"}
    assert not api.get(PYTORCH.resource, "delegated", bare).get("status", {}).get("conditions")


def test_a_deadline_ends_a_job_only_when_a_pod_changes(
    control_plane: ControlPlane, operator: Operator, bare: str
) -> None:
    """A job that hangs outlives it: nothing happens to its pods."""
    api = control_plane.api
    api.create(made_of(PYTORCH, "late", bare, activeDeadlineSeconds=1))
    pods = running(api, bare, PYTORCH, "late")
    time.sleep(5)  # past the deadline
    assert not failed(api.get(PYTORCH.resource, "late", bare))
    restarted(api, pods["Worker"], 1)
    api.wait(PYTORCH.resource, "late", failed, namespace=bare, timeout=T)


def test_a_finished_job_is_deleted_after_its_time_to_live(
    control_plane: ControlPlane, operator: Operator, bare: str
) -> None:
    api = control_plane.api
    api.create(made_of(PYTORCH, "short", bare, ttlSecondsAfterFinished=1))
    end(api, running(api, bare, PYTORCH, "short")["Master"])
    api.wait_for(PYTORCH.resource, lambda found: not found, namespace=bare, name="short", timeout=T)


def test_pods_arrive_with_their_job_and_get_no_probes(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    def made(namespace: str) -> list[JSON]:
        item = made_of(PYTORCH, "train", namespace)
        for replica in item["spec"]["pytorchReplicaSpecs"].values():
            (container,) = replica["template"]["spec"]["containers"]
            container["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
        control_plane.api.create(item)
        return bound_pods(control_plane.api, namespace, f"{LABEL}=train", 2)

    plain, changed = plain_and_changed(control_plane, namespace, made)
    for before, after, name in zip(plain, changed, ("train-master-0", "train-worker-0"), strict=True):
        (owner,) = after["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["controller"], after["metadata"]["name"]) == ("PyTorchJob", True, name)
        assert probes(after) == set()
        assert added(before, after) == TRAINING
        (container,) = after["spec"]["containers"]
        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
    (init,) = changed[1]["spec"]["initContainers"]
    assert "train-master-0" in " ".join(init["command"]), "it looks the master's name up"


def test_the_operator_writes_no_more_once_the_job_runs_and_then_sees_its_end(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    api = control_plane.api

    def runs(name: str) -> dict[str, JSON]:
        api.create(made_of(PYTORCH, name, namespace))
        return running(api, namespace, PYTORCH, name)

    end(api, first_of_two(api, namespace, WRITTEN, runs)["Master"])
    api.wait(PYTORCH.resource, "first", succeeded, namespace=namespace, timeout=T)


def test_what_was_shown_above_is_warned_about(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    api = control_plane.api
    limited = {"backoffLimit": 3, "cleanPodPolicy": "Running"}
    sound = api.warnings(made_of(PYTORCH, "sound", namespace, "OnFailure", **limited))
    for rule, made in {
        "retries-without-limit": made_of(PYTORCH, "endless", namespace, "OnFailure"),
        "field-misplaced": made_of(PYTORCH, "once", namespace, "Never", **limited),
        "pods-outlive-run": made_of(KINDS[1], "stays", namespace),
        "job-lost-on-eviction": made_of(KINDS[2], "lost", namespace, "OnFailure", **limited),
        "retries nothing with restartPolicy ExitCode": made_of(
            MPI, "stuck", namespace, "ExitCode", **limited
        ),
    }.items():
        assert rule in api.warnings(made), rule
        assert rule not in sound
