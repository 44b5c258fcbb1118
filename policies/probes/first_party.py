"""First-party servers: model servers, and programs that the user wrote.

Rules about missing or strict probes warn only about these. The vendor of a database, a dashboard or a
controller chooses its probes, and a simulator or an example needs no warning. An image from a public registry
is first-party only if the manifest shows a model or an interpreted program.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from policies.containers.commands import command_without_pod
from policies.containers.programs import started
from policies.core.annotations import MODEL_CONFIG
from policies.core.data import entry, table
from policies.core.facts import Facts
from policies.core.settings import Field, Model
from policies.core.target import PodTemplate
from policies.kube.group_kinds import DAEMON_SET
from policies.kube.images import Globs, glob_matches, repository
from policies.kube.pods import Container, Role
from policies.probes.recognition import Server
from policies.probes.serving import recognised

_WORDS: Final = re.compile(r"[a-z0-9]+", re.ASCII)
_WEBHOOK_PORT: Final = 9443
"""The port of controller-runtime's webhook server."""


class Signs(Model):
    """The content of `first_party.yaml`: what shows who wrote a server."""

    interpreters: tuple[str, ...] = Field(description="first letters of programs that run the user's code")
    other_modules: frozenset[str] = Field(description="arguments with which Python runs other code")
    model_flags: frozenset[str] = Field(description="flags that name a model")
    model_variables: frozenset[str] = Field(description="variables of programs with a model")
    token_variables: frozenset[str] = Field(description="variables of programs that may download a model")
    model_mounts: tuple[str, ...] = Field(description="first letters of the paths of models")
    controller_ports: frozenset[str] = Field(description="names of ports of programs that serve no requests")
    login_ports: frozenset[int] = Field(description="numbers of ports by which people log in")
    notebooks: frozenset[str] = Field(description="presets of servers that lose work when they are restarted")
    third_party_images: tuple[str, ...] = Field(description="globs of images, by the end of their path")
    example_words: frozenset[str] = Field(description="words in the image names of simulators and examples")
    example_prefixes: tuple[str, ...] = Field(description="first letters of such words")
    task_programs: frozenset[str] = Field(
        description="words in the names of programs that answer no requests"
    )
    file_programs: frozenset[str] = Field(description="programs that only send files")
    page_words: frozenset[str] = Field(description="words in the image names of pages")
    public_projects: tuple[str, ...] = Field(description="globs of projects on registries of many projects")
    public_registries: frozenset[str] = Field(description="hosts from which anybody may pull")


_signs = entry(Signs, __package__, "first_party.yaml")


def is_first_party(template: PodTemplate, container: Container, facts: Facts) -> bool:
    """Whether the user of the manifest is likely to choose the probes of a serving container."""
    if not container.image or is_third_party(container.image) or is_example(container.image):
        return False
    if recognised(container, facts) is not None:
        return True
    if _has_only_controller_ports(container) or _sends_files(container):
        return False
    if container.typed.resources.has_devices:
        return True
    if template.workload is not None and template.workload.group_kind == DAEMON_SET:
        return False
    return (
        (_is_private(container.image) and _signs().page_words.isdisjoint(_words(container.image)))
        or _runs_code(container)
        or has_a_model(template, container)
        or _has_variable(container, _signs().token_variables)
    )


def is_notebook(server: Server) -> bool:
    """Whether a restart of a server loses the unsaved work of a person."""
    return server.name in _signs().notebooks


def _has_only_controller_ports(container: Container) -> bool:
    ports = container.tcp_ports
    return bool(ports) and all(
        name in _signs().controller_ports or number == _WEBHOOK_PORT or number in _signs().login_ports
        for number, name in ports.items()
    )


def takes_tasks(container: Container) -> bool:
    """Whether a container runs a program that takes tasks from a queue, or a script that is named after it:
    its port, if it has one, is copied from the server of the same image."""
    command = command_without_pod(container)
    started = (*(each.name for each in command.commands), *command.scripts)
    return any(not _signs().task_programs.isdisjoint(_WORDS.findall(each.lower())) for each in started)


def _sends_files(container: Container) -> bool:
    """Whether a container only sends files, and its user's own program, if any, does not serve."""
    every = started(container)
    return every.complete and bool(every.all) and every.all[-1][0] in _signs().file_programs


@table
def _third_party() -> Globs:
    return Globs(_signs().third_party_images)


def is_third_party(image: str) -> bool:
    """Whether an image is a known program of a vendor or a project, by the end of its path."""
    return bool(_third_party().matching(image))


@lru_cache(maxsize=1024)
def is_example(image: str) -> bool:
    """Whether an image is a simulator or an example, by its name."""
    signs = _signs()
    return any(
        word in signs.example_words or word.startswith(signs.example_prefixes) for word in _words(image)
    )


@lru_cache(maxsize=1024)
def _words(image: str) -> tuple[str, ...]:
    """The words of the last part of an image's path."""
    name = repository(image).rpartition("/")[2].lower()
    return tuple(name.replace("_", "-").replace(".", "-").split("-"))


@lru_cache(maxsize=1024)
def _is_private(image: str) -> bool:
    """Whether an image is in a private registry or project."""
    host, slash, path = image.partition("/")
    if not slash or not ("." in host or ":" in host):
        return False  # Docker Hub
    if host in _signs().public_registries:
        return False
    if host.endswith((".gcr.io", ".pkg.dev")) or host == "gcr.io":
        project = path.partition("/")[0]
        return not any(glob_matches(glob, project) for glob in _signs().public_projects)
    return True


def _runs_code(container: Container) -> bool:
    """Whether a container's command runs an interpreted program."""
    return any(
        command.name.startswith(_signs().interpreters)
        and _signs().other_modules.isdisjoint(command.argv[1:4])
        for command in command_without_pod(container).commands
    )


def has_a_model(template: PodTemplate, container: Container) -> bool:
    """Whether a flag, a variable, a mount or the puller gives the container a model."""
    if container.role is Role.MAIN and MODEL_CONFIG in template.typed.metadata.annotations:
        return True
    if any(word.partition("=")[0] in _signs().model_flags for word in container.typed.argv):
        return True
    if _has_variable(container, _signs().model_variables):
        return True
    mounts = container.typed.volume_mounts
    return any(each.mount_path.startswith(_signs().model_mounts) for each in mounts)


def _has_variable(container: Container, names: frozenset[str]) -> bool:
    return any(each.name in names for each in container.typed.env)
