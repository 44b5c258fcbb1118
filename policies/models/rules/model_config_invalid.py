"""The rule that guards the puller's model configs."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator

from policies.core.contracts import Family, Rule
from policies.core.facts import Facts
from policies.core.finding import Certainty, Finding
from policies.core.mode import Mode
from policies.core.target import Target
from policies.kube.group_kinds import CONFIG_MAP
from policies.kube.json import Json, mapping
from policies.kube.metadata import labels_of
from puller import spec

LABEL = "mlchassis.dev/model-config"

_HINT = "Mend the entry; while it stands, the puller refuses this model and serves the others."
_HINT_UNKNOWN = "Remove the field, or correct its name."


def model_config_invalid(target: Target, facts: Facts) -> Iterator[Finding]:
    """What the puller would refuse in a labelled ConfigMap, said by the puller's own parser."""
    if labels_of(target.obj).get(LABEL) != "true":
        return
    desired = spec.parse(_files(target.obj))
    for error in desired.errors:
        yield Finding(_path(target.obj, error), _sentence(error), _HINT)
    for warning in desired.warnings:
        yield Finding(_path(target.obj, warning), _sentence(warning), _HINT_UNKNOWN, Certainty.UNDECIDED)


def _files(obj: Json) -> dict[str, str]:
    """The files that the puller will see: kubelet mounts `data` and `binaryData` alike."""
    files = {key: value for key, value in mapping(obj, "data").items() if isinstance(value, str)}
    for key, value in mapping(obj, "binaryData").items():
        if isinstance(value, str):
            files[key] = _decoded(value)
    return files


def _decoded(value: str) -> str:
    try:
        return base64.b64decode(value).decode(errors="surrogateescape")
    except binascii.Error:  # the API server refuses that by itself
        return ""


def _path(obj: Json, error: spec.SpecError) -> str:
    field = "data" if error.key in mapping(obj, "data") else "binaryData"
    return f"{field}[{error.key}]{error.path}"


def _sentence(error: spec.SpecError) -> str:
    place = f"Model {error.model}" if error.model else f"Key {error.key}"
    return f"{place}: {error.message}"


RULES = (
    Rule(
        id="model-config-invalid",
        family=Family.DEADLOCK,
        check=model_config_invalid,
        standard=Mode.ENFORCE,
        strict=Mode.ENFORCE,
        kinds=(CONFIG_MAP,),
        what='A model config, a ConfigMap with the label `mlchassis.dev/model-config: "true"`, holds '
        "models that the puller would refuse.",
        why="The puller refuses a broken entry in its status and its log, where nobody looks: the model is "
        "never loaded, and a pod that waits for all of its models is never ready.",
        mend="Correct the entry: names of letters, digits, `_` and `-`, listed once; a storageUri with a "
        "known scheme; a memory that is a Kubernetes quantity.",
        source="docs/puller.md",
        bad="""\
apiVersion: v1
kind: ConfigMap
metadata:
  name: models
  labels: {mlchassis.dev/model-config: "true"}
data:
  models.json: |
    [{"modelName": "price", "modelSpec": {"storageUri": "ftp://models/price", "framework": "sklearn"}}]
""",
        good="""\
apiVersion: v1
kind: ConfigMap
metadata:
  name: models
  labels: {mlchassis.dev/model-config: "true"}
data:
  models.json: |
    [{"modelName": "price", "modelSpec": {"storageUri": "s3://models/price", "framework": "sklearn"}}]
""",
    ),
)
