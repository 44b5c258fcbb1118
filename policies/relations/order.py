"""The order in which Argo CD and Helm deploy the objects of a set, by their annotations.

Law: an object comes later than another only if the tool does not begin with it before the other one is
healthy (Argo CD) or complete (Helm). Helm waits for hooks that are Jobs or Pods, by default for no other
object. https://argo-cd.readthedocs.io/en/stable/user-guide/sync-waves/,
https://helm.sh/docs/topics/charts_hooks/
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from msgspec import Struct

from policies.kube.group_kinds import JOB, POD
from policies.kube.metadata import ARGO_HOOK, HELM_HOOK
from policies.kube.objects.metadata import Object
from policies.kube.quantities import whole_number

_ARGO_WAVE: Final = "argocd.argoproj.io/sync-wave"
_HELM_WEIGHT: Final = "helm.sh/hook-weight"


class Phase(IntEnum):
    """A part of a deployment; each ends before the next begins."""

    BEFORE = 0
    DURING = 1
    AFTER = 2


_ARGO_PHASES: Final = {"PreSync": Phase.BEFORE, "Sync": Phase.DURING, "PostSync": Phase.AFTER}
_HELM_PHASES: Final = {"pre-install": Phase.BEFORE, "post-install": Phase.AFTER}
"""Without the hooks of an upgrade: these find what an earlier release deployed."""
_HELM_PHASES_IN_ARGO: Final = {**_HELM_PHASES, "pre-upgrade": Phase.BEFORE, "post-upgrade": Phase.AFTER}


class Position(Struct, frozen=True):
    """When a tool deploys an object."""

    phase: Phase
    wave: int
    description: str
    """In the tool's terms: "as hook pre-install", "in wave 2"."""

    @property
    def rank(self) -> tuple[int, int]:
        return self.phase, self.wave


class Deployer(NamedTuple):
    """A tool that deploys objects in an order."""

    name: str
    position: Callable[[Object], Position | None]
    """When it deploys an object; None if it does not, or if that is unknown."""

    def done(self, obj: Object) -> str:
        """The state of an object in which the tool goes on."""
        return "complete" if self.name == "Helm" or obj.group_kind in (JOB, POD) else "healthy"


def deployer_of(obj: Object, *others: Object) -> Deployer | None:
    """The tool that deploys the others after the end of an object, if their order says so; None without
    one."""
    if orders_with_argo(obj, *others):
        return Deployer("Argo CD", argo_position)
    return Deployer("Helm", helm_position) if helm_waits_for(obj) else None


def orders_with_argo(*objects: Object) -> bool:
    """Whether one of the objects has an annotation that only Argo CD reads."""
    return any(key in obj.metadata.annotations for obj in objects for key in (ARGO_HOOK, _ARGO_WAVE))


def argo_position(obj: Object) -> Position | None:
    """When Argo CD deploys an object; None if it does not on a first sync, or if that is unknown."""
    hooks, phases = _annotation(obj, ARGO_HOOK), _ARGO_PHASES
    if not hooks:  # Argo CD also reads Helm's hooks
        hooks, phases = _annotation(obj, HELM_HOOK), _HELM_PHASES_IN_ARGO
    wave = _number(_annotation(obj, _ARGO_WAVE) or (hooks and _annotation(obj, _HELM_WEIGHT)))
    return None if wave is None else _position(hooks, phases, wave, "in wave", f"in wave {wave}")


def helm_position(obj: Object) -> Position | None:
    """When `helm install` deploys an object; None if it does not, or if that is unknown."""
    hooks = _annotation(obj, HELM_HOOK)
    weight = _number(hooks and _annotation(obj, _HELM_WEIGHT))
    return None if weight is None else _position(hooks, _HELM_PHASES, weight, "of weight", "without a hook")


def helm_waits_for(obj: Object) -> bool:
    """Whether Helm deploys nothing else before the object is complete."""
    return bool(_annotation(obj, HELM_HOOK)) and obj.group_kind in (JOB, POD)


def _position(
    hooks: str, phases: Mapping[str, Phase], wave: int, wave_term: str, without_hook: str
) -> Position | None:
    if not hooks:
        return Position(Phase.DURING, wave, without_hook)
    known = [hook for hook in map(str.strip, hooks.split(",")) if hook in phases]
    if not known:
        return None
    first = min(known, key=lambda hook: phases[hook])
    return Position(phases[first], wave, f"as hook {first}{f' {wave_term} {wave}' if wave else ''}")


def _annotation(obj: Object, key: str) -> str:
    return obj.metadata.annotations.get(key, "")


def _number(value: str) -> int | None:
    """The whole number of an annotation; 0 if it is absent, None if it is malformed."""
    number = whole_number((value or "0").removeprefix("-"))
    return -number if number is not None and value.startswith("-") else number
