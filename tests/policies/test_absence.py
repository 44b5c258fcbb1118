"""Law: at admission, no rule takes the absence of an object as a fact that the next object may end.

`kubectl apply` sends a Deployment before the PodDisruptionBudget of the same file, and a dry run stores
neither.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import pytest

from policies.core.contracts import Rule
from policies.core.facts import NO_OBJECTS, Cluster
from policies.core.finding import Finding
from policies.core.listing import Listing
from policies.core.resources import Resource
from policies.core.target import pod_templates
from tests.policies.test_rules import FILES, Case, findings
from webhook.admission.projection import project
from webhook.admission.review import Context
from webhook.config.load import load, rules
from webhook.manifests import files

TOGETHER: Final = {
    Resource.SERVICES,
    Resource.CLAIMS,
    Resource.BUDGETS,
    Resource.AUTOSCALERS,
    Resource.WORKLOADS,
    Resource.GROUPS,
    Resource.MODEL_CONFIGS,
    Resource.CLAIM_TEMPLATES,
}
"""What people apply together with a workload."""
MAY = {
    "init-wait-unbounded": "a wait without a limit is a hazard in any case, and it says `yet`",
    "drain-blocked-by-pdb": "1 is the default of replicas until an autoscaler changes it",
    "service-port-unknown": "the pods that exist lack the port, whatever another workload has",
    "quota-exceeded": "the status of the quota says what others use",
}
"""Rules that may, and why."""
CONFIG = load({})


class Caches:
    """The cluster as the webhook's caches know it, in part empty or not read."""

    def __init__(self, known: Cluster, changed: Collection[Resource], instead: Listing | None) -> None:
        self._known, self._changed, self._instead = known, changed, instead

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        return self._instead if resource in self._changed else self._known.listing(resource, namespace)


def judged(rule: Rule, case: Case, instead: Listing | None) -> set[Finding]:
    obj = case.objects[0]
    cluster = Caches(files.ManifestCluster(case.objects, whole=True), TOGETHER, instead)
    namespace = files.Document("case", 0, obj).request().namespace
    context = Context.of(obj, namespace, CONFIG, cluster)
    projection = project(obj, pod_templates(obj, CONFIG.workloads), context)
    return set(findings(rule, projection.target, context.facts))


@pytest.mark.parametrize("rule", rules().values(), ids=lambda rule: rule.id)
def test_what_is_not_there_yet_is_no_fact(rule: Rule) -> None:
    by_absence = [
        (path.name, finding)
        for path in FILES
        if path.parent.name == rule.id
        for case in [Case.read(path)]
        for finding in judged(rule, case, NO_OBJECTS) - judged(rule, case, None)
    ]
    if rule.id not in MAY:
        assert not by_absence


def test_the_law_notices_a_rule_that_breaks_it() -> None:
    path = next(
        path for path in FILES if path.match("init-wait-unbounded/bad-service-that-does-not-exist.yaml")
    )
    rule, case = rules()["init-wait-unbounded"], Case.read(path)
    assert judged(rule, case, NO_OBJECTS) - judged(rule, case, None)
