"""post-start-waits-on-server: postStart hooks that wait without end until their own server answers."""

from __future__ import annotations

from policies.commands import Reach
from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.servers.post_start import post_start_hooks, pulls_in


def check(target: Target, _: Facts) -> Findings:
    for template, container, summary in post_start_hooks(target):
        waits = [
            host
            for loop in summary.loops
            if not loop.bounded and not loop.background
            for host in loop.hosts
            if host.reach is Reach.LOCAL
        ]
        if waits and not pulls_in(summary):  # model-pulled-in-post-start reports the others
            yield Finding(
                template.at(container, "lifecycle.postStart"),
                f"The postStart hook of container {container.name} loops until its own server answers "
                f"({waits[0].client}). The kubelet starts no probe before the hook ends, so it never "
                "restarts a server that never answers.",
                "Let a startupProbe wait for the server and do the hook's work elsewhere, or limit the loop.",
            )


RULE = rule(__name__, check, requires=(PodFeature.LIFECYCLE,))
