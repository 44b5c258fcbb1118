"""Presets of model servers: how a server is recognised, its health endpoints, its start time.

A preset follows the server's own documentation or source; `source` names the page. Each built-in one is a
file in the folder `presets`; users add to them, or change single fields, under `presets` in
`standard-probes.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache

from pydantic import Field

from policies.core import data
from policies.core.settings import Duration, Model
from policies.kube.images import glob_of


class Protocol(StrEnum):
    """How a server is asked for its health."""

    HTTP = "http"
    GRPC = "grpc"


class Unversioned(StrEnum):
    """What counts for a server whose version is not known: its image has no tag, a digest or a tag such as
    `latest`, or is not one of the server's own."""

    NEW = "new"
    OLDEST = "oldest"
    NOTHING = "nothing"


class Older(Model):
    """What a server had before one of its versions."""

    before: str = Field(
        pattern=r"^[0-9]+(\.[0-9]+)+$", description="the first version that matches the preset, such as 0.10"
    )
    live_path: str | None = Field(None, description="its liveness path until then; absent: it had none")
    ready_path: str | None = Field(None, description="its readiness path until then; absent: it had none")
    unless_flags: tuple[str, ...] = Field(
        (), description="further flags with which it answered not everybody until then, such as a key"
    )
    unless_env: tuple[str, ...] = Field(
        (), description="further environment variables with which it answered not everybody until then"
    )


class Asks(Model):
    """What an endpoint depends on besides its own process."""

    path: str = Field(description="an HTTP path; `*` is any text in one segment")
    of: str = Field(description="what it checks: the end of a sentence that begins with `which checks`")


class Progress(Model):
    """How a program in the container checks that a server makes progress."""

    program: str = Field(pattern=r"^[a-z0-9]+$", description="its name among the programs of ML Chassis")
    since: str = Field(
        pattern=r"^[0-9]+(\.[0-9]+)+$", description="the first version with which it was tried, such as 0.11"
    )
    unless_flags: tuple[str, ...] = Field((), description="flags with which it was not tried")
    unless_env: tuple[str, ...] = Field((), description="variables with which it was not tried")
    key_flags: tuple[str, ...] = Field((), description="flags that set the API key")
    key_env: tuple[str, ...] = Field((), description="variables that set the API key")


class Drain(Model):
    """What a server does with the requests under way when it gets SIGTERM."""

    flags: tuple[str, ...] = Field((), description="flags that set for how many seconds it finishes them")
    env: tuple[str, ...] = Field((), description="environment variables that set it")
    seconds: int | None = Field(
        None,
        ge=0,
        description="seconds unless set otherwise, 0 if it aborts them; absent: not known, or no limit",
    )
    since: str | None = Field(
        None,
        pattern=r"^[0-9]+(\.[0-9]+)*$",
        description="the first version for which `seconds` is known, by the tag of the preset's images",
    )
    source: str = Field(description="the code or documentation that shows it")


