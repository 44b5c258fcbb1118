"""init-wait-unbounded: init containers that wait without end."""

from __future__ import annotations

from typing import Final

from policies.commands import CommandSummary, Host, Reach
from policies.containers.commands import container_command
from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.kube.pods import Role
from policies.startup.own_service import waits_for_own_service
from policies.startup.peers import waits_for_peer

KUBERAY_WAIT: Final = "wait-gcs-ready"
"""The init container by which KubeRay's workers wait for their head; it can't be left out."""


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        for container in template.containers(Role.INIT):
            host = _endless(container_command(template, container))
            if host is None or container.name == KUBERAY_WAIT:
                continue
            if waits_for_own_service(target, template, container, facts):
                continue  # the other rule names the cause
            if waits_for_peer(target, template, container, facts):
                continue
            yield Finding(
                template.command_path(container),
                f"Init container {container.name} waits for {host.name or 'a host'} in a loop without a "
                "limit: if it never answers, the pod stays in Init without an error.",
                "End the wait with an error after some minutes (timeout 10m …): kubelet tries again, and the "
                "error is visible.",
            )


def _endless(summary: CommandSummary) -> Host | None:
    """What a loop without a bound waits for, if it is on the network."""
    for loop in summary.loops:
        if not loop.bounded:
            for host in loop.hosts:
                if host.reach is not Reach.LOCAL:
                    return host
    return None


RULE = rule(__name__, check, requires=(PodFeature.INIT,))
