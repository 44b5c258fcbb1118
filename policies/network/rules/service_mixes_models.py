"""service-mixes-models: Services of one model that send requests to the server of another, and Services of
one operator that send them to another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.listing import BY_NAME
from policies.core.pod_view import PodView
from policies.core.services import selecting, workloads_of
from policies.kube.group_kinds import SERVING
from policies.kube.images import repository_and_tag
from policies.kube.json import mapping, text
from policies.kube.objects.metadata import LabelSelector
from policies.kube.objects.services import Service
from policies.kube.objects.workloads import Replicated
from policies.kube.pods import Role
from policies.probes.declared_models import named_models
from policies.probes.serving import recognised
from policies.rollouts.rollouts import minimum_of

_MAX_SERVICES: Final = 32
_OPEN: Final = ("", "system")
"""Namespaces of manifests that are applied to another one, such as those that Kubebuilder generates."""
_SCAFFOLD: Final = {"control-plane": "controller-manager"}
"""The label of an operator. Source: config/manager/manager.yaml of https://book.kubebuilder.io"""


def check(target: Target, facts: Facts) -> Findings:
    if facts.whole is None:
        return  # the webhook's caches keep no containers of other workloads
    for template in target.templates:
        yield from _of_operators(target, template, facts)
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


def _of_operators(target: Target, template: PodTemplate, facts: Facts) -> Findings:
    """A finding about a Service that selects only by the label which Kubebuilder gives to each operator."""
    own = text(target.obj, "metadata", "namespace")
    if own in _OPEN or not _SCAFFOLD.items() <= template.typed.metadata.labels.items():
        return
    images = {_program(each.image) for each in template.containers(Role.MAIN)}
    for service in selecting(template.typed.metadata.labels, facts):
        if service.spec.selector != _SCAFFOLD or service.spec.cluster_ip == "None":
            continue
        for obj, other in workloads_of(LabelSelector(match_labels=_SCAFFOLD), facts):
            pod = facts.view(mapping(obj, "spec", "template"))
            theirs = {_program(each.image) for each in pod.containers if each.role is Role.MAIN}
            if images.isdisjoint(theirs) and minimum_of(other, facts) and target.replicas:
                yield Finding(
                    f"{template.metadata_path}.labels",
                    f"Service {service.name} selects these pods and also those of {other.kind} {other.name}, "
                    "since each operator made with Kubebuilder has control-plane: controller-manager. It "
                    "sends each request to one of them at random.",
                    f"Select by a label that only the pods of {target.name} have.",
                    Certainty.LIKELY,
                )
                return


def _program(image: str) -> str:
    """The end of an image's path, which mirrors keep."""
    return "/".join(repository_and_tag(image)[0].split("/")[-2:])


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
