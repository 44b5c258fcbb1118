"""What trains: a pod by its kind, labels, accelerators or program, and which containers of a Job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Final

from policies.accelerators.requests import wants_accelerator
from policies.commands import SHELLS, is_python
from policies.containers.commands import command_without_pod, container_command
from policies.containers.programs import programs, programs_of
from policies.core import data
from policies.core.facts import Facts
from policies.core.lifecycles import PodRole as LifecycleRole
from policies.core.lifecycles import known_lifecycles
from policies.core.pod_view import PodView
from policies.core.settings import Field, Model
from policies.core.target import PodTemplate
from policies.jobs.job_retries_settings import JobRetries
from policies.jobs.jobs import PlacedJobSpec, has_label, is_labelled_training
from policies.kube.group_kinds import GroupKind
from policies.kube.images import repository
from policies.kube.json import Json
from policies.kube.pods import Container, Role, containers

LAUNCHERS_DAEMON: Final = "sshd"
"""By which a launcher starts its processes in another pod."""
_SCRIPT: Final = re.compile(r"\.py$|\w\.\w")
"""A script or a module of Python."""
_WORD: Final = re.compile(r"[a-z]+")
_FINE: Final = re.compile(r"fine[-_]")
"""Makes one word of fine-tune."""


class TrainingPrograms(Model):
    """The table training_programs.yaml."""

    launchers: frozenset[str] = Field(
        description="programs, or a program and its first argument, that start the processes of a training"
    )
    trainers: frozenset[str] = Field(description="launchers that only train, whatever they start")
    plain_words: frozenset[str] = Field(
        description="words of the name of a script that trains if a launcher starts it"
    )
    words: frozenset[str] = Field(description="words in the name of a script or module that trains")
    other_words: frozenset[str] = Field(
        description="words in the name of a script or module that prepares or uses a training"
    )
    tools: frozenset[str] = Field(description="programs that build, download, convert or evaluate")
    measures: tuple[str, ...] = Field(description="parts of the names of benchmarks, in lower case")
    without_checkpoints: tuple[str, ...] = Field(
        description="options, in lower case, with which a training keeps nothing"
    )
    harmless: frozenset[str] = Field(description="programs whose failures no retry heals")


_table = data.entry(TrainingPrograms, __package__, "training_programs.yaml")


def training_containers(
    obj: Json, job: PlacedJobSpec, settings: JobRetries, facts: Facts
) -> tuple[Container, ...]:
    """The main containers whose errors are real errors: all of a Job with a training label, else those that
    run a training program with accelerators and nothing that a retry could heal, such as a download."""
    main = tuple(containers(job.template, Role.MAIN))
    if is_labelled_training(obj, job, settings):
        return main
    if not wants_accelerator(facts.view(job.template), facts):
        return ()
    return tuple(each for each in main if _trains(each))


def trains_by_kind(view: PodView) -> bool:
    """Whether the pod's owner, or a label of its operator, says that it trains."""
    owner = view.owner
    if owner is not None and owner.group_kind in training_kinds():
        return True
    labels = view.typed.metadata.labels
    return bool(labels) and has_label(labels, _training_labels())


def is_irreplaceable(view: PodView) -> bool:
    """Whether the loss of the pod loses a whole run, as that of Spark's driver does."""
    names = _irreplaceable_containers()
    return any(container.name in names for container in view.typed.spec.containers)


def only_state_of(view: PodView) -> str:
    """The role of a pod that runs as long as its cluster and has the only state of it, such as `head of a
    RayCluster`; empty for other pods."""
    metadata, states = view.typed.metadata, _states()
    for label in metadata.labels.items() & states.keys():
        kind, role = states[label]
        if not (role.unless and has_label(metadata.annotations, (role.unless,))):
            return f"{role.name} of a {kind}"
    return ""


def runs_training(view: PodView) -> bool:
    """Whether a main container starts a training program, and none prepares or uses one."""
    return any(_starts_training(each) for each in view.containers if each.role is Role.MAIN)


@cache
def training_kinds() -> frozenset[GroupKind]:
    """The kinds whose pods train by their kind."""
    return frozenset(
        life.group_kind for lives in known_lifecycles().values() for life in lives if life.trains
    )


@cache
def _training_labels() -> tuple[str, ...]:
    every = (life.labels for lives in known_lifecycles().values() for life in lives if life.trains)
    return tuple(dict.fromkeys(label for labels in every for label in labels))


@cache
def _irreplaceable_containers() -> frozenset[str]:
    roles: list[LifecycleRole] = [
        r for lives in known_lifecycles().values() for life in lives for r in life.roles
    ]
    return frozenset(role.container for role in roles if role.irreplaceable and role.container)


@cache
def _states() -> Mapping[tuple[str, str], tuple[str, LifecycleRole]]:
    """By label: the kind, and its role that has the only state of a cluster."""
    found: dict[tuple[str, str], tuple[str, LifecycleRole]] = {}
    for life in (life for lives in known_lifecycles().values() for life in lives):
        for role in life.roles:
            if role.irreplaceable and role.label:
                key, _, value = role.label.partition("=")
                found[key, value] = life.kind, role
    return MappingProxyType(found)


def _starts_training(container: Container) -> bool:
    if _is_without_program(container):
        return False
    table = _table()
    started = programs(container)
    lines = (*started, *(command.argv for command in command_without_pod(container).commands))
    names = {words[0] for words in started if not launcher_of(words)} - SHELLS - table.harmless
    if any(prepares(name) for name in (*names, *filter(None, map(_launched, lines)))):
        return False
    return any(launcher_of(words) for words in lines) or any(
        _SCRIPT.search(name) and words_of(name) & table.words for name in names
    )


