"""The annotation `mlchassis.dev/changed`: each field that was added to the pod, with policy and reason.

It has a line for each field, `<policy> <field>: <why>`, and ends with the digest of the policy. Law: the text
depends only on the pod, the policy and the facts, so equal pods have equal annotations. A review without
additions keeps it; a review with additions appends to it. Only pods have it, never pod templates, so GitOps
tools see no difference.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from policies.core import registry
from policies.core.annotations import CHANGED
from policies.core.reasons import Reason, Reasons
from policies.kube.json import Json, replaced
from policies.kube.metadata import annotations_of, has_room
from policies.kube.quantities import whole_number

MAX_LENGTH: Final = 1024
"""Characters. Reasons that do not fit are left out; fields that do not fit are counted."""
_POLICY: Final = "policy"
_MORE: Final = "and"
_DIGITS: Final = 4


class Changed(Struct, frozen=True):
    """The content of the annotation."""

    entries: tuple[Reason, ...] = ()
    """The fields in the order in which they were added; `why` is empty if it did not fit."""
    more: int = 0
    """The number of fields that did not fit."""
    digest: str = ""
    """The digest of the policy."""

    @classmethod
    def of(cls, pod: Json) -> Changed | None:
        """The content of a pod's annotation; None if the webhook has not written one."""
        written = annotations_of(pod).get(CHANGED)
        return cls.read(written) if isinstance(written, str) else None

    @classmethod
    def read(cls, written: str) -> Changed | None:
        """The content of an annotation; None if the webhook has not written it."""
        entries: list[Reason] = []
        more, digest = 0, ""
        for line in written.splitlines():
            policy, _, rest = line.partition(" ")
            if policy == _POLICY:
                digest = rest
            elif policy == _MORE and (count := whole_number(rest.removesuffix(" more"), _DIGITS)):
                more += count
            elif policy in registry.mutators() and rest:
                path, _, why = rest.partition(": ")
                entries.append(Reason(path, policy, why))
            else:
                return None
        return cls(tuple(entries), more, digest)

    def written(self) -> str:
        """The text of the annotation, at most MAX_LENGTH characters."""
        last = f"{_POLICY} {self.digest}"
        lines = [f"{each.policy} {each.path}" for each in self.entries]
        room = MAX_LENGTH - len(last) - len(f"{_MORE} {self.more + len(lines)} more") - 1
        kept = 0
        while kept < len(lines) and room > len(lines[kept]):
            room -= len(lines[kept]) + 1
            kept += 1
        for index in range(kept):
            why = self.entries[index].why
            if why and len(why) + 2 <= room:
                lines[index] += f": {why}"
                room -= len(why) + 2
        more = self.more + len(lines) - kept
        return "\n".join([*lines[:kept], *([f"{_MORE} {more} more"] if more else []), last])


def annotated(pod: Json, added: Iterable[Reasons], digest: str) -> Json:
    """The pod with the additions listed in its annotation; unchanged if there are none, if the webhook has
    not written the annotation, or if there is no room for it."""
    annotations = annotations_of(pod)
    present = annotations.get(CHANGED)
    before = _NOTHING if present is None else Changed.read(present)
    if before is None:
        return pod
    entries = {(each.policy, each.path): each for each in before.entries}
    known = len(entries)
    for reasons in added:
        for path, why in reasons.fields():
            key = (reasons.policy, "".join(path.split()))
            if key not in entries:
                entries[key] = Reason(key[1], key[0], " ".join(why.split()))
    if len(entries) == known:
        return pod
    text = Changed(tuple(entries.values()), before.more, digest).written()
    if text == present or not has_room(annotations, {CHANGED: text}):
        return pod
    return replaced(pod, ("metadata", "annotations", CHANGED), text)


_NOTHING: Final = Changed()
