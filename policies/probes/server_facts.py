"""The facts of a server's life besides its endpoints: what it downloads, reads, needs and reserves.

Each fact is a key of a preset. A rule reads it and is silent about servers without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from policies.core.settings import Field, Model

_VERSION_OR_NONE: Final = r"^([0-9]+(\.[0-9]+)+)?$"


class ImageDirectory(Model):
    """The default directory of images that set another one."""

    directory: str = Field(pattern=r"^/")
    images: tuple[str, ...] = Field(min_length=1, description="written as those of a preset")
    source: str = Field(description="the code that shows it")


class ModelCache(Model):
    """Where a server stores the models that it downloads."""

    directory: str = Field(pattern=r"^/", description="its default directory in the images below")
    images: tuple[str, ...] = Field(
        min_length=1, description="images with this directory, written as those of a preset"
    )
    others: tuple[ImageDirectory, ...] = Field((), description="images with other directories")
    env: tuple[str, ...] = Field((), description="environment variables that move the directory")
    flags: tuple[str, ...] = Field((), description="flags that move the directory")
    in_home: bool = Field(
        False, description="whether it is below the home directory, which is / for a user without one"
    )
    also: tuple[str, ...] = Field(
        (), description="its default directories in other versions: a volume there counts, too"
    )
    always: bool = Field(
        False, description="whether the server stores models even if its arguments and variables name none"
    )
    unless_flags: tuple[str, ...] = Field(
        (), description="flags with which the model does not come from the directory"
    )
    unless_env: tuple[str, ...] = Field((), description="environment variables with the same effect")
    source: str = Field(description="the documentation or code that shows it")


class HomeDirectory(Model):
    """A directory that a server must be able to create, in the home directory or where only root may."""

    name: str = Field(
        pattern=r"^[./]", description="its name, such as .triton, or its path in an image owned by root"
    )
    keeps: str = Field(description="what it keeps there: the end of a sentence")
    images: tuple[str, ...] = Field(
        min_length=1, description="images with this, written as those of a preset"
    )
    excluded_images: tuple[str, ...] = Field((), description="images among these without this")
    env: tuple[str, ...] = Field((), description="environment variables that move the directory")
    unless_flags: tuple[str, ...] = Field((), description="flags with which it is not needed")
    source: str = Field(description="the documentation, code or thread that shows it")

    @property
    def in_home(self) -> bool:
        return self.name.startswith(".")


class RootOnly(Model):
    """Files of an image that only root can read, such as those below /root."""

    what: str = Field(description="what they are: `Python`")
    images: tuple[str, ...] = Field(
        min_length=1, description="images with them, written as those of a preset"
    )
    excluded_images: tuple[str, ...] = Field((), description="images among these without them")
    since: str = Field(
        pattern=r"^[0-9]+(\.[0-9]+)+$", description="the first version with them, by the tag of the image"
    )
    source: str = Field(description="the documentation, code or thread that shows it")


class Sockets(Model):
    """Where the processes of a server connect to each other."""

    directories: tuple[str, ...] = Field(min_length=1, description="one of them must be writable")
    flags: tuple[str, ...] = Field((), description="flags that move the sockets")
    env: tuple[str, ...] = Field((), description="environment variables that move the sockets")
    since: str = Field("0", description="the first version with them, by the tag of the image")
    source: str = Field(description="the code that shows it")


class OwnData(Model):
    """Where a server keeps data that nobody else has, such as accounts or vectors."""

    directory: str = Field(pattern=r"^/", description="the directory in its images")
    unless_env: tuple[str, ...] = Field((), description="variables that name another place for the data")
    source: str = Field(description="the documentation or code that shows it")


class Needs(Model):
    """Images of a server that do not start, or not as intended, without an accelerator."""

    images: tuple[str, ...] = Field(min_length=1, description="these images, written as those of a preset")
    excluded_images: tuple[str, ...] = Field((), description="images among them for CPUs")
    unless_flags: tuple[str, ...] = Field((), description="flags with which it starts without one")
    unless_env: tuple[str, ...] = Field((), description="environment variables with the same effect")
    error: str | None = Field(None, description="its error without an accelerator")
    falls_back: bool = Field(False, description="whether it starts without one, and computes on the CPU")
    source: str = Field(description="the documentation, code or thread that shows it")


class Reserved(Model):
    """An option that takes memory or disk space of the node, at the start or under load."""

    what: str = Field("", description="what fills the memory, such as `cached prompts`")
    flags: tuple[str, ...] = Field((), description="flags that set the amount")
    key: tuple[str, ...] = Field((), description="the keys of the amount, if the flags have JSON as a value")
    env: tuple[str, ...] = Field((), description="environment variables that set the amount")
    unit: int = Field(description="bytes of 1 in the option's value")
    each: bool = Field(False, description="whether each accelerator's process reserves this amount")
    directory_env: str | None = Field(
        None, description="the variable with the directory, if it takes space there instead of memory"
    )
    before: str | None = Field(
        None,
        pattern=r"^[0-9]+(\.[0-9]+)+$",
        description="the first version without it, by the tag of the preset's images",
    )
    default: int = Field(0, description="the amount that it may take without the option")
    since: str = Field(
        "",
        pattern=r"^(b?[0-9]+(\.[0-9]+)*)?$",
        description="the first version with the default, by the tag of the preset's images; `b6800` is a "
        "build",
    )
    unless_flags: tuple[str, ...] = Field((), description="flags with which the default is not used")
    source: str = Field(description="the documentation or code that shows it")


class Lacking(Model):
    """The programs of health checks that a server's own images lack, by their Dockerfiles."""

    programs: tuple[str, ...] = Field(min_length=1, description="their names, such as curl")
    since: str = Field(
        "",
        pattern=_VERSION_OR_NONE,
        description="the first version that lacks them, by the image's tag; empty: all",
    )
    unless_tag: tuple[str, ...] = Field((), description="parts of the tags of images that may have them")
    source: str = Field(description="the Dockerfiles and threads that show it")


