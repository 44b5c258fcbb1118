"""training-state-not-durable: training whose checkpoints are deleted with its pod."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from policies.accelerators.gpu_affinity_settings import GpuAffinity
from policies.commands import is_python
from policies.containers.commands import container_command
from policies.containers.programs import flags_and_values, idles, programs_of
from policies.core import data
from policies.core.annotations import CHECKPOINT, MODEL_CONFIG, TRAINING
from policies.core.contracts import Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.core.lifecycles import known_lifecycles
from policies.core.runs import runs_in
from policies.core.settings import Field, Model
from policies.jobs.jobs import has_label, is_someone_elses
from policies.jobs.training import keeps_nothing, only_prepare, prepares, says_measuring, words_of
from policies.kube.images import repository
from policies.kube.json import Json, dig, maps, text
from policies.kube.objects.metadata import Object
from policies.kube.objects.pods import CREDENTIAL_DRIVERS, OF_ONE_POD
from policies.kube.pods import Role

_STORAGE: Final = (
    *("s3://", "s3a://", "gs://", "gcs://", "hf://", "az://", "abfs://", "abfss://", "wasb://", "wasbs://"),
    *("oss://", "cos://", "obs://", "oci://", "hdfs://", "r2://", "swift://", "dbfs:/"),
    *(".blob.core.windows.net/", ".dfs.core.windows.net/", "storage.googleapis.com/", ".amazonaws.com/"),
)
"""URL schemes and hosts of durable storage."""

_NAMES: Final = frozenset({"bucket", "hub", "mlflow", "clearml", "comet", "neptune"})
"""Words in the names of options and variables that say where a training writes to, or which tracker keeps its
models: --push_to_hub, CLEARML_API_HOST."""

_STORE: Final = re.compile(r"(?:^|[_-])(?:s3|minio)(?:[_-]|$)", re.IGNORECASE)
"""An object store in the name of an option or variable: S3_ENDPOINT_URL."""

_OUTPUT: Final = re.compile(
    r"(?:output|checkpoint|ckpt|save)[a-z_-]{0,30}[=\s][\"']?(?:\$[{(]?([a-z_][a-z0-9_]{0,60})|<)",
    re.IGNORECASE,
)
"""An option with the place that a training writes to, which is a variable, or is to be filled in."""

_CHECKPOINT: Final = re.compile(r"checkpoint|ckpt", re.IGNORECASE)

_WRITTEN: Final = re.compile(r"checkpoint|ckpt|output|result|save(?![a-z])|state", re.IGNORECASE)
"""Parts of the names of options, variables and mounts of what a training writes."""

_TRAINS: Final = re.compile(
    r"(?<![a-z])(?:pre)?train|fine-?_?tun|(?<![a-z])(?:sft|dpo|grpo|ppo|rlhf|lora)(?![a-z])|torchrun|deepspeed"
    r"|(?<![a-z])accelerate(?![a-z])|maxtext|axolotl"
)
"""Parts of names, images, programs and arguments of training. Other work on accelerators, such as batch
inference, can start again."""


def check(target: Target, facts: Facts) -> Findings:
    runs = list(runs_in(target.obj))
    if any(run.life.storage is None or any(map(run.has, run.life.storage)) for run in runs):
        return
    if any(t.workload is not None and t.workload.completed_by and t.base is None for t in target.templates):
        return  # the object that completes the pods may mount a volume
    by_kind = any(run.life.trains for run in runs)
    catalogue = facts.settings(GpuAffinity).catalogue
    training = [
        t
        for t in target.templates
        if t.completes
        and (_writes_something(t) if catalogue.requests(t.typed.spec) else by_kind and _names_checkpoints(t))
        and _trains(target, t, by_kind=by_kind)
    ]
    if not training or is_someone_elses(target.obj):
        return
    if CHECKPOINT in target.read(Object).metadata.annotations:
        return
    # One rank may write for all.
    if any(
        CHECKPOINT in t.typed.metadata.annotations
        or _has_durable_volume(t)
        or _has_an_account(t)
        or _names_storage(t)
        or _uploads(t)
        for t in target.templates
    ):
        return
    yield Finding(
        f"{training[0].spec_path}.volumes",
        "No container mounts a volume that outlives the pod, so everything that the training writes is "
        "lost with the pod.",
        "Mount a PersistentVolumeClaim for checkpoints, or name their location in the annotation "
        f"{CHECKPOINT}.",
    )


def _names_checkpoints(template: PodTemplate) -> bool:
    """Whether an option, a variable or a mount names a local path for checkpoints."""
    return any(_CHECKPOINT.search(name) and value.startswith("/") for name, value in _named(template))


def _writes_something(template: PodTemplate) -> bool:
    """Whether an option, a variable or a mount names what the training writes, or there is a claim for it.
    Without one it may write nothing that somebody wants, as demonstrations do."""
    claims = any(volume.persistent_volume_claim is not None for volume in template.typed.spec.volumes)
    return claims or any(_WRITTEN.search(name) for name, _ in _named(template))


def _named(template: PodTemplate) -> Iterator[tuple[str, str]]:
    """The options, variables and mounts of the main containers, each with its value."""
    for container in template.containers(Role.MAIN):
        yield from ((each.name, each.value) for each in container.typed.env)
        yield from ((each.mount_path, each.mount_path) for each in container.typed.volume_mounts)
        for command in container_command(template, container).commands:
            for name, value in flags_and_values(command.argv):
                if name.startswith("-"):
                    yield name, value


def _trains(target: Target, template: PodTemplate, *, by_kind: bool) -> bool:
    """Whether the pod is training, by its kind, label, names or arguments. Idle pods, benchmarks and
    fragments such as kustomize patches are not."""
    names: list[str] = []
    started: list[str] = []
    words: list[str] = []
    for container in template.containers(Role.MAIN):
        if not container.image:
            return False
        if not (container.typed.argv or _has_own_volumes(template) or template.is_ray):
            continue  # only its image says whether it writes anything, and where to
        summary = container_command(template, container)
        if idles(summary) or (summary.scripts and not programs_of(summary)):
            continue  # a shell's file may copy what it writes
        names += [container.name, repository(container.image).rpartition("/")[2]]
        started += (*programs_of(summary), *summary.scripts)
        words += container.typed.argv
    if not names or says_measuring((*names, *started, target.name)) or keeps_nothing(words):
        return False
    if by_kind or has_label(template.typed.metadata.labels, (f"{TRAINING}=true",)):
        return True
    if only_prepare(started) and not any(map(_says_training, started)):
        return False  # whatever the Job and its image are called
    names += (*started, target.name)
    if not any(map(prepares, names)):  # else an argument may name the model that is converted or downloaded
        names += words
    return any(map(_says_training, names))


def _has_own_volumes(template: PodTemplate) -> bool:
    """Whether the pod has a volume; the puller's may be the only ones of a pod with models."""
    return bool(template.typed.spec.volumes) and MODEL_CONFIG not in template.typed.metadata.annotations


