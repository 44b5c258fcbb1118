"""liveness-kills-slow-start: liveness that fails before the start is complete."""

from __future__ import annotations

import re
from typing import Final

from policies.containers.commands import container_command
from policies.core import data
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, Target, rule
from policies.core.finding import Mode
from policies.kube.group_kinds import GroupKind
from policies.kube.objects.pods import ContainerSpec, is_accelerator
from policies.kube.pods import Role
from policies.kube.quantities import parse_quantity
from policies.probes.copied import doubtful_program, why_not_copied
from policies.probes.first_party import has_a_model, is_example, is_third_party
from policies.probes.health import right_port
from policies.probes.heavy_commands import runs
from policies.probes.liveness_program import watched_start
from policies.probes.probe import LIVENESS, ContainerProbe, probes
from policies.probes.rules.probe_always_passes import always_passes
from policies.probes.serving import recognised
from policies.probes.standard_probes import looks_injected
from policies.probes.standard_probes_settings import StandardProbes
from policies.probes.startup_budget import Start, start_of

_HASTY: Final = 60
"""Seconds. An accelerator's libraries and a model of some gigabytes take about as long."""
_SHARE: Final = 4
"""No server starts in a quarter of its usual time, whatever the model and the node are."""
_SMALL: Final = 32
"""Seconds to load 2 GiB at the default rate."""
_LITTLE: Final = 1 << 30
"""Bytes. Whoever limits the memory of a server without accelerators to less has no model of gigabytes."""
_NOTEBOOK: Final = GroupKind("kubeflow.org", "Notebook")
_HUB: Final = re.compile(r"[A-Za-z0-9][\w-]*/[\w-][\w.-]*")
"""A model of a hub: BAAI/bge-m3."""
_ADDRESS: Final = re.compile(r"UR[LI]|ENDPOINT|API_BASE|HOST|ADDR|SERVER")
"""In names of variables with the address of another server."""


def check(target: Target, facts: Facts) -> Findings:
    for probe in probes(target, LIVENESS):
        if _is_guarded(probe, facts) or always_passes(probe):
            continue
        if right_port(probe.template.view, probe.container, probe.spec, facts):
            continue  # it never passes, and a startupProbe with the same check would not: probe-wrong-port
        start = start_of(probe.template.view, probe.container, facts)
        budget = probe.typed.startup_deadline
        why = _why_slow(probe, facts) if start is None and budget < _HASTY else ""
        if why:
            yield Finding(
                probe.at(),
                f"The {probe.name} kills it {budget} s after it starts, unless it answers by then. {why}, "
                "and such starts usually take a minute or more.",
                _slow_start_hint(probe, 10 * _HASTY, facts),
                Certainty.UNDECIDED,
            )
        if start is None or budget >= _least_allowed(start, facts.settings(StandardProbes).boot):
            continue
        if looks_injected(probe.template.view, probe.container, LIVENESS, facts):
            continue  # a delay for a guessed size is at most a day
        killed = "The kubelet kills it" + ("" if probe.template.completes else " again and again")
        doubtful = doubtful_program(probe.container, probe.spec, facts)
        the = f"If its image contains {doubtful}, the" if doubtful else "The"
        certain = not doubtful and (start.declared or budget < start.usual // _SHARE)
        yield Finding(
            probe.at(),
            f"{the} {probe.name} kills it {budget} s after it starts, but it takes about {start.seconds} s "
            f"until it serves ({start.reason}). {killed}, and it never serves.",
            _slow_start_hint(probe, start.seconds, facts),
            Certainty.CERTAIN if certain else Certainty.UNDECIDED,
        )


def _least_allowed(start: Start, boot: int) -> int:
    """The seconds that a livenessProbe must allow for the start, else it is reported. A server's usual start
    is that of a model of several GB."""
    if start.declared or start.loading > start.usual:
        return start.seconds
    return start.usual // (_SHARE if 0 < start.loading <= boot + _SMALL else 2)


_preparing = data.names("policies.probes", "preparing_programs.yaml")


def _why_slow(probe: ContainerProbe, facts: Facts) -> str:
    """Why the start of an unknown server takes long, as a clause; empty if nothing shows it."""
    if _loads_something(probe, facts):
        return "It loads a model or uses accelerators"
    commands = container_command(probe.template, probe.container).commands
    first = next((each for each in _preparing() if any(runs(each, command) for command in commands)), "")
    return f"It runs {first} before its server whenever it starts" if first else ""


def _loads_something(probe: ContainerProbe, facts: Facts) -> bool:
    """Whether an unknown server requests accelerators, or its flags, variables or mounts show a model. The
    server of a notebook answers before any program runs in it."""
    workload, typed = probe.template.workload, probe.container.typed
    server = recognised(probe.container, facts)
    if workload is not None and workload.group_kind == _NOTEBOOK:
        return False
    if server is not None and server.preset.doubt:
        return False
    if is_example(probe.container.image) or is_third_party(probe.container.image):
        return False
    if _requests_accelerators(typed):
        return True
    if any(map(_requests_accelerators, (each.typed for each in probe.template.containers(Role.MAIN)))):
        return False  # that one loads the model, and this one downloads it or reports about it
    if _has_little_memory(typed):
        return False
    return _names_a_model(typed) or (server is None and has_a_model(probe.template, probe.container))


def _has_little_memory(container: ContainerSpec) -> bool:
    try:
        limit = parse_quantity(container.resources.limits["memory"])
    except (KeyError, ValueError):
        return False
    return limit < _LITTLE


def _names_a_model(container: ContainerSpec) -> bool:
    """Whether a variable names a model of a hub, and none with the same first words has the address of the
    server that runs it: `LLM_MODEL` next to `LLM_SERVER_URL`."""
    found = [_ADDRESS.search(each.name.upper()) for each in container.env]
    served = {each.string[: each.start()] for each in found if each is not None and each.start()}
    for each in container.env:
        subject, names_model, _ = each.name.upper().partition("MODEL")
        remote = not served.isdisjoint((subject, f"{subject}MODEL_"))
        if names_model and not remote and each.value and _HUB.fullmatch(each.value):
            return True
    return False


def _requests_accelerators(container: ContainerSpec) -> bool:
    asked = {**container.resources.requests, **container.resources.limits}
    return any(map(is_accelerator, asked))


def _slow_start_hint(probe: ContainerProbe, expected: int, facts: Facts) -> str:
    # A startupProbe would delay the containers after a sidecar, and with a check that never passes, the pod.
    if probe.container.role is Role.SIDECAR or why_not_copied(probe.container, probe.spec, facts):
        return f"Set initialDelaySeconds of the livenessProbe above {expected}."
    return f"Add a startupProbe with the same check and periodSeconds * failureThreshold above {expected}."


def _is_guarded(probe: ContainerProbe, facts: Facts) -> bool:
    """Whether a startupProbe delays liveness, or the webhook will add one to pods that are not projected. The
    webhook's own program waits for the start itself."""
    if probe.container.typed.startup_probe is not None or watched_start(probe.spec):
        return True
    fills = facts.settings(StandardProbes).mode in (None, Mode.ENFORCE)
    later = probe.template.is_ray or bool(probe.template.container_path)
    return later and probe.container.role is Role.MAIN and fills


RULE = rule(__name__, check, requires=(PodFeature.LIVENESS,))
