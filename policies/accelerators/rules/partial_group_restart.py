"""partial-group-restart: one pod of a group restarts, and the others can't accept it."""

from __future__ import annotations

from typing import Final

from policies.accelerators.requests import wants_accelerator
from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.lifecycles import Evictions, Unit, known_lifecycles
from policies.core.runs import Run, runs_in
from policies.kube.field_paths import Steps, field_path
from policies.kube.group_kinds import DISAGGREGATED_SET, LEADER_WORKER_SET
from policies.kube.json import integer, mapping, text
from policies.kube.pods import Role
from policies.probes.recognition import Server
from policies.probes.serving import recognised

_KEEPS_THE_REST: Final = ("None", "Default")
"""Values of `restartPolicy` that restart only the failed pod; the second is an older name of the first."""
_SERVERS: Final = (LEADER_WORKER_SET, DISAGGREGATED_SET)
_ALONE: Final = (Unit.CONTAINER, Unit.POD)


def check(target: Target, facts: Facts) -> Findings:
    if target.kind in _SERVERS:
        yield from _servers(target, facts)
    for run in runs_in(target.obj):
        if run.life.collective and not run.is_elastic:
            yield from _ranks(target, run, facts)


def _ranks(target: Target, run: Run, facts: Facts) -> Findings:
    """Training in one group on accelerators, whose failed ranks restart alone."""
    alone = [
        each
        for each in run.retries()
        if each.retry.unit in _ALONE and each.limit != 0 and each.retry.evictions is not Evictions.FATAL
    ]
    templates = [each for each in target.templates if run.role_of(each) is not None]
    if (
        alone
        and sum(each.pods for each in run.roles()) > 1
        and any(wants_accelerator(each.view, facts) for each in templates)
        and not any(_gathers_again(each) for each in templates)
    ):
        yield Finding(
            field_path(alone[0].steps),
            f"With restartPolicy {alone[0].value}, a rank that fails restarts without the others, and they "
            "can't take it back. They wait in a collective operation until its timeout (10 min by "
            "default), and then restart at different times.",
            f"Set {run.at(run.life.elastic[0])}. After a failure, torchrun then gathers all ranks again.",
        )


def _gathers_again(template: PodTemplate) -> bool:
    """Whether a container's command line names its own rendezvous, as `torchrun --rdzv-backend=c10d` does."""
    return any("rdzv" in word for each in template.containers(Role.MAIN) for word in each.typed.argv)


def _servers(target: Target, facts: Facts) -> Findings:
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
            f"With restartPolicy {text(group, 'restartPolicy')}, only the failed pod of a group restarts. "
            f"Running ranks of {server.name} can't accept a restarted one, so the group serves nothing "
            "until all of them restart.",
            "Omit restartPolicy. The default, RecreateGroupOnPodRestart, restarts the whole group.",
        )


def _in_group(template: PodTemplate, facts: Facts) -> Server | None:
    """A server whose processes are in several pods of the group."""
    for container in template.containers(Role.MAIN):
        server = recognised(container, facts)
        fixed = server.preset.fixed_group if server else None
        if server is None or fixed is None or server.has_option(*fixed.unless_flags):
            continue
        if server.may_have_option(*fixed.unless_flags):
            continue
        joined = server.has_option(*fixed.flags) and not (
            server.has_option(*fixed.apart_flags) or server.may_have_option(*fixed.apart_flags)
        )
        if server.spans_pods or joined:
            return server
    return None


_MAY_MAKE = tuple(
    kind
    for kind, lives in known_lifecycles().items()
    if any(life.collective or any(not each.kind for each in life.embeds) for life in lives)
)
"""Kinds of groups, and those that make objects of any kind, such as an AppWrapper."""

RULE = rule(__name__, check, (*_SERVERS, *_MAY_MAKE))
