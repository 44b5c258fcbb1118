"""Recognise the model server in a container: by its command, its port names, its image or its variables.

If in doubt, the result is None. Results are cached, because the pods of a workload are equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from policies.containers.programs import (
    Launch,
    Program,
    ProgramOptions,
    has_option,
    launch_of,
    may_listen,
    sources_variables,
    started,
    variables_of,
)
from policies.containers.sidecars import infrastructure as known_infrastructure
from policies.containers.sidecars import is_puller
from policies.kube.cache import BoundedCache, Cache, lazy
from policies.kube.images import Globs, glob_matches, repository_and_tag
from policies.kube.pods import Container
from policies.kube.quantities import whole_number
from policies.probes.preset import Older, Preset, Unversioned

_MODEL: Final = re.compile(r"\$[({]?\w*MODEL(?:_(?:NAME|ID|PATH|DIR|REPO))?[)}]?")
"""A variable that names a model, and so contains no options."""


class GroupRole(Enum):
    """What a server does in its group of pods."""

    SERVES = auto()
    """It answers clients. A server without a group does so, too."""
    WORKER = auto()
    """It computes for another pod that answers clients."""
    UNDECIDED = auto()
    """Only the running container can decide, as with `--node-rank $(LWS_WORKER_INDEX)`."""


@dataclass(frozen=True)
class Server:
    """A recognised model server and its command line."""

    name: str
    """The name of its preset."""
    preset: Preset
    argv: Program
    """The server's own command line, as far as it is known."""
    variables: Mapping[str, str | None]
    """The container's variables and those that its script exports; None if the value is in another object or
    only known when the script runs."""
    own_image: bool
    """Whether the image is one of the preset's."""
    weak_match: bool
    """Whether only a port name, a variable or a mirror identifies it: its port must be declared or set."""
    conditional: bool
    """Whether only one branch of a script starts it."""
    has_env_from: bool
    """Whether `envFrom` may set further variables."""
    sources_file: bool
    """Whether its script reads a file that may set further variables."""
    too_old: bool
    """Whether its version has no health endpoint."""
    version: tuple[int, ...]
    """Its version by the tag of one of the preset's images; empty if it is unknown."""
    version_missing: bool
    """Whether its version is unknown and its endpoints depend on it."""
    possible_arguments: Program
    """Words of the script that a variable in `argv`, such as `$ARGS`, may contain."""

    @lazy
    def cache(self) -> Cache:
        """Values that depend only on these fields."""
        return Cache()

    @lazy
    def options(self) -> ProgramOptions:
        """The options in `argv`."""
        return ProgramOptions(self.argv)

    def has_option(self, *flags: str) -> bool:
        return self.options.given(flags)

    def may_have_option(self, *flags: str) -> bool:
        """Whether a variable in `argv` may contain one of the flags."""
        return bool(self.possible_arguments) and has_option(self.possible_arguments, *flags)

    @lazy
    def may_hold_options(self) -> bool:
        """Whether a variable in `argv` may contain any option: `$ARGS`, but not `--port $PORT`."""
        pairs = zip(("", *self.argv), self.argv, strict=False)
        return any("$" in word and not self._is_value(before, word) for before, word in pairs)

    def _is_value(self, before: str, word: str) -> bool:
        """Whether a word with a variable is a value: text or a flag with a value is before the variable."""
        if word.startswith("-"):
            return "=" in word.partition("$")[0]
        if not word.startswith("$") or self.preset.takes_value(before):
            return True
        return self.preset.model_operand and before == "serve" and bool(_MODEL.fullmatch(word))

    @lazy
    def longest_request(self) -> int | None:
        """The seconds that a request may take, if health checks may wait behind requests; None if they don't,
        or if nothing shows the time."""
        limit = self.preset.request_limit
        if limit is None or self.too_old:
            return None
        if self.has_option(*limit.unless_flags) or self.has_variable(*limit.unless_env):
            return None
        return limit.seconds or whole_number(self.options.value(limit.flags), 18)

    @lazy
    def role(self) -> GroupRole:
        """Its role in a group of nodes, of which only the first serves."""
        if self.preset.worker or self.has_option(*self.preset.headless_flags):
            return GroupRole.WORKER
        words = self.preset.headless_words
        if words and any(glob_matches(glob, word) for word in self.argv for glob in words):
            return GroupRole.WORKER
        rank = self.options.value(self.preset.worker_flags)
        if rank in (None, "0"):
            return GroupRole.SERVES
        return GroupRole.WORKER if rank.isdigit() else GroupRole.UNDECIDED

    @lazy
    def spans_pods(self) -> bool:
        """Whether it is ready only after its processes in other pods have joined it."""
        if any(self.variables.get(name, "1") != "1" for name in self.preset.members_env):
            return True
        nodes = self.options.value(("--nnodes",))
        return nodes not in (None, "1") or (nodes is None and self.has_option(*self.preset.worker_flags))

    def has_variable(self, *names: str) -> bool:
        """Whether one of the variables is set and not empty."""
        return any(self.variables.get(name, "") != "" for name in names)

    def configured(self, flags: tuple[str, ...], variables: tuple[str, ...]) -> str | None:
        """The value of a flag, else of a variable; None if neither is set, empty if the value is unknown."""
        value = self.options.value(flags)
        for name in variables:
            if value is None and name in self.variables:
                value = self.variables[name] or ""
        return value

    @property
    def keeps_state(self) -> bool:
        """Whether it certainly keeps lasting state in files of its own, which no other process shares."""
        state = self.preset.single_state
        if state is None or not state.stored:
            return False
        elsewhere = state.elsewhere
        if self.has_option(*elsewhere) or self.may_have_option(*elsewhere) or self.has_variable(*elsewhere):
            return False
        if self.may_have_option(*state.flags):
            return False
        value = self.configured(state.flags, state.env)
        if value is None:
            return True
        return bool(value) and "$" not in value and not any(fnmatchcase(value, glob) for glob in state.shared)