def _trains(container: Container) -> bool:
    summary = command_without_pod(container)
    if not summary.complete or _is_without_program(container):
        return False
    table = _table()
    started = programs(container)
    lines = (*started, *(command.argv for command in summary.commands))
    launched = [name for name in map(_launched, lines) if name is not None]
    names = {words[0] for words in started if not launcher_of(words)} - SHELLS - table.harmless
    # A shell script may do anything before it trains.
    names_of_python = (name for name in names if not name.endswith((".sh", ".bash")))
    scripts = {name for name in names_of_python if words_of(name) & table.words or _SCRIPT.search(name)}
    if any(prepares(name) for name in names) or not all(map(_is_trained_by, launched)):
        return False
    return names <= scripts and (bool(launched) or any(words_of(name) & table.words for name in scripts))


def is_training(words: tuple[str, ...]) -> bool:
    """Whether a command trains, by its launcher or the name of its script."""
    launched = _launched(words)
    if launched is None:
        scripts = (word for word in words if is_python(words[0].rpartition("/")[2]) and _SCRIPT.search(word))
        launched = PurePosixPath(next(scripts, "")).name
        return bool(words_of(launched) & _table().words) and not prepares(launched)
    return _is_trained_by(launched)


def _is_without_program(container: Container) -> bool:
    """Whether only the image says which program runs: kaniko's `--destination=registry.example/train`."""
    typed = container.typed
    return not typed.command and (not typed.args or typed.args[0].startswith("-"))


def _is_trained_by(launched: str) -> bool:
    """Whether what a launcher starts trains: a script by its name, or a trainer that needs none."""
    words = words_of(launched)
    if not words or prepares(launched):
        return False
    return bool(words & _table().words) or words <= _table().plain_words


def launcher_of(words: tuple[str, ...]) -> str:
    """The launcher of a training that a command runs, else empty. A redirection may have no words."""
    return _launcher_and_arguments(words)[0]


def options_of_launcher(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words of a launcher before the program that it starts."""
    _, arguments = _launcher_and_arguments(words)
    for at, (before, word) in enumerate(pairwise(("", *arguments))):
        is_value = before.startswith("-") and "=" not in before and before not in _WITHOUT_VALUE
        if word in ("-m", "--module") or word.endswith(".py") or not (word.startswith("-") or is_value):
            return arguments[:at]
    return arguments


_WITHOUT_VALUE: Final = ("--no-python", "--no_python", "--run-path", "--run_path", "--standalone")


def _launched(words: tuple[str, ...]) -> str | None:
    """What the launcher of a command starts: a script, a module, or itself if it only trains. None without a
    launcher, empty if it is unknown."""
    launcher, arguments = _launcher_and_arguments(words)
    if not launcher:
        return None
    if launcher in _table().trainers:
        return "train"
    for word, following in pairwise((*arguments, "")):
        if word in ("-m", "--module"):
            return following
        if word.endswith(".py"):
            return PurePosixPath(word).name
    first = "".join(arguments[:1])
    return "" if first.startswith("-") else PurePosixPath(first).name


def _launcher_and_arguments(words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    if not words:
        return "", ()
    if len(words) > 2 and is_python(words[0].rpartition("/")[2]) and words[1] == "-m":
        words = words[2:]
    table, name = _table(), words[0].rpartition("/")[2]
    for launcher, length in ((name, 1), (" ".join((name, *words[1:2])), 2)):
        if launcher in table.launchers or launcher in table.trainers:
            return launcher, words[length:]
    return "", ()


def prepares(name: str) -> bool:
    """Whether a name, as of an image or a script, says that it prepares or uses a training: a conversion, a
    download, an evaluation."""
    return bool(words_of(name) & _table().other_words)


def only_prepare(started: Iterable[str]) -> bool:
    """Whether programs and scripts are known, and all of them prepare or use a training."""
    table = _table()
    names = [PurePosixPath(name).name for name in started]
    names = [name for name in names if not is_python(name) and name not in SHELLS | table.harmless]
    return bool(names) and all(name in table.tools or prepares(name) for name in names)


def measures(template: PodTemplate, name: str) -> bool:
    """Whether a pod has no work to lose: by its names or that of its object, it is a benchmark, or it trains
    without checkpoints."""
    names = [name]
    for container in template.containers(Role.MAIN):
        summary = container_command(template, container)
        names += (container.name, repository(container.image).rpartition("/")[2])
        names += (*programs_of(summary), *summary.scripts)
    argv = (word for each in template.containers(Role.MAIN) for word in each.typed.argv)
    return says_measuring(names) or keeps_nothing(argv)


def says_measuring(names: Iterable[str]) -> bool:
    """Whether the name of an object, an image or a program is that of a benchmark."""
    parts = _table().measures
    return any(part in name.lower() for name in names for part in parts)


def keeps_nothing(argv: Iterable[str]) -> bool:
    """Whether an option says that a training writes no checkpoints."""
    options = _table().without_checkpoints
    return any(option in word.lower() for word in argv for option in options)


def words_of(name: str) -> frozenset[str]:
    """The words in the name of a script or module: `train.py`, `trainer.finetune`."""
    return frozenset(_WORD.findall(_FINE.sub("fine", name.lower())))
