"""The directory in which a server stores its models, and the volume that is mounted there."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from policies.core.facts import Facts
from policies.core.target import PodTemplate
from policies.kube.images import image_matches
from policies.kube.objects.pods import Volume, VolumeMount
from policies.kube.pods import Container
from policies.probes.declared_models import named_models, size_by_name
from policies.probes.recognition import Server
from policies.probes.server_facts import ModelCache
from policies.probes.serving import recognised

_HUB: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(?<!\.gguf)(?::[\w.-]+)?")
"""A model of a hub: `meta-llama/Llama-3.1-8B`. Paths begin with a slash or a dot, URLs have a colon."""


class Download(Struct, frozen=True):
    """What a server downloads, and where to."""

    server: Server
    cache: ModelCache
    model: str
    """The model's name; empty if a client names it later."""
    size: int
    """Bytes by the model's name; 0 if unknown."""
    directory: str
    """The default directory, or the one that a flag or a variable sets."""
    moved: bool
    """Whether a flag or a variable sets it."""
    mount: VolumeMount | None
    volume: Volume | None
    """The volume at the directory or above it. None with a mount: its volume is unknown."""

    @property
    def named(self) -> str:
        return self.model or "its models"


def download_of(template: PodTemplate, container: Container, facts: Facts) -> Download | None:
    """The download of the server in a container; None if it has none, or if something about it is unknown."""
    return facts.pod_caches[template.view].once_for(container, _download_of, template, container, facts)


def _download_of(template: PodTemplate, container: Container, facts: Facts) -> Download | None:
    server = recognised(container, facts)
    cache = None if server is None else server.preset.cache
    if server is None or cache is None:
        return None
    own = _default_directory(container, cache)
    if server.conditional or server.may_hold_options:
        return None
    if server.has_option(*cache.unless_flags) or server.has_variable(*cache.unless_env):
        return None
    model = next((name for name in named_models(server) if _HUB.fullmatch(name)), "")
    if not model and (not cache.always or any(named_models(server))):
        return None
    directory = _directory(server, cache, own)
    if directory is None:
        return None
    if own is None and not any(each.mount_path == directory for each in container.typed.volume_mounts):
        return None  # another image, which may have variables of its own
    places = (directory, *(cache.also if directory == cache.directory else ()))
    covering = (mount for place in places for mount in mounts_at(place, container))
    mount = max(covering, key=lambda each: len(each.mount_path), default=None)
    volumes = {each.name: each for each in template.typed.spec.volumes}
    volume = None if mount is None else volumes.get(mount.name)
    known = model or cache.always
    size = size_by_name(template.typed, container, server)[0] if known else 0
    moved = directory != own
    return Download(server, cache, model, size, directory, moved, mount, volume)


def _default_directory(container: Container, cache: ModelCache) -> str | None:
    """The default directory of the image; None if it is unknown."""
    for other in cache.others:
        if image_matches(container.image, other.images):
            return other.directory
    return cache.directory if image_matches(container.image, cache.images) else None


def _directory(server: Server, cache: ModelCache, own: str | None) -> str | None:
    """The directory in use; None if it is unknown. `own`: the default of the image, None if unknown."""
    value = server.configured(cache.flags, ())
    for name in cache.env:
        if value is None and name in server.variables:
            value = server.variables[name] or ""
    if value is None:
        return None if (server.has_env_from or server.sources_file) and cache.env else own
    return posixpath.normpath(value) if value.startswith("/") and "$" not in value else None


def user_of(template: PodTemplate, container: Container) -> int | None:
    """The user that the container or the pod sets."""
    security, pod = container.typed.security_context, template.typed.spec.security_context
    return pod.run_as_user if security.run_as_user is None else security.run_as_user


def mounts_at(directory: str, container: Container) -> Iterator[VolumeMount]:
    """The mounts at a directory or above it. A mount below it counts, too: the hub's own subdirectory."""
    for mount in container.typed.volume_mounts:
        path = posixpath.normpath(mount.mount_path or "/")
        if f"{directory}/".startswith(f"{path.rstrip('/')}/") or path.startswith(f"{directory}/"):
            yield mount
