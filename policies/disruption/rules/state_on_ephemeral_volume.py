"""state-on-ephemeral-volume: a store whose data directory ends with its pod, or with its container."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from policies.core import data
from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.settings import Model
from policies.kube.group_kinds import DEPLOYMENT, STATEFUL_SET
from policies.kube.images import repository
from policies.kube.objects.pods import Volume
from policies.kube.objects.workloads import StatefulSet
from policies.kube.pods import Container, Role


class DataDirectory(Model):
    """An entry of `data_directories.yaml`."""

    image: str = Field(description="the last part of the image's repository")
    path: str = Field(description="the directory with the data")
    always: bool = Field(False, description="whether a store without any volume is reported, too")
    unless_env: tuple[str, ...] = Field((), description="variables that name another place for the data")
    source: str


@data.table
def _directories() -> tuple[DataDirectory, ...]:
    return data.load_list(DataDirectory, "policies.disruption", "data_directories.yaml")


_HINTS: Final = {
    STATEFUL_SET: "Use volumeClaimTemplates for this directory.",
    DEPLOYMENT: "Mount a claim at this directory, or make it a StatefulSet with volumeClaimTemplates.",
}


def check(target: Target, facts: Facts) -> Findings:
    own = target.read(StatefulSet).spec.volume_claim_templates if target.kind == STATEFUL_SET else ()
    claimed = {each.name for each in own}
    for template in target.templates:
        fleeting = {each.name for each in template.typed.spec.volumes if each.empty_dir is not None} - claimed
        for container in template.containers(Role.MAIN):
            entry = _entry(container)
            if entry is None:
                continue
            mounts = [each for each in container.typed.volume_mounts if _is_at(each.mount_path, entry.path)]
            said = f"Container {container.name} keeps its data in"
            if mounts and all(each.name in fleeting for each in mounts):
                yield Finding(
                    f"{template.spec_path}.volumes",
                    f"{said} {mounts[0].mount_path}, which is the emptyDir {mounts[0].name}: an eviction, a "
                    f"drained node or an update of the {target.kind.kind} deletes it.",
                    _HINTS[target.kind],
                )
            elif entry.always and not claimed and not _may_keep(template, container):
                yield Finding(
                    template.at(container),
                    f"{said} {entry.path}, where no volume is: a restart of the container deletes it.",
                    _HINTS[target.kind],
                )


def _entry(container: Container) -> DataDirectory | None:
    """The data directory of a container; None if it has none, or its data may be elsewhere."""
    name, typed = repository(container.image).rpartition("/")[2], container.typed
    found = [each for each in _directories() if each.image == name]
    given = {each.name for each in typed.env}
    moved = [each for each in found if each.unless_env]
    if any(typed.env_from or not given.isdisjoint(each.unless_env) for each in moved):
        return None
    mounted = [mount.mount_path for mount in typed.volume_mounts]
    at = (each for each in found if any(_is_at(path, each.path) for path in mounted))
    return next(at, found[0] if found else None)


def _may_keep(template: PodTemplate, container: Container) -> bool:
    """Whether a mounted volume may outlive the container and hold data."""
    volumes = {each.name: each for each in template.typed.spec.volumes}
    mounted = (volumes.get(mount.name) for mount in container.typed.volume_mounts)
    return any(volume is None or not _holds_no_data(volume) for volume in mounted)


def _holds_no_data(volume: Volume) -> bool:
    written = (volume.config_map, volume.secret, volume.projected, volume.downward_api)
    in_memory = volume.empty_dir is not None and volume.empty_dir.medium == "Memory"
    return in_memory or any(each is not None for each in written)


def _is_at(mounted: str, path: str) -> bool:
    """Whether a mount is at a data directory or below it."""
    one, other = mounted.rstrip("/"), path.rstrip("/")
    return bool(one) and (f"{one}/").startswith(f"{other}/")


RULE = rule(__name__, check, (STATEFUL_SET, DEPLOYMENT), unowned=True)
