"""cache-not-writable: servers that cannot write to the directory of their models."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.workloads import MADE_AS_WRITTEN
from policies.kube.pods import Container, Role
from policies.servers.caches import Download, download_of

_KNOWN: Final = 1000
"""Users up to this number may have a home directory in the image's base."""


def check(target: Target, facts: Facts) -> Findings:
    if target.kind.group not in MADE_AS_WRITTEN:
        return
    for template in target.templates:
        for container in template.containers(Role.MAIN):
            found = download_of(template, container, facts)
            if found is not None:
                yield from _refused(template, container, found)


def _refused(template: PodTemplate, container: Container, found: Download) -> Findings:
    security, pod = container.typed.security_context, template.typed.spec.security_context
    user = pod.run_as_user if security.run_as_user is None else security.run_as_user
    what = f"Container {container.name} ({found.server.name}) stores {found.named} in {found.directory}"
    hint = (
        f"Mount a volume, and set {found.cache.env[0]} to its path."
        if found.cache.env
        else "Mount a volume there."
    )
    if user is not None and user > _KNOWN and not found.moved and found.cache.in_home:
        yield Finding(
            template.at(container, "securityContext")
            if security.run_as_user
            else f"{template.spec_path}.securityContext",
            f"{what} if root runs it. It runs as user {user}, whose home directory is /, where it cannot "
            "create its cache: the server does not start.",
            hint,
        )
    elif security.read_only_root_filesystem and found.mount is None:
        yield Finding(
            template.at(container, "securityContext.readOnlyRootFilesystem"),
            f"{what}, and the root file system is read-only: the download fails, and the server does not "
            "start.",
            hint,
        )


RULE = rule(__name__, check)
