"""How much of an object a review reads: one budget of steps for objects of any size.

The object is measured before any policy sees it, and its commands are parsed once, on the same budget. Parts
that exceed the budget, or that no API server would accept, are undecided: the webhook neither changes nor
refuses them, and one sentence says so. Steps are counted instead of seconds, so the result is the same on
every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from policies.commands import BudgetSpent, StepBudget
from policies.containers.commands import ReviewBudget, commands_fit
from policies.core.annotations import EXEMPT, PREFIX
from policies.core.pod_bases import Find
from policies.core.pod_templates import pod_templates
from policies.core.target import PodTemplate
from policies.core.workloads import Workload
from policies.kube.group_kinds import POD, GroupKind, kind_of
from policies.kube.json import MAX_LEVELS, Json
from policies.kube.objects.kinds import type_of
from policies.kube.objects.reading import WrongTypeError, read
from webhook.admission.coverage import Coverage, coverage, has_no_pods
from webhook.admission.shapes import Shapes, found_by_shape

STEPS: Final = 60_000
"""The budget of a review, in steps of about a microsecond: `/healthz` waits no longer. The costliest of 6,500
public and test workloads needs a fourteenth of it."""

MAX_ANNOTATION_LENGTH: Final = 2048
"""Characters of one of our annotations, checked before any of them is read."""
MAX_EXEMPTION_LENGTH: Final = 32 * 1024
"""Characters of the exempt annotation, which contains reasons."""
MAX_KEY_LENGTH: Final = 1024
"""Characters of a key of a field, label or annotation; the API server's maximum is 317."""
MAX_NAME_LENGTH: Final = 1024
"""Characters of a container's name or image."""

_FIELD: Final = 3
_TEMPLATE: Final = 200
_ANNOTATION: Final = 100
_ELEMENTS: Final[Mapping[str, int]] = {
    "containers": 150,
    "initContainers": 150,
    "limits": 30,
    "requests": 30,
    "matchExpressions": 20,
    "ownerReferences": 20,
    "ports": 10,
}
"""Steps of mutators and rules for each element of these fields, in addition to its own fields."""
_UNREAD: Final = frozenset({"managedFields", "status"})
_MAX_SENTENCES: Final = 4


class Bounds(Struct, frozen=True):
    """The parts of an object that a review reads."""

    templates: tuple[PodTemplate, ...]
    """The pod templates that can be decided."""
    left_out: tuple[str, ...] = ()
    """A sentence for each part that can't be decided."""
    shapes: Shapes | None = None
    """Pod specs found by their structure if the kind is unknown."""

    @property
    def any_read(self) -> bool:
        """Whether any part of the object can be decided."""
        return bool(self.templates) or not self.left_out

    def coverage(self, obj: Json, workloads: Mapping[GroupKind, Workload]) -> Coverage:
        """The read and unread parts of the object."""
        return coverage(obj, workloads, self.templates, self.left_out, self.shapes)


def allowance() -> ReviewBudget:
    """The budget of one review: for the object, the old object of an update, and the commands of both."""
    return ReviewBudget(StepBudget(STEPS))


def bounded(
    obj: Json,
    workloads: Mapping[GroupKind, Workload],
    budget: ReviewBudget,
    find: Find | None = None,
    namespace: str = "",
) -> Bounds:
    """The parts of an object that `budget` pays for. `find` looks up the objects that complete its pods."""
    steps = budget.steps
    kind = kind_of(obj)
    try:
        if problem := _measured(obj, steps):
            return Bounds((), (_sentence("", problem),))
        if kind != POD:  # the type of a Pod is that of its template
            read(obj, type_of(kind))
        shapes = None if is_known(kind, workloads) else found_by_shape(obj)
        templates = pod_templates(obj, workloads, find, namespace) if shapes is None else shapes.templates
        steps.spend(_TEMPLATE * len(templates))
    except BudgetSpent:
        return Bounds((), (_sentence("", "it is too large for a review to read"),))
    except WrongTypeError as error:
        return Bounds((), (_sentence("", str(error)),))
    decided, undecided = [], []
    for template in templates:
        if problem := _wrong_type(template) or _unnameable(template):
            undecided.append(_sentence(template.path, problem))
        elif commands_fit(template, budget):
            decided.append(template)
        else:
            undecided.append(_sentence(template.path, "its commands take too long to read in a review"))
    return Bounds(tuple(decided), _few(undecided), shapes)


def is_known(kind: GroupKind, workloads: Mapping[GroupKind, Workload]) -> bool:
    """Whether it is known which pods objects of a kind have."""
    return kind in workloads or has_no_pods(kind)


def _measured(obj: Json, budget: StepBudget) -> str:
    """Pay for the fields of an object, and return the problem of one of them, or an empty string. Raises
    BudgetSpent."""
    cost, most = 0, budget.limit - budget.spent
    found: list[Any] = [obj]
    levels, end = 1, 1
    for index, node in enumerate(found):  # the list grows; a loop instead of recursion, for every review
        if index == end:
            levels, end = levels + 1, len(found)
            if levels > MAX_LEVELS:
                return f"it is nested deeper than {MAX_LEVELS} levels"
        cost += _FIELD * len(node)
        if cost > most:
            break
        if type(node) is list:
            for value in node:
                if type(value) is dict or type(value) is list:
                    found.append(value)  # noqa: PERF401 - a comprehension is a call for each list
            continue
        for key, value in node.items():
            if len(key) > MAX_KEY_LENGTH:
                return f"the name of a field is longer than {MAX_KEY_LENGTH} characters"
            if (type(value) is dict or type(value) is list) and key not in _UNREAD:
                found.append(value)
                if key in _ELEMENTS:
                    cost += _ELEMENTS[key] * len(value)
                elif (
                    key == "annotations"
                    and type(value) is dict
                    and (problem := _problem_of_annotations(value, budget))
                ):
                    return problem
    budget.spend(cost)
    return ""


def _problem_of_annotations(annotations: Json, budget: StepBudget) -> str:
    for key, value in annotations.items():
        if not key.startswith(PREFIX):
            continue
        budget.spend(_ANNOTATION)
        longest = MAX_EXEMPTION_LENGTH if key == EXEMPT else MAX_ANNOTATION_LENGTH
        if type(value) is str and len(value) > longest:
            return f"annotation {key[:MAX_KEY_LENGTH]} is longer than {longest} characters"
    return ""


def _unnameable(template: PodTemplate) -> str:
    for container in template.containers():
        if len(container.name) > MAX_NAME_LENGTH or len(container.image) > MAX_NAME_LENGTH:
            return f"the name or image of a container is longer than {MAX_NAME_LENGTH} characters"
    return ""


def _wrong_type(template: PodTemplate) -> str:
    try:
        _ = template.typed
    except WrongTypeError as error:
        return f"{template.path_in_object(error.path)}: {error.problem}"
    return ""


def _sentence(path: str, why: str) -> str:
    what = path or "the object"
    return f"{what} isn't reviewed: {why}. It is neither changed nor refused"


def _few(sentences: Sequence[str]) -> tuple[str, ...]:
    more = len(sentences) - _MAX_SENTENCES
    kept = tuple(sentences[:_MAX_SENTENCES])
    return kept if more <= 0 else (*kept, f"and {more:,} more pod templates are not decided")
