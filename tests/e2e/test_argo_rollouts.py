"""Updates by the real controller of Argo Rollouts: how many pods of both revisions they need, which the rules
about rollouts read from its source."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.api import JSON, Api, ApiError
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.operators import ROLLOUTS, Operator, fixture
from tests.e2e.status import has_condition
from tests.e2e.workloads import PROBES, container, probes, template
from tests.manifests import manifest

pytestmark = [pytest.mark.e2e, pytest.mark.operators]

KIND = "rollouts.argoproj.io"
RULE = "rollout-quota-deadlock"
POOL = {"pool": "rollouts"}
IMAGE = "registry.example/api:1"
ROUTED: JSON = {
    "stableService": "api",
    "canaryService": "canary",
    "trafficRouting": {"nginx": {"stableIngress": "api"}},
    "steps": [{"setWeight": 50}],
}

operator = fixture("rollouts", ROLLOUTS)


@pytest.fixture(scope="module", autouse=True)
def node(control_plane: ControlPlane) -> Iterator[None]:
    """One node for all pods of this module."""
    control_plane.add_node("runs-rollouts", POOL)
    yield
    control_plane.api.delete("nodes", "runs-rollouts")


def rollout(strategy: JSON, *, exempt: str = "", **spec: object) -> JSON:
    """Two replicas, of the template unless `spec` has another one."""
    pods = {"template": template("api", container(IMAGE, None), nodeSelector=POOL)}
    selector = {"matchLabels": {"app": "api"}}
    made = manifest(
        "Rollout", "api", {"replicas": 2, "selector": selector, "strategy": strategy, **(spec or pods)}
    )
    if exempt:
        made["metadata"]["annotations"] = {"mlchassis.dev/exempt": f"{exempt}=shows that the hazard is real"}
    return made


def judged(api: Api, item: JSON) -> str:
    """What the webhook answers: its refusal, or its warnings."""
    try:
        return api.warnings(item)
    except ApiError as refusal:
        return f"refused: {refusal.message}"


def settled(item: JSON) -> bool:
    """Whether the controller has seen the last change, and all pods are new and available."""
    status = item.get("status", {})
    seen = status.get("observedGeneration") == str(item["metadata"]["generation"])
    return bool(seen and status.get("phase") == "Healthy" and status.get("updatedReplicas") == 2)


def routes(api: Api) -> None:
    """The Services and the Ingress that the controller changes; nothing forwards requests here."""
    for name in ("api", "canary"):
        api.create(manifest("Service", name, {"selector": {"app": "api"}, "ports": [{"port": 80}]}))
    backend = {"service": {"name": "api", "port": {"number": 80}}}
    path = {"path": "/", "pathType": "Prefix", "backend": backend}
    rules = [{"host": "api.example", "http": {"paths": [path]}}]
    api.create(manifest("Ingress", "api", {"ingressClassName": "nginx", "rules": rules}))


def short_of_quota(items: list[JSON]) -> bool:
    """Whether a ReplicaSet may not create the pods that it should have."""
    return any(map(has_condition("ReplicaFailure", says="exceeded quota"), items))


@pytest.mark.parametrize(
    ("strategy", "most"),
    [
        ({"canary": {}}, 3),
        ({"canary": {"maxSurge": 0, "maxUnavailable": 1}}, 2),
        ({"canary": ROUTED}, 4),
        ({"canary": ROUTED | {"dynamicStableScale": True}}, 3),
        ({"blueGreen": {"activeService": "api"}}, 4),
    ],
    ids=["canary", "room first", "routed", "routed, scaled", "blue-green"],
)
def test_an_update_needs_so_many_pods(
    strategy: JSON, most: int, api: Api, chassis: Chassis, operator: Operator
) -> None:
    """With a quota of one pod less it is refused and never completes; with this quota, neither."""
    api.create(manifest("ResourceQuota", "team", {"hard": {"pods": str(most)}}))
    routes(api)
    api.wait("resourcequotas", "team", lambda it: "used" in it.get("status", {}))
    assert RULE not in judged(api, rollout(strategy))
    api.create(rollout(strategy, exempt=RULE))
    api.wait(KIND, "api", settled)
    api.patch(KIND, "api", {"spec": {"template": {"metadata": {"labels": {"version": "2"}}}}})
    api.wait(KIND, "api", settled)
    if most == 2:
        return  # a quota for one pod has no room for the pods before the update

    api.wait_for("pods", lambda pods: len(pods) == 2)
    api.patch("resourcequotas", "team", {"spec": {"hard": {"pods": str(most - 1)}}})
    chassis.process.wait_until(lambda: RULE in judged(api, rollout(strategy)))
    api.patch(KIND, "api", {"spec": {"template": {"metadata": {"labels": {"version": "3"}}}}})
    api.wait_for("replicasets", short_of_quota)
    stuck = api.get(KIND, "api")
    assert stuck["status"]["phase"] != "Healthy"
    assert stuck["status"]["stableRS"] != stuck["status"]["currentPodHash"]


def test_pods_of_a_referenced_deployment_get_probes(api: Api, chassis: Chassis, operator: Operator) -> None:
    main = container("vllm/vllm-openai:v0.11.0", None, args=["--model", "m"], ports=[{"containerPort": 8000}])
    selector = {"matchLabels": {"app": "api"}}
    pods = {"selector": selector, "template": template("api", main, nodeSelector=POOL)}
    api.create(manifest("Deployment", "api", {"replicas": 0, **pods}))
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "api"}
    api.create(rollout({"canary": {}}, workloadRef=reference))
    for pod in api.wait_for("pods", lambda found: len(found) == 2):
        assert probes(pod) == set(PROBES)
    api.wait(KIND, "api", settled)
