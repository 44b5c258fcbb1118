"""init-wait-unbounded: init containers that wait without a limit."""

from __future__ import annotations

from typing import Final

from policies.commands import CommandSummary, Host, Reach
from policies.containers.commands import container_command
from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.kube.pods import Role
from policies.startup.peers import init_peer_finding
from policies.startup.waits import own_service_finding

KUBERAY_WAIT: Final = "wait-gcs-ready"
"""KubeRay's init container, in which workers wait for their head. It cannot be disabled."""


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
            yield Finding(
                template.command_path(container),
                f"Init container {container.name} waits for {host.name or 'a host'} in a loop without a "
                "limit: if it never answers, the pod stays in Init without an error.",
                "End the wait with an error after some minutes (timeout 10m …): kubelet tries again, and the "
                "error is visible.",
            )


def _endless(summary: CommandSummary) -> Host | None:
    """The host outside of the pod that an unbounded loop waits for."""
    for loop in summary.loops:
        if not loop.bounded:
            for host in loop.hosts:
                if host.reach is not Reach.LOCAL:
                    return host
    return None


RULE = rule(__name__, check, requires=(PodFeature.INIT,))
