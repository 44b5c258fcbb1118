"""state-on-ephemeral-volume: a store in a StatefulSet whose data directory ends with its pod."""

from __future__ import annotations

from pydantic import Field

from policies.core import data
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.settings import Model
from policies.kube.group_kinds import STATEFUL_SET
from policies.kube.images import repository
from policies.kube.objects.workloads import StatefulSet
from policies.kube.pods import Container, Role


class DataDirectory(Model):
    """An entry of `data_directories.yaml`."""

    image: str = Field(description="the last part of the image's repository")
    path: str = Field(description="the directory with the data")
    source: str


@data.table
def _directories() -> tuple[DataDirectory, ...]:
    return data.load_list(DataDirectory, "policies.disruption", "data_directories.yaml")


def check(target: Target, facts: Facts) -> Findings:
    claimed = {each.name for each in target.read(StatefulSet).spec.volume_claim_templates}
    for template in target.templates:
        fleeting = {each.name for each in template.typed.spec.volumes if each.empty_dir is not None} - claimed
        for container in template.containers(Role.MAIN):
            mount = _data_mount(container, fleeting)
            if mount is not None:
                yield Finding(
                    f"{template.spec_path}.volumes",
                    f"Container {container.name} keeps its data in {mount[1]}, which is the emptyDir "
                    f"{mount[0]}: an eviction, a drained node or an update of the StatefulSet deletes it.",
                    "Use volumeClaimTemplates for this directory.",
                )


def _data_mount(container: Container, fleeting: set[str]) -> tuple[str, str] | None:
    """The volume and the path of an emptyDir at the data directory of a store, or below it."""
    name = repository(container.image).rpartition("/")[2]
    for entry in _directories():
        if entry.image != name:
            continue
        mounts = [each for each in container.typed.volume_mounts if _is_at(each.mount_path, entry.path)]
        if mounts and all(each.name in fleeting for each in mounts):
            return mounts[0].name, mounts[0].mount_path
    return None


def _is_at(mounted: str, path: str) -> bool:
    """Whether a mount is at a data directory or below it."""
    one, other = mounted.rstrip("/"), path.rstrip("/")
    return bool(one) and (f"{one}/").startswith(f"{other}/")


RULE = rule(__name__, check, (STATEFUL_SET,), unowned=True)