class RefusedOption(Model):
    """An option that a server no longer has, or not yet, and with which it ends when it starts."""

    flags: tuple[str, ...] = Field(min_length=1, description="the flags, each with the same replacement")
    since: str = Field(
        "",
        pattern=_VERSION_OR_NONE,
        description="the first version without them, by the tag of the preset's images",
    )
    newer_than: str = Field(
        "",
        pattern=_VERSION_OR_NONE,
        description="a version that does not have them yet, as those before it",
    )
    instead: str = Field(description="what to write: a sentence without its full stop")
    source: str = Field(description="the thread or code that shows it")


class NeededRight(Model):
    """What a server asks Kubernetes' API server for."""

    flags: tuple[str, ...] = Field(min_length=1, description="the flags with which it does")
    value: str = Field("", description="their value; empty for each value")
    unless_flags: tuple[str, ...] = Field((), description="flags with which it asks for something else")
    resource: str = Field(description="the resource, such as `pods` or `jobs.batch`")
    verbs: tuple[str, ...] = Field(min_length=1, description="the verbs that it needs")
    source: str = Field(description="the code or thread that shows it")


class ComputeNeed(Model):
    """Values of an option, or images, with which a server ends on older accelerators."""

    flags: tuple[str, ...] = Field((), description="the flags")
    values: tuple[str, ...] = Field((), description="the values")
    images: tuple[str, ...] = Field(
        (), description="instead of them: images, written as those of a preset, with any options"
    )
    excluded_images: tuple[str, ...] = Field((), description="images among these that need less")
    least: float = Field(description="the lowest compute capability of NVIDIA's with which it starts")
    instead: str = Field(description="what to write: a sentence without its full stop")
    source: str = Field(description="the code or thread that shows it")


class SharedMemory(Model):
    """When the processes of a server exchange data through /dev/shm."""

    images: tuple[str, ...] = Field(
        (), description="images whose servers do so, written as those of a preset"
    )
    flags: tuple[str, ...] = Field((), description="flags with which it does so")
    values: tuple[str, ...] = Field((), description="texts in arguments with which it does so")
    each_processor: int = Field(
        0, description="bytes for each processor, if it computes with several processes on processors"
    )
    why: str = Field(description="what needs the space: the end of a sentence that begins with `since`")
    source: str = Field(description="the documentation or thread that shows it")


