"""What a running pod lacks of the present policy, or has of another one."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from policies.core.annotations import CHANGED, EXEMPT
from policies.core.facts import NoCluster
from policies.kube.group_kinds import POD
from policies.kube.json import Json
from tests.tables import table
from webhook.admission import engine
from webhook.admission.configuration import Config
from webhook.admission.envelope import Request
from webhook.admission.missed import Difference, excluded, is_current, missed, runs
from webhook.admission.review import Review
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster

NOW = load({"rules.yaml": "profile: standard\n"})
SAME = load({"rules.yaml": "profile: standard\nmodes: {}\n"})
MORE = load({"rules.yaml": "profile: standard\n", "standard-probes.yaml": "readinessFailures: 7\n"})
OFF = load({"rules.yaml": "profile: standard\n", "standard-probes.yaml": "mode: off\n"})
NO_AFFINITY = load({"rules.yaml": "profile: standard\n", "gpu-affinity.yaml": "mode: off\n"})

QUIET = load({"webhook.yaml": "changes: {annotation: false}\n"})


def vllm(**metadata: Any) -> Json:
    container = {"name": "main", "image": "vllm/vllm-openai:v0.11.0", "ports": [{"containerPort": 8000}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "served", "namespace": "ml", **metadata},
        "spec": {"containers": [container]},
    }


def made(pod: Json, config: Config) -> Json:
    """The pod as the webhook makes it, completed as the API server and the scheduler do."""
    request = Request("u", POD, "CREATE", "ml", "served", object=pod)
    running = deepcopy(engine.mutate(Review(request, config, NoCluster())).object)
    for container in running["spec"]["containers"]:
        container.setdefault("volumeMounts", []).append({"name": "token", "mountPath": "/var/run"})
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            if name in container:
                container[name].setdefault("successThreshold", 1)
    running["spec"]["nodeName"] = "node-0"
    running["status"] = {"phase": "Running"}
    return running


def plain() -> Json:
    """A pod for which the policy has no fields."""
    pod = vllm()
    pod["spec"]["containers"][0] |= {"image": "registry.example/cron:1", "ports": []}
    return pod


def gpu() -> Json:
    """A pod that gets a toleration."""
    pod = plain()
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    return pod


@table(
    ("pod", "config", "difference"),
    [
        (made(gpu(), NOW), SAME, None),
        (made(gpu(), NOW), NO_AFFINITY, Difference.EARLIER),
        (made(vllm(), NOW), NOW, None),
        (made(vllm(), NOW), SAME, None),
        (made(vllm(), NOW), MORE, Difference.EARLIER),
        (made(vllm(), NOW), OFF, Difference.EARLIER),
        (made(vllm(), QUIET), QUIET, None),
        (plain(), OFF, None),
        (vllm(), NOW, Difference.LACKS),
        (vllm(annotations={EXEMPT: "standard-probes=its own; disruption-guard=x"}), NOW, Difference.EXEMPTED),
        (vllm(annotations={EXEMPT: "standard-probes=its own"}), NOW, Difference.LACKS),
        *(
            (vllm(annotations={CHANGED: forged}), NOW, Difference.LACKS)
            for forged in ("", "nonsense", "\x00", "standard-probes", "policy ")
        ),
    ],
)
def test_the_difference_between_a_pod_and_a_new_one(
    pod: Json, config: Config, difference: Difference | None
) -> None:
    found = missed(pod, config, NoCluster())
    assert (found and found.difference) is difference


def test_only_the_digest_shows_that_a_pod_is_current() -> None:
    running = made(vllm(), NOW)
    assert is_current(running, NOW)
    assert not is_current(running, SAME)
    assert CHANGED not in made(vllm(), QUIET)["metadata"].get("annotations", {})


@pytest.mark.parametrize(
    ("pod", "config", "digest", "fields"),
    [
        (vllm(), NOW, "", ["startupProbe", "livenessProbe", "readinessProbe"]),
        (made(vllm(), NOW), MORE, NOW.digest, ["readinessProbe"]),
        (made(vllm(), NOW), OFF, NOW.digest, ["startupProbe", "livenessProbe", "readinessProbe"]),
    ],
)
def test_the_fields_of_a_difference(pod: Json, config: Config, digest: str, fields: list[str]) -> None:
    found = missed(pod, config, NoCluster())
    assert found is not None
    assert found.digest == digest
    assert [path.rpartition(".")[2] for path in found.fields["standard-probes"]] == fields


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
