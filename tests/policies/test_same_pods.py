"""Law: an Argo Rollout has the pods of a Deployment, so rules about pods find the same in both.

Source: `createDesiredReplicaSet` in rollout/sync.go of Argo Rollouts, which copies the template.
"""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Rule
from policies.kube.group_kinds import DEPLOYMENT, ROLLOUT, kind_of
from tests.policies.test_rules import Case, cases_of, found
from tests.tables import table
from webhook.config.load import rules

MAY: Final = {
    "autoscaler-ends-tasks": "the autoscalers of the cases scale a Deployment",
    "autoscaler-metric-misleads": "the same",
    "autoscaler-never-scales": "the same",
    "init-waits-on-job": "it counts the Deployments and StatefulSets that wait",
    "readiness-external-dependency": "only built-in kinds are known to have no further ports",
    "readiness-waits-on-own-service": "it reports what the rule above does not",
    "volume-out-of-reach": "of several workloads, the first by kind and name reports it",
    "service-port-unknown": "variants of one Rollout in several files are not compared",
}
"""Rules that find something else, and why they may."""
ABOUT_PODS: Final = [name for name, each in rules().items() if each.kinds is None or ROLLOUT in each.kinds]


@table("rule_id", ABOUT_PODS)
def test_a_rollout_is_judged_like_a_deployment(rule_id: str) -> None:
    rule, different = rules()[rule_id], []
    for name, case in cases_of(rule):
        first, *others = case.objects
        if kind_of(first) != DEPLOYMENT:
            continue
        rollout = {**first, "apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout"}
        if _of_pods(rule, case) != _of_pods(rule, Case((rollout, *others), frozenset())):
            different.append(name)
    if rule_id in MAY:
        assert different, "a reason is no longer needed"
    else:
        assert not different


def _of_pods(rule: Rule, case: Case) -> set[str]:
    return {finding.path for finding in found(rule, case) if finding.path.startswith("spec.template.")}
