"""autoscaler-target-unreachable: targets that a metric never reaches, and metrics without a value."""

from __future__ import annotations

import re
from decimal import Decimal
from itertools import islice, takewhile
from typing import Final

from policies.autoscaling.metrics import (
    KnownMetric,
    MaximumOption,
    cpu_targets,
    label_values,
    named_metrics,
    used_metrics,
)
from policies.core.autoscalers import pods_of, scaled_by
from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.kube.field_paths import field_path
from policies.kube.group_kinds import AUTOSCALER, SCALED_OBJECT
from policies.kube.names import plural
from policies.kube.objects.metadata import Object
from policies.kube.objects.scaling import HorizontalPodAutoscaler
from policies.kube.pods import Role
from policies.kube.quantities import parse_quantity, whole_number
from policies.probes.declared_models import named_models
from policies.probes.recognition import Server, release
from policies.probes.serving import recognised

_MANAGED: Final = "llm-d.ai/managed"
_MODEL: Final = "llm-d.ai/model-id"
"""Annotations for llm-d's autoscaler, which reads the metrics of this model:
https://github.com/llm-d/llm-d/pull/2310"""
_TOLERANCE: Final = Decimal("1.1")
"""An autoscaler adds pods only above its target by this factor, by default."""


_SPARE: Final = Decimal("1.5")
"""Processors that one process may use: its library and its server's own work take some."""


def check(target: Target, facts: Facts) -> Findings:
    yield from _without_metrics(target, facts)
    if target.kind == AUTOSCALER:
        yield from _of_few_workers(target, facts)
    yield from islice(_of_another_model(target, facts), 1)
    for used in used_metrics(target):
        if used.known is None or used.target is None:
            continue
        most, option = used.known.maximum, used.known.maximum_option
        if option is not None:
            most = _value_for(used.known, option, target, facts) if used.of_pods else None
        if most is None or used.target * _TOLERANCE < most:
            continue
        set_by, hint = "", f"Set a target well below {most}."
        if option is not None:
            set_by = f" ({option.flags[0]})"
            hint = f"Scale by the requests that wait, or raise {option.flags[0]} above the target."
        elif most == 1:
            hint = "Set a target well below 1, such as 0.7: the metric is a fraction, not a percentage."
        yield Finding(
            used.path,
            f"The metric {used.name} is at most {most} for each pod{set_by}, but the target is "
            f"{used.target.normalize():f}. This metric never adds a pod.",
            hint,
        )


def _without_metrics(target: Target, facts: Facts) -> Findings:
    """Findings about metrics that the scaled server shows only with an option."""
    server = _server(target, facts)
    shown = None if server is None else server.preset.load_metrics
    if (
        server is None
        or shown is None
        or server.conditional
        or server.has_env_from
        or server.may_hold_options
    ):
        return
    if server.has_option(*server.preset.config_flags):
        return
    off = server.has_option(*shown.unless_flags)
    lacking = shown.flags and not server.has_option(*shown.flags) and not server.has_variable(*shown.env)
    if not off and not lacking:
        return
    prefix = shown.names[0].partition(":")[0]
    for path, words in named_metrics(target):
        name = next((word for word in words if re.split("[:_]", word)[0] == prefix), None)
        if name is None:
            continue
        flag = next(each for each in shown.unless_flags if server.has_option(each)) if off else shown.flags[0]
        yield Finding(
            path,
            f"The metric {name} has no value, because {server.name} shows its metrics only "
            f"with{'out' if off else ''} {flag}. This metric never adds a pod.",
            f"{'Remove' if off else 'Add'} {flag}.",
        )
        return


