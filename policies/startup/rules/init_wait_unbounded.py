"""init-wait-unbounded: init containers, and launchers of a group, that wait without a limit."""

from __future__ import annotations

from typing import Final

from policies.commands import CommandSummary, Host, Reach
from policies.containers.commands import container_command
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.services import has_no_service
from policies.kube.json import dig
from policies.kube.pods import Role
from policies.startup.peers import init_peer_finding
from policies.startup.waits import own_service_finding

KUBERAY_WAIT: Final = "wait-gcs-ready"
"""KubeRay's init container, in which workers wait for their head. It cannot be disabled."""


_DEADLINES: Final = (("activeDeadlineSeconds",), ("runPolicy", "activeDeadlineSeconds"))
"""Fields that end a run, at any level above the pod template."""
_SSH: Final = "ssh"


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        for container in template.containers(Role.INIT):
            host = _endless(container_command(template, container))
            if host is None or container.name == KUBERAY_WAIT:
                continue
            if own_service_finding(target, template, container, facts):
                continue  # init-waits-on-own-service reports the cause
            if init_peer_finding(target, template, container, facts):
                continue  # ordered-start-deadlock does
            missing = has_no_service(host.name, template, container, facts)
            lacking = ", a Service that doesn't exist yet," if missing else ""
            yield Finding(
                template.command_path(container),
                f"Init container {container.name} waits for {host.name or 'a host'}{lacking} in a loop "
                "without a limit. If it never answers, the pod stays in Init without an error.",
                "Let the wait fail after some minutes (timeout 10m …). The kubelet then tries again, and "
                "the error is visible.",
                Certainty.LIKELY if missing else Certainty.CERTAIN,
            )
        if template.completes and not _has_deadline(target, template):
            yield from _launcher(template)


def _launcher(template: PodTemplate) -> Findings:
    """The finding about a program that tries forever to log in to the other pods of its group."""
    for container in template.containers(Role.MAIN):
        summary = container_command(template, container)
        host = _endless(summary)
        if host is not None and host.client == _SSH:
            yield Finding(
                template.command_path(container),
                f"Container {container.name} tries `ssh` in a loop without a limit. If one pod of its "
                "group never answers, the launcher waits forever, and the other pods keep their "
                "accelerators.",
                "Limit the loop and exit with an error, or set activeDeadlineSeconds.",
                Certainty.LIKELY,
            )


def _has_deadline(target: Target, template: PodTemplate) -> bool:
    if template.typed.spec.active_deadline_seconds is not None:
        return True
    levels = (template.steps[:end] for end in range(len(template.steps)))
    return any(dig(target.obj, *level, *field) is not None for level in levels for field in _DEADLINES)


def _endless(summary: CommandSummary) -> Host | None:
    """The host outside of the pod that an unbounded loop waits for."""
    for loop in summary.loops:
        if not loop.bounded:
            for host in loop.hosts:
                if host.reach is not Reach.LOCAL:
                    return host
    return None


RULE = rule(__name__, check)