class _Command(NamedTuple):
    """A command of a preset, read once."""

    words: Program
    """The words with which a program begins."""
    flags: Program
    """Its flags, which may be anywhere."""
    leading: Program
    """Flags with a value that may be between its first word and the others."""
    preset: str
    order: tuple[int, int]
    """A sort key, the most specific command first: `ray start --head` before `ray start`."""

    @classmethod
    def of(cls, pattern: str, preset: str, leading: Program) -> _Command:
        wanted = pattern.split()
        flags = tuple(word for word in wanted if word.startswith("-"))
        words = tuple(word for word in wanted if word not in flags)
        return cls(words, flags, leading, preset, (-len(words), -len(flags)))

    def begins(self, program: Program, options: ProgramOptions) -> bool:
        """Whether a program's words begin with those of the command, and its flags are anywhere. `options`:
        those of the program."""
        if (*program[:1], *self._behind_leading(program))[: len(self.words)] != self.words:
            return False
        return all(options.given((flag,)) for flag in self.flags)

    def _behind_leading(self, program: Program) -> Program:
        """The words behind the first one and its leading flags: `run` of `flask --app a run`."""
        at = 1
        while at < len(program) and program[at].partition("=")[0] in self.leading:
            at += 1 if "=" in program[at] else 2
        return program[at:]


Ports = tuple[tuple[int, str], ...]
Match = tuple[str, Program] | None
"""The name of a preset and the server's command line."""


