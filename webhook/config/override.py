"""The settings that a person chose over those of the installer: the ConfigMap mlchassis-override.

An installer creates it without data and never writes any, so an upgrade neither reverts an edit nor conflicts
with it (designs/0008). A key of the policy is laid over the same key of the policy ConfigMap, field by field.
Two keys are switches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import yaml

from policies.kube.json import Json
from webhook.kube.documents import BadDocument, load_policy

NAME: Final = "mlchassis-override"
"""The ConfigMap, in the namespace of the policy's."""
WEBHOOKS: Final = "webhooks"
"""`observe`: no object is changed or refused, under any policy. `off`: the same, and the chart also leaves
the webhook configurations out."""
FAILURE_POLICY: Final = "failurePolicy"
"""`Ignore`: every webhook entry gets this failurePolicy."""
SWITCHES: Final[Mapping[str, tuple[str, ...]]] = {WEBHOOKS: ("off", "observe"), FAILURE_POLICY: ("Ignore",)}
OBSERVED: Final[Mapping[str, str]] = {"rules.yaml": "profile: observe\n"}


def merged(policy: Mapping[str, str], override: Mapping[str, str]) -> Mapping[str, str]:
    """The files of the policy with the override over them."""
    if override.get(WEBHOOKS, "").strip() in SWITCHES[WEBHOOKS]:
        return OBSERVED
    own = {key: text for key, text in override.items() if key not in SWITCHES}
    return {
        **policy,
        **{key: _over(policy[key], text) if key in policy else text for key, text in own.items()},
    }


def fails_open(override: Mapping[str, str]) -> bool:
    """Whether every webhook entry is to have the failurePolicy Ignore."""
    ignored = override.get(FAILURE_POLICY, "").strip() in SWITCHES[FAILURE_POLICY]
    return ignored or override.get(WEBHOOKS, "").strip() in SWITCHES[WEBHOOKS]


def unknown_switches(override: Mapping[str, str]) -> Mapping[str, str]:
    """Switches with a value that has no meaning, each with what it may be."""
    return {
        key: f"must be {' or '.join(known)}"
        for key, known in SWITCHES.items()
        if key in override and override[key].strip() not in known
    }


def _over(below: str, above: str) -> str:
    """The two merged; one that is no mapping stays as it is, and loading it fails later."""
    layers = []
    for text in (below, above):
        try:
            layers.append({} if (found := load_policy(text)) is None else found)
        except BadDocument:
            return text
        if not isinstance(layers[-1], dict):
            return text
    return yaml.safe_dump(_deep(*layers), sort_keys=False)


def _deep(lower: Json, upper: Json) -> Json:
    both = {
        key: _deep(lower[key], value)
        for key, value in upper.items()
        if isinstance(value, dict) and isinstance(lower.get(key), dict)
    }
    return {**lower, **upper, **both}
