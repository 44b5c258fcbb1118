"""Which model server a container runs: by what it starts, by its ports' names, by its image.

Law: a table and a container in, one opinion out; unsure is None. Recognised servers are remembered,
because a workload's pods are all alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from policies.containers.images import Globs
from policies.containers.programs import Launch, Program, has_option, launch_of, option, started
from policies.containers.remembered import Remembered
from policies.containers.sidecars import infrastructure as known_infrastructure
from policies.kube.images import glob_of, repository_and_tag
from policies.kube.json import Json, maps, strings
from policies.kube.pods import Container
from policies.probes.preset import Older, Preset, Unversioned

PULLER: Final = "chassis-puller"
"""The sidecar's program: no server, even if its container has a server's name."""


class Part(Enum):
    """What a server does in its group."""

    SERVES = auto()
    """It answers clients. So does a server without a group."""
    WORKER = auto()
    """It computes for another pod that answers them."""
    EITHER = auto()
    """Its command decides that in the running container, as `--node-rank $(LWS_WORKER_INDEX)` does."""


@dataclass(frozen=True, slots=True)
class Server:
    """A recognised model server, and how it was started."""

    name: str
    """The name of its preset."""
    preset: Preset
    words: Program
    """The server's own command line, as far as it is known."""
    variables: Mapping[str, str | None]
    """The container's variables; None where the value comes from elsewhere."""
    own_image: bool
    """Whether the image is one of the preset's."""
    by_name: bool
    """Whether it was recognised by an image with another name or by a variable: then its port must be
    declared or set."""
    sometimes: bool
    """Whether it is started only in some cases: in one branch of a script."""
    open: bool
    """Whether `envFrom` may set further variables."""
    outdated: bool
    """Whether its version is one from before its preset's health endpoint."""
    undated: bool
    """Whether its version is not known, and no endpoint is right for all versions."""
    hidden: Program
    """The possible values of a word such as `$ARGS`: words of the script that no program gets."""

    def may_have_option(self, *flags: str) -> bool:
        """Whether a variable among its words, which can't be read, may hold one of the flags."""
        return has_option(self.hidden, *flags)

    def has_option(self, *flags: str) -> bool:
        return has_option(self.words, *flags)

    @property
    def part(self) -> Part:
        """What it does in its group of nodes, of which only the first serves."""
        if self.preset.worker or self.has_option(*self.preset.headless_flags):
            return Part.WORKER
        rank = option(self.words, *self.preset.worker_flags)
        if rank in (None, "0"):
            return Part.SERVES
        return Part.WORKER if rank.isdigit() else Part.EITHER

    @property
    def spans_pods(self) -> bool:
        """Whether it answers only once its processes in other pods have joined it."""
        nodes = option(self.words, "--nnodes")
        return nodes not in (None, "1") or (nodes is None and self.has_option(*self.preset.worker_flags))

    def has_variable(self, *names: str) -> bool:
        """Whether one of the variables is set to something."""
        return any(self.variables.get(name, "") != "" for name in names)

    def told(self, flags: tuple[str, ...], variables: tuple[str, ...]) -> str | None:
        """The value of a flag or else of a variable; None if neither is given, empty if it isn't known."""
        told = option(self.words, *flags)
        for name in variables:
            if told is None and name in self.variables:
                told = self.variables[name] or ""
        return told


Ports = tuple[tuple[int, str], ...]
Found = tuple[str, Program] | None


