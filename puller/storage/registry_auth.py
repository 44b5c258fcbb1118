"""Credentials of registries, from the files that Docker, Podman and Kubernetes write.

They are read for each attempt, so that a rotated Secret is used. Credential helpers are not run.
"""

from __future__ import annotations

import json
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

_MAX_FILE = 1 << 20
_SECRET_KEY = ".dockerconfigjson"  # noqa: S105  (a name)
"""The key of a Secret of type kubernetes.io/dockerconfigjson: a file, or with `envFrom` a variable."""
DOCKER_HUB = "docker.io"
_HUB_NAMES = frozenset({DOCKER_HUB, "index.docker.io", "registry-1.docker.io"})


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and a password, or a bearer token of the registry."""

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


def credentials(host: str, repository: str, env: Mapping[str, str]) -> Credentials | None:
    """From the first file with an entry for this registry and repository: the entry with the longest path."""
    for text in _configs(env):
        try:
            entries = json.loads(text)["auths"].items()
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue
        found = [
            (len(path), credential)
            for key, entry in entries
            if (path := _matching_path(key, host, repository)) is not None
            and (credential := _read(entry)) is not None
        ]
        if found:
            return max(found, key=lambda pair: pair[0])[1]
    return None


def _configs(env: Mapping[str, str]) -> Iterator[str]:
    for name in ("DOCKER_AUTH_CONFIG", _SECRET_KEY):
        if env.get(name):
            yield env[name]
    places: list[Path] = []
    if env.get("REGISTRY_AUTH_FILE"):
        places.append(Path(env["REGISTRY_AUTH_FILE"]))
    if env.get("DOCKER_CONFIG"):
        places += [Path(env["DOCKER_CONFIG"], name) for name in ("config.json", _SECRET_KEY)]
    if env.get("XDG_RUNTIME_DIR"):
        places.append(Path(env["XDG_RUNTIME_DIR"], "containers", "auth.json"))
    if env.get("HOME"):
        places.append(Path(env["HOME"], ".docker", "config.json"))
    for place in places:
        with suppress(OSError, UnicodeDecodeError), place.open("rb") as file:
            yield file.read(_MAX_FILE).decode()


def _matching_path(key: str, host: str, repository: str) -> str | None:
    """The path of an entry's key, if the key is for this registry: `host`, `https://host/v1/`,
    `host/organisation`, `*.example.com`."""
    without_scheme = key.partition("://")[2] or key
    pattern, _, path = without_scheme.rstrip("/").partition("/")
    path = "" if path in ("v1", "v2") else path
    docker_hub = host in _HUB_NAMES and pattern in _HUB_NAMES
    if not docker_hub and (pattern.count(".") != host.count(".") or not fnmatchcase(host, pattern)):
        return None
    return path if f"{repository}/".startswith(f"{path}/") or not path else None


def _read(entry: Any) -> Credentials | None:
    if not isinstance(entry, dict):
        return None
    if isinstance(entry.get("registrytoken"), str) and entry["registrytoken"]:
        return Credentials(token=entry["registrytoken"])
    user, password = entry.get("username"), entry.get("password")
    if isinstance(entry.get("auth"), str) and entry["auth"]:
        try:
            user, _, password = b64decode(entry["auth"], validate=True).decode().partition(":")
        except (Base64Error, ValueError):
            return None
    if not (isinstance(user, str) and isinstance(password, str) and (user or password)) or ":" in user:
        return None
    return Credentials(user, password.strip("\0"))
