"""probe-timeout-too-short: probes of one second on servers that answer late, always or under load."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.kube.images import image_matches, repository_and_tag
from policies.probes.health import right_port
from policies.probes.probe import LENIENT, LIVENESS, READINESS, STARTUP, ContainerProbe, probes
from policies.probes.recognition import Server, release
from policies.probes.rules.liveness_as_strict_as_readiness import LATE, SHORT, is_too_strict
from policies.probes.rules.liveness_gives_up_early import TOO_SOON
from policies.probes.server_facts import Busy
from policies.probes.serving import recognised
from policies.probes.standard_probes import looks_injected

_DEFAULT: Final = 1
"""Seconds, the API server's default. A server recovers without traffic, so readiness may be stricter."""
_HASTY: Final = 15
"""Seconds. A readinessProbe that gives up so early empties a Service under a burst."""


def check(target: Target, facts: Facts) -> Findings:
    reported: set[str] = set()
    for probe in probes(target, STARTUP, LIVENESS, READINESS):
        server, container = recognised(probe.container, facts), probe.container
        busy = None if server is None else server.preset.busy
        if server is None or busy is None or probe.typed.http_get is None or container.name in reported:
            continue
        if probe.typed.http_get.host or right_port(probe.template.view, container, probe.spec, facts):
            continue  # the server does not answer it
        if _never_in_time(probe, server, busy):
            reported.add(container.name)
            yield Finding(
                probe.at("timeoutSeconds"),
                f"The {probe.name} has a timeout of {probe.timeout} s, but every answer of {server.name} to "
                f"it takes {busy.least} s or longer, also without load. The probe fails.",
                f"Set timeoutSeconds to {LATE} or more.",
            )
            continue
        if probe.field == STARTUP:
            continue
        short, patient = (SHORT, LENIENT) if probe.field == LIVENESS else (_DEFAULT, _HASTY + 1)
        if probe.timeout > short or probe.give_up >= patient:
            continue
        if probe.field == LIVENESS and probe.give_up <= TOO_SOON:
            continue  # liveness-gives-up-early reports it
        if is_too_strict(probe, facts):
            continue  # liveness-as-strict-as-readiness reports it, and names the timeout too
        if looks_injected(probe.template.view, container, probe.field, facts):
            continue
        reported.add(container.name)
        then = "the kubelet restarts it" if probe.field == LIVENESS else "it gets no more traffic"
        yield Finding(
            probe.at("timeoutSeconds"),
            f"The {probe.name} has a timeout of {probe.timeout} s. Under load, the answer of {server.name} "
            f"{busy.why}, and after {probe.give_up} s of late answers, {then}.",
            f"Set timeoutSeconds to {LATE} or more, and failureThreshold so that a burst of requests passes.",
        )


def _never_in_time(probe: ContainerProbe, server: Server, busy: Busy) -> bool:
    """Whether no answer can arrive within the timeout."""
    get, preset = probe.typed.http_get, server.preset
    if get is None or not busy.least or probe.timeout > busy.least:
        return False
    always = get.path in busy.least_paths
    if not always and get.path not in (preset.live_path, preset.ready_path):
        return False
    image = probe.container.image
    versioned = image_matches(image, (*preset.images, *preset.version_images))
    version = release(repository_and_tag(image)[1]) if versioned else ()
    old = bool(version) and version < release(busy.least_since)
    switched = server.has_env_from or server.has_variable(*busy.least_unless_env)
    return not old and (always or not switched)


RULE = rule(__name__, check, requires=(PodFeature.HTTP,))
