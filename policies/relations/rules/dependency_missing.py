"""dependency-missing: pods that need an object that does not exist, a key that it does not have, or its
rights.

Law: only `WholeObjects.lacks` causes a certain finding. The caches of a running webhook cause none, since the
next object that is applied may be the missing one.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.dns import service_names
from policies.core.facts import WholeObjects
from policies.core.pod_view import PodView
from policies.core.runs import run_of
from policies.kube.field_paths import value_at
from policies.kube.group_kinds import (
    CLAIM,
    SERVICE,
    SERVICE_ACCOUNT,
    GroupKind,
)
from policies.kube.names import alike, listed
from policies.kube.objects.services import Service
from policies.relations.bindings import lost_rights
from policies.relations.links import Relation, all_links, blocking_links
from policies.relations.reads import Read, keys_without, objects_read

_MAX: Final = 8
"""Findings for one workload."""
_NAMES: Final = 64
"""Services of a namespace with which a missing name is compared."""
_PORT: Final = re.compile(r":(\d{1,5})(?!\d)", re.ASCII)


def check(target: Target, facts: Facts) -> Findings:
    cluster = facts.whole
    if cluster is None or not facts.namespace:  # pods of a cluster-scoped template run in other namespaces
        return
    run = run_of(target.obj)
    if not target.replicas or (run is not None and not run.creates_pods):
        return
    yield from islice(_missing(target, facts.namespace, cluster), _MAX)
    if cluster.of_files:
        yield from islice(_misnamed(target, facts, cluster), _MAX)


def _missing(target: Target, namespace: str, cluster: WholeObjects) -> Findings:
    reported: set[tuple[GroupKind, str]] = set()
    for link in blocking_links(target):
        service = _missing_service(link.host, target, namespace, cluster)
        if service is None or (SERVICE, service) in reported:
            continue
        reported.add((SERVICE, service))
        ends = "never ends" if link.limit is None else f"takes {link.limit:.0f} s"
        yield Finding(
            link.path,
            f"{link.subject} waits for Service {service}, which doesn't exist. The wait {ends}.",
            "Correct the name, or create the Service together with this object.",
            link.certainty if link.limit is None else Certainty.UNDECIDED,
        )
    for template in target.templates:
        for read in objects_read(_as_written(template)):
            yield from _without_key(read, namespace, cluster)
            key = (read.kind, read.name)
            if read.optional or key in reported or not cluster.lacks(read.kind, namespace, read.name):
                continue
            reported.add(key)
            verb = "mounts" if read.mounted else "reads"
            yield Finding(
                read.path,
                f"The pod {verb} {read.kind.kind} {read.name}, which doesn't exist in namespace "
                f"{namespace}. None of its containers starts.",
                f"Correct the name, or create the {read.kind.kind} together with this object"
                + ("." if read.kind == CLAIM else ", or set optional: true."),
            )
        spec = template.typed.spec
        account = spec.own_account
        if account and (SERVICE_ACCOUNT, account) not in reported:
            reported.add((SERVICE_ACCOUNT, account))
            if why := lost_rights(spec, namespace, cluster):
                yield Finding(
                    f"{template.spec_path}.serviceAccount{'Name' * bool(spec.service_account_name)}",
                    f"The pod gets none of its rights: {why} The API server refuses its requests.",
                    "Correct the binding.",
                    Certainty.LIKELY,  # another binding may be in the cluster
                )


def _misnamed(target: Target, facts: Facts, cluster: WholeObjects) -> Findings:
    """Services that a variable or an argument names, and that these files call almost so."""
    called = {
        link.host.partition(".")[0]: link for link in all_links(target) if link.relation is Relation.CALLS
    }
    services, namespace = facts.objects(Service) or (), facts.namespace
    pods = [each.typed.spec for each in target.templates]
    aliases = {name for pod in pods for alias in pod.host_aliases for name in alias.hostnames}
    own_search = any(pod.dns_config is not None for pod in pods)
    if len(services) > _NAMES:
        return  # each missing name would be compared with all of them
    for name, link in called.items():
        found = service_names(link.host, namespace, own_search, cluster)
        if (
            not found
            or link.host in aliases
            or not all(
                place == namespace and cluster.makes_no(SERVICE, place, each) for each, place, _ in found
            )
        ):
            continue
        ports = {int(port) for port in _PORT.findall(str(value_at(target.obj, link.path)))}
        others = [
            each.name
            for each in services
            if each.name not in called and (not ports or any(it.port in ports for it in each.spec.ports))
        ]
        like = alike(name, others)
        if like:
            yield Finding(
                link.path,
                f"This names Service {name}, which none of these manifests makes. They have Service {like}.",
                f"Name {like}, or create the Service together with this object.",
                Certainty.LIKELY,
            )


def _without_key(read: Read, namespace: str, cluster: WholeObjects) -> Findings:
    if keys := keys_without(read, namespace, cluster):
        yield Finding(
            read.key_path,
            f"The pod reads key {read.key} of {read.kind.kind} {read.name}, which has only "
            f"{listed(sorted(keys))}. The container doesn't start.",
            "Correct the key, or set optional: true.",
            Certainty.LIKELY,
        )


def _missing_service(host: str, target: Target, namespace: str, cluster: WholeObjects) -> str | None:
    """The name of the missing Service behind a host; None if the host may be something else."""
    pods = (each.typed.spec for each in target.templates)
    found = service_names(host, namespace, any(pod.dns_config is not None for pod in pods), cluster)
    if not found or not all(cluster.lacks(SERVICE, place, name) for name, place, _ in found):
        return None
    name, place, _ = found[0]
    return name if place == namespace else f"{name} in namespace {place}"


def _as_written(template: PodTemplate) -> PodTemplate:
    """The template without the fields that mutators add to its pods."""
    written = template.unprojected
    return template if written is template.pod else template.with_view(PodView(written))


RULE = rule(__name__, check, unowned=True)
