"""state-on-ephemeral-volume: a store whose data directory ends with its pod, or with its container."""

from __future__ import annotations

import re
from collections.abc import Set
from itertools import chain
from typing import Final

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.data_directories import OwnPlace, data_directories, is_below
from policies.core.volumes import has_lost_and_found, known_claims
from policies.disruption.single_state import sqlite_file
from policies.kube.group_kinds import SERVING, STATEFUL_SET
from policies.kube.images import is_newest
from policies.kube.objects.pods import VolumeMount
from policies.kube.objects.workloads import StatefulSet
from policies.kube.pods import Container, Role
from policies.probes.recognition import Server
from policies.probes.serving import recognised
from policies.rollouts.rollouts import minimum_replicas

_FILE: Final = re.compile(r"(?:file:(?://)?)?(/[^?]+)(?:\?.*)?")
"""A file or a directory in the value of an option that is no address of SQLite."""
_IN_MEMORY: Final = re.compile(r"sqlite(?:\+\w+)?://(?:/:memory:.*)?")
"""A database of SQLite in memory: https://docs.sqlalchemy.org/en/20/dialects/sqlite.html#connect-strings"""
_PREPARING: Final = (
    "lost",
    "rm ",
    "rmdir ",
    "mv ",
    "cp ",
    "tar ",
    "rsync ",
    "basebackup",
    "restore",
    "initdb",
    ".sh",
)
"""Words of the commands of init containers that leave an empty directory or a store. Others set owners."""
_HINT: Final = "Mount a claim at this directory, or use a StatefulSet with volumeClaimTemplates."
_HINT_OF_STATEFUL_SET: Final = "Use volumeClaimTemplates for this directory."


def check(target: Target, facts: Facts) -> Findings:
    own = target.read(StatefulSet).spec.volume_claim_templates if target.kind == STATEFUL_SET else ()
    claimed = {each.name for each in own}
    hint = _HINT_OF_STATEFUL_SET if target.kind == STATEFUL_SET else _HINT
    for template in target.templates:
        fleeting = {each.name for each in template.typed.spec.volumes if each.empty_dir is not None} - claimed
        for container in template.containers(Role.MAIN):
            server = recognised(container, facts)
            preset = server.preset.data if server is not None else None
            moved = preset.unless_env if preset is not None else ()
            if server is not None and moved and (server.has_env_from or server.has_variable(*moved)):
                continue
            # Without any volume, only servers of presets are reported: people run databases so for tests, and
            # MinIO as a gateway.
            stores = data_directories(container) if preset is None else ()
            paths = [each.path for each in stores] if preset is None else [preset.directory]
            given = container.typed.volume_mounts
            mounts = [each for each in given if any(is_below(each.mount_path, path) for path in paths)]
            said = f"Container {container.name} keeps its data in"
            if mounts and all(each.name in fleeting for each in mounts):
                yield Finding(
                    f"{template.spec_path}.volumes",
                    f"{said} {mounts[0].mount_path}, which is the emptyDir {mounts[0].name}. An eviction, "
                    f"a node drain or an update of the {target.kind.kind} deletes it.",
                    hint,
                )
                continue
            for place in filter(None, (each.own_place(container) for each in stores)):
                if place.refuses and place.refuses in {each.mount_path.rstrip("/") for each in given}:
                    yield Finding(
                        template.at(container),
                        f"{said} {place.path} in this version, and does not start with a volume at "
                        f"{place.refuses}, where older ones kept it.",
                        f"Mount the volume at {place.path}. Data of an older version needs an upgrade.",
                        Certainty.LIKELY if is_newest(container.image) else Certainty.CERTAIN,
                    )
                    continue
                if place.empty and _begins_with_a_directory(target, template, container, place, facts):
                    yield Finding(
                        template.at(container),
                        f"{said} {place.path}, where its claim is mounted. A new disk contains the directory "
                        "lost+found, and the store ends with an error if its directory isn't empty.",
                        "Set subPath: data where the claim is mounted.",
                        Certainty.LIKELY,  # somebody may have prepared the disk
                    )
                    continue
                mount = _beside(template, container, place, claimed)
                if mount is not None:
                    hidden = place.declared and is_below(place.path, mount.mount_path)
                    why = ", which its image declares as a volume" if hidden else ""
                    lost = "With containerd, that hides the claim's directory. " if hidden else ""
                    yield Finding(
                        template.at(container),
                        f"{said} {place.path}{why}, but the claim is mounted at {mount.mount_path}. {lost}"
                        "The data isn't on the claim, and a restart of the container deletes it.",
                        f"Mount the claim at {place.path}, with a subPath if it must be empty at first.",
                        Certainty.LIKELY if is_newest(container.image) else Certainty.CERTAIN,
                    )
            if preset is not None and not claimed and not _may_keep(template, container):
                yield Finding(
                    template.at(container),
                    f"{said} {preset.directory}, which isn't on a volume. A restart of the container "
                    "deletes it.",
                    hint,
                )
            state = server.preset.single_state if server is not None else None
            if server is not None and state is not None and minimum_replicas(target, facts) == 1:
                # else replicas-do-not-share-state
                found = list(_of_files(template, container, server, fleeting, hint))
                yield from found or _of_own_files(template, container, server)


