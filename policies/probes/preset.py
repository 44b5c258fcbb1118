"""Presets of model servers: how a server is recognised, its health endpoints, its start time.

A preset follows the server's own documentation or source; `source` names the page. Each built-in one is a
file in `policies/servers/`; users add to them, or change single fields, under `presets` in
`standard-probes.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec.structs import asdict, replace

from policies.core import data
from policies.core.settings import Duration, Field, Model
from policies.kube.images import glob_matches
from policies.probes.server_facts import (
    Busy,
    ComputeNeed,
    Example,
    FixedGroup,
    HomeDirectory,
    Lacking,
    LargeRequests,
    LinkVariable,
    LoadMetrics,
    LongAnswers,
    MemoryShare,
    ModelCache,
    NeededRight,
    Needs,
    OwnData,
    Parallelism,
    PeerAddress,
    PullerOption,
    Pulls,
    RefusedOption,
    RequestLimit,
    Reserved,
    RootOnly,
    SharedMemory,
    SharedRegion,
    SlowStart,
    Sockets,
    Workers,
)


class Protocol(StrEnum):
    """How a server is asked for its health."""

    HTTP = "http"
    GRPC = "grpc"


class Unversioned(StrEnum):
    """The endpoints of a server with an unknown version: its image has no tag, a digest or a tag such as
    `latest`, or is not one of the server's own."""

    NEW = "new"
    """Such an image is probably recent, because users pin old ones by their tag."""
    OLDEST = "oldest"
    NOTHING = "nothing"


class Older(Model):
    """The endpoints of a server before a version."""

    before: str = Field(
        pattern=r"^(?:[0-9]+(\.[0-9]+)+|b[0-9]{3,6})$",
        description="the first version with the preset's endpoints, such as 0.10, or the build b6800",
    )
    live_path: str | None = Field(None, description="its liveness path before; absent: none")
    live_socket: bool = Field(
        False,
        description="whether liveness only checks that the port is open before, because `livePath` waited "
        "behind inferences",
    )
    ready_path: str | None = Field(None, description="its readiness path before; absent: none")
    listens: bool = Field(False, description="whether it listened on all addresses by default before")
    unless_flags: tuple[str, ...] = Field(
        (), description="further flags with which its endpoints needed credentials before, such as an API key"
    )
    unless_env: tuple[str, ...] = Field(
        (), description="further environment variables with which its endpoints needed credentials before"
    )


class Asks(Model):
    """A dependency of an endpoint on something outside its process."""

    path: str = Field(description="an HTTP path; `*` is any text in one segment")
    of: str = Field(description="what it checks, as the end of a sentence that begins with `which checks`")
    costs: bool = Field(
        False,
        description="whether each check costs money, so that a start must not repeat it every few seconds",
    )


class ProgressMetrics(Model):
    """Names on a Prometheus page, as it shows them: with `_total`, `_sum` or `_count`. The samples of one
    kind are added up."""

    done: tuple[str, ...] = Field(
        (),
        description="counters of finished work: tokens, requests, batches, but no refused or aborted ones",
    )
    waiting: tuple[str, ...] = Field(
        (),
        description="gauges of requests that wait or are under way, for a server without `canaries`. They "
        "must not stay above 0 when nobody works for a request any more",
    )
    arrived: tuple[str, ...] = Field(
        (),
        description="counters or times of requests that arrived: `waiting` counts only if they have moved "
        "since the last sign of life, for gauges that keep the requests of a process that was killed",
    )
    failed: tuple[str, ...] = Field(
        (), description="counters of requests that failed: they count if one of `workers` has ended"
    )
    steps: tuple[str, ...] = Field(
        (),
        description="gauges that change in steps of work that `done` does not count, such as a part of a "
        "prompt",
    )
    running: tuple[str, ...] = Field(
        (), description="gauges of work under way: `steps` count only while they are above 0"
    )
    churn: tuple[str, ...] = Field(
        (), description="counters of work that is thrown away: if they move, `steps` do not count"
    )


class Canary(Model):
    """A request that a server answers only if it works, and that costs little."""

    path: str = Field(pattern=r"^/", description="its HTTP path")
    body: Mapping[str, str | int] | str | None = Field(
        description="its JSON, without the model's name, or its text; absent: a GET"
    )


