"""The table of lives: its entries are about known kinds, and what they say is found in objects."""

import re
from pathlib import Path

import pytest

from policies.core.data import parsed
from policies.core.lifecycles import Evictions, Lifecycle, Unit, known_lifecycles
from policies.core.pod_templates import pod_templates
from policies.core.pydantic_models import validated
from policies.core.runs import Run, runs_in
from policies.core.settings import Invalid
from policies.core.workloads import workloads_by_kind
from policies.kube.json import Json

TABLE = workloads_by_kind()
LIVES = [life for each in known_lifecycles().values() for life in each]


def run(text: str) -> Run:
    return next(runs_in(parsed(text)))


PYTORCH = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: bert}
spec:
  pytorchReplicaSpecs:
    Master: {template: {spec: {containers: [{name: pytorch, image: a}]}}}
    Worker: {replicas: 3, restartPolicy: Never, template: {spec: {containers: [{name: pytorch, image: a}]}}}
"""


def test_every_kind_has_pods_and_is_named_once_for_each_version() -> None:
    assert {life.group_kind for life in LIVES} <= TABLE.keys()
    for kind, entries in known_lifecycles().items():
        versions = [version for life in entries for version in life.api_versions]
        assert len(versions) == len(set(versions)), kind
        assert len(entries) == 1 or all(life.api_versions for life in entries), kind


def test_the_roles_of_a_kind_are_where_its_templates_are() -> None:
    for life in LIVES:
        workload = TABLE[life.group_kind]
        paths = [*workload.templates, *workload.specs, *(each.at for each in workload.composed)]
        for role in life.roles:
            at = f"spec.{role.at}" if role.at else "spec"
            assert any(_leads_to(at, path) for path in paths), f"{life.group_kind}: {role.name}"


def _leads_to(at: str, path: str) -> bool:
    """Whether a template at a path is below the map of a role."""
    pattern = re.escape(path).replace(r"\*", r"[^.\[]+").replace(r"\[[^.\[]+\]", r"\[\*\]")
    pieces = pattern.split(r"\.")
    return any(re.fullmatch(r"\.".join(pieces[:end]), at) for end in range(1, len(pieces) + 1))


def test_an_experiment_names_the_kind_that_it_tries() -> None:
    tried = [life for life in LIVES if life.tried is not None]
    assert tried
    for life in tried:
        assert life.tried is not None
        assert life.kind in Path(life.tried.by).read_text(), (
            f"{life.tried.by} says nothing of {life.group_kind}"
        )


def test_roles_count_their_pods() -> None:
    found = {each.name: each.pods for each in run(PYTORCH).roles()}
    assert found == {"Master": 1, "Worker": 3}
    job_set = run("""
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
spec:
  replicatedJobs:
    - {name: leader, template: {spec: {}}}
    - {name: workers, replicas: 2, template: {spec: {parallelism: 4}}}
""")
    assert {each.name: each.pods for each in job_set.roles()} == {"leader": 1, "workers": 8}
    ray = run("""
apiVersion: ray.io/v1
kind: RayCluster
spec:
  headGroupSpec: {template: {}}
  workerGroupSpecs:
    - {groupName: least, replicas: 1, minReplicas: 3, template: {}}
    - {groupName: hosts, replicas: 2, numOfHosts: 4, template: {}}
    - {groupName: none, template: {}}
""")
    assert [each.pods for each in ray.roles()] == [1, 3, 8, 0]


def test_a_template_has_the_role_that_makes_its_pods() -> None:
    obj = parsed(PYTORCH)
    roles = [run(PYTORCH).role_of(each) for each in pod_templates(obj, TABLE)]
    assert [each.name for each in roles if each is not None] == ["Master", "Worker"]


def test_a_retry_applies_by_its_setting_or_the_default() -> None:
    found = [(each.retry.unit, each.steps[-2], each.value, each.limit) for each in run(PYTORCH).retries()]
    assert found == [
        (Unit.CONTAINER, "Master", "OnFailure", None),
        (Unit.POD, "Worker", "Never", None),
    ]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("{}", (Evictions.FATAL, None)),
        ("{limit: 3}", (Evictions.FATAL, 3)),
        ("{limit: '3', retryPolicy: Always}", (Evictions.COUNTED, 3)),
        ("{limit: 3, expression: 'true'}", None),
        ("{limit: '{{inputs.parameters.n}}'}", (Evictions.FATAL, None)),
    ],
)
def test_the_retries_of_an_argo_template(strategy: str, expected: object) -> None:
    workflow = run(f"""