class SharedRegion(Model):
    """A file in /dev/shm, as large as an option says, without which a server ends."""

    images: tuple[str, ...] = Field((), description="the only images with it, written as those of a preset")
    since: str = Field(
        "",
        pattern=r"^([0-9]+(\.[0-9]+)*)?$",
        description="the first version with it, by the tag of the preset's images",
    )
    flags: tuple[str, ...] = Field(description="flags that set the size")
    key: tuple[str, ...] = Field((), description="the keys of the size, if the flags have JSON as a value")
    texts: tuple[str, ...] = Field((), description="texts in the flags' value, without which there is none")
    unless_texts: tuple[str, ...] = Field((), description="texts with which the size is not known")
    unless_flags: tuple[str, ...] = Field((), description="flags with which there is none")
    unless_env: tuple[str, ...] = Field((), description="variables with which there is none")
    unit: int = Field(1, description="bytes of 1 in the option's value")
    what: str = Field(description="what it contains")
    source: str = Field(description="the documentation or code that shows it")


class LinkVariable(Model):
    """A variable that a server reads, and that Kubernetes sets for a Service with a certain name."""

    name: str = Field(pattern=r"^[A-Z][A-Z0-9_]*_PORT$", description="its name, such as VLLM_PORT")
    with_env: tuple[str, ...] = Field((), description="variables without which it does not read this one")
    unless_flags: tuple[str, ...] = Field((), description="flags with which it does not read this one")
    unless_env: tuple[str, ...] = Field((), description="variables with the same effect")
    since: str = Field(
        "",
        pattern=r"^([0-9]+(\.[0-9]+)*)?$",
        description="the first version that reads it, by the tag of the preset's images",
    )
    several: bool = Field(
        False, description="whether it reads it only if it computes on several accelerators of a node"
    )
    source: str = Field(description="the documentation or code that shows it")


class Factor(Model):
    """A number that multiplies a server's processes; absent, it is 1."""

    flags: tuple[str, ...]
    variables: tuple[str, ...] = ()


class Parallelism(Model):
    """The options that set the number of accelerators of a server."""

    spread: tuple[Factor, ...] = Field(
        description="their product is the number of accelerators for one copy of the weights"
    )
    takes_all: bool = Field(
        False, description="whether it uses all accelerators of its container without these options"
    )
    copies: Factor | None = Field(None, description="the number of copies on separate accelerators")
    shared_with: tuple[str, ...] = Field((), description="options with which copies share accelerators")
    unknown_with: tuple[str, ...] = Field(
        (), description="options that change which weights are loaded or where"
    )
    elsewhere_with: tuple[str, ...] = Field(
        (), description="options that move processes to other nodes or off the accelerators"
    )
    local_values: Mapping[str, tuple[str, ...]] = Field(
        default_factory=dict, description="values of these options that move nothing"
    )
    source: str = Field(description="the documentation or code that shows it")


class MemoryShare(Model):
    """The share of an accelerator's memory that a server takes, whatever the model needs."""

    share: float = Field(gt=0, le=1, description="the default share")
    flags: tuple[str, ...] = Field((), description="flags that set the share")
    env: tuple[str, ...] = Field((), description="environment variables that set it")
    unless_flags: tuple[str, ...] = Field((), description="flags with which it takes another amount")
    source: str = Field(description="the documentation or code that shows it")


class Workers(Model):
    """The processes in which a server computes, each on about one processor: Python's threads share one."""

    flags: tuple[str, ...] = Field((), description="flags that set their number")
    env: tuple[str, ...] = Field((), description="environment variables that set it")
    default: int = Field(ge=1, description="their number without these")
    source: str = Field(description="the documentation, code or thread that shows it")


class SlowStart(Model):
    """A variable for debugging with which a start takes far longer than usual."""

    env: str = Field(description="its name; 0 and false switch it off")
    seconds: int = Field(ge=1, description="a start with it takes this long or longer")
    why: str = Field(description="what it does: the end of a sentence that begins with its name")
    source: str = Field(description="the documentation, measurement or thread that shows the time")


class Busy(Model):
    """Health endpoints that answer late under load."""

    why: str = Field(description="what their answer does under load: the end of a sentence about it")
    least: int = Field(0, ge=0, description="seconds that every answer takes at least, also without load")
    least_since: str = Field(
        "0",
        pattern=r"^[0-9]+(\.[0-9]+)*$",
        description="the first version with `least`, by the tag of the preset's images",
    )
    least_paths: tuple[str, ...] = Field(
        (), description="further paths whose answers take that long, whatever these variables are"
    )
    least_unless_env: tuple[str, ...] = Field(
        (), description="variables that may switch the part of the answer off that takes so long"
    )
    source: str = Field(description="the code, documentation or thread that shows it")


