"""model-pulled-in-post-start: models that a postStart hook downloads."""

from __future__ import annotations

import re

from policies.containers.commands import exec_command
from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.kube.pods import Role

_PULLS = (("ollama", "pull"), ("ollama", "run"), ("huggingface-cli", "download"), ("hf", "download"))


_CLIENTS = frozenset({"curl", "wget", "aria2c"})
_FROM = re.compile(r"/api/pull\b|huggingface\.co/|/resolve/main/|\.(?:gguf|safetensors)\b")
"""URLs by which a client downloads a model, or lets the server do so."""


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        for container in template.containers(Role.MAIN):
            lifecycle = container.typed.lifecycle
            if lifecycle is None or lifecycle.post_start is None or lifecycle.post_start.exec is None:
                continue
            summary = exec_command(template, container, "lifecycle", "postStart")
            pulls = [
                each.argv
                for each in summary.commands
                if (each.name, *each.argv[1:2]) in _PULLS
                or (each.name in _CLIENTS and any(map(_FROM.search, each.argv[1:])))
            ]
            if pulls:
                yield Finding(
                    template.at(container, "lifecycle.postStart"),
                    f"The postStart hook of container {container.name} downloads a model "
                    f"({' '.join(pulls[0][:3])}): if it fails, for example because the server does not "
                    "answer yet, kubelet kills the container and begins again, without a log of the hook.",
                    "Download in an init container, a Job or the puller, to a volume.",
                )


RULE = rule(__name__, check, requires=(PodFeature.LIFECYCLE,))
