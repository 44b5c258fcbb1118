"""Startup budgets that follow the cluster, and the last lines of a run that failed: by the kubelet itself."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator

import pytest

from tests.e2e.api import JSON
from tests.e2e.install import NAMESPACE, POLICY
from tests.e2e.node.cluster import RealNode
from tests.e2e.node.webhook import Webhook
from tests.e2e.status import is_ready
from tests.manifests import manifest
from tests.realnode.arms import Arm, api, side_by_side
from tests.realnode.experiments.model_api import BASE

pytestmark = pytest.mark.realnode

OBSERVED = "mlchassis-observed"
REPLICAS = 6
LOADS = (25, 45)
"""Seconds that the server takes to load, first and later."""
HANGS = 100_000
KEYS = ("standard-probes.yaml", "webhook.yaml")


@pytest.fixture
def both(node: RealNode, webhook: Webhook) -> Iterator[tuple[Arm, Arm]]:
    """A namespace with learning and one without, and a policy under which the test does not take hours."""
    tag = f"learning-{uuid.uuid4().hex[:4]}"
    arms = Arm(node, f"{tag}-with", True), Arm(node, f"{tag}-without", True)
    for arm in arms:
        node.create_namespace(arm.namespace, {})
    before = node.api.get("configmaps", POLICY, NAMESPACE).get("data", {})
    off = {"namespaces": [arms[1].namespace], "settings": {"standard-probes": {"learning": "off"}}}
    webhook.write_policy(standard_probes="leastLearned: 60", webhook=json.dumps({"overrides": [off]}))
    time.sleep(3)
    yield arms
    node.api.patch("configmaps", POLICY, {"data": {key: before.get(key) for key in KEYS}}, NAMESPACE)
    for arm in arms:
        node.api.delete("namespaces", arm.namespace)


def loading(arm: Arm, seconds: int) -> list[JSON]:
    """The server loads as long as that from now on; its new pods, ready unless it hangs."""
    workload = api(replicas=REPLICAS, env={"LOAD": seconds}, annotations={}, strategy={"type": "Recreate"})
    arm.node.apply(workload, "-n", arm.namespace)

    def made() -> list[JSON]:
        return [
            item
            for item in arm.pods("api")
            if "deletionTimestamp" not in item["metadata"]
            and {"name": "LOAD", "value": str(seconds)} in item["spec"]["containers"][0]["env"]
        ]

    arm.wait("its pods made", lambda: len(made()) == REPLICAS)
    if seconds != HANGS:
        arm.wait("its pods ready", lambda: sum(map(is_ready, made())) == REPLICAS)
    return made()


def budget(pods: list[JSON]) -> int:
    """Seconds that a start of the pods may take."""
    probes = [item["spec"]["containers"][0]["startupProbe"] for item in pods]
    (found,) = {each["periodSeconds"] * each["failureThreshold"] for each in probes}
    return int(found)


def observed(arm: Arm) -> int:
    """The slowest start of the namespace's server in the record, if enough were seen; 0 before."""
    found = arm.node.api.items("configmaps", NAMESPACE)
    data: dict[str, str] = next(
        (item.get("data", {}) for item in found if item["metadata"]["name"] == OBSERVED), {}
    )
    entries = json.loads(data.get(arm.namespace, "{}")).values()
    return max((entry["basis"][0] for entry in entries if entry.get("fresh", 0) >= REPLICAS), default=0)


@pytest.mark.scheduled
def test_a_budget_follows_the_load_time(both: tuple[Arm, Arm]) -> None:
    """Loads get slower, then a start hangs: nothing that loads is restarted, and what hangs is, soon."""
    budgets: dict[str, list[int]] = {arm.namespace: [] for arm in both}
    learning, estimating = both

    def run(arm: Arm) -> int:
        for seconds in LOADS:
            pods = loading(arm, seconds)
            budgets[arm.namespace].append(budget(pods))
            if arm is learning:
                arm.wait("in the record", lambda: observed(arm) >= seconds)  # noqa: B023
        restarts = arm.restarts("api")
        budgets[arm.namespace].append(budget(loading(arm, HANGS)))
        return restarts

    assert side_by_side(run, both) == (0, 0), "no start that was slower than before was ended"
    with_, without = (budgets[arm.namespace] for arm in both)
    print(f"\nstartup budgets with learning {with_}, without {without}")
    assert len(set(without)) == 1
    assert with_[0] == without[0], "nothing was observed yet"
    assert 3 * LOADS[0] <= with_[1] < 3 * LOADS[1], "three times the slowest of the first starts"
    assert 3 * LOADS[1] <= with_[2] < without[2], "three times the slowest of the later ones"
    took = learning.wait("the hung start ended", lambda: learning.restarts("api"), 2 * with_[2])
    print(f"a start that hangs is restarted after {took:.0f} s, without learning not at all in that time")
    assert estimating.restarts("api") == 0
    assert observed(estimating) == 0