class Recogniser:
    """Recognises servers and infrastructure by a table of presets, with caches."""

    def __init__(self, presets: Mapping[str, Preset], infrastructure: tuple[str, ...] = ()) -> None:
        self._presets = presets
        self._infrastructure = (*known_infrastructure(), *infrastructure)
        self._recognised: BoundedCache[tuple[str, bytes, Ports], tuple[Server | None]] = BoundedCache()
        self._names: BoundedCache[str, bool] = BoundedCache(1 << 20)
        self._globs = Globs(
            (
                *self._infrastructure,
                *(
                    glob
                    for each in presets.values()
                    for glob in (
                        *each.images,
                        *each.mirrors,
                        *each.excluded_images,
                        *each.version_images,
                        *each.unversioned_images,
                    )
                ),
            )
        )
        self._by_globs: dict[frozenset[str], _ImageMatch] = {}
        self._by_program: dict[str, list[_Command]] = {}
        self._by_flags: list[_Command] = []
        """The commands without a program."""
        for name, preset in presets.items():
            for pattern in preset.commands:
                command = _Command.of(pattern, name, preset.leading_flags)
                if pattern.startswith("-"):
                    self._by_flags.append(command)
                else:
                    self._by_program.setdefault(command.words[0], []).append(command)

    def server(self, container: Container) -> Server | None:
        """The model server in a container."""
        cache = container.cache
        if self not in cache:  # asked for many times in a review
            cache[self] = self._server(container)
        found: Server | None = cache[self]
        return found

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

    def own_preset(self, container: Container) -> Preset | None:
        """The preset of the server whose own image a container has, whatever it runs."""
        by_image = self._of_image(container)
        preset = by_image.presets.get(by_image.best or "")
        return preset if preset is not None and by_image.is_own(preset) else None

    def is_infrastructure(self, container: Container) -> bool:
        """Whether a container is a known proxy, log shipper or exporter, and so never a server."""
        return container.cache.once(self._is_infrastructure, container)

    def _is_infrastructure(self, container: Container) -> bool:
        return (
            is_puller(container)
            or self._of_image(container).infrastructure
            or self._is_infrastructure_name(container.name)
        )

    def _is_infrastructure_name(self, name: str) -> bool:
        known = self._names.get(name)
        if known is None:
            known = any(glob_matches(glob, name) for glob in self._infrastructure)
            self._names.put(name, known, len(name))
        return known

    def _recognise(self, container: Container, launch: Launch, ports: Ports) -> Server | None:
        image = container.image
        programs, conditional, complete = started(container)
        if not complete:
            return None
        by_image = self._of_image(container)
        by_command = self._by_command(by_image, programs)
        match = (
            by_command
            or _by_port_name(by_image, launch, ports, programs)
            or _by_image(by_image, launch, programs)
            or self._by_arguments(by_image, programs)
            or _by_variables(by_image, launch, ports, programs)
        )
        if match is None:
            return None
        name, argv = match
        preset = by_image.presets[name]
        own_image = by_image.is_own(preset)
        versioned = (
            own_image or not by_image.globs.isdisjoint(preset.version_images)
        ) and by_image.globs.isdisjoint(preset.unversioned_images)
        version = release(repository_and_tag(image)[1]) if versioned else ()
        older = _older(preset, version)
        if older is not None:
            changes = {
                "live_path": older.live_path,
                "live_socket": preset.live_socket or older.live_socket,
                "loopback": preset.loopback and not older.listens,
                "ready_path": older.ready_path,
                "unless_flags": (*preset.unless_flags, *older.unless_flags),
                "unless_env": (*preset.unless_env, *older.unless_env),
            }
            preset = replace(preset, **changes)
        has_variable = any(word.startswith("$") for word in argv)
        return Server(
            name=name,
            preset=preset,
            argv=argv,
            variables={
                **launch.variables,
                **_exported(programs, conditional, argv),
                **_known(variables_of(container, argv)),
            },
            own_image=own_image,
            weak_match=not own_image and match is not by_command,
            conditional=argv in conditional,
            has_env_from=launch.has_env_from,
            sources_file=any(map(sources_variables, programs)),
            version=version,
            too_old=older is not None and not (older.live_path or older.ready_path),
            version_missing=not version and preset.unversioned is Unversioned.NOTHING,
            possible_arguments=_unused_words(launch, programs) if has_variable else (),
        )

    def _by_command(self, by_image: _ImageMatch, programs: tuple[Program, ...]) -> Match:
        """The first program that matches a preset, and the preset with the most specific command.

        A preset whose commands need its image comes after the others, because `ray start` is only the base of
        other servers. A worker comes last, and only if the commands after it just wait.
        """
        candidates = []
        for n, program in enumerate(programs):
            commands = self._by_program.get(program[0])
            if commands is None:
                continue
            options = ProgramOptions(program)
            for command in commands:
                preset = by_image.presets.get(command.preset)
                if preset is None or not command.begins(program, options):
                    continue
                if preset.commands_need_image and not by_image.is_own(preset):
                    continue
                if preset.companion and sum(map(may_listen, programs)) > 1:
                    continue
                if preset.worker and any(other[0] not in _WAITING for other in programs[n + 1 :]):
                    continue
                if set(program[1:]).isdisjoint(preset.other_operands):
                    order = (preset.worker, preset.commands_need_image, n, *command.order)
                    candidates.append((*order, command.preset))
        if not candidates:
            return None
        _, _, n, *_, name = min(candidates)
        return name, programs[n]

    def _by_arguments(self, by_image: _ImageMatch, programs: tuple[Program, ...]) -> Match:
        """The preset with the most specific flags, for arguments without a program: the image starts it."""
        if not programs or not programs[0] or not programs[0][0].startswith("-"):
            return None
        options = ProgramOptions(programs[0])
        candidates = [
            (command.order, command.preset)
            for command in self._by_flags
            if (preset := by_image.presets.get(command.preset)) is not None
            and (not preset.commands_need_image or by_image.is_own(preset))
            and command.begins(programs[0], options)
        ]
        return (min(candidates)[-1], programs[0]) if candidates else None

    def _of_image(self, container: Container) -> _ImageMatch:
        """The presets that are possible for a container's image."""
        return container.cache.once(self._matching, container.image)

    def _matching(self, image: str) -> _ImageMatch:
        globs = self._globs.matching(image)
        known = self._by_globs.get(globs)
        if known is None:
            presets = {
                name: preset
                for name, preset in self._presets.items()
                if globs.isdisjoint(preset.excluded_images)
            }
            candidates = [
                (*_glob_order(glob), name)
                for name, preset in presets.items()
                if not preset.commands_need_image
                for glob in globs.intersection(preset.images) or globs.intersection(preset.mirrors)
            ]
            best = min(candidates)[-1] if candidates else None
            known = _ImageMatch(
                globs=globs,
                presets=presets,
                best=best,
                with_port_names={name: preset for name, preset in presets.items() if preset.port_names},
                with_variables={name: preset for name, preset in presets.items() if preset.variables},
                infrastructure=not globs.isdisjoint(self._infrastructure),
            )
            if len(self._by_globs) >= _MAX_COMBINATIONS:
                self._by_globs.clear()
            self._by_globs[globs] = known
        return known


