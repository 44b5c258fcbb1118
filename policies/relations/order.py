"""In which order Argo CD and Helm deploy the objects of a set, by their annotations.

Law: an object comes later than another only if the tool does not begin with it before the other one is
healthy (Argo CD) or complete (Helm). Helm waits for hooks that are Jobs or Pods, by default for no other
object. https://argo-cd.readthedocs.io/en/stable/user-guide/sync-waves/,
https://helm.sh/docs/topics/charts_hooks/
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from policies.kube.group_kinds import JOB, POD, kind_of
from policies.kube.json import Json, text
from policies.kube.metadata import annotations_of

_ARGO_HOOK: Final = "argocd.argoproj.io/hook"
_ARGO_WAVE: Final = "argocd.argoproj.io/sync-wave"
_HELM_HOOK: Final = "helm.sh/hook"
_HELM_WEIGHT: Final = "helm.sh/hook-weight"
_IN_WAVE: Final = "in wave"


class Phase(IntEnum):
    """A part of a deployment; each ends before the next begins."""

    BEFORE = 0
    DURING = 1
    AFTER = 2


@dataclass(frozen=True, slots=True)
class Turn:
    """When a tool deploys an object."""

    phase: Phase
    wave: int
    said: str
    """When, in the tool's words: "as hook pre-install", "in wave 2"."""

    @property
    def rank(self) -> tuple[int, int]:
        """Of two objects the one with the lower rank is deployed first."""
        return self.phase, self.wave


def argo_orders(*objects: Json) -> bool:
    """Whether one of the objects has an annotation that only Argo CD reads."""
    return any(key in annotations_of(obj) for obj in objects for key in (_ARGO_HOOK, _ARGO_WAVE))


def by_argo(obj: Json) -> Turn | None:
    """When Argo CD deploys an object; None if it does not on a first sync, or if that is not known."""
    hooks, known = _annotation(obj, _ARGO_HOOK), _ARGO_PHASES
    if not hooks:  # Argo CD takes Helm's hooks for its own
        hooks, known = _annotation(obj, _HELM_HOOK), _HELM_PHASES_IN_ARGO
    wave = _annotation(obj, _ARGO_WAVE) or (hooks and _annotation(obj, _HELM_WEIGHT))
    return _turn(hooks, known, wave, _IN_WAVE)


def by_helm(obj: Json) -> Turn | None:
    """When `helm install` deploys an object; None if it does not, or if that is not known."""
    hooks = _annotation(obj, _HELM_HOOK)
    return _turn(hooks, _HELM_PHASES, hooks and _annotation(obj, _HELM_WEIGHT), "of weight")


def helm_waits_for(obj: Json) -> bool:
    """Whether Helm deploys nothing else before the object is complete."""
    return bool(_annotation(obj, _HELM_HOOK)) and kind_of(obj) in (JOB, POD)


_ARGO_PHASES: Final = {"PreSync": Phase.BEFORE, "Sync": Phase.DURING, "PostSync": Phase.AFTER}
_HELM_PHASES: Final = {"pre-install": Phase.BEFORE, "post-install": Phase.AFTER}
"""Hooks of an upgrade find what an earlier release deployed."""
_HELM_PHASES_IN_ARGO: Final = {**_HELM_PHASES, "pre-upgrade": Phase.BEFORE, "post-upgrade": Phase.AFTER}


def _turn(hooks: str, phases: Mapping[str, Phase], wave: str, counted: str) -> Turn | None:
    number = _number(wave or "0")
    if number is None:
        return None
    if not hooks:
        return Turn(Phase.DURING, number, f"{counted} {number}" if counted == _IN_WAVE else "without a hook")
    known = [hook for hook in map(str.strip, hooks.split(",")) if hook in phases]
    if not known:
        return None
    first = min(known, key=lambda hook: phases[hook])
    return Turn(phases[first], number, f"as hook {first}{f' {counted} {number}' if number else ''}")


def _annotation(obj: Json, key: str) -> str:
    return text(obj, "metadata", "annotations", key)


def _number(value: str) -> int | None:
    digits = value.removeprefix("-")
    return int(value) if digits.isascii() and digits.isdigit() and len(digits) < 10 else None
