"""init-wait-unbounded: init containers that wait without a limit or never end, and launchers of a group that
wait so."""

from __future__ import annotations

import re
from typing import Final

from policies.commands import CommandSummary, Host, Reach
from policies.containers.commands import container_command
from policies.containers.sidecars import endless_init
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.services import has_no_service
from policies.core.workloads import is_builtin
from policies.kube.images import full_name
from policies.kube.json import dig
from policies.kube.pods import Container, Role
from policies.startup.peers import init_peer_finding
from policies.startup.waits import own_service_finding

KUBERAY_WAIT: Final = "wait-gcs-ready"
"""KubeRay's init container, in which workers wait for their head. It cannot be disabled."""


_DEADLINES: Final = (("activeDeadlineSeconds",), ("runPolicy", "activeDeadlineSeconds"))
"""Fields that end a run, at any level above the pod template."""
_SSH: Final = "ssh"
_VARIABLE: Final = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?", re.ASCII)
_USED: Final = re.compile(r"\$\{?[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_READS: Final = re.compile(
    r"\b(?:source|eval|envdir|xargs)\b|(?:^|[\s;&])\.\s|\b(?:export|declare|typeset|readonly|env) [\"']?[$`]"
)
"""Signs of a script that gets variables from elsewhere."""
_WITHOUT_VARIABLES: Final = ("docker.io/library/busybox", "docker.io/library/alpine")
"""Images that set PATH only."""
_OF_LINKS: Final = ("_SERVICE_HOST", "_TCP_ADDR", "_PORT", "_TCP")
"""The ends of variables that the kubelet sets for Services."""
_ALWAYS_SET: Final = ("HOSTNAME", "HOME", "PWD", "JOB_COMPLETION_INDEX")
"""By shells, and by the controller of Jobs."""


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        for container in template.containers(Role.INIT):
            if (endless := endless_init(container)) is not None:
                option = endless.ends_with[0]
                yield Finding(
                    template.at(container),
                    f"Init container {container.name} runs {endless.program}, which goes on until something "
                    f"stops it unless it has {option}. The other containers of the pod never start.",
                    f"Add {option}, or make it a native sidecar with restartPolicy: Always.",
                    Certainty.LIKELY,  # another image may have the name
                )
                continue
            host = _endless(container_command(template, container))
            if host is None or container.name == KUBERAY_WAIT:
                continue
            if own_service_finding(target, template, container, facts):
                continue  # init-waits-on-own-service reports the cause
            if init_peer_finding(target, template, container, facts):
                continue  # ordered-start-deadlock does
            missing = has_no_service(host.name, template, container, facts)
            unset = is_builtin(target.kind) and _is_unset(host.name, container)  # operators set others
            lacking = ", a Service that doesn't exist yet," if missing else ""
            lacking = ", a variable without a value," if unset else lacking
            yield Finding(
                template.command_path(container),
                f"Init container {container.name} waits for {host.name or 'a host'}{lacking} in a loop "
                "without a limit. If it never answers, the pod stays in Init without an error.",
                "Let the wait fail after some minutes (timeout 10m …). The kubelet then tries again, and "
                "the error is visible.",
                Certainty.LIKELY if missing or unset else Certainty.CERTAIN,
            )
        if template.completes and not _has_deadline(target, template):
            yield from _launcher(template)


def _is_unset(host: str, container: Container) -> bool:
    """Whether a host is a variable that neither the manifest, nor the script, nor the image sets."""
    variable, image = _VARIABLE.fullmatch(host), full_name(container.image).partition(":")[0]
    if variable is None or image not in _WITHOUT_VARIABLES or container.typed.env_from:
        return False
    name = variable[1]
    if (
        name.endswith(_OF_LINKS)
        or name in _ALWAYS_SET
        or any(each.name == name for each in container.typed.env)
    ):
        return False
    words = _USED.sub("", " ".join(container.typed.argv))
    return name not in words and not _READS.search(words)


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
