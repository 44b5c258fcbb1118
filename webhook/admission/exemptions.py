"""Exemptions: what an object's annotation asks for, and what of it counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from policies.core import registry
from policies.core.annotations import EXEMPT
from policies.core.nearest import did_you_mean
from policies.kube.json import Json
from policies.kube.metadata import annotations_of
from webhook.admission.configuration import Config

_MOST_COMPARED: Final = 4
"""Unknown names of one annotation that are compared with every known one."""


@dataclass(frozen=True, slots=True)
class Exemptions:
    """What an exempt annotation says, and what of it does not count."""

    reasons: Mapping[str, str]
    notes: tuple[str, ...]

    @classmethod
    def read(cls, annotations: Mapping[str, str], config: Config, namespace: str) -> Exemptions:
        written = annotations.get(EXEMPT)
        if not isinstance(written, str):
            return _NO_EXEMPTIONS
        reasons: dict[str, str] = {}
        notes: list[str] = []
        for part in filter(None, map(str.strip, written.split(";"))):
            name, _, reason = (piece.strip() for piece in part.partition("="))
            if config.rule(name) is None and name not in registry.mutators():
                known = (*registry.mutators(), *registry.rules(), *config.own_rules)
                hint = did_you_mean(name, known) if len(notes) < _MOST_COMPARED else ""
                notes.append(f"{EXEMPT}: there is no rule or policy {name!r}{hint}")
            elif not reason:
                notes.append(f"{EXEMPT}: {name} is not exempted, a reason is missing: write {name}=why")
            elif not may_exempt(name, config, namespace):
                notes.append(f"{EXEMPT}: {name} can't be exempted here")
            else:
                reasons[name] = reason
        return cls(reasons, tuple(notes))


_NO_EXEMPTIONS: Final = Exemptions({}, ())


def exemption(policy_id: str, obj: Json, config: Config, namespace: str) -> str | None:
    """The reason for which an object is exempted from one policy; None if it is not."""
    return Exemptions.read(annotations_of(obj), config, namespace).reasons.get(policy_id)


def may_exempt(name: str, config: Config, namespace: str) -> bool:
    """Whether an exemption from a rule or policy would count in a namespace."""
    rule = config.rule(name)
    return (rule is None or rule.document.exemptable) and config.webhook.exemptions.allows(name, namespace)
