"""Which models a container loads, and how large they are: from annotations, the model config, or the names of
models in its arguments, variables and volumes (`policies.probes.model_sizes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from policies.core.annotations import MODEL_CONFIG, MODEL_SIZE
from policies.core.facts import Facts
from policies.core.pod_view import PodView
from policies.kube import quantities as units
from policies.kube.images import repository, repository_and_tag
from policies.kube.json import texts
from policies.kube.objects.pods import Pod, Volume
from policies.kube.pods import Container, Role
from policies.probes.model_sizes import heaviest
from policies.probes.recognition import Server
from policies.probes.serving import serving_containers
from puller import model_config as model_spec


def declared_size(pod: PodView, container: Container, facts: Facts) -> tuple[int | None, str]:
    """Bytes that a container loads before it serves, and the source: the annotation
    `mlchassis.dev/model-size`, or the sum in the pod's model config; None without both."""
    annotated = annotation_of(pod, container, MODEL_SIZE, facts)
    if annotated is not None:
        try:
            return units.parse_bytes(annotated), MODEL_SIZE
        except ValueError:
            pass
    name = annotation_of(pod, container, MODEL_CONFIG, facts)
    models = models_of(facts, name) if name else None
    if models is None:
        return None, ""
    return sum(model.memory for model in models.values()) or None, f"the model config {name}"


def size_by_name(pod: Pod, container: Container, server: Server) -> tuple[int, str]:
    """Bytes of the model that a server loads, and its name: in the command line, the variables or the image,
    else the name of a mounted claim, bucket or image. 0 if no name has a size."""
    if not server.preset.loads_model:
        return 0, ""
    named = server.cache.once_for(container.image, _size_in_names, server, container.image)
    return named if named[0] else heaviest(_mounted(pod, container), _formats(server))


def _size_in_names(server: Server, image: str) -> tuple[int, str]:
    return heaviest((*named_models(server), repository(image)), _formats(server))


def _formats(server: Server) -> tuple[str | None, ...]:
    """The number formats of the weights, as far as flags set them."""
    value = server.options.value
    return value(("--quantization", "-q", "--quantize")), value(("--dtype",))


def named_models(server: Server) -> Iterator[str]:
    """The names of the models in the arguments and variables that name a model, by the server's preset. Other
    arguments, such as `--reasoning-parser deepseek_r1`, may look like one."""
    preset = server.preset
    for flag in preset.model_flags:
        yield server.options.value((flag,)) or ""
    for name in preset.model_env:
        yield server.variables.get(name) or ""
    if preset.model_operand:
        yield _model_operand(server)


def _model_operand(server: Server) -> str:
    """The operand of a server that names its model, which may come after options: the only word that is not
    the value of an option, or else the only one that may be an operand. Empty in doubt."""
    if server.has_option(*server.preset.model_flags):
        return ""
    commands = [tuple(command.split()[start:]) for command in server.preset.commands for start in (0, 1)]
    length = max((len(words) for words in commands if server.argv[: len(words)] == words), default=0)
    certain, possible, before = [], [], ""
    for word in server.argv[length:]:
        if word.startswith("-"):
            before = "" if "=" in word else word
            continue
        if not before:
            certain.append(word)
            break  # further ones are values of an option with several
        if not server.preset.takes_value(before):
            possible.append(word)  # an option with a value or without
        before = ""
    named = certain or [word for word in possible if "/" in word] or possible
    return named[0] if len(named) == 1 else ""


def _mounted(pod: Pod, container: Container) -> Iterator[str]:
    """The names of the claims, buckets and images that a container mounts."""
    for volume in mounted_disks(pod, container):
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name
        if volume.csi is not None:
            yield volume.csi.volume_attributes.get("bucketName", "")
        if volume.image is not None:
            yield ":".join(repository_and_tag(volume.image.reference))


def models_of(facts: Facts, config: str) -> Mapping[str, model_spec.ModelSpec] | None:
    """The models that a model-config ConfigMap lists; None if it is unknown."""
    return facts.cache.once_for(config, _models_of, facts, config)


def _models_of(facts: Facts, config: str) -> Mapping[str, model_spec.ModelSpec] | None:
    found = facts.model_config(config)
    return None if found is None else model_spec.parse(texts(found, "data")).models


def annotation_of(pod: PodView, container: Container, key: str, facts: Facts) -> str | None:
    """The value of an annotation for one container, or for all serving containers."""
    annotations = pod.chassis_annotations
    if not annotations:
        return None
    value = annotations.get(f"{key}.{container.name}")
    if value is None and key in annotations and _loads_models(pod, container, facts):
        value = annotations[key]
    return value


def _loads_models(pod: PodView, container: Container, facts: Facts) -> bool:
    """Whether the pod's annotations about models apply to a container: to the serving main containers, or
    to all main ones if none serves. Native sidecars and helpers load no models."""
    if container.role is not Role.MAIN:
        return False
    serving = facts.pod_caches[pod].once(_serving_mains, pod, facts)
    return not serving or container.name in serving


def _serving_mains(pod: PodView, facts: Facts) -> frozenset[str]:
    return frozenset(item.name for item in serving_containers(pod, facts) if item.role is Role.MAIN)


def mounted_disks(pod: Pod, container: Container) -> list[Volume]:
    """The volumes that a container mounts, except those in memory."""
    names = {mount.name for mount in container.typed.volume_mounts}
    mounted = [volume for volume in pod.spec.volumes if volume.name in names]
    return [each for each in mounted if each.empty_dir is None or each.empty_dir.medium != "Memory"]


def keeps_files(pod: Pod, container: Container) -> bool:
    """Whether a volume, such as an emptyDir, keeps the download when the container is restarted."""
    return any(volume.keeps_files for volume in mounted_disks(pod, container))
