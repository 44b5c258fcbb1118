"""A mutation never turns a pod that the API server takes into one that it refuses.

The API server itself is asked, by dry runs in a namespace outside of the webhook's scope; the engine
decides as the webhook would, about the object as the server's defaulting leaves it. Then it decides
again about what the server made of the result, as in a reinvocation: no further change may follow.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import jsonpatch
import pytest

from policies.core import registry
from policies.core.facts import Cluster
from policies.core.pod_templates import pod_templates
from policies.kube.group_kinds import kind_of
from tests.e2e import strange, workloads
from tests.e2e.api import JSON, Api, ApiError
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import REPOSITORY
from tests.manifests import manifest
from tests.policies.test_golden import CASES, case_id, documents
from tests.policies.test_laws import MENDED, lost
from webhook.admission import engine
from webhook.admission.configuration import Config
from webhook.admission.envelope import Request
from webhook.admission.json_patch import same
from webhook.admission.review import Review
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster

pytestmark = pytest.mark.e2e

UNSEEN = "kube-public"
UID = "00000000-0000-0000-0000-000000000000"
SERVERS_OWN = ("uid", "creationTimestamp", "generation", "managedFields", "resourceVersion")
RAISED = {*MENDED, ("successfulJobsHistoryLimit",), ("terminationGracePeriodSeconds",)}
MUTATED = {kind for policy in registry.mutators().values() if policy.mutate for kind in policy.kinds}
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.yaml"))
SEED = 1903


class DryRun:
    """Asks the API server for the object that it would store, without the fields of stored objects."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.dropped: set[str] = set()
        """Warnings of fields that this release does not know."""

    def __call__(self, obj: JSON) -> JSON:
        """Raises ApiError where the object is refused, LookupError where its kind is not served."""
        sent = deepcopy(obj)
        sent["metadata"]["namespace"] = UNSEEN
        for reference in sent["metadata"].get("ownerReferences", ()):
            reference["uid"] = UID
        answer = self._api.create(sent, UNSEEN, dry_run=True)
        self.dropped.update(it for it in answer.warnings if "unknown field" in it)
        return as_sent(answer.body, obj)


@pytest.fixture
def dry_run(control_plane: ControlPlane) -> DryRun:
    control_plane.api.wait("serviceaccounts", "default", namespace=UNSEEN)
    return DryRun(control_plane.api)


def as_sent(stored: JSON, obj: JSON) -> JSON:
    """What the API server made of an object, as a webhook sees it before it is stored."""
    metadata = {key: value for key, value in stored["metadata"].items() if key not in SERVERS_OWN}
    metadata.pop("namespace")
    if "namespace" in obj["metadata"]:
        metadata["namespace"] = obj["metadata"]["namespace"]
    made = {**stored, "metadata": metadata}
    made.pop("status", None)
    if stored["kind"] == "Job":  # the labels and the selector of its pods come after admission
        template = {**stored["spec"]["template"], "metadata": obj["spec"]["template"].get("metadata", {})}
        made["spec"] = {**stored["spec"], "template": template}
        made["spec"].pop("selector", None)
    return made


def without_puller(obj: JSON) -> JSON:
    """The object without a pod's puller: it is the webhook's, which mends what other webhooks did to it."""
    if obj["kind"] != "Pod" or "initContainers" not in obj["spec"]:
        return obj
    own = ["chassis-puller"]
    others = [each for each in obj["spec"]["initContainers"] if each.get("command") != own]
    return {**obj, "spec": {**obj["spec"], "initContainers": others}}


def mutated(obj: JSON, config: Config, cluster: Cluster) -> JSON:
    """The object with the engine's patch applied to it."""
    namespace = obj["metadata"].get("namespace", "default")
    request = Request("uid", kind_of(obj), "CREATE", namespace=namespace, object=obj)
    decision = engine.mutate(Review(request, config, cluster))
    assert not decision.crashes, decision.crashes
    patched: JSON = jsonpatch.apply_patch(obj, list(decision.patch))
    assert same(patched, decision.object)
    return patched


