"""mesh-job-never-ends: Jobs to which a mesh adds a proxy that nothing stops."""

from __future__ import annotations

import re
from typing import Final

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.core.lives import known_lives, runs_in
from policies.kube.pods import Role
from policies.network.meshes import mesh_of

_STOPS: Final = re.compile(r"quitquitquit|linkerd-await|/shutdown|pilot-agent|istio-proxy|linkerd-proxy")
_EXITS: Final = "EXIT_ON_ZERO_ACTIVE_CONNECTIONS"


def check(target: Target, facts: Facts) -> Findings:
    stops = {run.life.kind for run in runs_in(target.obj) if run.life.stops_sidecars}
    for template in target.templates:
        if stops or not template.completes:
            continue
        mesh = mesh_of(template, facts)
        if mesh is None or any(_EXITS in text for text in template.typed.metadata.annotations.values()):
            continue
        words = [word for each in template.containers(Role.MAIN) for word in each.typed.argv]
        if any(_STOPS.search(word) for word in words) or not words:
            continue
        yield Finding(
            template.spec_path,
            f"{mesh.name} adds a proxy to the pods of this {target.kind.kind}, and nothing stops it when "
            "the work is done. Unless the proxy is a native sidecar, the pod never completes.",
            f"Run {mesh.name}'s proxy as a native sidecar ({mesh.native[0].replace('=', ': ')}), or turn "
            f"it off for these pods ({mesh.unless[0].replace('=', ': ')}).",
        )


RULE = rule(__name__, check, tuple(known_lives()), requires=(PodFeature.COMPLETES,))
