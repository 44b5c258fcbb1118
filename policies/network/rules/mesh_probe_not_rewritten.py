"""mesh-probe-not-rewritten: HTTP probes that a mesh's proxy refuses, since the kubelet has no certificate."""

from __future__ import annotations

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.network.meshes import mesh_of
from policies.probes.probe import LIVENESS, READINESS, STARTUP, probes


def check(target: Target, facts: Facts) -> Findings:
    reported: set[str] = set()
    for probe in probes(target, LIVENESS, READINESS, STARTUP):
        template = probe.template
        mesh = mesh_of(template, facts)
        key, _, value = ("" if mesh is None else mesh.no_rewrite).partition("=")
        if mesh is None or not key or template.typed.metadata.annotations.get(key) != value:
            continue
        if template.spec_path in reported or probe.typed.http_get is None or not probe.is_user_written:
            continue
        reported.add(template.spec_path)
        yield Finding(
            probe.at("httpGet"),
            f"The annotation {key} keeps {mesh.name} from rewriting the {probe.name}. With strict mutual "
            "TLS, the proxy refuses the kubelet, which has no certificate, and the probe always fails.",
            "Remove the annotation, or use an exec probe.",
        )


RULE = rule(__name__, check, requires=(PodFeature.HTTP,))
