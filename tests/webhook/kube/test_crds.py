"""Pod specs in the schemas of definitions."""

from __future__ import annotations

from typing import Any

from policies.core.workloads import workloads_by_kind
from policies.kube.json import Json
from webhook.kube.discovery import MAX_FIELDS, Embedding, embedding, pod_specs

TABLE = workloads_by_kind()
CONTAINER: Json = {"type": "object", "properties": {"name": {}, "image": {}, "args": {}}}
POD_SPEC: Json = {"type": "object", "properties": {"containers": {"type": "array", "items": CONTAINER}}}


def of(**properties: Any) -> Json:
    return {"type": "object", "properties": properties}


def crd(group: str, kind: str, *schemas: Json) -> Json:
    versions = [{"name": f"v{number}", "schema": {"openAPIV3Schema": s}} for number, s in enumerate(schemas)]
    return {"spec": {"group": group, "names": {"kind": kind}, "versions": versions}}


def test_every_place_of_a_pod_spec_is_found_in_the_notation_of_the_policy() -> None:
    template = of(metadata={}, spec=POD_SPEC)
    schema = of(
        spec=of(
            template=template,
            roles={"type": "array", "items": of(podSpec=POD_SPEC)},
            services={"type": "object", "additionalProperties": of(worker=template)},
        ),
        status=of(template=template),
    )
    assert sorted(pod_specs(schema)) == ["spec.roles[*].podSpec", "spec.services.*.worker", "spec.template"]


def test_a_kind_that_is_its_own_pod_spec() -> None:
    assert list(pod_specs(of(spec=POD_SPEC))) == ["spec"]


def test_all_versions_are_read_and_known_kinds_are_skipped() -> None:
    old, new = of(spec=of(template=of(spec=POD_SPEC))), of(spec=of(pod=of(spec=POD_SPEC)))
    found = embedding(crd("example.org", "Odd", old, new), TABLE)
    assert isinstance(found, Embedding)
    assert (str(found.kind), found.paths) == ("Odd.example.org", ("spec.template", "spec.pod"))
    assert embedding(crd("ray.io", "RayCluster", old), TABLE) is None
    assert embedding(crd("serving.kserve.io", "InferenceGraph", old), TABLE) is None
    assert embedding(crd("example.org", "Other", of(spec=of(size={}))), TABLE) is None
    assert embedding({}, TABLE) is None


def test_large_and_deep_schemas_are_not_read_completely() -> None:
    wide = of(**{f"f{number}": {} for number in range(MAX_FIELDS + 10)})
    assert list(pod_specs(wide)) == []
    deep = POD_SPEC
    for _ in range(60):
        deep = of(inner=deep)
    assert list(pod_specs(deep)) == []
