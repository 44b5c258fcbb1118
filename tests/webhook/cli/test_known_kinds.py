"""`chassis explain kinds`."""

from __future__ import annotations

import pytest

from policies.core.workloads import known_without_pods, known_workloads
from policies.kube.group_kinds import GroupKind
from webhook.cli import known_kinds
from webhook.cli import main as cli
from webhook.cli.exit_status import BAD_INPUT, OK
from webhook.kube.crds import Embedding


def test_every_kind_is_listed_with_its_read_parts(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "kinds"]) == OK
    text = capsys.readouterr().out
    for workload in known_workloads():
        assert f"\n{workload.gk}  (" in text
    for kind in known_without_pods():
        assert f"  {kind}: " in text
    assert "spec.leaderWorkerTemplate.leaderTemplate: pod template" in text
    assert "spec.predictor.model: a container that a serving runtime completes" in text
    assert "spec.workloadRef: the template of the Deployment, ReplicaSet or PodTemplate" in text
    assert "not read: spec.podSpecPatch: a string with a patch over every pod" in text
    assert max(map(len, text.splitlines())) <= 110


def test_the_flags_of_a_cluster_go_with_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "liveness-missing", "--context", "x"]) == BAD_INPUT
    assert "--context and --kubeconfig go with `kinds`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "you may not list its definitions"),
        ([], "Every kind of this cluster whose schema has pods is read."),
        ([Embedding(GroupKind("example.org", "Odd"), ("spec.pod",))], "  Odd.example.org: spec.pod"),
    ],
)
def test_unread_kinds_of_a_cluster(
    monkeypatch: pytest.MonkeyPatch, found: list[Embedding] | None, said: str
) -> None:
    class Connected:
        def __enter__(self) -> tuple[None, object]:
            return None, lambda _: found

        def __exit__(self, *_: object) -> None:
            return None

    monkeypatch.setattr("webhook.cli.known_kinds.connected", lambda *_: Connected())
    monkeypatch.setattr("webhook.kube.crds.unread", lambda *_: None)
    assert said in "\n".join(known_kinds.of_cluster(None, "x"))
