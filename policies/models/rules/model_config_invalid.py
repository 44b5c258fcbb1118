"""model-config-invalid: model configs that the puller refuses."""

from __future__ import annotations

import base64
from typing import Final

from policies.core.annotations import MODEL_CONFIG
from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.kube.group_kinds import CONFIG_MAP
from policies.kube.json import Json, mapping, texts
from policies.kube.metadata import labels_of
from policies.models.model_puller_settings import ModelPuller
from puller import model_config

_HINT = "Correct the entry. Until then, the puller refuses this model and serves the others."

_HINT_UNKNOWN = "Remove the field, or correct its name."

_HINT_SCHEME = "Use another scheme, or add this one to `schemes` in model-puller.yaml."


def check(target: Target, facts: Facts) -> Findings:
    """Report the errors of the puller's parser in a labelled ConfigMap."""
    if labels_of(target.obj).get(MODEL_CONFIG) != "true":
        return
    files = _files(target.obj)
    desired = model_config.parse(files)
    for error in desired.errors:
        yield Finding(_path(target.obj, error), _sentence(error), _HINT)
    known = set(desired.errors)
    # The pods that will read the ConfigMap are unknown, so the namespace's settings apply.
    for error in model_config.parse(files, facts.settings(ModelPuller).schemes).errors:
        if error not in known:
            yield Finding(_path(target.obj, error), _sentence(error), _HINT_SCHEME, Certainty.UNDECIDED)
    for warning in desired.warnings:
        yield Finding(_path(target.obj, warning), _sentence(warning), _HINT_UNKNOWN, Certainty.UNDECIDED)


def _files(obj: Json) -> dict[str, str]:
    """The files that the kubelet makes of `data` and `binaryData`."""
    return texts(obj, "data") | {key: _decoded(value) for key, value in texts(obj, "binaryData").items()}


def _decoded(value: str) -> str:
    try:
        return base64.b64decode(value).decode(errors="surrogateescape")
    except ValueError:  # not base64: the API server refuses it
        return ""


def _path(obj: Json, error: model_config.SpecError) -> str:
    field = "data" if error.key in mapping(obj, "data") else "binaryData"
    return f"{field}[{error.key}]{error.path}"


def _sentence(error: model_config.SpecError) -> str:
    place = f"Model {error.model}" if error.model else f"Key {error.key}"
    if error.message.partition(" ")[0] not in _VERBS:
        return f"{place}: {error.message}"
    field = error.path.rpartition(".")[2] if "." in error.path else ""
    if error.model or field:
        return f"{place}: {field or error.key + error.path} {error.message}"
    return f"{place}{error.path} {error.message}"


_VERBS: Final = frozenset(("is", "must", "has", "contains"))
"""A message that begins with one of them needs the field or key as its subject."""


RULE = rule(__name__, check, (CONFIG_MAP,))
