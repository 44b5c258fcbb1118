"""group-never-forms: a server over several pods that cannot find each other before they are ready."""

from __future__ import annotations

import re
from typing import Final

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.core.services import hides_unready
from policies.kube.group_kinds import STATEFUL_SET
from policies.kube.objects.workloads import StatefulSet
from policies.kube.pods import Role
from policies.probes.serving import recognised

_HOST: Final = re.compile(r"[a-z0-9][a-z0-9.-]*")


def check(target: Target, facts: Facts) -> Findings:
    spec = target.read(StatefulSet).spec
    for template in target.templates:
        for container in template.containers(Role.MAIN):
            server = recognised(container, facts)
            if server is None or not server.spans_pods or container.typed.readiness_probe is None:
                continue
            hosts = (host for word in container.typed.argv for host in _HOST.findall(word))
            named = next((host for host in hosts if _is_peer(host, target.name, spec.service_name)), "")
            ready = f"Container {container.name} ({server.name}) is ready only after all pods have joined"
            if spec.pod_management_policy != "Parallel":
                yield Finding(
                    "spec.podManagementPolicy",
                    f"{ready}, but the StatefulSet (OrderedReady) creates the second pod only after the "
                    "first is ready.",
                    "Set podManagementPolicy: Parallel.",
                )
            elif named and hides_unready(spec.service_name, facts):
                yield Finding(
                    "spec.serviceName",
                    f"{ready}, but Service {spec.service_name} publishes only ready pods, so the name "
                    f"{named} doesn't resolve before that.",
                    f"Set publishNotReadyAddresses: true on Service {spec.service_name}.",
                )


def _is_peer(host: str, name: str, service: str) -> bool:
    """Whether a host is a pod of a StatefulSet: llm-0.llm, or llm-0.llm.ml.svc."""
    pod, _, domain = host.partition(".")
    owner, _, ordinal = pod.rpartition("-")
    return owner == name and ordinal.isdecimal() and domain.partition(".")[0] == service


RULE = rule(__name__, check, (STATEFUL_SET,), requires=(PodFeature.READINESS,))
