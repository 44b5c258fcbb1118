"""partial-group-restart: one pod of a server's group restarts, and the others can't accept it."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.kube.field_paths import Steps, field_path
from policies.kube.group_kinds import DISAGGREGATED_SET, LEADER_WORKER_SET
from policies.kube.json import integer, mapping, text
from policies.kube.pods import Role
from policies.probes.recognition import Server
from policies.probes.serving import recognised

_KEEPS_THE_REST: Final = ("None", "Default")
"""Values of `restartPolicy` that restart only the failed pod; the second is an older name of the first."""


def check(target: Target, facts: Facts) -> Findings:
    reported: set[Steps] = set()
    for template in target.templates:
        steps = template.steps[:-1]
        group = mapping(target.obj, *steps)
        partial = text(group, "restartPolicy") in _KEEPS_THE_REST and integer(group, "size", default=1) > 1
        server = _in_group(template, facts) if partial and steps not in reported else None
        if server is None:
            continue
        reported.add(steps)
        yield Finding(
            f"{field_path(steps)}.restartPolicy",
            f"With restartPolicy {text(group, 'restartPolicy')} only the failed pod of a group restarts. "
            f"Running ranks of {server.name} can't take a restarted one in: the group serves nothing until "
            "all restart.",
            "Leave restartPolicy out: the default, RecreateGroupOnPodRestart, restarts the group as one.",
        )


def _in_group(template: PodTemplate, facts: Facts) -> Server | None:
    """A server whose processes are in several pods of the group."""
    for container in template.containers(Role.MAIN):
        server = recognised(container, facts)
        fixed = server.preset.fixed_group if server else None
        if server is None or fixed is None or server.has_option(*fixed.unless_flags):
            continue
        if server.spans_pods and not server.may_have_option(*fixed.unless_flags):
            return server
    return None


RULE = rule(__name__, check, (LEADER_WORKER_SET, DISAGGREGATED_SET))
