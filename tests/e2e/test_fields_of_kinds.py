"""Whether the fields that lifecycles.yaml names are in the operators' own CustomResourceDefinitions, and
whether those that it calls misplaced are not, so that the API server drops them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import pytest
import yaml

from policies.core.lifecycles import Lifecycle, known_lifecycles
from policies.kube.group_kinds import CRON_JOB, JOB, GroupKind
from tests.e2e.binaries import module_directory
from tests.e2e.crds import SPARK_OPERATOR

pytestmark = pytest.mark.e2e

Schema = dict[str, Any]
LIVES: Final = [life for lives in known_lifecycles().values() for life in lives]
DEFINED: Final = {
    "jobset": "config/components/crd/bases/*.yaml",
    "lws": "config/crd/bases/*.yaml",
    "training-operator": "manifests/base/crds/*.yaml",
    "mpi-operator": "manifests/base/kubeflow.org_mpijobs.yaml",
    "trainer": "manifests/base/crds/*.yaml",
    "argo-workflows": "manifests/base/crds/full/*.yaml",
    "kuberay-1.6": "config/crd/bases/*.yaml",
}
"""The files with the CustomResourceDefinitions of the pinned operators."""
STEPS: Final = re.compile(r"\[([^]*]+)\]|(\[\*\]|[^.[]+)")
BUILT_IN: Final = {JOB: "JobSpec", CRON_JOB: "CronJobSpec"}
NOT_HERE: Final = {
    GroupKind("batch.volcano.sh", "Job"),
    GroupKind("machinelearning.seldon.io", "SeldonDeployment"),
}
"""Kinds with misplaced fields whose definitions are in no Go module that can be downloaded."""
NEWER: Final = ("networkPolicy.",)
"""Fields that KubeRay has since August 2026, after the newest release that can be downloaded."""


@cache
def custom() -> Mapping[GroupKind, Mapping[str, Schema]]:
    """The schemas of `spec` by kind and version: that which each operator stores. MPIJob has two operators,
    with different versions."""
    kinds = {life.kind.lower() for life in LIVES}
    found: dict[GroupKind, dict[str, Schema]] = {}
    files = [file for name, glob in DEFINED.items() for file in module_directory(name).glob(glob)]
    for file in (*files, *SPARK_OPERATOR.found()):
        if file.stem.rpartition("_")[2].removesuffix("s") not in kinds:
            continue
        spec = yaml.load(file.read_text(), yaml.CSafeLoader)["spec"]
        (stored,) = (each for each in spec["versions"] if each["storage"])
        schema = stored["schema"]["openAPIV3Schema"]["properties"]["spec"]
        found.setdefault(GroupKind(spec["group"], spec["names"]["kind"]), {})[stored["name"]] = schema
    return found


@cache
def built_in() -> Mapping[str, Schema]:
    """The definitions of Kubernetes' own API, by name."""
    file = module_directory("kube-apiserver") / "api" / "openapi-spec" / "swagger.json"
    definitions: dict[str, Schema] = json.loads(file.read_text())["definitions"]
    return definitions


def schemas(life: Lifecycle) -> list[Schema]:
    """The schemas of `spec` in the versions that an entry is about."""
    if life.group_kind in BUILT_IN:
        return [built_in()[f"io.k8s.api.batch.v1.{BUILT_IN[life.group_kind]}"]]
    versions = custom().get(life.group_kind, {})
    return [schema for name, schema in versions.items() if name in (life.api_versions or versions)]


def has(schema: Schema, path: str) -> bool:
    """Whether a schema describes a path, such as `groups[*].template` or `sparkConf[spark.ui.port]`."""
    for step in (key or other for key, other in STEPS.findall(path)):
        if reference := schema.get("$ref"):
            schema = built_in()[reference.rpartition("/")[2]]
        # The keys of a map of roles are the user's.
        # Of a list, a step is `[*]`, an index, or the name of an element.
        below = schema.get("items") if "items" in schema else schema.get("properties", {}).get(step)
        below = schema.get("additionalProperties") if below is None else below
        if not isinstance(below, dict):
            return False
        schema = below
    return True


def named(life: Lifecycle) -> Iterator[str]:
    """The paths of the fields that an entry says to exist."""
    yield from (life.ttl, life.failed_kept, life.deadline, life.suspended, life.managed_by)
    yield from (*life.elastic, *life.in_turn, *life.unqueued)
    for limited in life.limited:
        yield from (limited.by, *limited.parts)
    if life.named is not None:
        yield from (life.named.field, *(each.partition("=")[0] for each in life.named.unless))
    for role in life.roles:
        yield role.at
        yield from (f"{role.at}.{count.field}" for count in role.count)
    for retry in life.retries:
        yield from (*retry.fields, *retry.useless)
        for field in retry.fields if retry.limit.startswith(".") else ("",):
            yield field.rpartition(".")[0] + retry.limit
    if life.ending is not None:
        yield from (*life.ending.fields, *life.ending.unless)
    if life.start is not None:
        yield from (life.start.field, *life.start.unless)
    if life.gang is not None:
        yield from (life.gang.queue, life.gang.least)
    if life.slots is not None:
        yield from (life.slots.field, *(each.partition("=")[0] for each in life.slots.unless))
    if life.per_pod is not None:
        yield from life.per_pod.fields
    if life.schedule is not None:
        yield from (life.schedule.field, life.schedule.further, life.schedule.policy)
    yield from (each.at for each in life.embeds)
    for refused in life.refused:
        for field in (*refused.fields, *refused.without, *(refused.greater or ())):
            yield f"{refused.at}.{re.split('[=<]', field)[0]}".removeprefix(".")


def test_a_misplaced_field_is_not_in_the_definition() -> None:
    unread, there = set(), []
    for life in LIVES:
        for schema in schemas(life) if life.misplaced else ():
            there += [f"{life.kind}: {wrong}" for wrong in life.misplaced if has(schema, wrong)]
        if life.misplaced and not schemas(life):
            unread.add(life.group_kind)
    assert not there
    assert unread == NOT_HERE


def test_every_other_field_is_in_the_definition() -> None:
    checked, missing = 0, []
    for life in LIVES:
        right = [path for path in life.misplaced.values() if " " not in path]
        for schema in schemas(life):
            for path in filter(None, (*right, *named(life))):
                checked += 1
                if not has(schema, path) and not path.startswith(NEWER):
                    missing.append(f"{life.kind}: {path}")
    assert not missing
    assert checked > 200
