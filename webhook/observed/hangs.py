"""Whether liveness notices a hang of the server in a container, by what, when, and what would change that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from policies.core import data
from policies.core.annotations import CANARY
from policies.core.facts import Facts
from policies.core.reasons import in_words
from policies.core.settings import Model
from policies.core.target import PodTemplate
from policies.kube.images import image_matches
from policies.kube.pods import Container
from policies.probes.endpoints import preset_health
from policies.probes.health import doubt_in, handler_of
from policies.probes.liveness_program import (
    BY_HAND,
    asked_by,
    asks_nothing,
    blind_because,
    is_program,
    patience_of,
    plan_in,
    progress_of,
)
from policies.probes.probe import LIVENESS
from policies.probes.recognition import Server, release
from policies.probes.serving import is_kuberay_container, recognised
from policies.probes.standard_probes_settings import StandardProbes


class Noticed(Model):
    """Experiments with one version of a server, or findings in its source."""

    preset: str
    server: str
    how: str
    seen: dict[str, str]


@data.table
def noticed() -> Mapping[str, Sequence[Noticed]]:
    """The table of docs/what-probes-notice.md by preset. `make golden` writes the file."""
    found: dict[str, list[Noticed]] = {}
    for each in data.load_list(Noticed, "policies.probes", "noticed.yaml"):
        found.setdefault(each.preset, []).append(each)
    return MappingProxyType(found)


class Hang(NamedTuple):
    """What happens if the server in a container hangs."""

    noticed: bool | None
    """Whether the kubelet restarts the container, or the server what hangs in it; None if that is unknown."""
    by: str
    """What notices it, or why nothing does."""
    after: str = ""
    change: str = ""
    """What to write so that a hang, or more hangs, would be noticed."""

    def __str__(self) -> str:
        result = {True: "noticed", False: "not noticed", None: "unknown"}[self.noticed]
        after = f", after {self.after}" if self.after else ""
        change = f". {self.change}" if self.change else ""
        return f"{result}: {self.by}{after}{change}"


def hang_of(template: PodTemplate, container: Container, facts: Facts) -> Hang:
    """What happens if the server in a container with these probes hangs."""
    probe, server = container.spec.get(LIVENESS), recognised(container, facts)
    timing = container.typed.liveness_probe
    if not probe and is_kuberay_container(template.view, container):
        return Hang(None, "KubeRay gives its pods a livenessProbe, which asks Ray for its own health")
    if not probe and _is_completed_later(template):
        return Hang(None, "its operator merges other objects into its pods, and these get the probes")
    if not probe or timing is None:
        doubt = doubt_in(template.view, container, facts)
        return Hang(False, "it has no livenessProbe", change=f"{doubt[1]}." if doubt else f"Add {_CANARY}.")
    if is_program(probe):
        plan = plan_in(probe)
        if asks_nothing(plan) and server is not None and _replaces_its_workers(server):
            return Hang(True, f"{server.name} itself replaces a worker that hangs", _OWN_TIMEOUT)
        more = f"Hung threads are noticed only with {_CANARY}." if asks_nothing(plan) else ""
        return Hang(True, f"its livenessProbe checks {asked_by(plan)}", patience_of(plan, timing), more)
    after = in_words(timing.give_up)
    if server is not None and (because := blind_because(template.view, container, facts)):
        remove = "Remove the livenessProbe: the webhook adds one that notices it."
        by_hand = because == BY_HAND
        change = remove if by_hand else ""
        return Hang(False, f"its endpoint does not notice it, and {because}", change=change)
    instead = f"Replace the livenessProbe with {_CANARY}."
    if "tcpSocket" in handler_of(probe):
        return Hang(False, "its livenessProbe only checks for an open port", change=instead)
    health = preset_health(container, facts.settings(StandardProbes)) if server else None
    if server is None or health is None or handler_of(probe) != health.live:
        return Hang(None, "it has its own livenessProbe", change="")
    if _replaces_its_workers(server):
        return Hang(True, f"{server.name} itself replaces a worker that hangs", _OWN_TIMEOUT)
    known = _by_endpoint(server)
    by = f"the liveness endpoint of {server.name}"
    if known is None:
        return Hang(None, f"{by} was not tried")
    if known and (constant := _why_constant(server)):
        return Hang(False, f"{by} does not notice it {constant[0]}", change=constant[1])
    if known and (unknown := _unknown_setting(server, container.image)):
        return Hang(None, f"{by} notices it {unknown}")
    return Hang(True, by, after) if known else Hang(False, f"{by} does not notice it", change=instead)


def notices_of(template: PodTemplate, container: Container, facts: Facts) -> tuple[str, ...]:
    """Which failures of the server its probes notice. The webhook's own probes were tried: of others only the
    source is known."""
    probe, server = container.spec.get(LIVENESS), recognised(container, facts)
    if server is None:
        return ()
    settings = facts.settings(StandardProbes)
    health = preset_health(container, settings)
    own = is_program(probe) or (not probe and _is_completed_later(template))
    if probe and health is not None and progress_of(server, settings) is None:
        own = handler_of(probe) == health.live
    return tuple(
        f"{what}: {outcome} ({each.server}, {each.how})"
        for each in noticed().get(server.name, ())
        if own or each.how != _TRIED
        for what, outcome in each.seen.items()
    )


_TRIED: Final = "tried"


def _is_completed_later(template: PodTemplate) -> bool:
    """Whether an operator merges objects into the pods that are not seen here, so no injection is shown."""
    if template.rewritten or template.is_merged_later:
        return True
    workload = template.workload
    return workload is not None and workload.completed_by is not None and template.base is None


_OWN_TIMEOUT: Final = "its own timeout"
_CANARY: Final = f"the annotation {CANARY}: POST /PATH"
_HANGS: Final = ("a hung engine", "100 calls never return", "1 call never returns", "a worker is stopped")


def _outcomes(server: Server) -> list[str]:
    """What hangs of the server led to, by experiments and by the source, with its defaults: the first row."""
    first: dict[str, Noticed] = {}
    for each in noticed().get(server.name, ()):
        first.setdefault(each.how, each)
    return [each.seen[hang] for each in first.values() for hang in _HANGS if hang in each.seen]


def _replaces_its_workers(server: Server) -> bool:
    """Whether the server served again after each hang without a restart."""
    outcomes = _outcomes(server)
    return bool(outcomes) and all(outcome == "recovers" for outcome in outcomes)


def _why_constant(server: Server) -> tuple[str, str] | None:
    """When the liveness endpoint is blind, though it notices a hang otherwise, and what to change; None if it
    is not."""
    notices = server.preset.notices
    if notices is None:
        return None
    if server.version and server.version < release(notices.since):
        return f"before {notices.since}", f"Use {server.name} {notices.since} or newer."
    for name, values in notices.unless_env.items():
        value = server.configured((), (name,))
        if value is not None and value.lower() in values:
            return f"with {name}={value}", f"Remove {name}."
    return None


def _unknown_setting(server: Server, image: str) -> str:
    """On what it depends whether the liveness endpoint notices a hang, if that is unknown; else empty."""
    notices = server.preset.notices
    if notices is None:
        return ""
    own = (*server.preset.images, *server.preset.version_images)  # without a version, it is the newest
    if not server.version and not image_matches(image, own):
        return f"from {notices.since} on, and the version is unknown"
    unknown = (name for name in notices.unless_env if server.configured((), (name,)) == "")
    name = next(unknown, "")
    return f"unless {name} switches that off, and its value is unknown" if name else ""


def _by_endpoint(server: Server) -> bool | None:
    """Whether the liveness endpoint notices a hang; None if unknown."""
    outcomes = _outcomes(server)
    if any(outcome.startswith(_BLIND) for outcome in outcomes):
        return False
    return True if any(outcome.startswith("noticed") for outcome in outcomes) else None


_BLIND: Final = ("not noticed", "the endpoint does not notice")
