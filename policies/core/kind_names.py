"""Which known kind the name of an unknown one is a misspelling of: `Deploymnet`, `PytorchJob`, `app/v1`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from policies.core import data
from policies.core.settings import Field, Model
from policies.core.workloads import is_builtin, known_without_pods, known_workloads
from policies.kube.group_kinds import GroupKind
from policies.kube.names import closest

_SIMILAR: Final = 0.8
"""The least similarity of two kinds of a group."""
_SIMILAR_GROUP: Final = 0.6


class RemovedVersion(Model):
    """An entry of `removed` in builtin_kinds.yaml."""

    api_version: str
    since: str = Field(description="the release of Kubernetes without it")
    use: str = Field(description="the apiVersion that has the kinds now")
    kinds: frozenset[str] = Field(frozenset(), description="default: all kinds")


class BuiltinKinds(Model):
    """The table builtin_kinds.yaml."""

    kinds: Mapping[str, frozenset[str]] = Field(description="the kinds of each API group of Kubernetes")
    removed: tuple[RemovedVersion, ...] = Field(description="versions that Kubernetes removed")
    moved: Mapping[str, Mapping[str, str]] = Field(
        description="kinds of a group that Kubernetes removed, with the apiVersion that has them now"
    )


@data.table
def builtin_kinds() -> BuiltinKinds:
    return data.load_one(BuiltinKinds, __package__, "builtin_kinds.yaml")


@data.table
def _kinds_by_group() -> Mapping[str, frozenset[str]]:
    found = {group: set(kinds) for group, kinds in builtin_kinds().kinds.items()}
    for kind in (*(workload.gk for workload in known_workloads()), *known_without_pods()):
        found.setdefault(kind.group, set()).add(kind.kind)
    return {group: frozenset(kinds) for group, kinds in found.items()}


@lru_cache(maxsize=1024)
def meant(kind: GroupKind) -> GroupKind | None:
    """The known kind that an unknown kind probably is; None if the kind is known, or similar to none."""
    known = _kinds_by_group()
    if kind.kind in known.get(kind.group, ()):
        return None
    if moved := builtin_kinds().moved.get(kind.group, {}).get(kind.kind):
        return GroupKind(moved.rpartition("/")[0], kind.kind)
    group = kind.group if kind.group in known else closest(kind.group, known, _SIMILAR_GROUP)
    others = builtin_kinds().kinds if is_builtin(kind) else (group,)
    for other in (group, *sorted(others)):
        for name in sorted(known.get(other, ())):
            if name.lower() == kind.kind.lower():
                return GroupKind(other, name)
    close = closest(kind.kind, sorted(known.get(kind.group, ())), _SIMILAR)
    return GroupKind(kind.group, close) if close else None


def removed_version(api_version: str, kind: str) -> RemovedVersion | None:
    """The removed version of a kind of Kubernetes; None for other kinds."""
    found = (each for each in builtin_kinds().removed if each.api_version == api_version)
    return next((each for each in found if not each.kinds or kind in each.kinds), None)


def has_no_pods(kind: GroupKind) -> bool:
    """Whether objects of a kind have no pods to read. A misspelt kind of Kubernetes may have some."""
    return kind in known_without_pods() or (is_builtin(kind) and meant(kind) is None)
