"""Servers that an eviction stops for long, and whose state a second replica could not share, or may not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Final

from policies.accelerators.requests import wants_accelerator
from policies.core import data
from policies.core.facts import Facts
from policies.core.pod_view import PodView
from policies.core.target import PodTemplate, Target
from policies.kube.group_kinds import STATEFUL_SET
from policies.kube.objects.storage import PersistentVolumeClaim
from policies.kube.objects.workloads import StatefulSet
from policies.kube.pods import Container
from policies.probes.preset import SingleState
from policies.probes.recognition import Server
from policies.probes.serving import recognised, serving_containers
from policies.rollouts.rollouts import is_recreate

_SHARED_MODES = frozenset(("ReadWriteMany", "ReadOnlyMany"))
_SQLITE: Final = re.compile(r"sqlite[+\w]*:///(/[^?]+)(?:\?.*)?")
"""The address of a file. In `sqlite:///x.db`, the path is relative."""


_state_parts = data.names("policies.disruption", "single_state.yaml")


def sqlite_file(address: str) -> str:
    """The absolute path in the address of an SQLite database; empty in others."""
    found = _SQLITE.fullmatch(address)
    return found[1] if found else ""


def starts_slowly(pod: PodView, facts: Facts) -> bool:
    """Whether a pod serves a model, so that its replacement starts slowly."""
    serving = serving_containers(pod, facts)
    return bool(serving) and (
        wants_accelerator(pod, facts) or any(recognised(container, facts) for container in serving)
    )


def may_run_alone(target: Target, facts: Facts) -> bool:
    """Whether a second replica of a workload might not be able to work: its author excludes two pods at the
    same time (Recreate), or its state is in a volume of one node or one pod, in a file of one process, or in
    a server's memory. True if in doubt."""
    return is_recreate(target) or any(_has_own_state(each, target, facts) for each in target.templates)


def _has_own_state(template: PodTemplate, target: Target, facts: Facts) -> bool:
    if any(_is_for_one_node(claim, facts) for claim in _claims(template)):
        return True
    servers = [recognised(each, facts) for each in serving_containers(template.view, facts)]
    # A replica of a StatefulSet has its own claims: an unknown program may keep data that only it has.
    stateful = target.kind == STATEFUL_SET and target.read(StatefulSet).spec.volume_claim_templates
    if stateful and None in servers:
        return True
    return any(server is not None and _keeps_state(server) for server in servers) or any(
        part in word for each in template.containers() for word in _words(each) for part in _state_parts()
    )


def _claims(template: PodTemplate) -> Iterator[str]:
    for volume in template.typed.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name


def _is_for_one_node(claim: str, facts: Facts) -> bool:
    """Whether pods on two nodes cannot mount a claim, or may not be able to."""
    claims = facts.objects(PersistentVolumeClaim)
    found = claims.named(claim) if claims is not None else None
    return found is None or _SHARED_MODES.isdisjoint(found.spec.access_modes)


def _keeps_state(server: Server) -> bool:
    state: SingleState | None = server.preset.single_state
    if state is None:
        return False
    value = server.configured(state.flags, state.env)
    return value is None or not any(fnmatchcase(value, glob) for glob in state.shared)


def _words(container: Container) -> Iterator[str]:
    yield from container.typed.argv
    for entry in container.typed.env:
        yield entry.value