class Progress(Model):
    """How a program in the container checks that the server finishes work."""

    like: str | None = Field(
        None, description="the preset whose `progress` counts, except for the other fields that are set here"
    )
    connections: bool = Field(
        False,
        description="whether it has no such page, and what the kernel shows of its connections counts: "
        "without `canaries` that it accepts them",
    )
    body_variable: str = Field(
        "", description="the variable with the body of `canaries`; without it in the container none is sent"
    )
    page: str = Field("/metrics", pattern=r"^/", description="the path of its Prometheus page")
    page_port: int = Field(0, ge=0, le=65535, description="the port of the page; 0: the server's")
    page_port_flags: tuple[str, ...] = Field((), description="flags that set the port of the page")
    page_port_env: tuple[str, ...] = Field((), description="variables that set the port of the page")
    page_unless_flags: tuple[str, ...] = Field((), description="flags with which there is no page")
    metrics: ProgressMetrics = Field(default_factory=ProgressMetrics, description="what the page shows")
    ignored_labels: tuple[str, ...] = Field(
        (), description='labels of samples that do not count, such as `endpoint="/livez"`, or their beginning'
    )
    workers: tuple[str, ...] = Field(
        (),
        description="programs of the processes that work for requests, if the server leaves one that ended "
        "as a zombie and fails its requests, or, with `connections`, if its health endpoint fails as soon as "
        "one of them has ended: then it counts only if none is left",
    )
    image_has_python: bool = Field(
        True,
        description="whether the usual images contain Python 3.8 or newer, which the check in the container "
        "needs",
    )
    models: str | None = Field(
        None, pattern=r"^/", description="the path that lists the models, as OpenAI's API does"
    )
    canaries: tuple[Canary, ...] = Field(
        (),
        description="requests for as little as possible, one for each kind of model; a model refuses the "
        "others",
    )
    paused: tuple[str, ...] = Field(
        (), description="paths that answer `true` if the server was told not to serve"
    )
    silence: Duration = Field(
        30,
        ge=10,
        description="seconds without finished work, though there is some, until a check fails; a canary is "
        "tried in every check",
    )
    silence_flags: tuple[str, ...] = Field(
        (), description="flags that set the seconds a request may take: a longer time replaces `silence`"
    )
    longest: Duration = Field(
        0, ge=0, le=300, description="seconds that an answer to a canary may take, besides the first 15"
    )
    since: str | None = Field(
        None,
        pattern=r"^[0-9]+(\.[0-9]+)+$",
        description="the first version with this, by the image's tag, if known",
    )
    program: str | None = Field(None, description="has no effect any more")
    unless_flags: tuple[str, ...] = Field(
        (), description="flags with which a canary could do harm, or would not show that the server works"
    )
    harmless_values: Mapping[str, Mapping[str, tuple[str, ...]]] = Field(
        {},
        description="for flags of `unlessFlags` whose value is JSON: the values of its fields with which a "
        "canary does no harm",
    )
    unless_env: tuple[str, ...] = Field((), description="environment variables with the same effect")
    watches_start: bool = Field(
        True, description="whether the check can replace the startupProbe of a start of hours"
    )
    joining_flags: tuple[str, ...] = Field(
        (), description="flags with which its start may wait for other pods, so only its port shows the start"
    )
    key_flags: tuple[str, ...] = Field((), description="flags that set the API key")
    key_env: tuple[str, ...] = Field((), description="variables that set the API key")
    source: str | None = Field(None, description="the code or documentation that shows it")
    checked: str | None = Field(None, description="the versions that were tried or read")

    def of(self, other: Progress) -> Progress:
        """That of another preset, with the fields that are set here."""
        own = {name: value for name, value in asdict(self).items() if value != getattr(_UNSET, name)}
        return replace(other, **own | {"like": None})


_UNSET: Final = Progress()


class EndpointNotices(Model):
    """When the liveness endpoint notices a hang that it does not notice otherwise."""

    since: str = Field(pattern=r"^[0-9]+(\.[0-9]+)+$", description="the first version, by the image's tag")
    unless_env: Mapping[str, tuple[str, ...]] = Field(
        {}, description="variables with the values, in lower case, with which it does not"
    )
    source: str = Field(description="the code that shows it")