def _path(value: str) -> str:
    """The file or directory that the value of an option names; empty if it names none."""
    file = _FILE.fullmatch(value)
    return sqlite_file(value) or (file[1] if file else "")


def _of_files(
    template: PodTemplate, container: Container, server: Server, fleeting: Set[str], hint: str
) -> Findings:
    """A finding about a server that keeps its state in memory, in files without any volume, since no option
    names a database server, or in a file that is on an emptyDir."""
    state = server.preset.single_state
    if state is None or server.preset.data is not None or not (state.flags or state.env):
        return
    # A flag decides, whatever `envFrom` sets.
    value = server.options.value(state.flags) if server.has_env_from else None
    if not server.keeps_state or (server.has_env_from and not value):
        return
    value = value or server.configured(state.flags, state.env)
    if value and _IN_MEMORY.fullmatch(value):
        yield Finding(
            template.at(container),
            f"Container {container.name} keeps its records in memory ({value}). A restart of the container "
            "deletes them.",
            f"Set {(*state.flags, *state.env)[0]} to a database server, or to a file on a claim.",
        )
        return
    if not container.typed.volume_mounts:
        yield Finding(
            template.at(container),
            f"Container {container.name} mounts no volume, but {server.name} keeps {state.what}. A restart "
            "of the container deletes it.",
            f"Mount a claim and keep the files there, or set {(*state.env, *state.flags)[0]}.",
        )
        return
    path = _path(value or "")
    mounts = [each for each in container.typed.volume_mounts if path and is_below(path, each.mount_path)]
    nearest = max(mounts, key=lambda each: len(each.mount_path), default=None)
    if nearest is not None and nearest.name in fleeting:
        yield Finding(
            f"{template.spec_path}.volumes",
            f"Container {container.name} keeps its records in {path}, which is on the emptyDir "
            f"{nearest.name}. An eviction, a node drain or an update deletes them.",
            hint,
        )


def _of_own_files(template: PodTemplate, container: Container, server: Server) -> Findings:
    """A finding about files next to the state of a server, without a volume that keeps any."""
    own = server.preset.own_files
    if own is None or server.has_env_from or server.may_hold_options or _may_keep(template, container):
        return
    names = (*own.flags, *own.env, *own.unless)
    if server.has_option(*names) or server.may_have_option(*names) or server.has_variable(*names):
        return
    yield Finding(
        template.at(container),
        f"Container {container.name} mounts no volume that keeps files, but {server.name} keeps {own.what}. "
        "A restart of the container deletes them.",
        f"Set {own.flags[0]} to an object store, or mount a claim and keep the files there.",
        Certainty.LIKELY,
    )


def _may_keep(template: PodTemplate, container: Container) -> bool:
    """Whether a mounted volume may outlive the container and hold data."""
    volumes = {each.name: each for each in template.typed.spec.volumes}
    mounted = (volumes.get(mount.name) for mount in container.typed.volume_mounts)
    return any(volume is None or volume.keeps_files for volume in mounted)


def _begins_with_a_directory(
    target: Target, template: PodTemplate, container: Container, place: OwnPlace, facts: Facts
) -> bool:
    """Whether the directory of a store is the root of a claim whose new volume is not empty."""
    root = {
        each.name
        for each in container.typed.volume_mounts
        if each.mount_path.rstrip("/") == place.path and not (each.sub_path or each.sub_path_expr)
    }
    others = template.containers(Role.INIT) if root else ()
    if not root or any(_may_prepare(each, root) for each in others):
        return False
    own = target.read(StatefulSet).spec.volume_claim_templates if target.kind == STATEFUL_SET else ()
    volumes = template.typed.spec.volumes
    named = ((volumes[index].name, claim) for index, claim in known_claims(volumes, facts))
    claims = chain(((each.name, each) for each in own), named)
    return any(name in root and has_lost_and_found(claim, facts) for name, claim in claims)


def _may_prepare(container: Container, root: Set[str]) -> bool:
    """Whether an init container with one of the volumes may remove its directories, or write a store."""
    mounted = any(each.name in root for each in container.typed.volume_mounts)
    words = " ".join(container.typed.argv)
    return mounted and (not words or any(program in words for program in _PREPARING))


def _beside(
    template: PodTemplate, container: Container, place: OwnPlace, claimed: Set[str]
) -> VolumeMount | None:
    """The first mount of a claim, if none may hold what a store writes in its own place."""
    claims = {each.name for each in template.typed.spec.volumes if each.persistent_volume_claim is not None}
    mounts = container.typed.volume_mounts
    if any(place.is_covered_by(each.mount_path) for each in mounts):
        return None
    kept = (each for each in mounts if each.name in claims | claimed and not each.read_only)
    return next(kept, None)


RULE = rule(__name__, check, SERVING, unowned=True)