class _ImageMatch(Struct, frozen=True):
    """The presets that are possible for an image, and whether the image is infrastructure."""

    globs: frozenset[str]
    """All globs that match the image."""
    presets: Mapping[str, Preset]
    best: str | None
    """The preset with the most specific glob."""
    with_port_names: Mapping[str, Preset]
    with_variables: Mapping[str, Preset]
    infrastructure: bool

    def is_own(self, preset: Preset) -> bool:
        return not self.globs.isdisjoint(preset.images)


_MAX_COMBINATIONS: Final = 1000
"""Cached sets of globs that match the same image."""


def _by_port_name(
    by_image: _ImageMatch, launch: Launch, ports: Ports, programs: tuple[Program, ...]
) -> Match:
    names = {name for _, name in ports}
    for name, preset in by_image.with_port_names.items():
        if not names.isdisjoint(preset.port_names) and _runs_entrypoint(preset, launch, programs):
            return name, _joined(programs)
    return None


def _by_image(by_image: _ImageMatch, launch: Launch, programs: tuple[Program, ...]) -> Match:
    """The preset with the most specific image glob, if the container runs the image's entrypoint."""
    name = by_image.best
    if name is None or not _runs_entrypoint(by_image.presets[name], launch, programs):
        return None
    if launch.command:
        return name, programs[-1]
    argv = _joined(programs)
    if argv and argv[0] not in by_image.presets[name].entrypoints:
        return name, (_as_written(argv[0], launch.args[0]), *argv[1:])
    return name, argv


def _as_written(program: str, word: str) -> str:
    """An argument that was read as the name of a program, such as `openai/gpt-oss-120b` in vLLM's image."""
    return word if word.rpartition("/")[2].lower() == program else program


def _by_variables(
    by_image: _ImageMatch, launch: Launch, ports: Ports, programs: tuple[Program, ...]
) -> Match:
    """The preset whose variables are set, if the image's entrypoint runs and the port is declared."""
    if not launch.env:
        return None
    declared = {str(port) for port, _ in ports}
    for name, preset in by_image.with_variables.items():
        if launch.variables.keys().isdisjoint(preset.variables):
            continue
        served = {str(preset.port), *(launch.variables.get(each) or "" for each in preset.port_env)}
        if not declared.isdisjoint(served) and _runs_entrypoint(preset, launch, programs):
            return name, _joined(programs)
    return None


def _unused_words(launch: Launch, programs: tuple[Program, ...]) -> Program:
    """The words of a script outside its programs, such as `--port` and `9000` in `ARGS=(--port 9000)`."""
    known = {part for word in _joined(programs) for part in _SPLIT.split(word)}
    text = "\n".join((*launch.command, *launch.args))
    return tuple(word for word in _SPLIT.split(text) if word not in known)


def _known(variables: Mapping[str, str]) -> dict[str, str | None]:
    """The values of variables; None for those that contain others."""
    return {name: None if _UNKNOWN.search(value) else value for name, value in variables.items()}


_UNKNOWN: Final = re.compile(r"[$`]")


def _exported(
    programs: tuple[Program, ...], conditional: frozenset[Program], argv: Program
) -> dict[str, str | None]:
    """The variables that a script exports or unsets before it starts a program."""
    found: dict[str, str | None] = {}
    for program in programs[: programs.index(argv)] if argv in programs else ():
        if program[0] not in _EXPORTS:
            continue
        for word in program[1:]:
            name, _, value = word.partition("=")
            value = "" if program[0] == "unset" else value
            if program[0] == "unset" or "=" in word:
                found.update({name: None} if program in conditional else _known({name: value}))
    return found


