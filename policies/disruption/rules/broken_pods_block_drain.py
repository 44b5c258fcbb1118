"""broken-pods-block-drain: a budget that keeps pods on their node although they have never become ready."""

from __future__ import annotations

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.services import workloads_of
from policies.disruption.rules.drain_blocked_by_pdb import check as blocked
from policies.disruption.single_state import starts_slowly
from policies.kube.group_kinds import DEPLOYMENT, DISRUPTION_BUDGET, ROLLOUT
from policies.kube.json import mapping
from policies.kube.objects.scaling import PodDisruptionBudget

_ALWAYS = "AlwaysAllow"


def check(target: Target, facts: Facts) -> Findings:
    budget = target.read(PodDisruptionBudget)
    selector = budget.spec.selector
    if selector is None or budget.spec.unhealthy_pod_eviction_policy == _ALWAYS:
        return
    if any(blocked(target, facts)):
        return  # drain-blocked-by-pdb: it evicts no pod at all
    for obj, workload in workloads_of(selector, facts):
        if workload.kind not in (DEPLOYMENT.kind, ROLLOUT.kind):
            continue  # a store's pod that recovers its data must not be evicted
        if starts_slowly(facts.view(mapping(obj, "spec", "template")), facts):
            yield Finding(
                "spec.unhealthyPodEvictionPolicy",
                f"If too few pods of {workload.kind} {workload.name} are ready, even pods that crash or "
                "never start can't be evicted. A drain of their nodes blocks until somebody deletes them.",
                f"Set unhealthyPodEvictionPolicy to {_ALWAYS}. Pods that aren't ready serve nobody.",
            )
            return


RULE = rule(__name__, check, (DISRUPTION_BUDGET,))
