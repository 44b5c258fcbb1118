"""model-access-denied: servers that download a model which needs a token, and have none."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Final

from policies.core import data
from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.kube.pods import Container, Role
from policies.servers.caches import Download, download_of

_TOKEN: Final = re.compile(
    r"token(?!s|iz)|secret|password|\bauth\b|login|credential|(?:\b|_)key(?:\b|_)|hf_endpoint|vault|inject|netrc",
    re.IGNORECASE,
)
"""Words in names of variables, options, mounts and annotations that may bring a token, or another hub."""


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        if not template.has_own_volumes or any(map(_TOKEN.search, template.typed.metadata.annotations)):
            continue
        for container in template.containers(Role.MAIN):
            found = download_of(template, container, facts)
            if found is None or not is_gated(found.model) or _may_have_it(template, container, found):
                continue
            yield Finding(
                template.at(container),
                f"Container {container.name} ({found.server.name}) downloads {found.model}, which Hugging "
                "Face gives only to users who have accepted its licence. The container has no token, so the "
                "download fails with status 401 at every start.",
                "Set HF_TOKEN from a Secret with the token of such a user.",
            )


def _may_have_it(template: PodTemplate, container: Container, found: Download) -> bool:
    """Whether the container may have a token, or the model. The name of a model may be a directory, too."""
    typed, server = container.typed, found.server
    if server.has_env_from or server.sources_file or found.mount is not None:
        return True
    empty = {each.name for each in template.typed.spec.volumes if each.empty_dir or each.config_map}
    if any(each.name not in empty for each in typed.volume_mounts):
        return True
    mounts = [f"{each.name} {each.mount_path}" for each in typed.volume_mounts]
    words = " ".join((*[each.name for each in typed.env], *typed.argv, *mounts))
    return _TOKEN.search(words) is not None


_gated = data.names("policies.probes", "gated_models.yaml")


def is_gated(model: str) -> bool:
    """Whether the hub refuses a model of this name without a token."""
    return any(fnmatchcase(model, glob) for glob in _gated())


RULE = rule(__name__, check)
