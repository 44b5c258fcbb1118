"""Law: an Argo Rollout has the pods of a Deployment, so rules about pods find the same in both.

Source: `createDesiredReplicaSet` in rollout/sync.go of Argo Rollouts, which copies the template.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Final

from policies.core.contracts import Rule
from policies.kube.group_kinds import ROLLOUT, kind_of
from tests.incidents.forms import as_rollouts
from tests.policies.test_rules import Case, cases_of, found
from tests.tables import table
from webhook.config.load import rules

MAY: Final = {
    "readiness-external-dependency": "only built-in kinds are known to have no further ports",
}
"""Rules that find something else, and why they may."""
ABOUT_PODS: Final = [name for name, each in rules().items() if each.kinds is None or ROLLOUT in each.kinds]


@table("rule_id", ABOUT_PODS)
def test_a_rollout_is_judged_like_a_deployment(rule_id: str) -> None:
    rule, different = rules()[rule_id], []
    for name, case in cases_of(rule):
        rollouts = deepcopy(list(case.objects))
        as_rollouts(rollouts)
        is_one = kind_of(rollouts[0]) == ROLLOUT != kind_of(case.objects[0])
        if is_one and _of_pods(rule, case) != _of_pods(rule, Case(tuple(rollouts), frozenset())):
            different.append(name)
    if rule_id in MAY:
        assert different, "a reason is no longer needed"
    else:
        assert not different


def _of_pods(rule: Rule, case: Case) -> set[str]:
    return {finding.path for finding in found(rule, case) if finding.path.startswith("spec.template.")}
