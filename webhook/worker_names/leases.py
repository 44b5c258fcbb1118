"""The Leases with the records of worker names, all in the webhook's own namespace.

They are not in the namespaces of the workers, because RBAC cannot select "these Leases" in every namespace:
an account that may write all Leases may take over any leader election.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from typing import Final

from policies.core.annotations import WORKER_NAMES, WORKER_NAMES_OWNER
from policies.kube.json import Json, mapping
from policies.kube.metadata import annotations_of
from policies.worker_names.workers import AllocationRecord, Worker
from webhook.kube.times import LEASES, renewal

MAX_NAME_LENGTH: Final = 253


class NoScale(Exception):
    """The controller of a labelled pod has no scale subresource, so the desired number is unknown."""


def lease_name(worker: Worker) -> str:
    """`<namespace>-<owner>-<group>-<hash>`, at most 253 characters.

    The hash of namespace, owner's UID, head or not, and group makes it unique.
    """
    parts = [worker.namespace, worker.owner.uid, worker.head, worker.group]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
    group = "head" if worker.head else worker.group
    return _named(f"{worker.namespace}-{worker.owner.name}-{group}", digest, MAX_NAME_LENGTH)


def earlier_lease_name(worker: Worker) -> str:
    """The name of the group's Lease in the workers' namespace, where releases up to 0.1 kept it."""
    group = "head" if worker.head else worker.group
    digest = hashlib.sha256(f"{worker.owner.uid}\0{worker.head}\0{worker.group}".encode()).hexdigest()[:10]
    return _named(f"{worker.owner.name}-{group}", digest, 63)


def _named(stem: str, digest: str, longest: int) -> str:
    stem = re.sub(r"[^a-z0-9-]", "-", stem.lower()).strip("-")
    return f"{stem[: longest - len(digest) - 1].rstrip('-')}-{digest}"


def new_lease(name: str) -> Json:
    """A new Lease, without a namespace."""
    return {
        "apiVersion": LEASES,
        "kind": "Lease",
        "metadata": {"name": name, "labels": {WORKER_NAMES: "record"}},
    }


def with_record(lease: Json, worker: Worker, record: AllocationRecord, identity: str) -> Json:
    """A copy of the Lease with another record. All other fields stay."""
    owner = worker.owner
    ours = {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "namespace": worker.namespace,
        "name": owner.name,
        "uid": owner.uid,
    }
    annotations = {**annotations_of(lease), WORKER_NAMES: record.dump(), WORKER_NAMES_OWNER: json.dumps(ours)}
    spec = {**mapping(lease, "spec"), **renewal(identity, time.time())}
    return {**lease, "metadata": {**lease["metadata"], "annotations": annotations}, "spec": spec}


def record_of(lease: Json | None) -> AllocationRecord:
    """The record in a Lease; empty if there is none."""
    return AllocationRecord.load(annotations_of(lease or {}).get(WORKER_NAMES))
