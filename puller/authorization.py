"""The value of the header Authorization, for storage, registries, proxies and model servers."""

from __future__ import annotations

from base64 import b64encode


def basic(user: str | None, password: str | None) -> str:
    """A user and a password (RFC 7617)."""
    return "Basic " + b64encode(f"{user or ''}:{password or ''}".encode()).decode()