def _of_few_workers(target: Target, facts: Facts) -> Findings:
    """Findings about CPU targets that a server with few processes does not reach."""
    autoscaler = target.read(HorizontalPodAutoscaler)
    for path, percent in cpu_targets(autoscaler):
        pods = pods_of(autoscaler.spec.scale_target_ref, facts)
        main = [each for view in pods for each in view.containers if each.role is Role.MAIN]
        server = recognised(main[0], facts) if len(main) == 1 else None
        known = None if server is None else server.preset.workers
        if server is None or known is None or server.has_env_from or server.may_have_option(*known.flags):
            continue
        value = server.configured(known.flags, known.env)
        count = known.default if value is None else whole_number(value, 3)
        requests = main[0].typed.resources.requests
        try:
            cpus = parse_quantity(requests.get("cpu", main[0].typed.resources.limits.get("cpu", 0)))
        except ValueError:
            continue
        aim = cpus * percent / 100
        if count is None or aim < max(count, 1) * _SPARE:
            continue
        name, processes = (*known.env, *known.flags)[0], plural(max(count, 1), "process", "processes")
        use = "uses about one processor" if count < 2 else f"use about {count} processors"
        yield Finding(
            path,
            f"The server ({server.name}) computes in {processes} ({name}"
            f"{', by default' if value is None else ''}), which {use}. The target is {aim.normalize():f} of "
            f"{cpus.normalize():f}, so unless its library starts threads of its own, the autoscaler adds no "
            "pod.",
            f"Scale by the requests that wait, request about one CPU for each process, or raise {name}.",
            Certainty.LIKELY,
        )


def _of_another_model(target: Target, facts: Facts) -> Findings:
    """Findings about metrics of a model that the scaled server does not serve."""
    server = _server(target, facts)
    shown = None if server is None else server.preset.load_metrics
    if server is None or shown is None or not shown.model_label or server.conditional or server.has_env_from:
        return
    if server.has_option(*server.preset.config_flags) or any("$" in word for word in server.argv):
        return
    served = _served(server)
    asked = list(label_values(target, shown.names[0].partition(":")[0], shown.model_label))
    annotations = target.read(Object).metadata.annotations
    if annotations.get(_MANAGED) == "true" and _MODEL in annotations:
        asked.append((field_path(("metadata", "annotations", _MODEL)), annotations[_MODEL]))
    for path, name in asked:
        if served and name not in served:
            yield Finding(
                path,
                f"The server ({server.name}) has metrics of {min(served)}. The autoscaler asks for "
                f"those of {name}, which have no value, so it never adds a pod.",
                f"Ask for {min(served)}, or serve the model by the other name.",
                Certainty.LIKELY,
            )


def _served(server: Server) -> set[str]:
    """All names by which a server serves its model; empty if they are unknown."""
    given = server.options.value(server.preset.served_name_flags)
    if given is None:
        return set(filter(None, named_models(server)))
    following = server.argv[server.argv.index(given) :] if given in server.argv else (given,)
    return {*takewhile(lambda word: not word.startswith("-"), following)}


def _server(target: Target, facts: Facts) -> Server | None:
    """The only server of the scaled pods; None if there are several."""
    servers = [
        server
        for view in pods_of(scaled_by(target), facts)
        for container in view.containers
        if container.role is Role.MAIN and (server := recognised(container, facts)) is not None
    ]
    return servers[0] if len(servers) == 1 else None


def _value_for(known: KnownMetric, option: MaximumOption, target: Target, facts: Facts) -> int | None:
    """The option's value in the only server of the scaled pods; None if it is unknown."""
    server = _server(target, facts)
    if server is None or server.conditional or server.has_option(*option.unless_flags):
        return None
    metrics = server.preset.load_metrics
    shown = metrics is not None and not set(known.names).isdisjoint(metrics.names)
    return _value(option, server) if shown else None


def _value(option: MaximumOption, server: Server) -> int | None:
    value = server.configured(option.flags, option.env)
    if value is not None:
        return whole_number(value)
    changed = server.has_env_from or server.may_have_option(*option.flags, *option.unless_flags)
    return None if changed or not () < server.version < release(option.before) else option.default


RULE = rule(__name__, check, (AUTOSCALER, SCALED_OBJECT))
