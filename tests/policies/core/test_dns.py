"""Which Service a name in a container's text leads to: as the cluster DNS and the kubelet resolve it."""

from __future__ import annotations

from typing import Any

import pytest

from policies.core.dns import ClusterHost, cluster_host, resolve
from policies.core.pod_templates import pod_templates
from policies.core.target import PodTemplate
from policies.kube.json import Json
from tests.manifests import manifest
from tests.tables import table
from webhook.manifests.cluster import ManifestCluster


def service(name: str, namespace: str = "ml", **spec: Any) -> Json:
    return manifest("Service", name, spec, namespace=namespace)


CLUSTER = ManifestCluster(
    [
        service("db", clusterIP="10.0.0.7"),
        service("ring", clusterIP="None"),
        service("ml", clusterIP="10.0.0.8"),
        service("web-0", "ring", clusterIP="10.0.0.9"),
        service("web", "other", clusterIP="10.0.0.10"),
        service("short", type="ExternalName", externalName="db"),
        service("alias", type="ExternalName", externalName="db.ml.svc.cluster.local."),
        service("again", "other", type="ExternalName", externalName="alias.ml.svc.cluster.local"),
        service("loop", type="ExternalName", externalName="loop.ml.svc.cluster.local"),
    ]
)


@table(
    ("host", "found"),
    [
        ("db", ("ml", "db", "")),
        ("DB.", ("ml", "db", "")),
        ("db.ml", ("ml", "db", "")),
        ("db.ml.svc", ("ml", "db", "")),
        ("db.ml.svc.cluster.local", ("ml", "db", "")),
        ("web.other", ("other", "web", "")),
        ("ring-0.ring", ("ml", "ring", "ring-0")),
        ("ring-0.ring.ml", ("ml", "ring", "ring-0")),
        ("ring-0.ring.ml.svc.cluster.local", ("ml", "ring", "ring-0")),
        ("web-0.ring", ("ml", "ring", "web-0")),  # before the Service web-0 of namespace ring
        ("web-0.ring.svc", ("ring", "web-0", "")),  # `svc` follows a namespace, never a Service
        ("db.ml.svc.cluster.local.", ("ml", "db", "")),
        ("$DB_SERVICE_HOST", ("ml", "db", "")),
        ("10.0.0.7", ("ml", "db", "")),
        ("alias", ("ml", "db", "")),
        ("again.other", ("ml", "db", "")),
        ("short", None),  # DNS does not search the namespaces for an alias
        ("loop", None),
        ("db-0.db", None),  # pods of a Service with an address have no names
        ("db.svc", None),
        ("db.svc.cluster.local", None),
        ("db.cluster.local", None),
        ("web", None),
        ("db.example.com", None),
        ("a.b.c.db.ml.svc", None),
        ("10.0.0.99", None),
        ("$OTHER", None),
        ("", None),
    ],
)
def test_a_name_resolves_to_its_service(host: str, found: tuple[str, str, str] | None) -> None:
    service = resolve(host, "ml", CLUSTER)
    assert (service and (service.namespace, service.name, service.pod)) == found
    assert resolve(host, "ml", ManifestCluster([])) is None


def template(container: Json | None = None, **spec: Any) -> PodTemplate:
    pod = manifest("Pod", "a", {"containers": [{"name": "a", **(container or {})}], **spec})
    return pod_templates(pod, {})[0]


OWN = {"env": [{"name": "NS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}]}


@table(
    ("host", "found", "container"),
    [
        ("DB.ml.", ClusterHost("db.ml", True), {}),
        ("db.$NS", ClusterHost("db", True), OWN),
        ("db.${NS}.svc.cluster.local", ClusterHost("db", True), OWN),
        ("ring-0.ring.$(NS).svc", ClusterHost("ring-0.ring", True), OWN),
        ("db.$(cat).svc", ClusterHost("db", True), {}),
        ("db.$ELSE.svc", ClusterHost("db", False), OWN),
        ("db.ml.svc.corp.example", ClusterHost("db.ml.svc", False), {}),
        ("ring-0.ring.ml.svc.clusterset.local", ClusterHost("ring-0.ring.ml.svc", False), {}),
        ("$DB_SERVICE_HOST", ClusterHost("$DB_SERVICE_HOST", True), {}),
        ("$DB_SERVICE_HOST", None, {"envFrom": [{"secretRef": {"name": "s"}}]}),
        ("$DB_SERVICE_HOST", None, {"env": [{"name": "DB_SERVICE_HOST", "valueFrom": {}}]}),
        ("$DB", None, {}),
        ("fd00::7", ClusterHost("fd00::7", True), {}),
    ],
)
def test_a_host_in_the_text_of_a_container(host: str, found: ClusterHost | None, container: Json) -> None:
    pod = template(container)
    assert cluster_host(host, pod, pod.containers()[0]) == found


@pytest.mark.parametrize(
    ("spec", "name", "address", "variable"),
    [
        ({}, True, True, True),
        ({"hostNetwork": True}, False, True, True),
        ({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}, True, True, True),
        ({"dnsPolicy": "Default"}, False, True, True),
        ({"dnsPolicy": "None"}, False, True, True),
        ({"hostAliases": [{"ip": "192.0.2.1", "hostnames": ["DB"]}]}, False, True, True),
        ({"enableServiceLinks": False}, True, True, False),
    ],
)
def test_pod_decides_what_resolves(spec: Json, name: bool, address: bool, variable: bool) -> None:
    pod = template(**spec)
    found = [cluster_host(host, pod, pod.containers()[0]) for host in ("db", "10.0.0.7", "$DB_SERVICE_HOST")]
    assert [each is not None for each in found] == [name, address, variable]
