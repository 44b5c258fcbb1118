"""dependency-scaled-to-zero: waits for a Service whose workload has no replicas."""

from __future__ import annotations

from policies.core.autoscalers import autoscaler_of
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.dns import resolve
from policies.core.resources import Resource
from policies.core.services import selected_workloads
from policies.kube.json import integer, text
from policies.relations.links import blocking_links


def check(target: Target, facts: Facts) -> Findings:
    if facts.whole is None or target.replicas == 0:
        return
    reported: set[str] = set()
    for link in blocking_links(target):
        found = resolve(link.host, facts.namespace, facts.cluster)
        if found is None or found.namespace != facts.namespace or link.limit is not None:
            continue
        service = found.service.name
        workloads = list(selected_workloads(found.service, facts.listing(Resource.WORKLOADS)))
        names = [(text(each, "kind"), text(each, "metadata", "name")) for each in workloads]
        if service in reported or not workloads or any(autoscaler_of(*name, facts) for name in names):
            continue
        if all(integer(each, "spec", "replicas", default=1) == 0 for each in workloads):
            reported.add(service)
            yield Finding(
                link.path,
                f"{link.subject} waits for Service {service}, but {' '.join(names[0])} behind it has 0 "
                "replicas. The wait never ends.",
                "Scale the workload up, or remove the wait.",
            )


RULE = rule(__name__, check, unowned=True)
