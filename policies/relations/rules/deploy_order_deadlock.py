"""deploy-order-deadlock: workloads that need objects which Argo CD or Helm deploys at another time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from msgspec import Struct

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.dns import resolve
from policies.core.resources import Resource
from policies.core.services import selected_workloads
from policies.kube.group_kinds import (
    DAEMON_SET,
    JOB,
    POD,
    SERVICE_ACCOUNT,
    SERVING,
    GroupKind,
)
from policies.kube.objects.metadata import Object
from policies.kube.objects.reading import read, readable
from policies.kube.objects.services import Service
from policies.relations.late_claims import claims_too_early
from policies.relations.links import Link, blocking_links, tried_links
from policies.relations.order import Deployer, Position, deployer_of
from policies.relations.reads import objects_read

_MAX: Final = 8
"""The number of waits of one workload that are compared with the order."""
_INSTANCE: Final = "app.kubernetes.io/instance"
"""Charts label the objects of one release with it; Argo CD labels those of one application."""


def check(target: Target, facts: Facts) -> Findings:
    """One finding about all that the workload waits for: it is right to deploy the workload later. Another
    one about a claim, for which it is wrong."""
    if target.replicas:
        first = next(_needed_too_early(target, facts), None)
        waiting = _waits_too_early(target, facts)
        if first is not None and (waiting is None or waiting.certainty is not Certainty.CERTAIN):
            yield first
        elif waiting is not None:
            yield waiting
    yield from claims_too_early(target, facts)


def _waits_too_early(target: Target, facts: Facts) -> Finding | None:
    """About the first Service that the workload waits for, and that is deployed after the workload has
    ended."""
    for link in (*blocking_links(target)[:_MAX], *tried_links(target)[:_MAX]):
        found = resolve(link.host, facts.namespace, facts.cluster)
        # Only manifests have annotations; objects in a cluster were deployed before.
        if found is None or not found.service.is_manifest:
            continue
        workloads = facts.cluster.listing(Resource.WORKLOADS, found.namespace)
        selected = islice(selected_workloads(found.service, workloads), _MAX + 1)
        providers = [read(each, Object) for each in selected]
        if not providers or len(providers) > _MAX or not all(each.is_manifest for each in providers):
            continue
        finding = _compared(target, link, found.service, providers)
        if finding is not None:
            return finding
    return None


def _needed_too_early(target: Target, facts: Facts) -> Findings:
    """A ConfigMap, Secret, claim or ServiceAccount that the pods need, and that is deployed after the
    workload has ended."""
    manifests = facts.whole
    obj = target.read(Object)
    if manifests is None:
        return
    for template in target.templates:
        for need in _needs(template):
            found = manifests.together(need.kind, facts.namespace, need.name)
            other = None if found is None else readable(found, Object)
            if other is None or not other.is_manifest:
                continue
            tool = deployer_of(obj, other)
            if tool is None:
                continue
            own, later = tool.position(obj), tool.position(other)
            if own is None or later is None or later.rank <= own.rank:
                continue
            what = f"{need.kind.kind} {need.name}"
            yield Finding(
                need.path,
                f"The pod {need.verb} {what}, which {tool.name} deploys {later.description}, after this "
                f"{target.kind.kind} ({own.description}) is {tool.done(obj)}. Unless it exists before, "
                f"{need.without}, and the first deployment never completes.",
                f"Deploy {what} in an earlier wave or phase than this {target.kind.kind}.",
                Certainty.LIKELY,
            )


class _Need(Struct, frozen=True):
    """An object without which a pod does not start."""

    kind: GroupKind
    name: str
    path: str
    verb: str
    without: str


def _needs(template: PodTemplate) -> Iterator[_Need]:
    for each in objects_read(template):
        if not each.optional:
            verb = "mounts" if each.mounted else "reads"
            yield _Need(each.kind, each.name, each.path, verb, "none of its containers starts")
    account = template.typed.spec.own_account
    if account:
        path = f"{template.spec_path}.serviceAccountName"
        yield _Need(SERVICE_ACCOUNT, account, path, "runs as", "no pod is created")


def _compared(target: Target, link: Link, service: Service, providers: list[Object]) -> Finding | None:
    obj = target.read(Object)
    tool = deployer_of(obj, service, *providers)
    if tool is None:
        return None
    own, service_position = tool.position(obj), tool.position(service)
    if own is None or service_position is None:
        return None
    positions: list[tuple[Position, Object]] = []
    for each in providers:
        position = tool.position(each)
        if position is None:
            return None
        positions.append((position, each))
    first, provider = min(positions, key=lambda item: item[0].rank)
    later, what = max(
        (service_position, f"Service {service.name}"),
        (first, f"{provider.kind} {provider.name}"),
        key=lambda item: item[0].rank,
    )
    if later.rank <= own.rank:
        return None
    return _finding(target, link, tool, own, later, what, _certainty(obj, link, service, provider))


def _certainty(obj: Object, link: Link, service: Object, provider: Object) -> Certainty:
    """CERTAIN for the objects of one release or application: only these are deployed in one order."""
    if link.certainty is not Certainty.CERTAIN:
        return Certainty.UNDECIDED
    instance = obj.metadata.labels.get(_INSTANCE)
    others = (each.metadata.labels.get(_INSTANCE) for each in (service, provider))
    together = instance is not None and all(each == instance for each in others)
    return Certainty.CERTAIN if together and link.limit is None else Certainty.LIKELY


def _finding(
    target: Target, link: Link, tool: Deployer, own: Position, later: Position, what: str, sure: Certainty
) -> Finding:
    limit = "" if link.limit is None else f"{link.limit:.0f} s "
    one = "release" if tool.name == "Helm" else "application"
    first = "The" if sure is Certainty.CERTAIN else f"If one {one} has both, the"
    ends = "never completes" if link.limit is None else "takes that long, or fails"
    return Finding(
        link.path,
        f"{link.subject} waits {limit}for {what}, which {tool.name} deploys {later.description}, after "
        f"this {target.kind.kind} ({own.description}) is {tool.done(target.read(Object))}. {first} first "
        f"deployment {ends}.",
        f"Deploy {what} in an earlier wave or phase than this {target.kind.kind}, or let this "
        f"{target.kind.kind} start without it.",
        sure,
    )


RULE = rule(__name__, check, (*SERVING, DAEMON_SET, JOB, POD), unowned=True)
