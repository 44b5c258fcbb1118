"""`chassis explain vllm`, and the pages of docs/servers: every fact of a preset is there with its source."""

from __future__ import annotations

import pytest

from policies.probes.preset import known_presets
from tests.tables import table
from webhook.cli.explain import explain
from webhook.cli.server_pages import server_markdown, server_names
from webhook.errors import UserError


def test_every_server_but_workers_has_a_page() -> None:
    workers = {name for name, preset in known_presets().items() if preset.worker}
    assert set(server_names()) == set(known_presets()) - workers
    assert len(server_names()) >= 25


@table("name", server_names())
def test_a_page_cites_the_source_of_each_fact(name: str) -> None:
    preset, page = known_presets()[name], server_markdown(name)
    facts = (preset.cache, preset.needs, preset.single_state)
    sources = [
        *(each.source for each in facts if each is not None),
        *(each.source for each in preset.reserves),
        *(each.source for each in preset.link_variables),
        *(each.source for each in preset.shared_memory),
    ]
    assert [source for source in sources if source not in page] == []


def test_a_server_is_explained() -> None:
    text = explain("vllm")
    assert text.startswith("# vllm on Kubernetes")
    assert "VLLM_PORT" in text
    assert "](" not in text, "a terminal shows no links"
    assert max(len(line) for line in text.splitlines() if "http" not in line) <= 80


def test_an_unknown_server_is_an_error() -> None:
    with pytest.raises(UserError, match="did you mean sglang"):
        explain("sglan")


def test_no_page_names_a_service_that_cannot_exist() -> None:
    """AIRFLOW__API__PORT would come from a Service whose name ends with a hyphen."""
    assert known_presets()["airflow-api-server"].port_env == ("AIRFLOW__API__PORT",)
    assert "a Service named" not in server_markdown("airflow-api-server")
    assert "a Service named" in server_markdown("streamlit")
