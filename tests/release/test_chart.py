from __future__ import annotations

import re
from pathlib import Path

import pytest

from release import chart
from webhook.cli import manifests
from webhook.errors import UserError


def test_writes_once_and_then_is_fresh(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = chart.templates()
    monkeypatch.setattr(chart, "templates", lambda: made)  # a second of work, each time the same
    assert chart.main(["--root", str(tmp_path), "--check"]) == 1
    assert chart.main(["--root", str(tmp_path)]) == 0
    assert chart.main(["--root", str(tmp_path), "--check"]) == 0
    deployment, leftover = tmp_path / "templates" / "deployment.yaml", tmp_path / "templates" / "old.yaml"
    deployment.write_text("changed by hand")
    leftover.touch()
    capsys.readouterr()
    assert chart.main(["--root", str(tmp_path), "--check"]) == 1
    errors = capsys.readouterr().err
    assert "deployment.yaml is stale" in errors
    assert "old.yaml is stale" in errors
    assert deployment.read_text() == "changed by hand"
    chart.main(["--root", str(tmp_path)])
    assert chart.main(["--root", str(tmp_path), "--check"]) == 0
    assert not leftover.exists()


def test_the_generated_chart_is_fresh() -> None:
    root = manifests.directory().parent / chart.CHART
    assert chart.main(["--root", str(root), "--check"]) == 0


def test_no_template_has_a_wildcard_but_those_of_the_manifests() -> None:
    """The hooks are written by hand; all others come from the manifests, whose wildcards a test lists."""
    templates = manifests.directory().parent / chart.CHART / "templates"
    wild = re.compile(r"""["'](\*[^"']*)["']""")
    found = {
        (path.relative_to(templates).as_posix(), each)
        for path in templates.rglob("*.yaml")
        for each in wild.findall(path.read_text())
    }
    assert found == {
        ("mutatingwebhookconfiguration.yaml", "*"),
        ("validatingwebhookconfiguration.yaml", "*"),
        ("rbac.yaml", "*"),
        ("rbac.yaml", "*/scale"),
    }


def test_a_component_without_a_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(chart.WHEN, "name-ignore")
    with pytest.raises(UserError, match="no value for the component name-ignore"):
        chart.templates()


def test_two_components_that_change_the_same_line_are_refused() -> None:
    item = {"kind": "Service", "spec": {"type": "ClusterIP"}}
    variants = {
        ".Values.a": {"kind": "Service", "spec": {"type": "NodePort"}},
        ".Values.b": {"kind": "Service", "spec": {"type": "LoadBalancer"}},
    }
    with pytest.raises(UserError, match="same lines of Service"):
        chart._object(item, variants)


def test_lines_are_under_the_condition_of_the_component_that_changes_them() -> None:
    item = {"kind": "Service", "a": 1, "b": 2, "c": 3}
    variants = {".Values.x": {"kind": "Service", "a": 1, "b": 4}, ".Values.y": {**item, "d": 5}}
    assert chart._object(item, variants).splitlines() == [
        "kind: Service",
        "a: 1",
        "{{- if .Values.x }}",
        "b: 4",
        "{{- else }}",
        "b: 2",
        "c: 3",
        "{{- end }}",
        "{{- if .Values.y }}",
        "d: 5",
        "{{- end }}",
    ]


def test_braces_of_another_language_stay_as_they_are() -> None:
    printed = chart._object({"kind": "ConfigMap", "text": "{{ $labels.pod }} in mlchassis-system"}, {})
    assert """'{{ "{{" }} $labels.pod }} in {{ .Release.Namespace }}'""" in printed
