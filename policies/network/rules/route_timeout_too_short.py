"""route-timeout-too-short: gateways that give up before a model server has answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.facts import WholeObjects
from policies.core.services import selects
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json, mapping, text
from policies.kube.objects.services import Service
from policies.kube.pods import Role
from policies.network.gateways import Backends, routed
from policies.probes.serving import recognised

_POOLS: Final = (
    GroupKind("inference.networking.k8s.io", "InferencePool"),
    GroupKind("inference.networking.x-k8s.io", "InferencePool"),
)


def check(target: Target, facts: Facts) -> Findings:
    cluster = facts.whole
    if cluster is None or target.has_controller:
        return
    for template in target.templates:
        for container in template.containers(Role.MAIN):
            server = recognised(container, facts)
            long = None if server is None else server.preset.long_answers
            if server is None or long is None:
                continue
            own = _backends(template, facts, cluster)
            for each in routed(cluster, facts.namespace, own):
                if each.seconds > long.seconds:
                    continue
                default = f", the default of {each.gateway.name}" if each.is_default else ""
                streams = "" if each.gateway.whole else " if it is not streamed"
                yield Finding(
                    template.at(container),
                    f"{each.route} ends requests to {each.backend} after {each.seconds:g} s{default}. A "
                    f"normal answer of {server.name} may take {long.seconds} s or longer{streams}. The "
                    "client then gets status 504, and the server keeps computing.",
                    f"Set the route's timeout to 600 s or more ({each.gateway.setting}).",
                )
                break


def _backends(template: PodTemplate, facts: Facts, cluster: WholeObjects) -> Backends:
    """The Services and InferencePools that select the pods of a template."""
    labels = template.typed.metadata.labels
    services = facts.objects(Service) or ()
    pools = (pool for kind in _POOLS for pool in cluster.every(kind, facts.namespace))
    return Backends(
        frozenset(each.name for each in services if selects(each, labels)),
        frozenset(text(each, "metadata", "name") for each in pools if _selects(each, labels)),
    )


def _selects(pool: Json, labels: Mapping[str, str]) -> bool:
    """Whether an InferencePool selects pods with labels: by `matchLabels` in v1, else by a map of labels."""
    selector = mapping(pool, "spec", "selector")
    wanted = mapping(selector, "matchLabels") or selector
    return bool(wanted) and wanted.items() <= labels.items()


RULE = rule(__name__, check)