def _has_an_account(template: PodTemplate) -> bool:
    """Whether the pod has an identity of its own, with which it may write to a bucket that no field names.
    https://docs.aws.amazon.com/eks/latest/userguide/iam-roles-for-service-accounts.html
    https://docs.cloud.google.com/kubernetes-engine/docs/how-to/workload-identity
    """
    return bool(template.typed.spec.own_account)


def _says_training(name: str) -> bool:
    return bool(_TRAINS.search(name.lower())) and not prepares(name)


def _names_storage(template: PodTemplate) -> bool:
    """Whether an argument or variable of a container contains a URL of durable storage, or names a bucket or
    the credentials of a store. Variables from another object may do so, too."""
    credentials = _uploading().credentials
    for container in template.containers():
        argv, env = container.typed.argv, container.typed.env
        if container.typed.env_from or any(
            scheme in word for word in (*argv, *(each.value for each in env)) for scheme in _STORAGE
        ):
            return True
        options = [word.partition("=")[0] for word in argv if word.startswith("-")]
        names = (*options, *(each.name for each in env))
        if any(_NAMES & words_of(name) or _STORE.search(name) for name in names):
            return True
        if any(each.name in credentials for each in env):
            return True
        if _is_written_later(argv, frozenset(each.name for each in env)):
            return True
    return False


def _is_written_later(argv: Iterable[str], known: frozenset[str]) -> bool:
    """Whether an option names the place for the output by a variable that neither the container nor its
    script sets, or by a text in angle brackets: another program fills it in before the object is applied."""
    for word in argv:
        for match in _OUTPUT.finditer(word):
            name = match[1]
            if name is None or (name not in known and f"{name}=" not in word):
                return True
    return False


class UploadingPrograms(Model):
    """The table uploading_programs.yaml."""

    uploads: frozenset[str] = Field(description="a program with one of its arguments")
    programs: frozenset[str] = Field(description="programs that copy to other machines or mount storage")
    words: frozenset[str] = Field(description="words in the names of what uploads")
    credentials: frozenset[str] = Field(description="variables with credentials of object stores")


_uploading = data.entry(UploadingPrograms, "policies.jobs", "uploading_programs.yaml")


def _uploads(template: PodTemplate) -> bool:
    """Whether a container copies files to durable storage, by its program or by its name."""
    table = _uploading()
    for container in template.containers():
        summary = container_command(template, container)
        started = [command.argv for command in summary.commands if command.argv]
        image = repository(container.image)
        names = (container.name, image.rpartition("/")[2], *summary.scripts, *(argv[0] for argv in started))
        if any(not table.words.isdisjoint(words_of(name)) for name in names):
            return True
        for program, *arguments in started:
            name = program.rpartition("/")[2]
            plain = [word for word in arguments if not word.startswith("-")][:2]
            options = [word for word in arguments if word.startswith("-")]
            if name in table.programs:
                return True
            if any(f"{name} {argument}" in table.uploads for argument in (*plain, *options)):
                return True
            if any((_NAMES | table.words) & words_of(word) for word in _said(name, arguments)):
                return True
    return False


def _said(program: str, arguments: list[str]) -> list[str]:
    """The names of options, and a line of Python: `--upload-to`, `-c "client.upload_file(...)"`."""
    options = [word.partition("=")[0] for word in arguments if word.startswith("-")]
    return options + (arguments[1:2] if is_python(program) and arguments[:1] == ["-c"] else [])


def _has_durable_volume(template: PodTemplate) -> bool:
    durable = {text(volume, "name") for volume in maps(template.spec, "volumes") if _is_durable(volume)}
    return any(
        mount.name in durable and not mount.read_only
        for container in template.containers()
        for mount in container.typed.volume_mounts
    ) or any(
        device.name in durable
        for container in template.containers()
        for device in container.typed.volume_devices
    )


def _is_durable(volume: Json) -> bool:
    """Whether a volume outlives its pod. A hostPath may be a shared file system, so it counts."""
    read_only = dig(volume, "persistentVolumeClaim", "readOnly") is True
    if read_only or text(volume, "csi", "driver") in CREDENTIAL_DRIVERS:
        return False
    return bool(set(volume) - OF_ONE_POD - {"image", "name"})


RULE = rule(
    __name__,
    check,
    tuple(
        kind for kind, lives in known_lifecycles().items() if any(life.storage is not None for life in lives)
    ),
    requires=(PodFeature.COMPLETES,),
)
