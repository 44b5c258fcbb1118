"""pod-security-refused: pods that the Pod Security level of their namespace refuses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.kserve import makes_deployments
from policies.core.runs import run_of
from policies.core.workloads import is_builtin
from policies.kube.field_paths import value_at
from policies.kube.group_kinds import INFERENCE_SERVICE, POD
from policies.kube.json import dig, mapping
from policies.kube.names import listed
from policies.kube.objects.nodes import Node
from policies.quotas.pod_security import Added, Violation, enforced, is_warned_about, versions, violations

_OPENSHIFT: Final = "openshift.io/"
"""In labels of OpenShift's nodes and annotations of its namespaces."""
_MOST: Final = 4
_HEAD: Final = ".headGroupSpec"


def check(target: Target, facts: Facts) -> Findings:
    labels = facts.namespace_labels()
    level = None if labels is None else enforced(labels)
    if labels is None or level is None or target.kind == POD or not target.replicas:
        return
    if facts.whole is None and is_builtin(target.kind) and is_warned_about(labels):
        return  # the API server says so in the same answer
    run = run_of(target.obj)
    if run is not None and run.is_delegated:
        return
    span = versions(labels, facts.oldest_kubelet())
    for template in target.templates:
        if template.rewritten:
            continue
        added = list(_autoscaler(target, template))
        found = list(violations(template, level, span, added))
        if not _is_final(template, target, facts):
            found = [each for each in found if not each.is_missing]
        if found:
            wrong = _sentences(found, len(template.containers()) + len(added))
            yield Finding(
                found[0].path,
                f"Namespace {facts.namespace} enforces the Pod Security level {level}, which refuses every "
                f"pod: {listed(wrong, _MOST)}. Only events show it.",
                "Set these fields in the pod template, or give the namespace a weaker level.",
                _certainty(found, template),
            )


def _certainty(found: Iterable[Violation], template: PodTemplate) -> Certainty:
    """A webhook may add missing fields, and the API server may exempt runtime classes."""
    written = any(not each.is_missing for each in found)
    exact = template.is_exact and not template.is_merged_later
    sure = written and exact and not template.typed.spec.runtime_class_name
    return Certainty.CERTAIN if sure else Certainty.LIKELY


def _is_final(template: PodTemplate, target: Target, facts: Facts) -> bool:
    """Whether the fields that a template lacks are lacking in its pods, too, as far as is known. KubeRay adds
    none, nor does KServe without Knative. OpenShift's constraints add what restricted asks for."""
    by_kserve = target.kind == INFERENCE_SERVICE and makes_deployments(target.obj)
    if not (template.is_as_written or template.is_ray or by_kserve):
        return False
    if template.is_merged_later or template.is_incomplete:
        return False
    node = next(iter(facts.cluster_objects(Node) or ()), None)  # all of them have the labels
    keys = (*(facts.namespace_labels() or ()), *facts.namespace_annotations())
    return not any(_OPENSHIFT in key for key in (*keys, *(node.metadata.labels if node else ())))


def _autoscaler(target: Target, template: PodTemplate) -> Iterator[Added]:
    """The container that KubeRay adds to the pod of a head, whose security context is in another field:
    `BuildAutoscalerContainer` in ray-operator/controllers/ray/common/pod.go."""
    cluster, head, _ = template.path.partition(_HEAD)
    spec = value_at(target.obj, cluster)
    if head and template.is_ray and dig(spec, "enableInTreeAutoscaling") is True:
        yield Added("autoscaler", f"{cluster}.autoscalerOptions", mapping(spec, "autoscalerOptions"))


def _sentences(found: Iterable[Violation], every: int) -> list[str]:
    """What is wrong, once for all containers that have it. They are named if they are not `every` one."""
    containers: dict[str, list[str]] = {}
    for each in found:
        what = f"{each.field.removeprefix('securityContext.')} {each.what}"
        containers.setdefault(what, []).extend((each.container,) if each.container else ())
    return [
        f"{what} in {' and '.join(names)}" if 0 < len(names) < every else what
        for what, names in containers.items()
    ]


RULE = rule(__name__, check, unowned=True)