class Recogniser:
    """Knows servers and infrastructure by a table of presets; remembers what it has seen."""

    def __init__(self, presets: Mapping[str, Preset], infrastructure: tuple[str, ...] = ()) -> None:
        self._presets = presets
        self._infrastructure = (*known_infrastructure(), *infrastructure)
        self._recognised: Remembered[tuple[str, bytes, Ports], tuple[Server | None]] = Remembered()
        self._names: Remembered[str, bool] = Remembered(1 << 20)
        self._globs = Globs(
            (
                *self._infrastructure,
                *(
                    glob
                    for each in presets.values()
                    for glob in (*each.images, *each.mirrors, *each.excluded_images, *each.version_images)
                ),
            )
        )
        self._by_globs: dict[frozenset[str], _ByImage] = {}
        self._by_program: dict[str, list[str]] = {}
        for name, preset in presets.items():
            for head in _heads(preset.commands):
                self._by_program.setdefault(head, []).append(name)

    def server(self, container: Container) -> Server | None:
        """The model server in a container.

        An image counts only while the container runs what the image was made for: where the command
        puts something else in its place, the preset's own port must be declared.
        """
        return container.cache.once(self._server, container)

    def _server(self, container: Container) -> Server | None:
        launch, ports = launch_of(container), tuple(container.tcp_ports.items())
        key = None if launch.key is None else (container.image, launch.key, ports)
        known = None if key is None else self._recognised.get(key)
        if known is None:
            known = (self._recognise(container, launch, ports),)
            if key is not None:
                size = len(container.image) + 2 * len(key[1]) + 100 * len(ports)
                self._recognised.put(key, known, size + sum(len(name) for _, name in ports))
        return known[0]

    def is_infrastructure(self, container: Container) -> bool:
        """Whether a container is a known proxy, log shipper or exporter: never judged as a server."""
        return container.cache.once(self._is_infrastructure, container)

    def _is_infrastructure(self, container: Container) -> bool:
        command = strings(container.spec, "command")
        return (
            bool(command and command[0].rpartition("/")[2] == PULLER)
            or self._of_image(container.image).infrastructure
            or self._is_proxys_name(container.name)
        )

    def _is_proxys_name(self, name: str) -> bool:
        known = self._names.get(name)
        if known is None:
            known = any(glob_of(glob).fullmatch(name) for glob in self._infrastructure)
            self._names.put(name, known, len(name))
        return known

    def _recognise(self, container: Container, launch: Launch, ports: Ports) -> Server | None:
        image = container.image
        programs, sometimes, complete = started(container)
        if not complete:
            return None
        by_image = self._of_image(image)
        by_command = self._by_command(by_image, programs)
        found = (
            by_command
            or _by_port_name(by_image, launch, ports, programs)
            or _by_image(by_image, launch, programs)
            or _by_arguments(by_image, programs)
            or _by_variables(by_image, launch, ports, programs)
        )
        if found is None:
            return None
        name, words = found
        preset = by_image.presets[name]
        own_image = name in by_image.own
        version = by_image.version_of(name, image)
        older = _older(preset, version)
        if older is not None:
            had = {
                "live_path": older.live_path,
                "ready_path": older.ready_path,
                "unless_flags": (*preset.unless_flags, *older.unless_flags),
                "unless_env": (*preset.unless_env, *older.unless_env),
            }
            preset = preset.model_copy(update=had)
        hidden = _hidden(launch, programs) if any(word.startswith("$") for word in words) else ()
        return Server(
            name=name,
            preset=preset,
            words=words,
            variables=launch.variables,
            own_image=own_image,
            by_name=not own_image and found is not by_command,
            sometimes=words in sometimes,
            open=launch.open,
            outdated=older is not None and not (older.live_path or older.ready_path),
            undated=not version and preset.unversioned is Unversioned.NOTHING,
            hidden=hidden,
        )

    def _by_command(self, by_image: _ByImage, programs: tuple[Program, ...]) -> Found:
        """The first program, in reading order, that a preset knows; of the presets that know it, the one with
        the most specific command. One whose commands need its image comes after the others, since `ray start`
        is only the base of other servers; a worker of a group comes last, and counts only if no command but
        waiting follows."""
        claims = [
            (preset.worker, preset.commands_need_image, n, *_generality(pattern), name)
            for n, program in enumerate(programs)
            for name in self._by_program.get(program[0], ())
            if (preset := by_image.presets.get(name)) is not None
            and (not preset.commands_need_image or name in by_image.own)
            and (not preset.worker or all(other[0] in _WAITING for other in programs[n + 1 :]))
            for pattern in preset.commands
            if not pattern.startswith("-") and _runs(program, pattern)
            if set(program[1:]).isdisjoint(preset.other_operands)
        ]
        if not claims:
            return None
        _, _, n, *_, name = min(claims)
        return name, programs[n]

    def _of_image(self, image: str) -> _ByImage:
        """The answer for an image without its command."""
        matching = self._globs.matching(image)
        known = self._by_globs.get(matching)
        if known is None:
            presets = {
                name: preset
                for name, preset in self._presets.items()
                if matching.isdisjoint(preset.excluded_images)
            }
            own = {
                name: tuple(glob for glob in preset.images if glob in matching)
                for name, preset in presets.items()
                if not matching.isdisjoint(preset.images)
            }
            mirrors = {
                name: tuple(glob for glob in preset.mirrors if glob in matching)
                for name, preset in presets.items()
                if name not in own and not matching.isdisjoint(preset.mirrors)
            }
            port_names = {name: preset.port_names for name, preset in presets.items() if preset.port_names}
            variables = {name: preset.variables for name, preset in presets.items() if preset.variables}
            dated = frozenset(
                name
                for name, preset in presets.items()
                if not matching.isdisjoint((*preset.images, *preset.version_images))
            )
            infrastructure = not matching.isdisjoint(self._infrastructure)
            known = _ByImage(presets, own, mirrors, port_names, variables, dated, infrastructure)
            if len(self._by_globs) >= _MOST_COMBINATIONS:
                self._by_globs.clear()
            self._by_globs[matching] = known
        return known