class Drain(Model):
    """How long a server finishes open requests after SIGTERM."""

    flags: tuple[str, ...] = Field((), description="flags that set the number of seconds")
    env: tuple[str, ...] = Field((), description="environment variables that set the number of seconds")
    seconds: int | None = Field(
        None,
        ge=0,
        description="default number of seconds, 0 if it aborts requests; absent: unknown, or no limit",
    )
    since: str | None = Field(
        None,
        pattern=r"^b?[0-9]+(\.[0-9]+)*$",
        description="the first version for which `seconds` is known, by the tag of the preset's images; "
        "`b6800` is a build",
    )
    with_model: bool = Field(
        False, description="whether `seconds` counts only if its arguments or variables name a model"
    )
    source: str = Field(description="the code or documentation that shows it")


class SingleState(Model):
    """State of a server that a second process cannot share."""

    what: str = Field(description="the state, as the end of a sentence that begins with `it keeps`")
    flags: tuple[str, ...] = Field((), description="flags that move the state elsewhere")
    env: tuple[str, ...] = Field((), description="environment variables that move the state elsewhere")
    shared: tuple[str, ...] = Field(
        (),
        description="values of these flags and variables with which several processes share the state; `*` "
        "is any text",
    )
    stored: bool = Field(
        False, description="whether it lasts longer than a session, so that replicas differ without it"
    )
    sqlite: bool = Field(False, description="whether it is in a file of SQLite")
    elsewhere: tuple[str, ...] = Field(
        (), description="further flags and variables with which several processes may share the state"
    )
    source: str = Field(description="the documentation or code that shows it")


class OwnFiles(Model):
    """Files that a server keeps next to its state, unless an option names a store for them."""

    what: str = Field(description="the files, as the end of a sentence that begins with `it keeps`")
    flags: tuple[str, ...] = Field(min_length=1, description="flags that name a store, the usual one first")
    env: tuple[str, ...] = Field((), description="environment variables that name a store")
    unless: tuple[str, ...] = Field((), description="flags and variables with which others keep the files")
    source: str = Field(description="the documentation or code that shows it")


class SharedState(Model):
    """State that the replicas of a server share only through a store that a variable names."""

    what: str = Field(description="the state, as the end of a sentence that begins with `each keeps`")
    env: tuple[str, ...] = Field(
        min_length=1, description="variables that name the store, the usual one first"
    )
    to: str = Field("a store of all replicas", description="what to set the variable to")
    since: str = Field("0", description="the first version that shares it, by the image's tag")
    source: str = Field(description="the documentation or code that shows it")


class AnsweredHosts(Model):
    """Options with the hosts for which a server answers; it refuses requests for others."""

    flags: tuple[str, ...] = Field(min_length=1, description="flags that name them, the usual one first")
    env: tuple[str, ...] = Field((), description="environment variables that name them")
    unless: tuple[str, ...] = Field((), description="flags and variables with which it answers for any host")
    known: tuple[str, ...] = Field((), description="globs of hosts for which it answers by default")
    since: str = Field(description="the first version that refuses hosts, by the image's tag")
    source: str = Field(description="the documentation or code that shows it")