# --- models --------------------------------------------------------------------------------------------


def models(*names: str) -> JSON:
    """A model config whose models are nowhere to be had."""
    spec = {"storageUri": "http://127.0.0.1:1/model", "framework": "any", "memory": "1Mi"}
    entries = [{"modelName": name, "modelSpec": spec} for name in names]
    metadata = {"name": "models", "labels": {"mlchassis.dev/model-config": "true"}}
    data = {"models.json": json.dumps(entries)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def test_models_that_fail_are_events_on_a_pod_that_is_not_ready(
    node: RealNode, webhook: Webhook, namespace: str
) -> None:
    """The webhook's own replica asks the sidecar over the pod network, with the shipped rights."""
    arm = Arm(node, namespace, webhook=True)
    arm.create(models("bert"))
    asks = {"mlchassis.dev/model-config": "models", "mlchassis.dev/model-server": "none"}
    sleeps = ["/usr/local/bin/python3", "-c", "import time; time.sleep(3600)"]
    main = {"name": "main", "image": BASE, "command": sleeps}
    metadata = {"name": "llm", "labels": {"app": "llm"}, "annotations": asks}
    arm.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [main]}})

    took = arm.wait(
        "an Event", lambda: "1 of 1 models failed: bert: " in arm.kubectl("describe", "pod", "llm")
    )
    print(f"\n{took:.0f} s until the Event")
    assert not arm.ready("llm"), "its models are not there"
    arm.node.apply(models(), "-n", namespace)
    arm.wait_ready("llm", 1)
    arm.wait("another Event", lambda: "ModelsRecovered" in arm.kubectl("describe", "pod", "llm"))


# --- the last lines ------------------------------------------------------------------------------------

LINE = "loss is nan at step 4711"
SAYS = "print('loss is nan', 'at', 'step', 4700 + 11, flush=True); raise SystemExit(3)"
"""Python that prints LINE but does not contain it: a match comes from the log, not from the spec."""


def failing(name: str, ttl: int | None = None) -> JSON:
    """A Job that fails and writes the reason only to its log."""
    main = {
        "name": "train",
        "image": BASE,
        "command": ["/usr/local/bin/python3", "-c", SAYS],
    }
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [main], "restartPolicy": "Never"},
    }
    spec: JSON = {"backoffLimit": 0, "template": template}
    if ttl is not None:
        spec["ttlSecondsAfterFinished"] = ttl
    return manifest("Job", name, spec)


def failed(arm: Arm, name: str) -> JSON:
    """The first pod of a Job that failed."""

    def found() -> list[JSON]:
        return [item for item in arm.pods(name) if item["status"].get("phase") == "Failed"]

    arm.wait("failed", found)
    return found()[0]


def everything(arm: Arm) -> str:
    """All that the API server has of the namespace's Jobs, pods and Events."""
    return json.dumps([arm.node.api.items(kind, arm.namespace) for kind in ("jobs.batch", "pods", "events")])


def test_the_last_lines_stay_as_long_as_the_pod(node: RealNode, webhook: Webhook, namespace: str) -> None:
    arm = Arm(node, namespace, webhook=True)
    arm.create(failing("train"))
    pod = failed(arm, "train")
    (status,) = pod["status"]["containerStatuses"]
    assert LINE in status["state"]["terminated"]["message"]
    name = pod["metadata"]["name"]
    assert LINE in arm.kubectl("describe", "pod", name)

    node.api.delete("pods", name, namespace)
    arm.wait("gone", lambda: all(item["metadata"]["name"] != name for item in arm.pods("train")))
    assert LINE not in json.dumps(node.api.get("jobs.batch", "train", namespace)["status"])
    assert LINE not in json.dumps(node.api.items("events", namespace))


def test_a_short_ttl_deletes_the_lines_with_the_pod(node: RealNode, webhook: Webhook, namespace: str) -> None:
    """The webhook leaves a written TTL as it is, and only warns."""
    arm = Arm(node, namespace, webhook=True)
    arm.create(failing("train", ttl=5))
    arm.wait("deleted by its TTL", lambda: not node.api.items("jobs.batch", namespace))
    arm.wait("without pods", lambda: not arm.pods("train"))
    assert LINE not in everything(arm)


def test_without_the_webhook_only_the_log_has_the_lines(node: RealNode, bare: str) -> None:
    arm = Arm(node, bare, webhook=False)
    arm.create(failing("train"))
    name = failed(arm, "train")["metadata"]["name"]
    assert LINE in arm.kubectl("logs", name)
    assert LINE not in everything(arm)
