"""model-cache-lost: servers that download a large model again at each start."""

from __future__ import annotations

import re
from typing import Final

from policies.containers.commands import container_command
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.facts import WholeObjects
from policies.core.pod_templates import pod_templates
from policies.core.services import selecting
from policies.core.workloads import workloads_by_kind
from policies.kube.group_kinds import CRON_JOB, DEPLOYMENT, JOB, STATEFUL_SET
from policies.kube.json import Json
from policies.kube.objects.jobs import Job
from policies.kube.objects.reading import readable
from policies.kube.objects.workloads import StatefulSet
from policies.kube.pods import Container, Role
from policies.kube.quantities import in_decimal
from policies.probes.server_facts import Pulls
from policies.servers.caches import Download, download_of, user_of

_LARGE: Final = 10 * 10**9
"""Bytes. A smaller model is downloaded within a minute or two."""
_FOR_MODELS: Final = re.compile(r"model|cache|hugging|weights|ollama|(?:^|\W)hf", re.IGNORECASE)
"""Names of volumes and directories that are meant for models."""
_HOST: Final = re.compile(r"(?:\w+://)?([a-z0-9-]+)")
"""The host in a variable such as OLLAMA_HOST, up to the first dot."""


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        if not template.has_own_volumes or template.completes:
            continue
        for container in template.containers(Role.MAIN):
            found = download_of(template, container, facts)
            if found is None or (found.cache.in_home and not found.moved and user_of(template, container)):
                continue  # another user has another home directory, which only the image knows
            lost = list(_lost(target, template, container, found))
            yield from lost or _filled_once(template, container, found, facts)


def _filled_once(template: PodTemplate, container: Container, found: Download, facts: Facts) -> Findings:
    """A finding about models that only a Job downloads, so that the next pod has none."""
    pulls, whole = found.server.preset.pulls, facts.whole
    ephemeral = found.mount is None or (found.volume is not None and found.volume.empty_dir is not None)
    if pulls is None or whole is None or not whole.of_files or not ephemeral:
        return
    words = (*pulls.commands, *pulls.paths)
    if _may_fill(template, container, found) or _mentions(template.pod, words):
        return
    if whole.cache.once_for((facts.namespace, words), _may_pull, whole, facts.namespace, words):
        return
    services = {each.name for each in selecting(template.typed.metadata.labels, facts)}
    for job in whole.every(JOB, facts.namespace):
        typed = readable(job, Job)
        if typed is None:
            continue  # its own review says so
        if not whole.apart(job) and _pulls_by(job, pulls, services):
            where = f"on the emptyDir {found.volume.name}" if found.volume is not None else "without a volume"
            yield Finding(
                template.at(container),
                f"Container {container.name} ({found.server.name}) keeps its models {where}, and Job "
                f"{typed.name} downloads them only once. The next pod has none, and its "
                "requests fail until somebody runs the Job again.",
                f"Mount a claim at {found.directory}.",
                Certainty.LIKELY,
            )
            return


def _may_fill(template: PodTemplate, container: Container, found: Download) -> bool:
    """Whether a hook, a script or an init container of the pod may download the models, too."""
    hooks, volume = container.typed.lifecycle, found.volume
    if (hooks is not None and hooks.post_start is not None) or container_command(template, container).scripts:
        return True
    inits = template.containers(Role.INIT)
    mounts = (mount for each in inits for mount in each.typed.volume_mounts)
    return volume is not None and any(mount.name == volume.name for mount in mounts)


def _may_pull(whole: WholeObjects, namespace: str, words: tuple[str, ...]) -> bool:
    """Whether a workload of a namespace may download models more than once."""
    return any(
        _mentions(each, words)
        for kind in (DEPLOYMENT, STATEFUL_SET, CRON_JOB)
        for each in whole.every(kind, namespace)
    )


def _mentions(obj: Json, words: tuple[str, ...]) -> bool:
    """Whether an object contains one of the commands or paths, also as a list of words."""
    text_of = str(obj).replace("', '", " ")
    return any(word in text_of for word in words)


def _pulls_by(job: Json, pulls: Pulls, services: set[str]) -> bool:
    """Whether a Job has one of these Services download a model."""
    for template in pod_templates(job, workloads_by_kind()):
        for container in template.containers():
            commands = container_command(template, container).commands
            if any(
                each.subcommand in pulls.commands
                or (each.hosts and any(path in word for path in pulls.paths for word in each.argv))
                for each in commands
            ):
                asked = {host.name.partition(".")[0] for each in commands for host in each.hosts}
                values = (each.value for each in container.typed.env if each.name.endswith("_HOST"))
                asked.update(found[1] for value in values if (found := _HOST.match(value)))
                return not asked.isdisjoint(services)
    return False


def _lost(target: Target, template: PodTemplate, container: Container, found: Download) -> Findings:
    name = f"Container {container.name} ({found.server.name})"
    amount = f" ({in_decimal(found.size)})" if found.size else ""
    hint = f"Mount a volume that outlives the pod at {found.directory}."
    if found.mount is None:
        elsewhere = _meant_for_models(target, template, container, found)
        if elsewhere:
            yield Finding(
                template.at(container),
                f"{name} stores {found.named}{amount} in {found.directory}, but the volume for models is "
                f"mounted at {elsewhere}. Each restart repeats the download.",
                hint,
            )
        elif found.size >= _LARGE:
            yield Finding(
                template.at(container),
                f"{name} downloads {found.named}{amount} to {found.directory}, which isn't on a volume. "
                "Each restart of the container repeats the download.",
                hint,
            )
    elif found.volume is not None and found.volume.empty_dir is not None:
        replicas = target.replicas or 1
        if found.size >= _LARGE and replicas > 1:
            yield Finding(
                template.at(container),
                f"{name} downloads {found.named}{amount} in each of {replicas} replicas, and again in each "
                "new pod, because an emptyDir is deleted with its pod.",
                f"Mount one volume that all replicas read at {found.directory}, and fill it once with a Job.",
            )


def _meant_for_models(target: Target, template: PodTemplate, container: Container, found: Download) -> str:
    """Where a volume for models is mounted; empty if there is none."""
    kept = {
        volume.name
        for volume in template.typed.spec.volumes
        if volume.persistent_volume_claim is not None or volume.ephemeral is not None
    }
    if target.kind == STATEFUL_SET:
        kept.update(claim.name for claim in target.read(StatefulSet).spec.volume_claim_templates)
    for mount in container.typed.volume_mounts:
        if mount.name not in kept:
            continue
        at_default = found.moved and mount.mount_path.rstrip("/") == found.cache.directory
        if at_default or _FOR_MODELS.search(f"{mount.name} {mount.mount_path}"):
            return mount.mount_path
    return ""


RULE = rule(__name__, check)
