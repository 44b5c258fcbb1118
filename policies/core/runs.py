"""Workloads with a known lifecycle, as objects have them: their roles, retries and settings.

The spec of a kind may be part of another object, as a Job's is of a CronJob's: `runs_in` finds both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

from policies.core.lifecycles import (
    Lifecycle,
    Named,
    PodRole,
    Refused,
    Retry,
    holds,
    known_lifecycles,
    lifecycle_of,
)
from policies.core.target import PodTemplate, Target
from policies.kube.field_paths import Steps, every_value_at, field_path, map_above, maps_at
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json, dig, integer
from policies.kube.quantities import whole_number


def run_of(obj: Json) -> Run | None:
    """An object whose kind has a known life."""
    return next(runs_in(obj), None)


def role_of(obj: Json, template: PodTemplate) -> RoleAt | None:
    """The role whose pods a template describes, in the object or in the first workload in it that has one."""
    roles = (run.role_of(template) for run in runs_in(obj))
    return next((role for role in roles if role is not None), None)


def succeeds_without(target: Target, template: PodTemplate) -> bool:
    """Whether the object, or a workload in it, may succeed while the pods of a template run."""
    return any(
        (role := run.role_of(template)) is not None and run.succeeds_without(role)
        for run in target.cache.once(_with_success, target.obj)
    )


def _with_success(obj: Json) -> tuple[Run, ...]:
    """The workloads of an object that may succeed without some of their roles."""
    return tuple(run for run in runs_in(obj) if run.life.success is not None)


class RoleAt(Struct, frozen=True):
    """A role of a workload, with the map that describes it."""

    role: PodRole
    steps: Steps
    """Of that map, in the whole object."""
    pods: int
    name: str
    """Of the role: the controller's name, or the user's."""


class RetryAt(Struct, frozen=True):
    """A retry of a workload, with its setting."""

    retry: Retry
    steps: Steps
    """Of the setting, in the whole object; of the spec if it always applies."""
    value: object
    """Of the setting, or its default."""
    limit: int | None
    """The maximum number; None: none."""


class Run(Struct, frozen=True):
    """The spec of a workload with a known life: of the object, or embedded in it."""

    life: Lifecycle
    spec: Json
    steps: Steps
    """Of the spec, in the whole object."""

    def at(self, path: str) -> str:
        """Field path of a path without wildcards."""
        return field_path((*self.steps, *path.split(".")))

    def value(self, path: str) -> Any:
        """The value at a path without wildcards, or None."""
        return dig(self.spec, *path.split("."))

    def has(self, path: str) -> bool:
        """Whether there is a value at a path, which may have wildcards."""
        return any(value is not None for _, value in every_value_at(self.spec, path))

    @property
    def is_elastic(self) -> bool:
        return any(map(self.has, self.life.elastic))

    @property
    def changes_size(self) -> bool:
        """Whether it also works with fewer pods than it creates first."""
        if not self.is_elastic:
            return False
        least = self.value(self.life.least_pods) if self.life.least_pods else None
        return not isinstance(least, int) or least < sum(each.pods for each in self.roles())

    @property
    def needs_all_pods(self) -> bool:
        """Whether nothing is done before all of its pods run: they are ranks, or the operator waits."""
        life = self.life
        return not self.changes_size and (life.collective or life.whole or life.slots is not None)

    @property
    def per_pod(self) -> str:
        """What the operator tells torchrun about the number of processes in each pod; empty if nothing."""
        known = self.life.per_pod
        if known is None:
            return ""
        written = (self.value(field) for field in known.fields)
        return str(next((each for each in written if each is not None), known.default))

    @property
    def slots(self) -> int | None:
        """The number of processes that mpirun may start; None if unknown."""
        known = self.life.slots
        if known is None or any(holds(self.spec, each) for each in known.unless):
            return None
        return integer(self.spec, *known.field.split("."), default=1) * sum(
            each.pods for each in self.roles() if each.role.name == known.role
        )

    @property
    def is_suspended(self) -> bool:
        """Whether no pods are created for now: a person or a queue starts it later."""
        return bool(self.life.suspended) and self.value(self.life.suspended) is True

    @property
    def creates_pods(self) -> bool:
        """Whether the kind's own controller creates its pods, and now."""
        return not (self.is_suspended or self.is_delegated)

    @property
    def is_delegated(self) -> bool:
        """Whether another controller creates its pods, under MultiKueue in another cluster."""
        by = self.value(self.life.managed_by) if self.life.managed_by else None
        return isinstance(by, str) and by not in ("", self.life.controller)

    def refused(self) -> Iterator[tuple[Steps, Refused]]:
        """What its operator refuses in it, with the steps of the map in the whole object."""
        for each in self.life.refused:
            for steps, node in _maps(self.spec, each.at):
                if each.applies(node) and all(holds(self.spec, wanted) for wanted in each.spec):
                    yield (*self.steps, *steps), each

    @property
    def named(self) -> Named | None:
        """The container that its pods must have."""
        known = self.life.named
        return None if known is None or any(holds(self.spec, each) for each in known.unless) else known

    def roles(self) -> Iterator[RoleAt]:
        for role in self.life.roles:
            for steps, node in _maps(self.spec, role.at):
                yield self._role_at(role, steps, node)

    def succeeds_without(self, role: RoleAt) -> bool:
        """Whether it may succeed while pods of a role run."""
        success = self.life.success
        if success is None:
            return False
        counted = self.value(success.roles)
        named = counted if isinstance(counted, list) else []
        return holds(self.spec, success.any) or (bool(named) and role.name not in named)

    def role_of(self, template: PodTemplate) -> RoleAt | None:
        """The role whose pods a template of the object describes."""
        own = len(self.steps)
        if template.steps[:own] != self.steps:
            return None
        below, found = template.steps[own:], []
        for role in self.life.roles:
            at = map_above(self.spec, role.at, below) if role.at else ((), self.spec)
            if at is not None:
                found.append(self._role_at(role, *at))
        return max(found, key=lambda each: len(each.steps), default=None)

    def _role_at(self, role: PodRole, steps: Steps, node: Json) -> RoleAt:
        pods = 1
        for factor in role.count:
            number = integer(node, *factor.field.split("."), default=factor.default)
            least = integer(node, *factor.least.split("."), default=0) if factor.least else 0
            pods *= max(number, least)
        name = node.get("name") if role.name == EACH else role.name
        return RoleAt(role, (*self.steps, *steps), max(0, pods), name if isinstance(name, str) else "")

    def retries(self) -> Iterator[RetryAt]:
        """What is retried, by each of its settings."""
        for retry in self.life.retries:
            if not retry.fields:
                yield RetryAt(retry, self.steps, None, _limit(retry, self.spec, {}))
            for path in retry.fields:
                above, _, name = path.rpartition(".")
                for steps, node in _maps(self.spec, above):
                    value = node.get(name)
                    if value is None and not (retry.unless and retry.unless in node):
                        value = retry.default
                    if value is not None and (not retry.values or value in retry.values):
                        limit = _limit(retry, self.spec, node)
                        yield RetryAt(retry, (*self.steps, *steps, name), value, limit)