class Preset(Model):
    """One kind of model server. In the settings every field is optional: an omitted field keeps its value."""

    enabled: bool = Field(True, description="false disables this preset")
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
        (),
        description="images in which another server with other endpoints runs in front of this one, or "
        "instead of it",
    )
    commands: tuple[str, ...] = Field(
        (),
        description="commands of the container, such as `vllm serve` or the Python module `mlserver`; "
        "words that begin with `-` match anywhere among the arguments; a command of only such words matches "
        "containers with arguments and without a command. Also matched behind interpreters and launchers",
    )
    leading_flags: tuple[str, ...] = Field(
        (), description="flags with a value that may be in front of a command's second word"
    )
    commands_need_image: bool = Field(
        False, description="whether the commands count only in the preset's images"
    )
    other_commands: tuple[str, ...] = Field(
        (),
        description="programs that start the server in an unknown way: its images are not recognised with "
        "them",
    )
    entrypoints: tuple[str, ...] = Field(
        (),
        description="programs with which its images start the server, such as `tgi-entrypoint.sh`: a command "
        "that runs one of them counts as the image's own",
    )
    programs: tuple[str, ...] = Field(
        (),
        description="programs that all its images contain, such as `sh`: a probe may run them",
    )
    lacks: Lacking | None = Field(None, description="the programs that its images lack")
    operands: tuple[str, ...] = Field(
        (),
        description="words that its images take as the first argument if they start the server, such as "
        "`serve`; `*` is any, such as a model's name. Other words are a program that replaces the server",
    )
    other_operands: tuple[str, ...] = Field(
        (),
        description="arguments with which it does not serve, such as `worker`: it is not recognised with "
        "them",
    )
    variables: tuple[str, ...] = Field(
        (),
        description="environment variables that only this server reads: they identify it in images with "
        "other names, if these run their own entrypoint and declare `port`",
    )
    worker: bool = Field(
        False,
        description=(
            "whether it is a worker of a group and serves no client: it gets no probes and no warning"
        ),
    )
    companion: bool = Field(
        False,
        description="whether it shows the work of another program: a container that also runs one is not "
        "recognised by its command, since a restart would end that work",
    )
    port_names: tuple[str, ...] = Field(
        (), description="container port names that only this server uses, such as `triton-http`"
    )
    unless_flags: tuple[str, ...] = Field(
        (), description="flags with which its endpoints are missing, elsewhere or need credentials"
    )
    unless_env: tuple[str, ...] = Field(
        (),
        description=(
            "environment variables with which its endpoints are missing, elsewhere or need credentials"
        ),
    )
    sleep_flags: tuple[str, ...] = Field(
        (),
        description="flags with which it can be told to give up the memory of its model; a health endpoint "
        "that computes must not be asked then",
    )
    worker_flags: tuple[str, ...] = Field(
        (), description="flags that number the nodes of a group, of which only the first, 0, serves"
    )
    group_flags: tuple[str, ...] = Field(
        (),
        description="flags with which it is ready only after engines in other pods have joined it, which may "
        "find it by a Service",
    )
    members_env: tuple[str, ...] = Field(
        (),
        description="variables with the number of pods that must have joined it before it is ready, such as "
        "RAFT_BOOTSTRAP_EXPECT",
    )
    headless_words: tuple[str, ...] = Field(
        (), description="globs of words in its command line with which it serves nobody, such as `*train*.py`"
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
        description="whether liveness only checks that the port is open: the threads that run the model "
        "answer `livePath`, and under load it waits behind inferences for any length of time, or the "
        "server runs other people's code and has no path of its own",
    )
    live_timeout: Duration | None = Field(
        None,
        ge=1,
        le=3600,
        description="timeout of the liveness check, if it waits behind earlier requests; 3 failures then "
        "restart the container",
    )
    live_silence: Duration = Field(
        0,
        ge=0,
        le=3600,
        description="seconds for which the liveness check of a server that works may fail without a break, "
        "as during one long step of its engine",
    )
    live_silence_flags: tuple[str, ...] = Field(
        (), description="flags that set the seconds a step may take: a longer time replaces `liveSilence`"
    )
    older: tuple[Older, ...] = Field(
        (),
        description="the endpoints of earlier versions, by the tag of the preset's images, the oldest first",
    )
    version_images: tuple[str, ...] = Field(
        (), description="further images whose tag is the server's version, such as a base image"
    )
    unversioned_images: tuple[str, ...] = Field(
        (), description="those of its images whose tag is the version of another program"
    )
    unversioned: Unversioned = Field(
        Unversioned.NEW,
        description="the endpoints if the tag has no version: `new` the paths above, `oldest` the first "
        "of `older`, `nothing` none: no probe is injected, and a warning explains it",
    )
    since: str | None = Field(
        None,
        pattern=r"^(?:first|[0-9]+(?:\.[0-9]+)*)$",
        description="the first version with these paths; `first` if all releases have them",
    )
    since_source: str | None = Field(None, description="the changelog or code that shows it")
    frozen: str | None = Field(None, description="its last version, for a server that is no longer released")
    asks: tuple[Asks, ...] = Field(
        (),
        description="endpoints that can fail although the process is healthy, and the dependency of each: "
        "liveness must not use them",
    )
    alive: str | None = Field(
        None, description="the check to suggest for liveness if there is no `livePath`: `a tcpSocket on …`"
    )
    notices: EndpointNotices | None = Field(
        None, description="when the liveness path notices a hang, if not always or never"
    )
    progress: Progress | None = Field(
        None, description="a check that notices hangs which the liveness path does not notice"
    )
    drain: Drain | None = Field(
        None, description="how long it finishes open requests after SIGTERM, if known"
    )
    single_state: SingleState | None = Field(
        None, description="state that a second replica could not share; absent: none is known"
    )
    own_files: OwnFiles | None = Field(
        None, description="files that it keeps in its container, unless an option names a store for them"
    )
    shared_state: tuple[SharedState, ...] = Field(
        (), description="state that its replicas share only through a store that a variable names"
    )
    cache: ModelCache | None = Field(
        None, description="where it stores the models that it downloads, if known"
    )
    home_directories: tuple[HomeDirectory, ...] = Field(
        (), description="directories that it must be able to create in its home directory or elsewhere"
    )
    sockets: Sockets | None = Field(None, description="where its processes connect, besides the network")
    root_only: RootOnly | None = Field(None, description="files that it needs and that only root can read")
    data: OwnData | None = Field(None, description="where it keeps data that nobody else has, if known")
    needs: Needs | None = Field(
        None, description="images that do not start, or not as intended, without an accelerator"
    )
    parallelism: Parallelism | None = Field(
        None, description="the options that set the number of its accelerators"
    )
    memory_share: MemoryShare | None = Field(
        None, description="the share of an accelerator's memory that it takes"
    )
    workers: Workers | None = Field(None, description="the processes in which it computes")
    busy: Busy | None = Field(None, description="why its health endpoints answer late under load")
    long_answers: LongAnswers | None = Field(None, description="how long a normal answer may take")
    large_requests: LargeRequests | None = Field(None, description="how large usual requests are")
    answered_hosts: AnsweredHosts | None = Field(
        None, description="how it is told the hosts for which it answers, if it refuses others"
    )
    request_limit: RequestLimit | None = Field(
        None, description="the longest time of a request, if health checks wait behind requests"
    )
    puller_options: tuple[PullerOption, ...] = Field(
        (), description="options without which it does not load what the model puller stores"
    )
    peer_address: PeerAddress | None = Field(
        None, description="the address that it gives to servers in other pods"
    )
    fixed_group: FixedGroup | None = Field(
        None, description="that its group of nodes cannot take a restarted process in"
    )
    pulls: Pulls | None = Field(None, description="how it downloads a model on request")
    example: Example | None = Field(None, description="what the complete manifest of its page runs")
    load_metrics: LoadMetrics | None = Field(None, description="its metrics that show its load")
    refused_options: tuple[RefusedOption, ...] = Field(
        (), description="options with which it ends in some versions"
    )
    rights: tuple[NeededRight, ...] = Field((), description="what it asks Kubernetes' API server for")
    compute_needs: tuple[ComputeNeed, ...] = Field(
        (), description="options with which it ends on older accelerators"
    )
    reserves: tuple[Reserved, ...] = Field((), description="options that take memory of the node")
    shared_memory: tuple[SharedMemory, ...] = Field(
        (), description="when its processes exchange data through /dev/shm, besides use of several GPUs"
    )
    shared_regions: tuple[SharedRegion, ...] = Field((), description="files of known sizes in /dev/shm")
    link_variables: tuple[LinkVariable, ...] = Field(
        (),
        description="variables besides `portEnv` that it reads, and that Kubernetes sets for a Service with "
        "a certain name",
    )
    doubt: str | None = Field(
        None,
        description="why no probe is injected although the server is known: the end of a sentence that "
        "begins with `it runs <name>, and`",
    )
    advice: str | None = Field(None, description="what to write instead: a sentence without its full stop")
    grpc_service: str | None = Field(
        None, description="service name of the gRPC health check; absent: the whole server"
    )
    port: int = Field(0, ge=0, le=65535, description="its default port")
    port_flags: tuple[str, ...] = Field((), description="flags that set the port, such as `--port`")
    port_env: tuple[str, ...] = Field(
        (), description="environment variables that set the port; `host:port` and URLs are understood"
    )
    other_port_env: Mapping[str, tuple[str, ...]] = Field(
        {},
        description="variables that set the port in these of its images, written as those of a preset, "
        "before all others. In images whose build is unknown they must not contradict it",
    )
    image_port: bool = Field(
        False,
        description=(
            "whether `port` is used only for its own images: for others the port must be set or declared"
        ),
    )
    own_port: bool = Field(
        False, description="whether the health endpoints are only on `port`, not on the declared ports"
    )
    only_port: bool = Field(
        False, description="whether it listens on no other port, unless an option with its number says so"
    )
    config_flags: tuple[str, ...] = Field(
        (),
        description=(
            "flags that name a configuration file which may set the port: then only declared ports are used"
        ),
    )
    config_env: tuple[str, ...] = Field(
        (),
        description=(
            "environment variables with the path or the text of a configuration file which may set the port"
        ),
    )
    config_mounts: tuple[str, ...] = Field(
        (),
        description=(
            "mount paths of configuration files that may change the port or require TLS: then no probe is "
            "injected"
        ),
    )
    host_flags: tuple[str, ...] = Field((), description="flags that set the address it listens on")
    host_env: tuple[str, ...] = Field((), description="environment variables that set the address")
    listen_flags: tuple[str, ...] = Field((), description="flags that make it listen on all addresses")
    loopback: bool = Field(
        False, description="whether it listens only on loopback by default, where no probe reaches it"
    )
    image_listens: bool = Field(False, description="whether its own images make it listen on all addresses")
    address_in_files: bool = Field(
        False, description="whether a file or a variable of the user's image may set the address"
    )
    tls_flags: tuple[str, ...] = Field((), description="flags that make the port use TLS")
    tls_env: tuple[str, ...] = Field((), description="environment variables that make the port use TLS")
    model_flags: tuple[str, ...] = Field(
        (), description="flags that name the model, for `{model}` and for its size"
    )
    model_operand: bool = Field(
        False, description="whether the word after the command names the model: `vllm serve Qwen/Qwen3-8B`"
    )
    model_env: tuple[str, ...] = Field((), description="environment variables that name the model")
    served_name_flags: tuple[str, ...] = Field(
        (), description="flags with the name by which clients ask for the model, if it is another"
    )
    value_flags: tuple[str, ...] = Field(
        (), description="further flags with a value: a variable after one of them contains no other option"
    )
    argparse: bool = Field(
        False, description="whether Python's argparse reads its options: with one dash, a long one ends it"
    )
    default_model: str | None = Field(None, description="the default name of the model")
    repository_api: str | None = Field(
        None, description="how the model puller loads models into it: v2, kserve, triton or tfserving"
    )
    opens_early: str = Field(
        "", description="where it is shown that its port is open before the models are loaded, if it is"
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
    slow_starts: tuple[SlowStart, ...] = Field(
        (), description="variables with which a start takes far longer than usual"
    )
    timeout: Duration | None = Field(
        None,
        ge=1,
        le=3600,
        description="timeout of a check, if it needs longer than the default",
    )
    source: str | None = Field(None, description="the documentation or source that shows it")
    checked: str | None = Field(None, description="the versions that were read")

    def takes_value(self, flag: str) -> bool:
        """Whether the word after a flag is certainly its value."""
        factors = self.parallelism.spread if self.parallelism else ()
        return any(
            flag in flags
            for flags in (
                self.value_flags,
                self.port_flags,
                self.host_flags,
                self.model_flags,
                self.served_name_flags,
                self.worker_flags,
                self.config_flags,
                self.cache.flags if self.cache else (),
                self.progress.key_flags if self.progress else (),
                *(each.flags for each in factors),
            )
        )


def dependency_of(preset: Preset, path: str) -> Asks | None:
    """What an endpoint, whose path may have a query, checks besides the process; None if unknown."""
    path = path.partition("?")[0]
    if path == preset.live_path:
        return None
    return next((each for each in preset.asks if glob_matches(each.path, path)), None)


@data.table
def known_presets() -> Mapping[str, Preset]:
    """The built-in presets by name: a file for each in `policies/servers/`."""
    return data.load_folder(Preset, "policies", "servers")
