"""A manual choice, over the policy."""

from __future__ import annotations

import pytest
import yaml

from webhook.config.config_maps import fails_open, merged, unknown_switches
from webhook.config.load import PolicyError, load

POLICY = {
    "rules.yaml": "profile: strict\nmodes:\n  liveness-external-dependency: warn\n",
    "gpu-affinity.yaml": "mode: enforce\n",
}


def test_without_an_override_the_policy_is_as_it_was_written() -> None:
    assert merged(POLICY, {}) == POLICY


def test_a_key_is_laid_over_the_same_key_field_by_field() -> None:
    files = merged(
        POLICY, {"rules.yaml": "modes:\n  drain-blocked-by-pdb: off\n", "job-retries.yaml": "mode: off\n"}
    )
    assert yaml.safe_load(files["rules.yaml"]) == {
        "profile": "strict",
        "modes": {"liveness-external-dependency": "warn", "drain-blocked-by-pdb": "off"},
    }
    assert files["job-retries.yaml"] == "mode: off\n"
    assert files["gpu-affinity.yaml"] == POLICY["gpu-affinity.yaml"]
    load(files)


@pytest.mark.parametrize("value", ["off", "observe", " observe\n"])
def test_a_switch_observes_with_any_modes_of_the_policy(value: str) -> None:
    files = merged(POLICY, {"webhooks": value, "rules.yaml": "profile: strict"})
    assert files == {"rules.yaml": "profile: observe\n"}
    assert fails_open({"webhooks": value})


@pytest.mark.parametrize("text", ["{", "- a list\n", "\udcff"])
def test_a_value_that_is_no_mapping_is_refused_later(text: str) -> None:
    for files in (merged(POLICY, {"gpu-affinity.yaml": text}), merged({"gpu-affinity.yaml": text}, POLICY)):
        assert files["gpu-affinity.yaml"] == text
        with pytest.raises(PolicyError, match=r"gpu-affinity\.yaml"):
            load(files)


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}"])
def test_an_empty_layer_changes_nothing(text: str) -> None:
    files = merged(POLICY, {"gpu-affinity.yaml": text})
    assert yaml.safe_load(files["gpu-affinity.yaml"]) == {"mode": "enforce"}


def test_a_switch_with_another_value_does_nothing_and_is_named() -> None:
    unknown = {"webhooks": "on", "failurePolicy": "Fail"}
    assert merged(POLICY, unknown) == POLICY
    assert not fails_open(unknown)
    assert unknown_switches(unknown) == {
        "webhooks": "must be off or observe",
        "failurePolicy": "must be Ignore",
    }
    assert unknown_switches({"webhooks": "off", "failurePolicy": "Ignore"}) == {}
    assert fails_open({"failurePolicy": "Ignore"})
