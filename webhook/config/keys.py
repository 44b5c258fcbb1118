"""The keys of a policy as text, from a ConfigMap or from files. Bytes that are not UTF-8 are left to `load`,
which refuses them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from policies.kube.json import Json, mapping


def as_text(content: bytes) -> str:
    """The text of a file; bytes that are not UTF-8 become lone surrogates."""
    return content.decode(errors="surrogateescape")


def keys(obj: Json) -> Mapping[str, str]:
    """The keys of a policy's ConfigMap. `kubectl create configmap` puts a file that is not UTF-8 into
    `binaryData`, where a key must not go unread; other files, such as an archive, may lie there."""
    found = {name: value for name, value in mapping(obj, "data").items() if isinstance(value, str)}
    for name, value in mapping(obj, "binaryData").items():
        if name.endswith((".yaml", ".yml")) and isinstance(value, str):
            try:
                found[name] = as_text(base64.b64decode(value, validate=True))
            except (binascii.Error, ValueError):
                found[name] = "\udcff"  # no API server takes it
    return found
