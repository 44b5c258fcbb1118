"""The keys of a policy as text, from a ConfigMap or from files. `load` refuses text that is not UTF-8."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from policies.kube.json import Json, mapping


def as_text(content: bytes) -> str:
    """The text of a file; bytes that are not UTF-8 become lone surrogates."""
    return content.decode(errors="surrogateescape")


def keys(obj: Json) -> Mapping[str, str]:
    """The keys of a policy's ConfigMap, with YAML files in `binaryData`: `kubectl create configmap` puts
    files there that are not UTF-8."""
    found = {name: value for name, value in mapping(obj, "data").items() if isinstance(value, str)}
    for name, value in mapping(obj, "binaryData").items():
        if name.endswith((".yaml", ".yml")) and isinstance(value, str):
            try:
                found[name] = as_text(base64.b64decode(value, validate=True))
            except (binascii.Error, ValueError):
                found[name] = "\udcff"  # not UTF-8 either; no API server accepts it
    return found
