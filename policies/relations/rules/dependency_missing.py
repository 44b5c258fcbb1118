"""dependency-missing: pods that need an object that exists nowhere.

Law: it is silent unless `WholeObjects.lacks` is certain; the caches of a running webhook never are, since the
next object that is applied may be the missing one.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.facts import WholeObjects, named_in
from policies.core.names import is_address, meanings
from policies.core.pod_view import PodView
from policies.core.resources import Resource
from policies.kube.group_kinds import CLAIM, SERVICE, GroupKind
from policies.kube.json import dig, integer
from policies.kube.metadata import controller
from policies.relations.links import blocking_links
from policies.relations.reads import objects_read

_MOST: Final = 8
"""Missing objects of one workload that are named."""


def check(target: Target, facts: Facts) -> Findings:
    cluster = facts.cluster
    if not isinstance(cluster, WholeObjects) or controller(target.obj) is not None:
        return
    if integer(target.spec, "replicas", default=1) == 0 or dig(target.spec, "suspend") is True:
        return
    yield from islice(_missing(target, facts.namespace, cluster), _MOST)


def _missing(target: Target, namespace: str, cluster: WholeObjects) -> Findings:
    said: set[tuple[GroupKind, str]] = set()
    for link in blocking_links(target):
        service = _missing_service(link.host, target, namespace, cluster)
        if service is None or (SERVICE, service) in said:
            continue
        said.add((SERVICE, service))
        ends = "never ends" if link.limit is None else f"takes {link.limit:.0f} s"
        yield Finding(
            link.path,
            f"{link.who[:1].upper()}{link.who[1:]} waits for Service {service}, which does not exist: the "
            f"wait {ends}.",
            "Correct the name, or create the Service together with this object.",
            link.certainty if link.limit is None else Certainty.UNDECIDED,
        )
    for template in target.templates:
        for read in objects_read(_as_written(template)):
            key = (read.kind, read.name)
            if read.optional or key in said or not cluster.lacks(read.kind, namespace, read.name):
                continue
            said.add(key)
            how = "mounts" if read.mounted else "reads"
            yield Finding(
                read.path,
                f"The pod {how} {read.kind.kind} {read.name}, which does not exist in namespace {namespace}: "
                "no container of it starts.",
                f"Correct the name, or create the {read.kind.kind} together with this object"
                + ("." if read.kind == CLAIM else ", or set optional: true."),
            )


def _missing_service(host: str, target: Target, namespace: str, cluster: WholeObjects) -> str | None:
    """The Service that a host must mean, if there is none of that name."""
    if host.startswith("$") or is_address(host):
        return None
    labels = host.rstrip(".").split(".")
    qualified = "svc" in labels[2:4]
    if len(labels) == 1 and any(dig(each.spec, "dnsConfig") for each in target.templates):
        return None  # the pod's own search domains may have the name
    if not qualified and len(labels) > 1:
        # db.ml may as well be a host outside, unless ml is a namespace.
        namespaces = cluster.listing(Resource.NAMESPACES)
        if len(labels) > 2 or named_in(namespaces, labels[1]) is None:
            return None
    found = list(meanings(host, namespace))
    if not found or not all(cluster.lacks(SERVICE, place, name) for name, place, _ in found):
        return None
    name, place, _ = found[0]
    return name if place == namespace else f"{name} in namespace {place}"


def _as_written(template: PodTemplate) -> PodTemplate:
    """The template without what the mutators add to its pods."""
    written = template.unprojected
    return template if written is template.pod else template.remade(PodView(written))


RULE = rule(__name__, check)
