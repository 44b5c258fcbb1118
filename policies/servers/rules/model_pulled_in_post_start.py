"""model-pulled-in-post-start: models that a postStart hook downloads."""

from __future__ import annotations

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.servers.post_start import post_start_hooks, pulls_in


def check(target: Target, _: Facts) -> Findings:
    for template, container, summary in post_start_hooks(target):
        if pulls := pulls_in(summary):
            yield Finding(
                template.at(container, "lifecycle.postStart"),
                f"The postStart hook of container {container.name} downloads a model "
                f"({' '.join(pulls[0][:3])}). If it fails, for example because the server doesn't answer "
                "yet, the kubelet kills the container and starts over, without a log of the hook.",
                "Download the model to a volume, in an init container, a Job or the puller.",
            )


RULE = rule(__name__, check, requires=(PodFeature.LIFECYCLE,))
