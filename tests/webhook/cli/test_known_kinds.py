"""`chassis explain kinds`."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from policies.core.workloads import known_without_pods, known_workloads
from policies.kube.group_kinds import GroupKind
from tests.webhook.cli.scanned import Chassis
from webhook.cli import known_kinds
from webhook.kube.discovery import Embedding


def test_every_kind_is_listed_with_its_paths(chassis: Chassis) -> None:
    status, text, _ = chassis("explain", "kinds")
    assert status == 0
    for workload in known_workloads():
        assert f"\n{workload.group_kind}  (" in text
    for kind in known_without_pods():
        assert f"  {kind}: " in text
    assert "spec.leaderWorkerTemplate.leaderTemplate: pod template" in text
    assert "spec.predictor.model: a container that a serving runtime completes" in text
    assert "spec.workloadRef: the template of the Deployment, ReplicaSet or PodTemplate" in text
    assert "spec.workload.manifests[*]: a whole object, judged by the rules of its kind" in text
    assert "not read: spec.podSpecPatch: a string with a patch over every pod" in text
    assert max(map(len, text.splitlines())) <= 110


def test_the_flags_of_a_cluster_go_with_kinds(chassis: Chassis) -> None:
    answer = chassis("explain", "liveness-missing", "--context", "x")
    assert answer.status == 2
    assert "--context and --kubeconfig can only be used with `kinds`" in answer.err


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (None, "you may not list its CustomResourceDefinitions"),
        ([], "Every kind of this cluster whose schema has pods is read."),
        ([Embedding(GroupKind("example.org", "Odd"), ("spec.pod",))], "  Odd.example.org: spec.pod"),
    ],
)
def test_unread_kinds_of_a_cluster(
    monkeypatch: pytest.MonkeyPatch, found: list[Embedding] | None, line: str
) -> None:
    connection = nullcontext((None, lambda _: found))
    monkeypatch.setattr("webhook.cli.known_kinds.connected", lambda *_: connection)
    monkeypatch.setattr("webhook.cli.known_kinds.unread_definitions", lambda *_: None)
    assert line in "\n".join(known_kinds.of_cluster(None, "x"))
