"""mesh-init-without-proxy: init containers that need the network before the mesh's proxy runs."""

from __future__ import annotations

import re
from typing import Final

from policies.commands import Reach
from policies.containers.commands import container_command
from policies.core.contracts import Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.kube.pods import Container, Role
from policies.network.meshes import bypasses, mesh_of

_LIBRARIES: Final = re.compile(
    r"snapshot_download|hf_hub_download|huggingface_hub|boto3|urllib|requests\.get|gcsfs|s3fs"
)
"""Names in a Python program that downloads."""
_DOWNLOADERS: Final = frozenset(
    {"aws", "gsutil", "gcloud", "azcopy", "rclone", "s5cmd", "huggingface-cli", "hf", "mc", "git", "pip"}
)


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        mesh = mesh_of(template, facts)
        if mesh is None or bypasses(template, mesh):
            continue
        for container in template.containers(Role.INIT):
            user = container.typed.security_context.run_as_user
            if user != mesh.proxy_user and _needs_network(template, container):
                yield Finding(
                    template.at(container),
                    f"Init container {container.name} needs the network, but {mesh.name}'s proxy starts "
                    "only after all init containers. With the mesh's CNI plugin, or for hosts that require "
                    "mutual TLS, its connections fail.",
                    f"Run {mesh.name}'s proxy as a native sidecar ({mesh.native[0].replace('=', ': ')}), "
                    f"exclude the port, or run the container as user {mesh.proxy_user}.",
                )


def _needs_network(template: PodTemplate, container: Container) -> bool:
    summary = container_command(template, container)
    return any(host.reach is Reach.EXTERNAL and not host.name_lookup for host in summary.hosts) or any(
        command.name in _DOWNLOADERS
        or (command.name.startswith("python") and any(map(_LIBRARIES.search, command.argv)))
        for command in summary.commands
    )


RULE = rule(__name__, check, requires=(PodFeature.INIT,))
