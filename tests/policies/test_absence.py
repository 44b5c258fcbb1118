"""Laws about what the webhook does not know.

- No rule takes the absence of an object as a fact that the next object may end: `kubectl apply` sends a
  Deployment before the PodDisruptionBudget of the same file, and a dry run stores neither.
- No rule is certain of something only because it could not read a resource: operators take rights away
  (docs/security.md), and after a start the caches fill one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from policies.core.contracts import Rule
from policies.core.facts import Cluster
from policies.core.finding import Certainty, Finding
from policies.core.listing import NO_OBJECTS, Listing
from policies.core.resources import Resource
from tests.policies.test_rules import Case, cases_of, findings
from tests.tables import table
from webhook.config.load import rules

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


IN_ANY_CASE = {
    ("quota-exceeded", Resource.LIMIT_RANGES): "the quota refuses the pods, too",
}
"""Rules that are silent if a fact makes another rule report the same, and why they are right without it."""


class Caches:
    """The cluster as the webhook's caches know it, with other listings for some resources."""

    def __init__(self, known: Cluster, instead: Mapping[Resource, Listing | None]) -> None:
        self._known, self._instead = known, instead
        self.read: set[Resource] = set()

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        self.read.add(resource)
        return (
            self._instead[resource] if resource in self._instead else self._known.listing(resource, namespace)
        )


def judged(rule: Rule, case: Case, cluster: Cluster) -> set[Finding]:
    return set(findings(rule, *case.situation(cluster)))


def places(rule: Rule, case: Case, cluster: Cluster) -> set[str]:
    return {finding.path for finding in judged(rule, case, cluster)}


@table("rule_id", rules())
def test_what_is_not_there_yet_is_no_fact(rule_id: str) -> None:
    rule = rules()[rule_id]
    empty, unknown = dict.fromkeys(TOGETHER, NO_OBJECTS), dict.fromkeys(TOGETHER)
    by_absence = [
        (name, found - places(rule, case, Caches(known, unknown)))
        for name, case in cases_of(rule)
        for known in [case.cluster()]
        if (found := places(rule, case, Caches(known, empty)))
    ]
    if rule.id not in MAY:
        assert [each for each in by_absence if each[1]] == []


@table("rule_id", rules())
def test_what_is_not_known_makes_nothing_certain(rule_id: str) -> None:
    rule = rules()[rule_id]
    by_ignorance = []
    for name, case in cases_of(rule):
        known = case.cluster()
        everything = Caches(known, {})
        found = places(rule, case, everything)
        for resource in everything.read:
            if (rule_id, resource) in IN_ANY_CASE:
                continue
            by_ignorance += [
                (name, resource, finding)
                for finding in judged(rule, case, Caches(known, {resource: None}))
                if finding.certainty is Certainty.CERTAIN and finding.path not in found
            ]
    assert not by_ignorance


def test_the_laws_notice_a_rule_that_breaks_them() -> None:
    rule = rules()["init-wait-unbounded"]
    case = dict(cases_of(rule))["bad-service-that-does-not-exist.yaml"]
    empty, unknown = (Caches(case.cluster(), {Resource.SERVICES: value}) for value in (NO_OBJECTS, None))
    assert judged(rule, case, empty) - judged(rule, case, unknown)
