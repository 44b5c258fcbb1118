"""autoscaler-metric-misleads: autoscalers by metrics that do not show the load of a model server."""

from __future__ import annotations

from policies.accelerators.requests import wants_accelerator
from policies.autoscaling.metrics import used_metrics
from policies.core.autoscalers import autoscaler_of
from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.kube.group_kinds import (
    AUTOSCALER,
    INFERENCE_SERVICE,
    LEADER_WORKER_SET,
    SCALED_OBJECT,
    SERVING,
)
from policies.kube.objects.scaling import HorizontalPodAutoscaler
from policies.kube.pods import Role
from policies.probes.serving import recognised
from policies.rollouts.rollouts import made_autoscalers

_HINT = "Scale by the waiting or running requests that the server counts, or by latency."


def check(target: Target, facts: Facts) -> Findings:
    if target.kind in (AUTOSCALER, SCALED_OBJECT):
        yield from _by_gpu(target)
    elif target.kind == INFERENCE_SERVICE:
        yield from _of_operator(target, facts)
    else:
        yield from _by_cpu(target, facts)


def _by_gpu(target: Target) -> Findings:
    """All metrics show only that a GPU is in use."""
    used = used_metrics(target)
    if used and all(each.known is not None and each.known.misleads for each in used):
        first = used[0]
        misleads = first.known.misleads if first.known is not None else ""
        yield Finding(
            first.path,
            f"The only metric, {first.name}, {misleads}. The autoscaler adds pods without load, or only "
            "after a queue has grown.",
            _HINT,
        )


def _by_cpu(target: Target, facts: Facts) -> Findings:
    """A server on accelerators that is scaled by CPU or memory only."""
    autoscaler = autoscaler_of(target.kind.kind, target.name, facts)
    if autoscaler is None or target.has_controller or not _only_cpu(autoscaler):
        return
    for template in target.templates:
        yield from _server_by_cpu(template, autoscaler.title, facts)


def _of_operator(target: Target, facts: Facts) -> Findings:
    """The same with an autoscaler that an operator makes."""
    for made in made_autoscalers(target):
        if made.metric in ("cpu", "memory") and made.least < made.most:
            yield from _server_by_cpu(made.template, f"The autoscaler of this {target.kind.kind}", facts)


def _server_by_cpu(template: PodTemplate, autoscaler: str, facts: Facts) -> Findings:
    if not wants_accelerator(template.view, facts):
        return
    for container in template.containers(Role.MAIN):
        server = recognised(container, facts)
        if server is None or not container.typed.resources.limits:
            continue
        known = server.preset.load_metrics
        if server.preset.loads_model or known is not None:
            yield Finding(
                template.at(container),
                f"{autoscaler} scales {server.name} only by CPU or memory. The server computes on "
                "accelerators, so neither grows with its queue of requests.",
                _HINT if known is None else f"Scale by {' or '.join(known.names)}, or by latency.",
            )


def _only_cpu(autoscaler: HorizontalPodAutoscaler) -> bool:
    metrics = autoscaler.spec.metrics
    percent = autoscaler.spec.target_cpu_utilization_percentage
    return all(each.resource is not None for each in metrics) if metrics else percent is not None


RULE = rule(
    __name__,
    check,
    (AUTOSCALER, SCALED_OBJECT, *SERVING, LEADER_WORKER_SET, INFERENCE_SERVICE),
)