class RequestLimit(Model):
    """The longest time that a request may take, for a server whose health checks wait behind requests."""

    flags: tuple[str, ...] = Field((), description="the flags that set it, in seconds")
    seconds: int | None = Field(
        None,
        ge=1,
        description="a time that normal requests take, if nothing limits it; absent: only a flag does",
    )
    unless_flags: tuple[str, ...] = Field(
        (), description="flags with which health checks may be answered at once"
    )
    unless_env: tuple[str, ...] = Field((), description="environment variables with the same effect")
    source: str = Field(description="the documentation, code or thread that shows both")


class LongAnswers(Model):
    """Normal answers that take longer than usual web requests."""

    seconds: int = Field(ge=1, description="a normal answer may take this long or longer")
    source: str = Field(description="the documentation, measurement or thread that shows it")


class LargeRequests(Model):
    """Usual requests with large bodies."""

    bytes: int = Field(ge=1, description="usual requests are often this large or larger")
    what: str = Field(description="what they contain, as the first words of a sentence")
    source: str = Field(description="the documentation or thread that shows it")


class LoadMetrics(Model):
    """Metrics of a server that show its load."""

    names: tuple[str, ...] = Field(min_length=1, description="their names")
    of_router: bool = Field(False, description="whether another pod than the one that is scaled shows them")
    flags: tuple[str, ...] = Field(
        (), description="flags without which it shows none; absent: it always does"
    )
    env: tuple[str, ...] = Field((), description="environment variables with the same effect")
    unless_flags: tuple[str, ...] = Field((), description="flags with which it shows none")
    model_label: str = Field("", description="their label with the first name by which it serves its model")
    source: str = Field(description="the documentation or code that shows them")


class PullerOption(Model):
    """An option without which a server does not load the models or adapters that the puller stores."""

    server: str = Field(description="the puller's name for the way it loads them, such as tfserving")
    flags: tuple[str, ...] = Field((), description="the flags; or flags that name a file which may set it")
    variable: str | None = Field(None, description="the environment variable, which must be 1 or true")
    without: str = Field(description="what it does without the option: the end of a sentence about it")
    add: str = Field(description="what to write: a sentence without its full stop; `{models}` is a directory")
    source: str = Field(description="the documentation or code that shows it")


class PeerAddress(Model):
    """A variable with the address that a server listens on and also gives to servers in other pods."""

    env: str = Field(description="its name")
    flags: tuple[str, ...] = Field((), description="flags without which it is not read")
    texts: tuple[str, ...] = Field((), description="texts in their value, without which it is not read")
    unless_labels: tuple[str, ...] = Field(
        (), description="labels of pods to which a gateway of their own gives the address of the pod"
    )
    what: str = Field(description="what other servers ask there: the end of a sentence")
    source: str = Field(description="the documentation, code or thread that shows it")


class FixedGroup(Model):
    """A server whose running processes on other nodes cannot take a restarted one in."""

    unless_flags: tuple[str, ...] = Field((), description="flags with which they can")
    flags: tuple[str, ...] = Field(
        (), description="flags with which its processes are on several nodes, besides --nnodes"
    )
    apart_flags: tuple[str, ...] = Field(
        (), description="flags with which those of `flags` may serve without each other"
    )
    source: str = Field(description="the documentation or code that shows it")


class Pulls(Model):
    """How a running server downloads a model on request."""

    commands: tuple[str, ...] = Field((), description="the first two words of its commands for it")
    paths: tuple[str, ...] = Field((), description="paths of its API")
    source: str = Field(description="the documentation or code that shows it")


class Example(Model):
    """What the complete manifest of its page runs."""

    image: str = Field(min_length=1, description="the image")
    command: tuple[str, ...] = Field((), description="the container's command; empty: the image's own")
    args: tuple[str, ...] = Field((), description="the container's arguments")
    env: Mapping[str, str] = Field({}, description="the container's environment variables")
    gpus: int = Field(0, ge=0, description="GPUs of the container")
    memory: str = Field(description="the memory limit")
