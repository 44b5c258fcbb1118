"""The complete manifests of docs/servers: the built-in policy reports nothing in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.kube.pods import Container, Role
from policies.probes.preset import known_presets
from policies.probes.recognition import Recogniser
from tests.incidents.incidents import answers
from tests.tables import table
from webhook.cli.server_manifest import server_manifest
from webhook.manifests import files

WITH_EXAMPLE = [name for name, preset in known_presets().items() if preset.example is not None]


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_a_manifest_is_reviewed_clean(name: str, tmp_path: Path) -> None:
    file = tmp_path / "manifest.yaml"
    file.write_text(server_manifest(name, known_presets()[name]))
    assert [each for each in answers(file) if each.effect != "repair"] == []


@table("name", WITH_EXAMPLE)
def test_a_manifest_runs_its_server(name: str) -> None:
    text = server_manifest(name, known_presets()[name])
    deployment = next(iter(files.read(["-"], lambda: text))).obj
    spec = deployment["spec"]["template"]["spec"]["containers"][0]
    server = Recogniser(known_presets()).server(Container(spec, "containers", 0, Role.MAIN))
    assert server is not None
    assert server.name == name


def test_most_servers_have_one() -> None:
    assert len(WITH_EXAMPLE) >= 25
    assert server_manifest("jupyter", known_presets()["jupyter"]) == ""
