"""The policy's two ConfigMaps: their keys, and mlchassis-override, whose settings win over the installer's.

Installers create it empty and never write data, so upgrades do not revert or conflict with edits
(designs/0008). Its keys are merged into the keys of the policy ConfigMap, field by field. Two keys are
switches.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Final

import yaml

from policies.kube.json import Json, texts
from policies.kube.yaml_text import BadDocument, load_policy

OVERRIDE_NAME: Final = "mlchassis-override"
"""The name of the ConfigMap, in the namespace of the policy."""
WEBHOOKS: Final = "webhooks"
"""`observe`: no object is changed or refused, with any policy. `off`: the same, and the chart leaves out the
webhook configurations."""
FAILURE_POLICY: Final = "failurePolicy"
"""`Ignore`: every webhook entry gets this failurePolicy."""
SWITCHES: Final[Mapping[str, tuple[str, ...]]] = {WEBHOOKS: ("off", "observe"), FAILURE_POLICY: ("Ignore",)}
OBSERVING: Final[Mapping[str, str]] = {"rules.yaml": "profile: observe\n"}
"""The policy that changes and refuses nothing."""


def merged(policy: Mapping[str, str], override: Mapping[str, str]) -> Mapping[str, str]:
    """The keys of the policy merged with those of the override."""
    if override.get(WEBHOOKS, "").strip() in SWITCHES[WEBHOOKS]:
        return OBSERVING
    own = {key: text for key, text in override.items() if key not in SWITCHES}
    return {
        **policy,
        **{key: _merged_text(policy[key], text) if key in policy else text for key, text in own.items()},
    }


def fails_open(override: Mapping[str, str]) -> bool:
    """Whether every webhook entry must have the failurePolicy Ignore."""
    ignored = override.get(FAILURE_POLICY, "").strip() in SWITCHES[FAILURE_POLICY]
    return ignored or override.get(WEBHOOKS, "").strip() in SWITCHES[WEBHOOKS]


def unknown_switches(override: Mapping[str, str]) -> Mapping[str, str]:
    """Switches with an invalid value, each with the valid values."""
    return {
        key: f"must be {' or '.join(known)}"
        for key, known in SWITCHES.items()
        if key in override and override[key].strip() not in known
    }


def _merged_text(*texts: str) -> str:
    """The YAML texts merged. A text that is not a mapping is returned unchanged, so that `load` reports
    it."""
    layers = []
    for text in texts:
        try:
            layers.append({} if (found := load_policy(text)) is None else found)
        except BadDocument:
            return text
        if not isinstance(layers[-1], dict):
            return text
    return yaml.safe_dump(_deep_merged(*layers), sort_keys=False)


def _deep_merged(lower: Json, upper: Json) -> Json:
    both = {
        key: _deep_merged(lower[key], value)
        for key, value in upper.items()
        if isinstance(value, dict) and isinstance(lower.get(key), dict)
    }
    return {**lower, **upper, **both}


def as_text(content: bytes) -> str:
    """The text of a file; bytes that are not UTF-8 become lone surrogates."""
    return content.decode(errors="surrogateescape")


def keys(obj: Json) -> Mapping[str, str]:
    """The keys of a policy's ConfigMap, with YAML files in `binaryData`: `kubectl create configmap` puts
    files there that are not UTF-8."""
    found = texts(obj, "data")
    for name, value in texts(obj, "binaryData").items():
        if name.endswith((".yaml", ".yml")):
            try:
                found[name] = as_text(base64.b64decode(value, validate=True))
            except (binascii.Error, ValueError):
                found[name] = "\udcff"  # not UTF-8 either; no API server accepts it
    return found
