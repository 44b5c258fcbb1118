"""sqlite-on-file-share: servers whose SQLite file is on a share that refuses its locks."""

from __future__ import annotations

from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.data_directories import is_below
from policies.core.volumes import class_of, known_claims, unattached
from policies.disruption.single_state import sqlite_file
from policies.kube.group_kinds import SERVING, STATEFUL_SET
from policies.kube.objects.storage import PersistentVolumeClaim
from policies.kube.objects.workloads import StatefulSet
from policies.kube.pods import Role
from policies.probes.recognition import Server
from policies.probes.serving import recognised


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        claims = _claims(target, template, facts)
        for container in template.containers(Role.MAIN) if claims else ():
            server = recognised(container, facts)
            place = _place(server) if server is not None and not server.has_env_from else ""
            mounts = enumerate(container.typed.volume_mounts if place else ())
            above = [(len(each.mount_path), i) for i, each in mounts if is_below(place, each.mount_path)]
            if server is None or not above:
                continue
            _, index = max(above)
            claim = claims.get(container.typed.volume_mounts[index].name)
            option = _missing(claim, facts) if claim is not None else ""
            if claim is not None and option:
                yield Finding(
                    template.at(container, f"volumeMounts[{index}]"),
                    f"Container {container.name} ({server.name}) keeps an SQLite file in {place}, on claim "
                    f"{claim.name}. Without the mount option {option}, a share of its StorageClass refuses "
                    "SQLite's locks, so the server ends with 'database is locked'.",
                    f"Add {option} to the mountOptions of the StorageClass, or use a class of disks.",
                )


def _claims(target: Target, template: PodTemplate, facts: Facts) -> dict[str, PersistentVolumeClaim]:
    """The known claims by the names of their volumes."""
    volumes = template.typed.spec.volumes
    claims = {volumes[index].name: claim for index, claim in known_claims(volumes, facts)}
    own = target.read(StatefulSet).spec.volume_claim_templates if target.kind == STATEFUL_SET else ()
    return {**claims, **{each.name: each for each in own}}


def _place(server: Server) -> str:
    """Where a server keeps its SQLite file, if it has one; empty if it is unknown."""
    state, own = server.preset.single_state, server.preset.data
    if state is None or not state.sqlite or not server.keeps_state:
        return ""
    if own is not None:
        return "" if server.has_variable(*own.unless_env) else own.directory
    return sqlite_file(server.configured(state.flags, state.env) or "")


def _missing(claim: PersistentVolumeClaim, facts: Facts) -> str:
    """The mount option for SQLite's locks that the class of a claim lacks; empty if it needs none."""
    storage = class_of(claim, facts)
    if storage is None or claim.spec.volume_name or storage.parameters.get("protocol") == "nfs":
        return ""
    option = next((each.lock_option for each in unattached() if each.provisioner == storage.provisioner), "")
    return "" if option in storage.mount_options else option


RULE = rule(__name__, check, SERVING, unowned=True)