apiVersion: argoproj.io/v1alpha1
kind: CronWorkflow
spec: {{workflowSpec: {{templates: [{{name: a, retryStrategy: {strategy}}}]}}}}
""")
    assert workflow.life.kind == "CronWorkflow"
    obj: Json = {"apiVersion": "argoproj.io/v1alpha1", "kind": "CronWorkflow", "spec": workflow.spec}
    inner = list(runs_in(obj))[1]
    found = [(each.retry.evictions, each.limit) for each in inner.retries()]
    assert found == ([] if expected is None else [expected])


def test_the_job_of_a_trial_has_its_own_life() -> None:
    found = list(
        runs_in(
            parsed("""
apiVersion: kubeflow.org/v1beta1
kind: Experiment
spec: {trialTemplate: {trialSpec: {apiVersion: kubeflow.org/v2beta1, kind: MPIJob, spec: {}}}}
""")
        )
    )
    assert [(each.life.kind, each.life.api_versions) for each in found] == [
        ("Experiment", ()),
        ("MPIJob", ("v2beta1",)),
    ]
    assert found[1].at("runPolicy.cleanPodPolicy") == (
        "spec.trialTemplate.trialSpec.spec.runPolicy.cleanPodPolicy"
    )


def test_a_mistake_in_the_table_is_named() -> None:
    life = {"apiGroup": "a", "kind": "B", "versions": ["1"], "source": "c"}
    with pytest.raises(Invalid, match="names Driver, which is no role of B"):
        validated(Lifecycle, {**life, "roles": [{"name": "Executor", "at": "b", "waitsFor": "Driver"}]})
    with pytest.raises(Invalid, match="limitDefault needs limit"):
        validated(Lifecycle, {**life, "retries": [{"unit": "pod", "evictions": "free", "limitDefault": 3}]})
    with pytest.raises(Invalid, match="need fields"):
        validated(
            Lifecycle, {**life, "retries": [{"unit": "pod", "evictions": "free", "values": ["Always"]}]}
        )


MULTIKUEUE = "kueue.x-k8s.io/multikueue"


@pytest.mark.parametrize(
    ("obj", "suspended", "delegated"),
    [
        ("{apiVersion: batch/v1, kind: Job, spec: {suspend: true}}", True, False),
        ("{apiVersion: batch/v1, kind: Job, spec: {managedBy: kubernetes.io/job-controller}}", False, False),
        (f"{{apiVersion: batch/v1, kind: Job, spec: {{managedBy: {MULTIKUEUE}}}}}", False, True),
        (
            "{apiVersion: trainer.kubeflow.org/v1alpha1, kind: TrainJob, "
            "spec: {managedBy: trainer.kubeflow.org/trainjob-controller, suspend: false}}",
            False,
            False,
        ),
        (
            f"{{apiVersion: kubeflow.org/v1, kind: PyTorchJob, spec: {{runPolicy: {{managedBy: {MULTIKUEUE}, "
            "suspend: true}}}",
            True,
            True,
        ),
        (
            "{apiVersion: ray.io/v1, kind: RayCluster, spec: {managedBy: ray.io/kuberay-operator}}",
            False,
            False,
        ),
        (f"{{apiVersion: kubeflow.org/v1, kind: TFJob, spec: {{managedBy: {MULTIKUEUE}}}}}", False, False),
    ],
)
def test_who_creates_the_pods_and_when(obj: str, suspended: bool, delegated: bool) -> None:
    """`managedBy` counts only where the kind has it."""
    found = run(obj)
    assert (found.is_suspended, found.is_delegated) == (suspended, delegated)
