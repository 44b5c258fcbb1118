"""Names as the API server accepts them: whatever a policy writes into an object must be one of these.

A label key that looks right and is not would turn an annotation, or a slip in the settings, into
refused pods. Source: `k8s.io/apimachinery/pkg/util/validation`.
"""

from __future__ import annotations

import re
from typing import Final

_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_QUALIFIED: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")


def is_subdomain(text: str) -> bool:
    """Whether it may name an object, such as a Secret (RFC 1123 subdomain)."""
    return len(text) <= 253 and _SUBDOMAIN.fullmatch(text) is not None


def is_label_key(text: str) -> bool:
    """Whether it may be the key of a label, a taint or a topology: `name` or `domain/name`."""
    prefix, slash, name = text.rpartition("/")
    return (not slash or is_subdomain(prefix)) and len(name) <= 63 and _QUALIFIED.fullmatch(name) is not None


def is_label_value(text: str) -> bool:
    """Whether it may be the value of a label or a taint; the empty one may."""
    return not text or (len(text) <= 63 and _QUALIFIED.fullmatch(text) is not None)