_EXPORTS: Final = frozenset({"export", "unset"})


_SPLIT: Final = re.compile(r"[\s\"'();&|]+|=(?=-)")


def _joined(programs: tuple[Program, ...]) -> Program:
    return programs[0] if len(programs) == 1 else tuple(chain.from_iterable(programs))


_OTHER_PROGRAMS: Final = frozenset(
    {"sh", "bash", "sleep", "tail", "cat", "true", "python", "python3", "jupyter", "pip", "env", "ls"}
)
_KEEP_ALIVE: Final = frozenset({"sleep", "tail", "cat"})
"""Programs that only keep a container alive."""
_WAITING: Final = _KEEP_ALIVE | {"wait", "echo", "true", "exit", "sh", "bash", "ray"}
"""Programs that may follow a worker that was started in the background."""
_SCRIPTS: Final = (".sh", ".bash", ".py")


def is_idle(container: Container) -> bool:
    """Whether a container only runs programs such as `sleep infinity` and serves nothing."""
    programs, _, complete = started(container)
    return complete and bool(programs) and all(program[0] in _KEEP_ALIVE for program in programs)


@lru_cache(maxsize=1024)
def _programs_of(commands: tuple[str, ...], others: tuple[str, ...]) -> frozenset[str]:
    """The names of the programs that start a server."""
    return frozenset((*(pattern.split()[0] for pattern in commands), *others))


def _runs_entrypoint(preset: Preset, launch: Launch, programs: tuple[Program, ...]) -> bool:
    """Whether a container runs the entrypoint of the preset's images; False if in doubt, because a command
    that replaces the entrypoint may be any program."""
    if not set(launch.args).isdisjoint(preset.other_operands):
        return False
    if not _programs_of(preset.commands, preset.other_commands).isdisjoint(
        [program[0] for program in programs]
    ):
        return False  # the server itself, started in a way without a known endpoint
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


# --- versions and image globs ---------------------------------------------------------------------


def _older(preset: Preset, version: tuple[int, ...]) -> Older | None:
    """The preset's entry for an older version; None for a new one. `unversioned` decides if it is unknown."""
    if not version:
        return preset.older[0] if preset.older and preset.unversioned is Unversioned.OLDEST else None
    return next((each for each in preset.older if version < release(each.before)), None)


@lru_cache(maxsize=1024)
def release(tag: str) -> tuple[int, ...]:
    """The version in a tag or a preset, such as 0.10 or the build b6800, as numbers; empty for a tag without
    one."""
    version = version_in(tag)
    return tuple(map(int, version.removeprefix("b").split("."))) if version else ()


def is_since(server: Server, container: Container, since: str) -> bool:
    """Whether a server has at least this version, by the tag of its image. With a tag such as `latest`, the
    next start runs the newest version; other tags without a number, such as `gptoss`, may never change."""
    if not (server.own_image or server.version) or "@" in container.image:
        return False
    if server.version:
        return server.version >= release(since)
    return _MOVING.fullmatch(repository_and_tag(container.image)[1]) is not None


def version_in(tag: str) -> str:
    """The version in a tag: 24.05 in `v24.05-py3` and in `main-v24.05`, b6800 in `server-b6800`; empty for a
    tag without one."""
    match = _VERSION.match(tag)
    if match is None and tag[:1].isalpha():
        match = _VERSION.match(tag.partition("-v")[2]) or _BUILD.search(tag)
    return match[1] if match else ""


_VERSION: Final = re.compile(r"v?([0-9]{1,4}(?:\.[0-9]{1,4}){1,3})(?![0-9])")
_MOVING: Final = re.compile(
    r"(?:(?:^|[-_.])(?:latest|nightly|main|master|dev|edge|stable|server|full|light|cpu|gpu|cuda|rocm|musa|intel|vulkan|"
    r"openvino|runtime|slim|alpine|debian|ubuntu|all|rust|non|root|database|minimal))*"
)
"""Tags that follow the newest version; empty is `latest`."""
_BUILD: Final = re.compile(r"(?:^|-)(b[0-9]{3,6})$", re.ASCII)


def _glob_order(glob: str) -> tuple[int, int, int]:
    """A sort key, the most specific glob first: by its segments, its tag, its letters."""
    return -glob.count("/"), -glob.count(":"), glob.count("*") - len(glob)
