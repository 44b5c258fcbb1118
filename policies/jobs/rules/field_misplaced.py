"""field-misplaced: settings of retries, ends and starts that the controller does not read there, or never, or
that it refuses together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from policies.containers.commands import container_command
from policies.core import data
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.facts import WholeObjects
from policies.core.lifecycles import First, known_lifecycles
from policies.core.runs import Run, runs_in
from policies.core.settings import Field, Model
from policies.jobs.jobs import has_label
from policies.jobs.tekton_claims import claims_of_one_task, files_in_empty_dirs
from policies.kube.field_paths import every_value_at, field_path, maps_at, value_at
from policies.kube.group_kinds import GroupKind
from policies.kube.images import Globs, numbers_of_tag, repository_and_tag
from policies.kube.json import Json
from policies.kube.names import listed
from policies.kube.pods import Container, Role
from policies.kube.quantities import parse_duration

_SHOWN: Final = 4
_NUMBERS: Final = 3
"""Of a version; with fewer, a tag may stand for any release."""
_PYTHON: Final = re.compile(r"-py(\d+)", re.ASCII)


def check(target: Target, facts: Facts) -> Findings:
    for run in runs_in(target.obj):
        for wrong, right in run.life.misplaced.items():
            for steps, value in every_value_at(run.spec, wrong):
                if value is None:
                    continue
                above = field_path(run.steps)
                place = right if " " in right else f"{above}.{right}"
                yield Finding(
                    field_path((*run.steps, *steps)),
                    f"{run.life.kind} has no field {wrong.rpartition('.')[2]} here. The API server drops "
                    "it or the controller ignores it, without an error.",
                    f"Set it where it takes effect: {place}.",
                )
        yield from _refused(run)
        yield from _useless(run)
        yield from _broken(run)
        yield from _without_their_number(run)
        yield from _empty(run)
        yield from _limited(run)
        yield from _without_container(target, run)
        yield from _without_name(target, run)
        yield from _behind_another(target, run)
        yield from _before_its_program(target, run)
        yield from _of_two_versions(target, run)
    yield from claims_of_one_task(target, facts)
    yield from files_in_empty_dirs(target, facts)
    yield from misplaced_settings(target, facts)


def _refused(run: Run) -> Findings:
    for steps, each in run.refused():
        if each.greater is not None:
            first, what = each.greater[0], " above ".join(each.greater)
        else:
            known, *others = (*each.spec, *each.fields)
            joined = (" and " if each.fails else " with ").join(filter(None, (known, " and ".join(others))))
            first = each.fields[-1].partition("=")[0].removesuffix("^")
            what = joined.replace("^=", " that begins with ")
        without = "".join(f" without {field}" for field in each.without[:1])
        yield Finding(
            f"{field_path(steps)}.{first}",
            f"With {what}, {each.fails}."
            if each.fails
            else f"{run.life.versions[0]} refuses {what}{without}, although the API server accepts it. No "
            "pod is created, and only the status or an event says so.",
            each.instead,
        )


def _useless(run: Run) -> Findings:
    """A limit of retries that do not take place. `retries-without-limit` reports it for those that do."""
    retries = list(run.retries())
    limits = {each.retry.limit for each in retries}
    useless = {path: each for each in reversed(retries) for path in each.retry.useless if not each.retry.why}
    for path, each in useless.items():
        value = run.value(path)
        if value and path not in limits:
            yield Finding(
                run.at(path),
                f"{run.life.kind} ignores {path.rpartition('.')[2]} ({value}) with {each.steps[-1]} "
                f"{each.value}: the first failure of a pod ends it.",
                each.retry.instead,
            )


def _broken(run: Run) -> Findings:
    """Retries that are asked for, and that the controller begins and never makes."""
    for each in run.retries():
        if each.retry.broken:
            yield Finding(
                field_path(each.steps),
                f"{run.life.kind} retries nothing with {each.steps[-1]} {each.value}: after a failure, "
                f"{each.retry.broken}.",
                each.retry.instead,
            )


def _without_their_number(run: Run) -> Findings:
    """Retries that are asked for, and whose number is 0 because its field is absent."""
    for each in run.retries():
        written = each.retry.fields and each.value in each.retry.values and each.retry.default != each.value
        if written and each.retry.limit_default == 0 and each.limit == 0 and not run.has(each.retry.limit):
            yield Finding(
                field_path(each.steps),
                f"Without {each.retry.limit}, {run.life.kind} retries nothing with {each.steps[-1]} "
                f"{each.value}: the first failure ends it.",
                f"Set {run.at(each.retry.limit)}.",
            )


def _empty(run: Run) -> Findings:
    """Roles with no pods, which the controller does not leave out."""
    if not run.life.empty:
        return
    for each in run.roles():
        if not each.pods:
            yield Finding(
                field_path((*each.steps, *each.role.count[0].field.split("."))),
                f"{run.life.versions[0]} does not leave out a role with 0 pods: {run.life.empty}, as long as "
                "the job runs.",
                f"Remove {field_path(each.steps)}.",
            )


def _limited(run: Run) -> Findings:
    """Times of parts that are longer than that of the whole."""
    found = set()
    for each in run.life.limited:
        most = _seconds(run.value(each.by))
        for part in each.parts if most else ():
            for steps, value in every_value_at(run.spec, part):
                if most and _seconds(value) > most and steps not in found:
                    found.add(steps)
                    yield Finding(
                        field_path((*run.steps, *steps)),
                        f"The {steps[-1]} of {value} has no effect: {each.by} ends all of the "
                        f"{run.life.kind} after {run.value(each.by)}.",
                        f"Raise {run.at(each.by)} above the sum of what runs one after the other.",
                    )


def _seconds(value: object) -> int:
    """0 for none, and for what is no duration."""
    try:
        return parse_duration(value)
    except ValueError:
        return 0


def _without_container(target: Target, run: Run) -> Findings:
    """A container that is named, and that no pod has."""
    named = run.named
    name = run.value(named.field) if named and named.field else None
    if named is None or not isinstance(name, str) or not all(each.is_exact for each in target.templates):
        return
    have = [each.name for template in target.templates for each in template.containers(Role.MAIN)]
    if have and name not in have and not any("$" in each for each in (*have, name)):
        yield Finding(
            run.at(named.field),
            f"No pod of this {run.life.kind} has a container {name} ({listed(have[:_SHOWN])}). "
            f"{named.otherwise}.",
            f"Name the container that computes, such as {have[0]}.",
        )


def _without_name(target: Target, run: Run) -> Findings:
    """Pods without the container that the controller looks for by a fixed name."""
    named = run.named
    if named is None or not named.name:
        return
    for template in _templates(target, run):
        have = [each.name for each in template.containers(Role.MAIN)]
        if have and named.name not in have and not any("$" in each for each in have):
            yield Finding(
                f"{template.spec_path}.containers[0].name",
                f"{run.life.versions[0]} looks for a container called {named.name}, and these pods have "
                f"{listed(have[:_SHOWN])}. {named.otherwise}.",
                f"Give the container that computes the name {named.name}.",
            )


def _behind_another(target: Target, run: Run) -> Findings:
    """Pods in which the controller starts its program in another container, which comes first."""
    known = run.life.first
    if known is None:
        return
    images = Globs(known.images)
    for template in _templates(target, run):
        if _is_left_alone(target, template, known):
            continue
        containers = list(template.containers(Role.MAIN))
        program = next((each for each in containers if _is_program(each, images, known)), None)
        if program is not None and (first := containers[0]) is not program:
            yield Finding(
                f"{template.spec_path}.containers[0]",
                f"{run.life.versions[0]} takes the first container for that of its program, and here "
                f"{first.name} comes before {program.name}. {known.otherwise}.",
                f"Make {program.name} the first container.",
            )


def _is_left_alone(target: Target, template: PodTemplate, known: First) -> bool:
    """Whether an annotation of the object or of its pods keeps the controller from changing the command."""
    return has_label(target.annotations_at(template), known.unless)


def _before_its_program(target: Target, run: Run) -> Findings:
    """Commands that need the program which the controller starts after them."""
    known = run.life.first
    if known is None or not known.asks:
        return
    for template in _templates(target, run):
        if known.asks_at not in template.path or _is_left_alone(target, template, known):
            continue
        first = next(iter(template.containers(Role.MAIN)), None)
        if first is None or known.starts in " ".join(first.typed.argv) or _names_address(first, known):
            continue
        for command in container_command(template, first).commands:
            words = " ".join(command.argv)
            asks = next((each for each in known.asks if f"{words} ".startswith(f"{each} ")), "")
            if asks and not command.forgiven and not command.conditional and "-address" not in words:
                yield Finding(
                    template.command_path(first),
                    f"{run.life.versions[0]} runs the command of container {first.name} before "
                    f"`{known.starts}`, so `{asks}` finds no cluster.",
                    "Run it in the background of a postStart hook, after a loop that waits for the cluster.",
                    Certainty.LIKELY,
                )
                break


def _names_address(container: Container, known: First) -> bool:
    """Whether a container may ask another address than that of its own program."""
    return bool(container.typed.env_from) or any(each.name == known.address for each in container.typed.env)


def _of_two_versions(target: Target, run: Run) -> Findings:
    """Pods of one run with two versions of a program that works only with its own."""
    known = run.life.first
    if known is None or not known.alike:
        return
    images, first = Globs(known.alike), ""
    for template in _templates(target, run):
        for index, container in enumerate(template.containers(Role.MAIN)):
            image = container.image
            if index and container.name not in known.names:
                continue  # no node of the cluster
            if not images.matching(image) or len(_versions(image)[0]) < _NUMBERS:
                continue
            first = first or image
            both = zip(_versions(first), _versions(image), strict=True)
            if any(one and other and one != other for one, other in both):
                yield Finding(
                    f"{template.at(container)}.image",
                    f"Container {container.name} has the image {image}, and other pods of this "
                    f"{run.life.kind} have {first}. {known.unlike}.",
                    "Give all of them the same version.",
                )
                return


def _versions(image: str) -> tuple[tuple[int, ...], str]:
    """Of a program, and of its Python in 2.34.0-py39; empty if the tag has none. A nightly build of a release
    has its commit as a further part, 2.46.0.0e19ea, and calls itself 2.46.0."""
    tag = repository_and_tag(image)[1]
    python = _PYTHON.search(tag)
    return numbers_of_tag(tag)[:_NUMBERS], python[1] if python else ""


def _is_program(container: Container, images: Globs, known: First) -> bool:
    return container.name in known.names or bool(images.matching(container.image))


def _templates(target: Target, run: Run) -> Iterator[PodTemplate]:
    """The templates of a run that are as the pods will be."""
    own = len(run.steps)
    for template in target.templates:
        if template.is_exact and template.steps[:own] == run.steps:
            yield template


class Misplaced(Model):
    """An entry of `misplaced_settings.yaml`. Kinds are written as `Kind.group`."""

    kinds: tuple[str, ...] = Field(min_length=1, description="the kinds of the reviewed objects")
    named: str = Field("", description="the kind of another object that has the setting; empty: its own")
    name: str = Field("", description="the path of that object's name")
    at: str = Field(description="the path of the map with the settings")
    keys: tuple[str, ...] = Field(min_length=1, description="the settings")
    unless: tuple[str, ...] = Field((), description="other keys of the map with which they are read")
    reads: str = Field("", description="the kind whose objects have the settings at the same path instead")
    why: str = Field(description="a sentence about what reads it instead, without its full stop")
    instead: str = Field(description="what to do")
    source: str = Field(description="the thread or code that shows it")


@data.table
def _settings() -> dict[GroupKind, list[Misplaced]]:
    found: dict[GroupKind, list[Misplaced]] = {}
    for each in data.load_list(Misplaced, "policies.jobs", "misplaced_settings.yaml"):
        for kind in each.kinds:
            found.setdefault(GroupKind.parse(kind), []).append(each)
    return found


def kinds_with_misplaced_settings() -> tuple[GroupKind, ...]:
    return tuple(_settings())


def misplaced_settings(target: Target, facts: Facts) -> Findings:
    for known in _settings().get(target.kind, ()):
        other = known.named and _named(known, target, facts)
        for steps, found in maps_at(other or target.obj, known.at) if other or not known.named else ():
            key = next((each for each in known.keys if each in found), None)
            if key is None or any(each in found for each in known.unless) or _is_read(known, key, facts):
                continue
            where = (
                f"{known.named} {value_at(target.obj, known.name)} has {key}" if other else f"This is {key}"
            )
            yield Finding(
                known.name if other else f"{field_path(steps)}.{key}",
                f"{where}, but {known.why}.",
                known.instead,
            )


def _is_read(known: Misplaced, key: str, facts: Facts) -> bool:
    """Whether an object of the namespace has the setting where it is read."""
    whole, place = facts.whole, (known.reads, known.at, facts.namespace)
    if whole is None or not known.reads:
        return False
    return key in whole.cache.once_for(place, _settings_of, known, facts.namespace, whole)


def _settings_of(known: Misplaced, namespace: str, whole: WholeObjects) -> frozenset[str]:
    objects = whole.every(GroupKind.parse(known.reads), namespace)
    return frozenset(key for each in objects for _, found in maps_at(each, known.at) for key in found)


def _named(known: Misplaced, target: Target, facts: Facts) -> Json | None:
    name = value_at(target.obj, known.name)
    if facts.whole is None or not isinstance(name, str):
        return None
    return facts.whole.named(GroupKind.parse(known.named), facts.namespace, name)


RULE = rule(__name__, check, (*known_lifecycles(), *kinds_with_misplaced_settings()))
