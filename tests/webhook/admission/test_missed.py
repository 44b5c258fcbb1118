"""What a running pod lacks of the present policy, or has of another one."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from policies.core.annotations import CHANGED, EXEMPT
from policies.core.facts import NoCluster
from policies.kube.field_paths import value_at
from policies.kube.group_kinds import POD
from policies.kube.json import Json
from webhook.admission import engine
from webhook.admission.configuration import Config
from webhook.admission.envelope import Request
from webhook.admission.missed import Difference, excluded, is_current, missed, runs
from webhook.config.load import load
from webhook.kube.offline import ManifestCluster

NOW = load({"rules.yaml": "profile: standard\n"})
SAME = load({"rules.yaml": "profile: standard\nmodes: {}\n"})
MORE = load({"rules.yaml": "profile: standard\n", "standard-probes.yaml": "readinessFailures: 7\n"})
OFF = load({"rules.yaml": "profile: standard\n", "standard-probes.yaml": "mode: off\n"})


def vllm(**metadata: Any) -> Json:
    container = {"name": "main", "image": "vllm/vllm-openai:v0.11.0", "ports": [{"containerPort": 8000}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "served", "namespace": "ml", **metadata},
        "spec": {"containers": [container]},
    }


def made(pod: Json, config: Config) -> Json:
    """The pod as the webhook makes it, completed as the API server does."""
    request = Request("u", POD, "CREATE", "ml", "served", object=pod)
    running = deepcopy(engine.mutate(request, config, NoCluster()).object)
    for container in running["spec"]["containers"]:
        container.setdefault("volumeMounts", []).append({"name": "token", "mountPath": "/var/run"})
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            if name in container:
                container[name].setdefault("successThreshold", 1)
    running["status"] = {"phase": "Running"}
    return running


def test_a_pod_that_the_webhook_made_is_not_missed() -> None:
    running = made(vllm(), NOW)
    assert is_current(running, NOW)
    assert missed(running, NOW, NoCluster()) is None


def test_a_pod_that_bypassed_it_lacks_fields() -> None:
    found = missed(vllm(), NOW, NoCluster())
    assert found is not None
    assert found.difference is Difference.LACKS
    assert found.digest == ""
    assert any("readinessProbe" in path for path in found.fields["standard-probes"])


def test_a_pod_for_which_the_policy_has_nothing_is_not_missed() -> None:
    plain = vllm()
    plain["spec"]["containers"][0] |= {"image": "registry.example/cron:1", "ports": []}
    assert missed(plain, OFF, NoCluster()) is None


def test_another_digest_with_the_same_result_is_not_missed() -> None:
    running = made(vllm(), NOW)
    assert not is_current(running, SAME)
    assert missed(running, SAME, NoCluster()) is None


def test_another_policy_with_another_result_is() -> None:
    found = missed(made(vllm(), NOW), MORE, NoCluster())
    assert found is not None
    assert found.difference is Difference.EARLIER
    assert found.digest == NOW.digest
    assert list(found.fields) == ["standard-probes"]
    paths = [path.rpartition(".")[2] for path in found.fields["standard-probes"]]
    assert paths == ["livenessProbe", "readinessProbe"], "a liveness threshold is above that of readiness"


def test_what_the_present_policy_would_not_give_differs_too() -> None:
    running = made(vllm(), NOW)
    found = missed(running, OFF, NoCluster())
    assert found is not None
    assert found.difference is Difference.EARLIER
    for path in found.fields["standard-probes"]:
        assert value_at(running, path) is not None


def test_without_the_annotation_the_pod_itself_shows_it() -> None:
    quiet = load({"webhook.yaml": "changes: {annotation: false}\n"})
    running = made(vllm(), quiet)
    assert CHANGED not in running["metadata"].get("annotations", {})
    assert missed(running, quiet, NoCluster()) is None


@pytest.mark.parametrize("spoilt", ["", "nonsense", "\x00", "standard-probes", "policy "])
def test_an_annotation_that_somebody_wrote_hides_nothing(spoilt: str) -> None:
    found = missed(vllm(annotations={CHANGED: spoilt}), NOW, NoCluster())
    assert found is not None
    assert found.difference is Difference.LACKS


def test_an_exempted_pod_is_told_apart() -> None:
    found = missed(vllm(annotations={EXEMPT: "standard-probes=it has its own"}), NOW, NoCluster())
    assert found is not None
    assert found.difference is Difference.EXEMPTED


@pytest.mark.parametrize(
    ("metadata", "labels", "out"),
    [
        ({}, {}, False),
        ({}, None, False),
        ({}, {"mlchassis.dev/admission": "disabled"}, True),
        ({"labels": {"mlchassis.dev/admission": "disabled"}}, {}, True),
        ({"namespace": "kube-system"}, {}, True),
    ],
)
def test_what_admission_leaves_alone_is_excluded(
    metadata: Json, labels: dict[str, str] | None, out: bool
) -> None:
    pod = vllm(**metadata)
    above = {"name": pod["metadata"].get("namespace", ""), "labels": labels}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": above}
    cluster = NoCluster() if labels is None else ManifestCluster([namespace])
    assert excluded(pod, NOW, cluster) is out


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"status": {"phase": "Pending"}}, True),
        ({"status": {"phase": "Succeeded"}}, False),
        ({"status": {"phase": "Failed"}}, False),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, False),
        ({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}, False),
    ],
)
def test_only_running_pods_count(changes: Json, expected: bool) -> None:
    assert runs({**vllm(), **changes}) is expected
