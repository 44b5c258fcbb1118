"""cache-not-writable: servers whose user cannot write to the directory of their models or to other caches, or
cannot read the server's own files."""

from __future__ import annotations

import posixpath
from typing import Final

from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.kube.images import image_matches
from policies.kube.pods import Container, Role
from policies.probes.recognition import release
from policies.probes.serving import recognised
from policies.servers.caches import download_of, mounts_at, user_of

_ROOTS_HOME: Final = "/root"
_KNOWN: Final = 1000
"""Users up to this number may have a home directory in the image's base, which is / for others."""


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        if not template.has_own_volumes:
            continue
        for container in template.containers(Role.MAIN):
            user = user_of(template, container)
            homeless = user if user is not None and user > _KNOWN else None
            refused = (
                _unreadable(template, container, user, facts)
                or _refused(template, container, homeless, facts)
                or _refused_elsewhere(template, container, user, facts)
                or _without_sockets(template, container, facts)
            )
            if refused is not None:
                yield refused


def _unreadable(
    template: PodTemplate, container: Container, user: int | None, facts: Facts
) -> Finding | None:
    """Files of the server itself."""
    server = recognised(container, facts) if user else None
    files = None if server is None else server.preset.root_only
    if server is None or files is None or server.version < release(files.since):
        return None
    if not image_matches(container.image, files.images, files.excluded_images):
        return None
    return Finding(
        _place(template, container),
        f"Container {container.name} ({server.name}) runs as user {user}, but the {files.what} of its image "
        "is in /root, which only root can read. The server doesn't start.",
        f"Use a version before {files.since}, or an image of your own that has it elsewhere.",
    )


def _refused(template: PodTemplate, container: Container, user: int | None, facts: Facts) -> Finding | None:
    """The directory in which it stores its models."""
    found = download_of(template, container, facts)
    if found is None:
        return None
    what = f"Container {container.name} ({found.server.name}) stores {found.named} in {found.directory}"
    hint = (
        f"Mount a volume, and set {found.cache.env[0]} to its path."
        if found.cache.env
        else "Mount a volume there."
    )
    in_home = user is not None and not found.moved and found.cache.in_home
    if in_home and not any(mounts_at(found.directory.removeprefix(_ROOTS_HOME), container)):
        return Finding(
            _place(template, container),
            f"{what} if root runs it. It runs as user {user}, whose home directory is /. It can't create "
            "its cache there, so the server doesn't start.",
            hint,
        )
    if container.typed.security_context.read_only_root_filesystem and found.mount is None:
        return Finding(
            template.at(container, "securityContext.readOnlyRootFilesystem"),
            f"{what}, but the root file system is read-only. The download fails, and the server doesn't "
            "start.",
            hint,
        )
    return None


def _refused_elsewhere(
    template: PodTemplate, container: Container, user: int | None, facts: Facts
) -> Finding | None:
    """Another directory, in its home directory or where only root may create it."""
    if not user:
        return None
    server = recognised(container, facts)
    if server is None or server.conditional or server.has_env_from or server.sources_file:
        return None
    for each in server.preset.home_directories:
        if each.in_home and (user <= _KNOWN or "HOME" in server.variables):
            continue
        moved = any(name in server.variables for name in each.env)
        if moved or server.has_option(*each.unless_flags):
            continue
        if not image_matches(container.image, each.images, each.excluded_images):
            continue
        # A file of its configuration may name another directory.
        places = (f"/{each.name}",) if each.in_home else (each.name, *server.preset.config_mounts)
        if any(mount for place in places for mount in mounts_at(place, container)):
            continue
        keeps = f"Container {container.name} ({server.name}) keeps {each.keeps} in {each.name}"
        if each.in_home:
            return Finding(
                _place(template, container),
                f"{keeps} of its home directory. It runs as user {user}, whose home directory is /. It can't "
                "create that directory there, so the server doesn't start.",
                "Set HOME to a directory that it can write to, such as /tmp or a volume.",
            )
        return Finding(
            _place(template, container),
            f"{keeps}. It runs as user {user}, but only root can create files there, so the server doesn't "
            "start.",
            f"Mount a volume at {each.name}.",
        )
    return None


def _without_sockets(template: PodTemplate, container: Container, facts: Facts) -> Finding | None:
    """The directory by which its processes connect."""
    typed = container.typed
    if not typed.security_context.read_only_root_filesystem or container.spec.get("workingDir"):
        return None  # Python also tries the working directory
    server = recognised(container, facts)
    sockets = None if server is None else server.preset.sockets
    if server is None or sockets is None or server.conditional or server.has_env_from:
        return None
    if server.configured(sockets.flags, sockets.env) is not None or server.may_hold_options:
        return None
    if () < server.version < release(sockets.since):
        return None
    mounted = {posixpath.normpath(each.mount_path) for each in typed.volume_mounts if not each.read_only}
    if not mounted.isdisjoint({"/", "/var", *sockets.directories}):
        return None
    directory = sockets.directories[0]
    return Finding(
        template.at(container, "securityContext.readOnlyRootFilesystem"),
        f"The processes of container {container.name} ({server.name}) connect by sockets in {directory}, but "
        "the root file system is read-only. The server doesn't start.",
        f"Mount an emptyDir at {directory}.",
    )


def _place(template: PodTemplate, container: Container) -> str:
    """The field that sets the user."""
    if container.typed.security_context.run_as_user:
        return template.at(container, "securityContext")
    return f"{template.spec_path}.securityContext"


RULE = rule(__name__, check)
