"""Pod Security levels: who tells about a violation, which versions count, and what this project injects."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from policies.core.facts import Facts
from policies.core.listing import Listing
from policies.core.pod_templates import pod_templates
from policies.core.resources import Resource
from policies.core.target import PodTemplate, Target
from policies.core.workloads import workloads_by_kind
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json
from policies.quotas.pod_security import Versions, controls, versions, violations
from policies.quotas.rules import pod_security_refused
from tests.tables import table
from webhook.admission.projection import project
from webhook.admission.review import Context
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import read

LEVEL = "pod-security.kubernetes.io/"
EXAMPLE = Path(__file__).parents[3] / "examples" / "mlserver-multi-model.yaml"
DEPLOYMENT: Json = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "spec": {"template": {"spec": {"containers": [{"name": "a", "image": "corp/a:1"}]}}},
}
RAY_CLUSTER: Json = {
    "apiVersion": "ray.io/v1",
    "kind": "RayCluster",
    "spec": {"headGroupSpec": {"template": DEPLOYMENT["spec"]["template"]}},
}


class Live:
    """What the webhook's caches know of a cluster: the namespace."""

    def __init__(self, labels: dict[str, str]) -> None:
        self._namespaces = Listing([{"metadata": {"name": "default", "labels": labels}}])

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        return self._namespaces if resource is Resource.NAMESPACES else None


def templates(obj: Json) -> tuple[PodTemplate, ...]:
    return tuple(pod_templates(obj, workloads_by_kind()))


def refused(obj: Json, **labels: str) -> bool:
    """Whether the webhook warns in a namespace with these labels."""
    facts = Facts(cluster=Live({f"{LEVEL}{key.replace('_', '-')}": value for key, value in labels.items()}))
    return any(pod_security_refused.check(Target(obj, kind_of(obj), templates(obj)), facts))


def test_the_api_server_warns_about_the_kinds_of_kubernetes_itself() -> None:
    assert not refused(DEPLOYMENT, enforce="restricted")
    assert not refused(DEPLOYMENT, enforce="restricted", warn="restricted")


@table("warned", ("baseline", "privileged", "a typo"))
def test_unless_it_warns_about_a_weaker_level(warned: str) -> None:
    assert refused(DEPLOYMENT, enforce="restricted", warn=warned)


def test_it_does_not_know_the_kinds_of_operators() -> None:
    assert refused(RAY_CLUSTER, enforce="restricted")
    assert not refused(RAY_CLUSTER, enforce="baseline")
    assert not refused(RAY_CLUSTER, enforce="privileged")
    assert not refused(RAY_CLUSTER)


@table(
    ("label", "kubelet", "span"),
    [
        (None, None, Versions(25, 1000)),
        ("latest", (1, 34), Versions(34, 1000)),
        ("v1.24", (1, 34), Versions(24, 24)),
        ("v1.31", (1, 34), Versions(31, 31)),
        ("v1.99", (1, 34), Versions(34, 99)),  # the API server takes its own
        ("v1.99", None, Versions(25, 99)),
        ("1.30", None, Versions(25, 1000)),
    ],
)
def test_which_versions_count(label: str | None, kubelet: tuple[int, int] | None, span: Versions) -> None:
    labels = {} if label is None else {f"{LEVEL}enforce-version": label}
    assert versions(labels, kubelet) == span


def fields(spec: dict[str, Any], minor: int = 36) -> set[str]:
    obj = {**DEPLOYMENT, "spec": {"template": {"spec": spec}}}
    (template,) = templates(obj)
    return {each.field for each in violations(template, "baseline", Versions(minor, minor))}


@table(
    ("security", "refused_fields"),
    [
        ({"privileged": None}, set()),
        ({"privileged": "true"}, {"securityContext.privileged"}),
        ({"capabilities": {"add": None}}, set()),
        ({"capabilities": {"add": "SYS_ADMIN"}}, set()),
        ({"capabilities": "ALL"}, set()),
        ({"seLinuxOptions": {"type": "", "user": ""}}, set()),
        ({"seLinuxOptions": {"user": "system_u"}}, {"securityContext.seLinuxOptions.user"}),
        ({"procMount": "Unmasked"}, {"securityContext.procMount"}),
    ],
)
def test_values_of_any_type_are_read(security: Any, refused_fields: set[str]) -> None:
    assert fields({"containers": [{"name": "a", "securityContext": security}]}) == refused_fields


@pytest.mark.parametrize(("minor", "wanted"), [(26, True), (27, False), (36, False)])
def test_later_versions_allow_more(minor: int, wanted: bool) -> None:
    spec = {"securityContext": {"sysctls": [{"name": "net.ipv4.ip_local_reserved_ports"}]}, "containers": []}
    assert bool(fields(spec, minor)) is wanted


def test_every_control_says_where_it_is_from() -> None:
    assert all(each.source.startswith("check_") for each in controls())
    assert all(len(each.containers) == 1 for each in controls() if each.required)


def injected(*, by_pod: bool) -> Iterable[PodTemplate]:
    """The puller's example, compliant before the mutators; `by_pod`: by fields of the pod if possible."""
    objects = [document.obj for document in read([str(EXAMPLE)])]
    config, cluster = load({}), ManifestCluster(objects, whole=True)
    for_containers = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    for_both = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    for obj in objects:
        for template in templates(obj):
            template.spec["securityContext"] = for_both if by_pod else {}
            for container in template.spec["containers"]:
                container["securityContext"] = for_containers | ({} if by_pod else for_both)
        context = Context.of(obj, "default", config, cluster)
        yield from project(obj, tuple(pod_templates(obj, config.workloads)), context).target.templates


@table("by_pod", (True, False))
def test_what_this_project_injects_meets_restricted(by_pod: bool) -> None:
    pods = list(injected(by_pod=by_pod))
    names = {container.name for template in pods for container in template.containers()}
    assert any("puller" in name for name in names), names
    assert any("startupProbe" in container.spec for pod in pods for container in pod.containers())
    for template in pods:
        for span in (Versions(25, 25), Versions(36, 36)):
            assert list(violations(template, "restricted", span)) == []