def harm(obj: JSON, dry_run: DryRun, config: Config, cluster: Cluster) -> str | None:
    """The faults of the mutations of an object that the API server accepts; empty if there are none, None if
    it doesn't accept the object in the first place."""
    try:
        sent = dry_run(obj)
    except ApiError:
        return None
    after = mutated(sent, config, cluster)
    dropped = [place for place in lost(without_puller(sent), after) if place[-1:] not in RAISED]
    if dropped:
        return f"overwritten or dropped: {dropped}"
    try:
        stored = dry_run(after)
    except ApiError as error:
        return f"refused: {error.message}"
    again = mutated(stored, config, cluster)
    return "" if same(again, stored) else f"a second pass changes {lost(again, stored)}"


# --- the golden cases and the examples -------------------------------------------------------------


@pytest.mark.parametrize("policy", sorted(id for id, it in registry.mutators().items() if it.mutate))
def test_golden_cases(dry_run: DryRun, policy: str) -> None:
    checked, bad = 0, {}
    for case in (case for case in CASES if case.parent.name == policy):
        settings = case / "settings.yaml"
        config = load({f"{policy}.yaml": settings.read_text()} if settings.exists() else {})
        fault = golden_harm(case, dry_run, config, ManifestCluster(documents(case / "facts.yaml")))
        checked += fault is not None
        if fault:
            bad[case_id(case)] = fault
    assert bad == {}
    assert checked > 20


def golden_harm(case: Path, dry_run: DryRun, config: Config, cluster: Cluster) -> str | None:
    """The faults of a case: with only its own policy, or with all policies together."""
    [given], [expected] = documents(case / "input.yaml"), documents(case / "expected.yaml")
    try:
        fault = harm(given, dry_run, config, cluster)
        if fault == "":
            dry_run(expected)
    except LookupError:
        return None  # a kind that comes with a CRD
    except ApiError as error:
        return f"what is expected is refused: {error.message}"
    return fault


def test_the_examples_and_the_pods_that_they_make(dry_run: DryRun) -> None:
    config, checked, bad = load({}), 0, {}
    for path in EXAMPLES:
        objects = documents(path)
        cluster = ManifestCluster(objects)
        made = (each for obj in objects for each in (obj, *pods_of(obj, config)))
        for obj in (each for each in made if kind_of(each) in MUTATED):
            fault = harm(obj, dry_run, config, cluster)
            assert fault is not None, f"{path.name}: the {obj['kind']} is not valid to begin with"
            checked += obj["kind"] == "Pod"
            if fault:
                bad[f"{path.name} {obj['kind']}"] = fault
    assert bad == {}
    assert checked >= len(EXAMPLES) - 2, "a broken ConfigMap and a budget make no pods"


def pods_of(obj: JSON, config: Config) -> Iterator[JSON]:
    """The pods of a workload, with a name and the claims that their controller adds."""
    for template in pod_templates(obj, config.workloads):
        if template.workload is None:
            continue
        pod = deepcopy(template.pod)
        pod["metadata"]["name"] = "example"
        pod["spec"].pop("serviceAccountName", None)  # it does not exist here
        for claim in obj["spec"].get("volumeClaimTemplates", ()):
            name = claim["metadata"]["name"]
            volume = {"name": name, "persistentVolumeClaim": {"claimName": name}}
            pod["spec"].setdefault("volumes", []).append(volume)
        yield pod


# --- quotas and ranges ------------------------------------------------------------------------------


