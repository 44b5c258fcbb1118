"""service-selects-workers: Services that send requests to the workers of a group, which do not serve."""

from __future__ import annotations

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.groups import LWS_NAME
from policies.kube.group_kinds import LEADER_WORKER_SET
from policies.kube.objects.pods import PodTemplateSpec
from policies.kube.objects.services import Service
from policies.kube.objects.workloads import LeaderWorkerSet


def check(target: Target, facts: Facts) -> Findings:
    group = target.read(LeaderWorkerSet).spec.leader_worker_template
    leader, workers = group.leader_template, group.worker_template
    if leader is None or group.size < 2 or not _serves(leader) or _serves(workers):
        return
    labels = {**workers.metadata.labels, LWS_NAME: target.name}
    led = {**leader.metadata.labels, LWS_NAME: target.name}
    for service in facts.objects(Service) or ():
        selector, spec = service.spec.selector, service.spec
        if not selector or spec.cluster_ip == "None" or spec.type == "ExternalName":
            continue
        if selector.items() <= labels.items() and selector.items() <= led.items():
            yield Finding(
                "spec.leaderWorkerTemplate.workerTemplate.metadata.labels",
                f"Service {service.name} selects the workers, too. Only the leader serves: "
                f"{group.size - 1} of {group.size} requests fail.",
                'Add leaderworkerset.sigs.k8s.io/worker-index: "0" to the Service\'s selector, or a '
                "label that only "
                "leaders have.",
            )


def _serves(template: PodTemplateSpec) -> bool:
    """Whether a container of the pods declares a port or checks its readiness."""
    return any(each.ports or each.readiness_probe is not None for each in template.spec.containers)


RULE = rule(__name__, check, (LEADER_WORKER_SET,))