@dataclass(frozen=True, slots=True)
class _ByImage:
    """The presets that match an image, and whether it is infrastructure."""

    presets: Mapping[str, Preset]
    """Those that may be meant."""
    own: Mapping[str, tuple[str, ...]]
    """Those that know the image as theirs, each with the globs that match it."""
    mirrors: Mapping[str, tuple[str, ...]]
    """Those that know it as a copy by others, likewise."""
    port_names: Mapping[str, tuple[str, ...]]
    """The names of ports by which some of the presets are known."""
    variables: Mapping[str, tuple[str, ...]]
    """The variables by which some of the presets are known."""
    dated: frozenset[str]
    """Those whose version the image's tag is."""
    infrastructure: bool

    def version_of(self, name: str, image: str) -> tuple[int, ...]:
        """The version of a preset's server, from the image's tag; empty if the tag has none."""
        return version_of(repository_and_tag(image)[1]) if name in self.dated else ()


_MOST_COMBINATIONS: Final = 1000
"""Sets of globs that match one image together, whose answer is remembered."""


def _by_arguments(by_image: _ByImage, programs: tuple[Program, ...]) -> Found:
    """The preset with the most specific flags among arguments without a program: the image starts it."""
    if not programs or not programs[0] or not programs[0][0].startswith("-"):
        return None
    claims = [
        (*_generality(pattern), name)
        for name, preset in by_image.presets.items()
        if not preset.commands_need_image or name in by_image.own
        for pattern in preset.commands
        if pattern.startswith("-") and _runs(programs[0], pattern)
    ]
    return (min(claims)[-1], programs[0]) if claims else None


def _by_port_name(by_image: _ByImage, launch: Launch, ports: Ports, programs: tuple[Program, ...]) -> Found:
    names = {name for _, name in ports}
    for name, port_names in by_image.port_names.items():
        preset = by_image.presets[name]
        if not names.isdisjoint(port_names) and _runs_its_own(preset, launch, programs):
            return name, _joined(programs)
    return None


def _by_image(by_image: _ByImage, launch: Launch, programs: tuple[Program, ...]) -> Found:
    """The preset with the most specific image glob, if the container runs the image's own program."""
    matching = [
        (*_vagueness(glob), name)
        for name, globs in (*by_image.own.items(), *by_image.mirrors.items())
        if not by_image.presets[name].commands_need_image
        for glob in globs
    ]
    if not matching:
        return None
    *_, name = min(matching)
    preset = by_image.presets[name]
    if not _runs_its_own(preset, launch, programs):
        return None
    return name, programs[-1] if launch.command else _joined(programs)


def _by_variables(by_image: _ByImage, launch: Launch, ports: Ports, programs: tuple[Program, ...]) -> Found:
    """The preset whose variables are set, in an image that runs its own entrypoint and declares the port."""
    if not launch.env:
        return None
    declared = {str(port) for port, _ in ports}
    for name, variables in by_image.variables.items():
        preset = by_image.presets[name]
        told = {str(preset.port), *(launch.variables.get(each) or "" for each in preset.port_env)}
        if (
            not declared.isdisjoint(told)
            and not launch.variables.keys().isdisjoint(variables)
            and _runs_its_own(preset, launch, programs)
        ):
            return name, _joined(programs)
    return None


def _hidden(launch: Launch, programs: tuple[Program, ...]) -> Program:
    """The words of a script that are none of its programs': `ARGS=(--port 9000)` has two."""
    known = {part for word in _joined(programs) for part in _SPLIT.split(word)}
    text = "\n".join((*launch.command, *launch.args))
    return tuple(word for word in _SPLIT.split(text) if word not in known)


_SPLIT: Final = re.compile(r"[\s\"'();&|]+|=(?=-)")


def _joined(programs: tuple[Program, ...]) -> Program:
    return tuple(word for program in programs for word in program)