def test_a_sidecar_fits_into_a_quota(api: Api) -> None:
    """A quota refuses a pod in which one container does not state what the quota counts."""
    counted = {f"{kind}.{name}": "9" for kind in ("requests", "limits") for name in ("cpu", "memory")}
    counted |= {"requests.ephemeral-storage": "1Ti", "limits.ephemeral-storage": "1Ti"}
    counted |= {"requests.memory": "9Gi", "limits.memory": "9Gi"}
    quota: JSON = manifest("ResourceQuota", "all", {"hard": counted})
    api.create(quota)
    api.wait("resourcequotas", "all", lambda it: bool(it.get("status")))
    stated = {"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "1Gi"}
    pod = workloads.pod("counted", workloads.container(resources={"limits": stated}))
    pod["metadata"]["annotations"] = {"mlchassis.dev/model-config": "models"}
    wait_until_in_force(api)
    api.create(pod, dry_run=True)
    api.create(mutated(pod, load({}), CLUSTER), dry_run=True)


def wait_until_in_force(api: Api) -> None:
    """The quota's admission reads quotas from its own watch, a moment after they are written."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            api.create(workloads.pod("unstated"), dry_run=True)
        except ApiError as error:
            if "must specify" in error.message:
                return
            raise
    pytest.fail("the quota never counts")


# --- by chance -------------------------------------------------------------------------------------


def node(name: str, labels: JSON, taints: list[JSON], allocatable: JSON) -> JSON:
    made = manifest("Node", name, {"taints": taints}, labels={"kubernetes.io/hostname": name, **labels})
    return made | {"status": {"allocatable": allocatable}}


A100 = {
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.product": "A100-SXM4-40GB",
    "nvidia.com/gpu.memory": "40960",
}
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
MODELS: JSON = manifest(
    "ConfigMap",
    "models",
    data={"a.json": '{"storageUri": "pvc://disk/a", "framework": "onnx", "memory": "40Gi"}'},
    namespace="default",
    labels={"mlchassis.dev/model-config": "true"},
)
CLUSTER = ManifestCluster(
    [
        node("gpu-0", {**A100, "topology.kubernetes.io/zone": "a"}, [GPU_TAINT], {"nvidia.com/gpu": "8"}),
        node("gpu-1", {"cloud.google.com/gke-accelerator": "nvidia-h100"}, [], {"nvidia.com/gpu": "8"}),
        node("amd-0", {}, [], {"amd.com/gpu": "8"}),
        node("cpu-0", {}, [], {"cpu": "8"}),
        MODELS,
    ]
)
STRONG = {
    "standard-probes.yaml": "{unknown: tcp, defaultStart: 7d, startupFactor: 20, timeout: 1h}",
    "gpu-affinity.yaml": "{cpuPods: required, topology: required}",
    "disruption-guard.yaml": "{addDeadline: true, preStopSleep: 40, trainingLabels: [app]}",
    "job-retries.yaml": "{raises: all, retryableExitCodes: [1, 255]}",
    "model-puller.yaml": "{sidecar: container, readyWhen: all}",
}


@pytest.mark.parametrize("settings", [{}, STRONG], ids=["defaults", "strong"])
def test_strange_objects(dry_run: DryRun, settings: dict[str, str]) -> None:
    config, taken, bad = load(settings), set[str](), {}
    for number, made in enumerate((*strange.pods(150, SEED + len(settings)), *strange.jobs(50, SEED))):
        fault = harm(made.obj, dry_run, config, CLUSTER)
        if fault is not None:
            taken |= made.features
        if fault:
            bad[number] = f"{fault}\n{sorted(made.features)}"
    assert not bad, "\n\n".join(f"{number}: {fault}" for number, fault in bad.items())
    assert not dry_run.dropped, "fragments that this release does not know test nothing"
    assert features() <= taken, f"never valid, and so never tried: {sorted(features() - taken)}"


def features() -> set[str]:
    """The names of all fragments."""
    tables = {"spec": strange.SPEC, "container": strange.CONTAINER, "init": strange.INIT, "job": strange.JOB}
    names = {f"{of}: {name}" for of, table in tables.items() for name in table}
    return names | {f"annotation: {key}" for key in strange.ANNOTATIONS}