EACH: Final = "each"
"""The name of roles that the user names."""


def _limit(retry: Retry, spec: Json, node: Json) -> int | None:
    """The maximum number of retries; None if there is none."""
    if not retry.limit:
        return None
    found = dig(node, retry.limit[1:]) if retry.limit.startswith(".") else dig(spec, *retry.limit.split("."))
    if isinstance(found, str):  # Argo takes both
        found = whole_number(found)
    return found if isinstance(found, int) and not isinstance(found, bool) else retry.limit_default


def _maps(spec: Json, path: str) -> Iterator[tuple[Steps, Json]]:
    return maps_at(spec, path) if path else iter([((), spec)])


def runs_in(obj: Json) -> Iterator[Run]:
    """The workloads of an object whose lives are known: itself, and those that it will create."""
    life = lifecycle_of(obj)
    if life is not None:
        yield from _runs(life, obj, ("spec",), _MAX_DEPTH)


def _runs(life: Lifecycle, obj: Json, steps: Steps, depth: int) -> Iterator[Run]:
    spec = dig(obj, *steps)
    if not isinstance(spec, dict):
        return
    yield Run(life, spec, steps)
    if not depth:
        return
    for embedded in life.embeds:
        for at, node in _maps(spec, embedded.at):
            if not embedded.kind:
                inner, at = lifecycle_of(node), (*at, "spec")
            else:
                inner = next(iter(known_lifecycles()[GroupKind(embedded.api_group, embedded.kind)]))
            if inner is not None:
                yield from _runs(inner, obj, (*steps, *at), depth - 1)


_MAX_DEPTH: Final = 3
"""The deepest nesting of workloads in workloads."""
