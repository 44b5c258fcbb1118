"""device-claim-unmet: DRA claims of a pod that no node can meet."""

from __future__ import annotations

from typing import Final

from policies.accelerators.gpu_affinity_settings import GpuAffinity
from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.core.resources import Resource
from policies.kube.names import SIMILAR, closest
from policies.kube.objects.devices import DeviceClass
from policies.relations.devices import ANY, ClaimedRequest, DeviceSupply, one_slice_has, requests_of, supply

_MAX_REQUESTS: Final = 256


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        if not template.typed.spec.resource_claims:
            continue
        requests = list(requests_of(template, facts))
        if not requests or len(requests) > _MAX_REQUESTS:
            continue
        found = next(_missing(requests, facts), None) or next(_too_many(requests, facts), None)
        if found is not None:
            yield found


def _missing(requests: list[ClaimedRequest], facts: Facts) -> Findings:
    classes = facts.cluster_objects(DeviceClass)
    if not classes:
        return
    for request in requests:
        for name in request.classes:
            if classes.named(name) is None:
                similar = closest(name, (each.name for each in classes), SIMILAR)
                if similar or not next(iter(classes)).is_manifest:
                    there_is = f"; there is {similar}" if similar else ""
                    yield Finding(
                        request.path,
                        f"{request.claim} requests devices of DeviceClass {name}, which doesn't "
                        f"exist{there_is}. The scheduler leaves the pod Pending.",
                        "Correct the name of the class, or install the driver that creates it.",
                        Certainty.LIKELY,  # it may be applied later
                    )


def _too_many(requests: list[ClaimedRequest], facts: Facts) -> Findings:
    slices = facts.cluster.listing(Resource.DEVICE_SLICES)
    if not slices:
        return
    demand: dict[str, tuple[int, ClaimedRequest]] = {}
    for request in requests:
        driver, count = request.minimum(facts)
        for name in dict.fromkeys((driver, ANY)):
            before, first = demand.get(name, (0, request))
            demand[name] = before + count, first
    for driver, (count, first) in sorted(demand.items(), reverse=True):
        if one_slice_has(slices, driver, count):
            continue
        available = supply(slices, driver)
        if available is not None and available.devices < count:
            yield _finding(driver, count, available, first, facts)


def _finding(
    driver: str, count: int, available: DeviceSupply, first: ClaimedRequest, facts: Facts
) -> Finding:
    settings = facts.settings(GpuAffinity)
    fixed = settings.fixed_size and not settings.pools and not available.partitioned
    where = f" ({available.node})" if available.node else ""
    devices = f"devices of {driver}" if driver else "devices"
    return Finding(
        first.path,
        f"The claims of a pod request {count} {devices}, but the most that one node can reach is "
        f"{available.devices}{where}. The scheduler leaves the pod Pending.",
        f"Request at most {available.devices} per pod, or spread the work over several pods.",
        Certainty.CERTAIN if fixed else Certainty.LIKELY,
    )


RULE = rule(__name__, check, unowned=True, at_once=True)
