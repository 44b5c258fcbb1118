"""The metrics of autoscalers, by name, and what `metrics.yaml` knows about them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Final

from msgspec import Struct

from policies.core import data
from policies.core.settings import Field, Model
from policies.core.target import Target
from policies.kube.group_kinds import AUTOSCALER, SCALED_OBJECT
from policies.kube.json import mapping, maps, text
from policies.kube.objects.scaling import HorizontalPodAutoscaler, NamedMetric, ScaledObject, Trigger
from policies.kube.quantities import parse_quantity

_MAX: Final = 32
"""Metrics of one autoscaler that are read."""
_MAX_QUERY: Final = 4096
"""Characters. A longer query is not read."""
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_CHANGES: Final = re.compile(r"[*/+]|\b(?:sum_over_time|count|rate|increase)\b")
"""Operators and functions after which a value may exceed the metric's maximum."""


class MaximumOption(Model):
    """The option of a server that is the greatest value of a metric."""

    flags: tuple[str, ...] = Field(min_length=1, description="the flags that set it")
    env: tuple[str, ...] = Field((), description="environment variables that set it")
    default: int | None = Field(None, ge=1, description="its value if nothing sets it, if known")
    before: str = Field("", description="the first version with another default, by the tag of the image")
    unless_flags: tuple[str, ...] = Field((), description="flags with which a pod may count more")


class KnownMetric(Model):
    """An entry of `metrics.yaml`."""

    names: tuple[str, ...] = Field(min_length=1, description="its names")
    maximum: int | None = Field(None, ge=1, description="the greatest value for one pod; absent: no limit")
    maximum_option: MaximumOption | None = Field(None, description="the option that sets the maximum")
    misleads: str | None = Field(
        None, description="why it does not show load: the end of a sentence that begins with its name"
    )
    source: str = Field(description="the documentation or source that shows it")


class UsedMetric(Struct, frozen=True):
    """A metric of an autoscaler."""

    path: str
    name: str
    """The name of `metrics.yaml`; empty for other metrics."""
    known: KnownMetric | None
    target: Decimal | None = None
    """The target for one pod; None if it is unknown, or if a query changes the value."""
    of_pods: bool = False
    """Whether it is read from the scaled pods only. A query may add up those of other workloads."""


def used_metrics(target: Target) -> list[UsedMetric]:
    """The metrics of a HorizontalPodAutoscaler or a ScaledObject, in its order."""
    if target.kind == AUTOSCALER:
        return list(_of_autoscaler(target.read(HorizontalPodAutoscaler)))
    return list(_of_scaled_object(target.read(ScaledObject))) if target.kind == SCALED_OBJECT else []


def _of_autoscaler(autoscaler: HorizontalPodAutoscaler) -> Iterator[UsedMetric]:
    for n, metric in enumerate(autoscaler.spec.metrics[:_MAX]):
        source = metric.pods or metric.object or metric.external
        name = "" if source is None else source.name
        value = None if source is None else _per_pod(source)
        yield UsedMetric(f"spec.metrics[{n}]", name, _by_name().get(_plain(name)), value, bool(metric.pods))


def cpu_targets(autoscaler: HorizontalPodAutoscaler) -> Iterator[tuple[str, int]]:
    """The target in percent of the CPU requests, with its path, if CPU is all that an autoscaler reads."""
    metrics = autoscaler.spec.metrics
    if not metrics and autoscaler.spec.target_cpu_utilization_percentage:
        yield "spec.targetCPUUtilizationPercentage", autoscaler.spec.target_cpu_utilization_percentage
    for n, metric in enumerate(metrics if len(metrics) == 1 else ()):
        resource = metric.resource
        if resource is not None and resource.name == "cpu" and resource.target.average_utilization:
            yield f"spec.metrics[{n}]", resource.target.average_utilization


def named_metrics(target: Target) -> Iterator[tuple[str, list[str]]]:
    """The names in each metric or query of an autoscaler, with its path; those of functions, too."""
    if target.kind == AUTOSCALER:
        yield from ((used.path, [used.name]) for used in used_metrics(target) if used.name)
    elif target.kind == SCALED_OBJECT:
        for n, trigger in enumerate(target.read(ScaledObject).spec.triggers[:_MAX]):
            yield f"spec.triggers[{n}]", _NAME.findall(query_of(trigger))


def label_values(target: Target, prefix: str, label: str) -> Iterator[tuple[str, str]]:
    """The values that an autoscaler asks for in a label of metrics with a prefix, each with its path."""
    if target.kind == AUTOSCALER:
        for n, metric in enumerate(maps(target.obj, "spec", "metrics")[:_MAX]):
            for source in ("pods", "object", "external"):
                asked = mapping(metric, source, "metric")
                value = text(asked, "selector", "matchLabels", label)
                if value and _plain(text(asked, "name")).startswith(f"{prefix}_"):
                    yield f"spec.metrics[{n}]", value
    elif target.kind == SCALED_OBJECT:
        for n, trigger in enumerate(target.read(ScaledObject).spec.triggers[:_MAX]):
            for name, matchers in _selected(query_of(trigger)):
                for matcher in matchers.split(",") if _plain(name).startswith(f"{prefix}_") else ():
                    key, _, value = matcher.partition("=")
                    if key.strip() == label and value.startswith('"'):
                        yield f"spec.triggers[{n}]", value.strip().strip('"')


def _selected(query: str) -> Iterator[tuple[str, str]]:
    """The names in a query that matchers follow, with the matchers."""
    before, *parts = query.split("{")
    for part in parts:
        names = _NAME.findall(before)
        matchers, _, after = part.partition("}")
        if names and before.endswith(names[-1]):
            yield names[-1], matchers
        before = after


def query_of(trigger: Trigger) -> str:
    """The query of a trigger by Prometheus; empty for others, and for a query that is too long."""
    query = trigger.metadata.get("query", "") if trigger.type == "prometheus" else ""
    return query if len(query) <= _MAX_QUERY else ""


def _per_pod(source: NamedMetric) -> Decimal | None:
    """The target for one pod. A target of type Value may be compared with the sum of all pods."""
    try:
        return None if source.per_pod is None else parse_quantity(source.per_pod)
    except ValueError:
        return None


def _of_scaled_object(scaled: ScaledObject) -> Iterator[UsedMetric]:
    for n, trigger in enumerate(scaled.spec.triggers[:_MAX]):
        query = query_of(trigger)
        names = [word for word in set(_NAME.findall(query)) if _plain(word) in _by_name()]
        known = _by_name()[_plain(names[0])] if len(names) == 1 else None
        value = None if known is None or _CHANGES.search(query) else _threshold(trigger)
        yield UsedMetric(f"spec.triggers[{n}]", names[0] if known else "", known, value)


def _threshold(trigger: Trigger) -> Decimal | None:
    if trigger.metric_type not in ("", "AverageValue"):
        return None
    try:
        return Decimal(trigger.metadata.get("threshold", ""))
    except ArithmeticError:
        return None


def _plain(name: str) -> str:
    return name.replace(":", "_")


@data.table
def _by_name() -> Mapping[str, KnownMetric]:
    known = data.load_list(KnownMetric, __package__, "metrics.yaml")
    return {_plain(name): metric for metric in known for name in metric.names}
