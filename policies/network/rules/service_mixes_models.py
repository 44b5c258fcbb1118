"""service-mixes-models: Services of one model that send requests to the server of another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.listing import BY_NAME
from policies.core.pod_view import PodView
from policies.core.services import selecting
from policies.kube.group_kinds import SERVING
from policies.kube.json import mapping
from policies.kube.objects.services import Service
from policies.kube.objects.workloads import Replicated
from policies.kube.pods import Role
from policies.probes.declared_models import named_models
from policies.probes.serving import recognised
from policies.rollouts.rollouts import minimum_of

_MAX_SERVICES: Final = 32


def check(target: Target, facts: Facts) -> Findings:
    if facts.whole is None:
        return  # the webhook's caches keep no containers of other workloads
    for template in target.templates:
        own = frozenset(_models(template.view, facts))
        selecting = _services(target, template.typed.metadata.labels, facts) if own else ()
        for service in islice(selecting, _MAX_SERVICES):
            # A Service with the name of another workload is that one's.
            for view, other in _named(service.name, facts):
                theirs = frozenset(_models(view, facts))
                selected = service.spec.selector.items() <= other.spec.template.metadata.labels.items()
                if selected and theirs and own.isdisjoint(theirs):
                    yield Finding(
                        f"{template.metadata_path}.labels",
                        f"Service {service.name} selects these pods, which serve {min(own)}, and also "
                        f"those of {other.kind} {other.name}, which serve {min(theirs)}. It sends each "
                        "request to one of them at random.",
                        "Select by a label that only the pods of one model have.",
                    )
                    return


def _services(target: Target, labels: Mapping[str, str], facts: Facts) -> Iterator[Service]:
    """The Services with another name than the workload's that send requests to its pods."""
    for service in selecting(labels, facts):
        if service.spec.cluster_ip != "None" and service.name != target.name:
            yield service


def _named(name: str, facts: Facts) -> Iterator[tuple[PodView, Replicated]]:
    """The workloads of a name that run, with their pods."""
    workloads = facts.objects(Replicated)
    if workloads is None:
        return
    for obj in workloads.listing.by(BY_NAME)[name]:
        workload = workloads.typed(obj)
        if minimum_of(workload, facts):
            yield facts.view(mapping(obj, "spec", "template")), workload


def _models(view: PodView, facts: Facts) -> Iterator[str]:
    """The names by which clients ask for the models of a pod, as far as they are known."""
    for container in view.containers:
        server = recognised(container, facts) if container.role is Role.MAIN else None
        if server is not None and not any("$" in word for word in server.argv):
            served = server.options.value(server.preset.served_name_flags)
            yield from filter(None, (served,) if served else named_models(server))


RULE = rule(__name__, check, SERVING)