_OTHER_PROGRAMS: Final = frozenset(
    {"sh", "bash", "sleep", "tail", "cat", "true", "python", "python3", "jupyter", "pip", "env", "ls"}
)
_IDLE: Final = frozenset({"sleep", "tail", "cat"})
"""What a container runs to stay, so that somebody can work in it."""
_WAITING: Final = _IDLE | {"wait", "echo", "true", "exit", "sh", "bash", "ray"}
"""Programs that may follow the start of a worker in the background."""
_SCRIPTS: Final = (".sh", ".bash", ".py")


def is_idle(container: Container) -> bool:
    """Whether a container runs only what waits, such as `sleep infinity`: it serves nothing."""
    programs, _, complete = started(container)
    return complete and bool(programs) and all(program[0] in _IDLE for program in programs)


def _runs_its_own(preset: Preset, launch: Launch, programs: tuple[Program, ...]) -> bool:
    """Whether a container runs the entrypoint of the preset's images, as far as can be decided.

    An image decides only that: a command or a script in the entrypoint's place may be any program.
    """
    if not set(launch.args).isdisjoint(preset.other_operands):
        return False
    own = {*(pattern.split()[0] for pattern in preset.commands), *preset.other_commands}
    if any(program[0] in own for program in programs):
        return False  # the server itself, but in none of the ways in which its endpoint is known
    if launch.command:
        return bool(programs) and programs[-1][0] in preset.entrypoints
    if not launch.args or launch.args[0].startswith("-"):
        return True
    first = launch.args[0].rpartition("/")[2]
    if first in preset.entrypoints:
        return True
    if first in _OTHER_PROGRAMS or first.endswith(_SCRIPTS):
        return False
    return any(fnmatchcase(launch.args[0], glob) for glob in preset.operands)


def _runs(program: Program, pattern: str) -> bool:
    """Whether a program's words begin with the pattern's; the pattern's flags may be anywhere."""
    words, flags = _words_and_flags(pattern)
    return program[: len(words)] == words and all(has_option(program, flag) for flag in flags)


def _generality(pattern: str) -> tuple[int, int]:
    """Smaller for a more specific command: `ray start --head` before `ray start`."""
    words, flags = _words_and_flags(pattern)
    return -len(words), -len(flags)


@lru_cache(maxsize=1024)
def _heads(patterns: tuple[str, ...]) -> frozenset[str]:
    """The programs that patterns name; empty if one names only flags."""
    return frozenset(next(iter(_words_and_flags(pattern)[0]), "") for pattern in patterns)


@lru_cache(maxsize=1024)
def _words_and_flags(pattern: str) -> tuple[Program, Program]:
    wanted = pattern.split()
    flags = tuple(word for word in wanted if word.startswith("-"))
    return tuple(word for word in wanted if word not in flags), flags


# --- ports and images -----------------------------------------------------------------------------


def port_number(container: Json, port: object) -> int | None:
    """The number of a probe's or annotation's port: a number, its text, or the name of a declared port."""
    if isinstance(port, str):
        named = next(
            (item.get("containerPort") for item in maps(container, "ports") if item.get("name") == port), None
        )
        port = int(port) if named is None and port.isascii() and port.isdigit() and len(port) < 6 else named
    return port if type(port) is int and 0 < port < 65536 else None


def _older(preset: Preset, version: tuple[int, ...]) -> Older | None:
    """The fields that differ for a version; None for a new one. The preset decides what counts for an unknown
    version."""
    if not version:
        return preset.older[0] if preset.older and preset.unversioned is Unversioned.OLDEST else None
    return next((each for each in preset.older if version < version_of(each.before)), None)


def version_of(tag: str) -> tuple[int, ...]:
    """The numbers of the version in a tag; empty for a tag without one."""
    version = version_in(tag)
    return tuple(map(int, version.split("."))) if version else ()


def version_in(tag: str) -> str:
    """The version that a tag begins with: `v24.05-py3` has 24.05, and so has `main-v24.05`; empty for a tag
    without one."""
    match = _VERSION.match(tag)
    if match is None and tag[:1].isalpha():
        match = _VERSION.match(tag.partition("-v")[2])
    return match[1] if match else ""


_VERSION: Final = re.compile(r"v?([0-9]{1,4}(?:\.[0-9]{1,4}){1,3})(?![0-9])")


def _vagueness(glob: str) -> tuple[int, int, int]:
    """Smaller for a more specific glob: its segments, its tag, its letters."""
    return -glob.count("/"), -glob.count(":"), glob.count("*") - len(glob)