class Preset(Model):
    """One kind of model server. In the settings every field is optional: an omitted field keeps its value."""

    enabled: bool = Field(True, description="false takes this preset out of use")
    images: tuple[str, ...] = Field(
        (),
        description="image repositories without registry, tag and digest, such as `vllm/vllm-openai`: "
        "whole segments at the end of the path, `*` is any text inside one; with `:` the tag "
        "too",
    )
    mirrors: tuple[str, ...] = Field(
        (),
        description="image repositories under which others publish it: they count only if they declare the "
        "port, or a flag or variable sets it",
    )
    excluded_images: tuple[str, ...] = Field(
        (), description="images in which another server with different answers is in front of the server"
    )
    commands: tuple[str, ...] = Field(
        (),
        description="commands of the container, such as `vllm serve` or the Python module `mlserver`; "
        "words that begin with `-` may be anywhere among the arguments, and if there are "
        "only such words, they match an image that runs with them and without a program's "
        "name. Also matched behind interpreters and launchers",
    )
    commands_need_image: bool = Field(
        False, description="whether the commands count only in the preset's images"
    )
    other_commands: tuple[str, ...] = Field(
        (),
        description="programs with which its images are not recognised, because the server then runs "
        "in an unknown way",
    )
    entrypoints: tuple[str, ...] = Field(
        (),
        description="programs with which its images start the server, such as `tgi-entrypoint.sh`: a command "
        "that runs one of them counts as the image's own",
    )
    operands: tuple[str, ...] = Field(
        (),
        description="words that its images take as the first argument if they start the server, such as "
        "`serve`; `*` is any, such as a model's name. Other words are a program that replaces the server",
    )
    other_operands: tuple[str, ...] = Field(
        (),
        description="arguments with which it does something else, such as `worker`: then it is "
        "not recognised",
    )
    variables: tuple[str, ...] = Field(
        (),
        description="environment variables that only this server reads: they identify it in images with "
        "other names, if these run their own entrypoint and declare `port`",
    )
    worker: bool = Field(
        False,
        description="whether it is a part of a group that serves no client: it gets nothing and no warning",
    )
    port_names: tuple[str, ...] = Field(
        (), description="container port names that only this server uses, such as `triton-http`"
    )
    unless_flags: tuple[str, ...] = Field(
        (), description="flags with which it answers nowhere, elsewhere or not to everybody"
    )
    unless_env: tuple[str, ...] = Field(
        (), description="environment variables with which it answers nowhere, elsewhere or not to everybody"
    )
    worker_flags: tuple[str, ...] = Field(
        (), description="flags that number the nodes of a group, of which only the first, 0, serves"
    )
    headless_flags: tuple[str, ...] = Field(
        (), description="flags with which it is a worker of a group and answers no client"
    )
    protocol: Protocol = Field(Protocol.HTTP, description="http or grpc")
    live_path: str | None = Field(
        None, description="HTTP path of the liveness check; `{model}` is the model's name"
    )
    ready_path: str | None = Field(
        None, description="HTTP path of the readiness check; `{model}` is the model's name"
    )
    live_socket: bool = Field(
        False,
        description="whether liveness only checks that the port is open, because the threads that run the "
        "model answer `livePath`: under load it waits behind inferences for any length of time",
    )
    live_timeout: Duration | None = Field(
        None,
        ge=1,
        le=3600,
        description="seconds one liveness check may take, where it waits behind the requests before it; 3 "
        "failures then restart the container",
    )
    older: tuple[Older, ...] = Field(
        (),
        description="the endpoints of earlier versions, by the tag of the preset's images, the oldest first",
    )
    version_images: tuple[str, ...] = Field(
        (), description="further images whose tag is the server's version, such as a base image"
    )
    unversioned: Unversioned = Field(
        Unversioned.NEW,
        description="the endpoints if the tag has no version: `new` the paths above, `oldest` the first "
        "of `older`, `nothing` none: no probe is injected, and a warning explains it",
    )
    since: str | None = Field(
        None,
        pattern=r"^(?:first|[0-9]+(?:\.[0-9]+)*)$",
        description="the version from which its paths hold; `first` if no release was without them",
    )
    since_source: str | None = Field(None, description="the changelog or code that shows it")
    frozen: str | None = Field(None, description="its last version, for a server that is no longer released")
    asks: tuple[Asks, ...] = Field(
        (),
        description="its endpoints that fail although the process is alive, and what each depends on: "
        "liveness must not ask them",
    )
    alive: str | None = Field(
        None, description="what liveness should ask instead, where there is no `livePath`: `a tcpSocket on …`"
    )
    progress: Progress | None = Field(
        None, description="how a hang is noticed behind a liveness path that does not notice it"
    )
    drain: Drain | None = Field(
        None, description="for how long it finishes requests after SIGTERM, where that is known"
    )
    doubt: str | None = Field(
        None,
        description="why nothing is injected, where the server is known and has no endpoint that is right "
        "for every pod: the end of a sentence that begins with `it runs <name>, and`",
    )
    advice: str | None = Field(None, description="what to write then, as a sentence without its full stop")
    grpc_service: str | None = Field(None, description="service name asked over gRPC; absent: the server")
    port: int = Field(0, ge=0, le=65535, description="the port on which it answers unless set otherwise")
    port_flags: tuple[str, ...] = Field((), description="flags that set the port, such as `--port`")
    port_env: tuple[str, ...] = Field(
        (), description="environment variables that set the port; `host:port` and URLs are understood"
    )
    image_port: bool = Field(
        False,
        description="whether `port` counts only in its own images: in others it must be set or declared",
    )
    own_port: bool = Field(
        False, description="whether health is answered only on `port`, not on the served ports"
    )
    config_flags: tuple[str, ...] = Field(
        (), description="flags that name a file which may set the port: then only declared ports count"
    )
    config_env: tuple[str, ...] = Field(
        (), description="environment variables that name a file which may set the port, or hold its text"
    )
    config_mounts: tuple[str, ...] = Field(
        (), description="paths where a mounted file may change the port or require TLS: then nothing is known"
    )
    host_flags: tuple[str, ...] = Field((), description="flags that set the address it listens on")
    host_env: tuple[str, ...] = Field((), description="environment variables that set the address")
    loopback: bool = Field(
        False, description="whether it listens only on loopback unless set otherwise: no probe reaches it"
    )
    image_listens: bool = Field(False, description="whether its own images make it listen on all addresses")
    tls_flags: tuple[str, ...] = Field((), description="flags that make the port use TLS")
    tls_env: tuple[str, ...] = Field((), description="environment variables that make the port use TLS")
    model_flags: tuple[str, ...] = Field((), description="flags that name the model for `{model}`")
    model_env: tuple[str, ...] = Field((), description="environment variables that name the model")
    default_model: str | None = Field(None, description="the model's name where none is given")
    repository_api: str | None = Field(
        None, description="how the model puller loads models into it: v2, kserve, triton or tfserving"
    )
    loads_model: bool = Field(
        False,
        description="whether it loads the model in its arguments, variables or image before it serves: "
        "the number of parameters in that name (`70B`, `8x22B`) then gives the expected "
        "start",
    )
    expected_start: Duration | None = Field(
        None, description="seconds from the container's start until a usual model is served"
    )
    timeout: Duration | None = Field(
        None,
        ge=1,
        le=3600,
        description="seconds one check may take, where it takes longer than the settings allow",
    )
    source: str | None = Field(None, description="the documentation or source that shows it")
    checked: str | None = Field(None, description="the versions of which that was read")


def asked_by(preset: Preset, path: str) -> str | None:
    """What an endpoint checks besides being alive; None for an unknown one."""
    if path == preset.live_path:
        return None
    return next((each.of for each in preset.asks if glob_of(each.path).fullmatch(path)), None)


@cache
def known_presets() -> Mapping[str, Preset]:
    """The servers known out of the box, by name: a file for each in the folder `presets`."""
    return data.load_folder(Preset, __package__, "presets")
