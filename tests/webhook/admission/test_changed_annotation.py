"""The annotation with the fields that were added to a pod: bounded, the same for equal pods, never in a
template."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.core.annotations import CHANGED
from policies.core.reasons import Reasons
from policies.kube.json import Json, replaced
from policies.kube.metadata import annotations_of
from tests.manifests import manifest
from webhook.admission.changed_annotation import MAX_LENGTH, Changed, annotated
from webhook.admission.engine import decide, mutate
from webhook.admission.review import Review
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import Document

CLUSTER = ManifestCluster(
    [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "gpu"},
            "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
            "status": {
                "allocatable": {"nvidia.com/gpu": "8"},
                "nodeInfo": {"kubeletVersion": "v1.36.1"},
            },
        }
    ]
)
VLLM = {
    "name": "vllm",
    "image": "vllm/vllm-openai:v0.10.2",
    "args": ["--model", "meta-llama/Llama-3.1-70B"],
    "ports": [{"containerPort": 8000}],
    "resources": {"limits": {"nvidia.com/gpu": "4"}},
}
PROXY = {"name": "proxy", "image": "team/proxy:1", "ports": [{"containerPort": 9000}]}


def pod(*containers: Json, **metadata: Any) -> Json:
    return manifest("Pod", "llm", {"containers": list(containers or (VLLM,))}, namespace="ml", **metadata)


def admitted(obj: Json, policy: dict[str, str] | None = None) -> Json:
    made = Document("x", 0, obj).request()
    request = replace(made, username="jane")
    return mutate(Review(request, load(policy or {}), CLUSTER)).object


def test_the_annotation_has_the_added_fields_and_reasons() -> None:
    written = annotations_of(admitted(pod()))[CHANGED]
    digest = load({}).digest
    assert written.splitlines() == [
        "disruption-guard spec.containers[vllm].lifecycle.preStop: sleeps 5 s, because requests "
        "still arrive until Services remove the pod",
        "gpu-affinity spec.tolerations[nvidia.com/gpu]: requests nvidia.com/gpu, whose nodes have the taint "
        "nvidia.com/gpu:NoSchedule",
        "standard-probes spec.containers[vllm].livenessProbe: its health and its finished work, with one "
        "request if no work was finished (preset vllm); a restart after 3 to 5 min without progress; no "
        "startupProbe, because this check allows a start of up to 215 min while the processes work",
        "standard-probes spec.containers[vllm].readinessProbe: GET /health on port 8000 (preset vllm); no "
        "traffic after 30 s of failures",
        f"policy {digest}",
    ]
    read = Changed.read(written)
    assert read is not None
    assert (len(read.entries), read.more, read.digest) == (4, 0, digest)
    assert read.written() == written


def test_equal_pods_have_equal_annotations_and_a_second_pass_edits_nothing() -> None:
    once = admitted(pod(generateName="llm-", uid="a"))
    assert annotations_of(once) == annotations_of(admitted(pod(generateName="llm-", uid="b")))
    assert admitted(once) == once


def test_reinvocation_goes_on_where_the_first_pass_ended() -> None:
    first = admitted(pod())
    joined = replaced(first, ("spec", "containers", 1), {**VLLM, "name": "second"})
    again = admitted(joined)
    before, after = (annotations_of(each)[CHANGED].splitlines() for each in (first, again))
    assert [line.split(":")[0] for line in after[: len(before) - 1]] == [
        line.split(":")[0] for line in before[:-1]
    ]
    assert any("spec.containers[second].livenessProbe" in line for line in after[len(before) - 1 :])
    assert admitted(again) == again


WARNED = {f"{each}.yaml": "mode: warn" for each in ("standard-probes", "gpu-affinity", "disruption-guard")}


@pytest.mark.parametrize(
    ("obj", "policy"),
    [
        (pod({"name": "x", "image": "busybox"}), {}),
        (pod(), WARNED),
        (pod(), {"webhook.yaml": "changes: {annotation: false}"}),
    ],
    ids=["nothing to add", "only warned", "switched off"],
)
def test_no_annotation_without_a_change(obj: Json, policy: dict[str, str]) -> None:
    assert CHANGED not in annotations_of(admitted(obj, policy))


def test_a_foreign_annotation_stays() -> None:
    for written in ("mine", "standard-probes", "", 7, ["x"]):
        before = pod(annotations={CHANGED: written})
        kept = annotations_of(admitted(before))[CHANGED]
        assert kept == written or written == ""


def test_it_gives_way_where_there_is_no_room() -> None:
    for room, there in ((1500, True), (500, False)):
        full = {"a": "x" * (256 * 1024 - room)}
        assert (CHANGED in annotations_of(admitted(pod(annotations=full)))) is there


@pytest.mark.parametrize(("api", "kind"), [("apps/v1", "Deployment"), ("apps/v1", "DaemonSet")])
def test_it_is_never_in_a_template(api: str, kind: str) -> None:
    template = {key: value for key, value in pod().items() if key in ("metadata", "spec")}
    obj = manifest(kind, "x", {"template": template}, version=api, namespace="ml")
    decision = decide(Review(Document("x", 0, obj).request(), load({}), CLUSTER))
    assert decision.projected is not None
    assert CHANGED not in str(decision.projected)
    assert CHANGED not in str(decision.object)


NAMES = st.text("abc-[]./", min_size=1, max_size=80)
ENTRIES = st.lists(st.tuples(NAMES, st.text(max_size=300)), max_size=60)


def reasons(given: list[tuple[str, str]]) -> Reasons:
    why = Reasons("standard-probes")
    for path, words in given:
        why.give(path, words)
    return why


@given(ENTRIES, ENTRIES)
def test_it_is_bounded_and_read_back(first: list[tuple[str, str]], second: list[tuple[str, str]]) -> None:
    once = annotated(pod(), [reasons(first)], "d" * 12)
    twice = annotated(once, [reasons(second)], "d" * 12)
    for each in (once, twice):
        written = annotations_of(each).get(CHANGED)
        if written is not None:
            assert len(written) <= MAX_LENGTH
            assert Changed.read(written) is not None
    few = len(first) + len(second) < 5
    assert annotated(twice, [reasons([*first, *second])], "d" * 12) == twice or not few
