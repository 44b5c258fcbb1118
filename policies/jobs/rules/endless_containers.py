"""job-server-blocks-completion, job-sidecar-blocks-completion: Jobs with a container that never ends."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from policies.commands import SHELLS, is_python, runs_forever
from policies.containers.commands import command_without_pod
from policies.containers.programs import Program, started
from policies.containers.sidecars import never_ending
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.core.lifecycles import known_lifecycles
from policies.core.runs import role_of, succeeds_without
from policies.core.settings import Thresholds
from policies.kube.group_kinds import JOB
from policies.kube.pods import Container, Role
from policies.probes.serving import recognised

_TASK: Final = "task of Airflow"
"""A pod of KubernetesPodOperator, which waits for its end unless the pod has Istio's proxy:
`await_pod_completion` in airflow/providers/cncf/kubernetes/utils/pod_manager.py."""
_LOOP: Final = "a loop without an end"
_UNSURE: Final = frozenset({_LOOP, _TASK})
"""A program that a part of the script may end, and a kind that may not wait."""
_STOPS: Final = re.compile(
    r"quitquitquit|/(?:quit|shutdown|stop)\b|\bp?kill(?:all)?\b|linkerd-await|\bscuttle\b|\btimeout\b"
)
"""Arguments of containers that stop a sidecar."""
_KILLS: Final = re.compile(r"\bp?kill(?:all)?\b")
_ENDS: Final = re.compile(
    # --quitquitquit enables an endpoint that stops the proxy.
    r"exit[-_]after[-_]auth|quitquitquit|--exit-zero-on-sigterm|\bexit\b|\bp?kill\b|\btimeout\b"
)
_ENDS_LOOP: Final = re.compile(
    r"\bkillall\b|\bset -\w*[eu]|sh -\w*[eu]|\berrexit\b|\bnounset\b|\$\{\w+:?\?|\bexec\b|(?<!\|)\|(?!\|)"
)
"""`set -e` and `-u`, `${X:?}`, another program in place of the shell, or a pipe whose reader ends."""


def _waiting(target: Target, template: PodTemplate) -> str:
    """The kind that completes only after all main containers of the pod have ended; empty if none does."""
    owner = template.view.owner
    if owner is None:
        is_task = template.typed.metadata.labels.get("kubernetes_pod_operator") == "True"
        meshed = any(each.name == "istio-proxy" for each in template.containers())
        return _TASK if is_task and not meshed else ""
    if succeeds_without(target, template):
        return ""
    if owner.kind == JOB.kind:
        return owner.kind
    if not any(life.every_container for life in known_lifecycles().get(owner.group_kind, ())):
        return ""
    role = role_of(target.obj, template)
    return "" if role is not None and role.role.endless else owner.kind


def _findings(
    target: Target, program: Callable[[Container], str | None], why: Callable[[str, str], str]
) -> Findings:
    """One finding for each container of a Job with a `program` that never ends, next to containers without
    one. LIKELY if something may stop it. `why`: what follows the container's name, by the program's name and
    the kind that waits for it."""
    for template in target.templates:
        kind = _waiting(target, template)
        if not kind:
            continue
        mains = list(template.containers(Role.MAIN))
        if len(mains) < 2:
            continue
        known = {each.name: found for each in mains if (found := program(each))}
        others = [each for each in mains if each.name not in known]
        if not others:
            continue
        if template.typed.spec.share_process_namespace and any(
            _KILLS.search(" ".join(each.typed.argv)) for each in others
        ):
            continue  # it sees the processes of the others
        stopped = template.typed.spec.share_process_namespace or any(
            _STOPS.search(" ".join(each.typed.argv)) for each in others
        )
        for each in mains:
            if each.name in known:
                yield Finding(
                    template.at(each),
                    f"Container {each.name} {why(known[each.name], kind)}",
                    "Make it a native sidecar: move it to initContainers and set restartPolicy: Always.",
                    Certainty.LIKELY
                    if stopped or known[each.name] in _UNSURE or _may_end(each) or kind in _UNSURE
                    else Certainty.CERTAIN,
                )


def _may_end(container: Container) -> bool:
    """Whether it runs a script, or has an option that ends it."""
    first = next(iter(container.typed.command), "").rpartition("/")[2]
    return first in SHELLS or is_python(first) or _ENDS.search(" ".join(container.typed.argv)) is not None


def servers(target: Target, facts: Facts) -> Findings:
    def program(container: Container) -> str | None:
        server = recognised(container, facts)
        if server is None or server.conditional or not _waits_for(container, server.argv):
            return None
        return server.name

    return _findings(
        target,
        program,
        lambda server, kind: (
            f"is a model server ({server}) and keeps running after its client is done. The {kind} completes "
            "only when all its containers have ended."
        ),
    )


def _waits_for(container: Container, program: Program) -> bool:
    """Whether a container runs as long as a program, and not only as long as those after it in a script."""
    every = started(container).all
    after = every[len(every) - every[::-1].index(program) :] if program in every else ()
    return all(each[0] in _WAITING for each in after)


_WAITING: Final = frozenset({"wait", "sleep", "tail", "echo", "exit", "true"})
"""Programs that may follow a server in a script that runs as long as it."""


def sidecars(target: Target, facts: Facts) -> Findings:
    further = facts.settings(Thresholds).endless_sidecars
    yield from _restarted(target)
    yield from _findings(
        target,
        lambda container: (
            None
            if container.typed.restart_policy == _ALWAYS_RESTARTED
            else never_ending(container, further) or _follows(container)
        ),
        lambda name, kind: (
            f"({name}) runs until something stops it, but the {kind} completes only when all its containers "
            "have ended."
        ),
    )


_ALWAYS_RESTARTED: Final = "Always"
"""Makes a sidecar only of an init container. On an ordinary one the API server refuses it by default before
Kubernetes 1.35 (`ContainerRestartRules` in pkg/features)."""


def _restarted(target: Target) -> Findings:
    """Main containers that are started again whenever they end."""
    for template in target.templates:
        kind = _waiting(target, template)
        mains = list(template.containers(Role.MAIN)) if kind else []
        restarted = [each for each in mains if each.typed.restart_policy == _ALWAYS_RESTARTED]
        # Without another container, the Job may be one that serves. The CRD of a kind may lack the field.
        sure = kind == JOB.kind and len(restarted) < len(mains)
        for each in restarted:
            yield Finding(
                template.at(each, "restartPolicy"),
                f"Container {each.name} has restartPolicy: Always, so the kubelet starts it again whenever "
                f"it ends. The {kind} completes only when all its containers have ended.",
                "Remove it. To make the container a native sidecar, move it to initContainers.",
                Certainty.CERTAIN if sure else Certainty.LIKELY,
            )


def _follows(container: Container) -> str | None:
    """The command of a container whose last program never ends: it follows a file, sleeps, or repeats its
    work."""
    every = started(container)
    last = every.all[-1] if every.complete and every.all else ()
    if "timeout" in " ".join(container.typed.argv):
        return None
    if every.complete and _repeats(container):
        return _LOOP
    if not runs_forever(last):
        return None
    return "tail -f" if last[0] == "tail" else " ".join(last)


def _repeats(container: Container) -> bool:
    """Whether a script waits for a loop without an end, and has no word that may end it from within."""
    words, summary = " ".join(container.typed.argv), command_without_pod(container)
    return (
        any(loop.endless for loop in summary.loops)
        and not summary.undecidable
        and _ENDS.search(words) is None
        and _ENDS_LOOP.search(words) is None
    )


RULES = (
    rule(__name__, servers, requires=(PodFeature.COMPLETES,), name="job-server-blocks-completion"),
    rule(__name__, sidecars, requires=(PodFeature.COMPLETES,), name="job-sidecar-blocks-completion"),
)
