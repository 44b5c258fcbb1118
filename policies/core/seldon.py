"""The fields that Seldon's operator gives to the containers of a graph.

Source: github.com/SeldonIO/seldon-core v1.18.2, operator/controllers/seldondeployment_controller.go
(createContainerService) and operator/apis/machinelearning.seldon.io/v1/defaults.go (DefaultSeldonDeployment);
the same in 1.15. Settings of the operator may move the first ports.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from policies.kube.json import Json, integer, mapping, maps, text
from policies.kube.pods import Container

_FIRST_HTTP, _FIRST_GRPC = 9000, 9500
_OTHERS: Final = ("seldon-container-engine", "tfserving")
"""Containers of a graph's pods that are no units of it."""
_PROBES: Final = {"livenessProbe": 60, "readinessProbe": 20}
"""Each with its initialDelaySeconds."""
_TIMES: Final = {"periodSeconds": 5, "successThreshold": 1, "failureThreshold": 3, "timeoutSeconds": 1}
_PRE_STOP: Final[Json] = {"preStop": {"exec": {"command": ["/bin/sh", "-c", "/bin/sleep 10"]}}}


class Graphs:
    """The graphs of a SeldonDeployment."""

    def __init__(self, obj: Json) -> None:
        predictors = maps(obj, "spec", "predictors")
        self._all_by_grpc = text(obj, "spec", "transport") == "grpc"
        self._units: list[dict[str, Json]] = []
        """Of each predictor, by name: the first one of a name in the order of the graph."""
        names: dict[str, None] = {}
        for predictor in predictors:
            units = list(_units(mapping(predictor, "graph")))
            self._units.append({text(each, "name"): each for each in reversed(units)})
            for component in maps(predictor, "componentSpecs"):
                names |= dict.fromkeys(text(each, "name") for each in maps(component, "spec", "containers"))
            names |= dict.fromkeys(text(each, "name") for each in units if _is_prepackaged(each))
        self._index = {name: index for index, name in enumerate(names)}
        """The number that is added to the first port, by the container's name."""

    def given_to(self, predictor: int, container: Container) -> Json:
        """The fields that a container gets in its pods; empty if it is no unit of its predictor's graph, or
        that of a prepackaged server."""
        unit = self._units[predictor].get(container.name)
        if unit is None or container.name in _OTHERS or _is_prepackaged(unit):
            return {}
        given = maps(container.spec, "ports")
        ports = {text(each, "name"): integer(each, "containerPort", default=0) for each in given}
        index = self._index[container.name]
        http, grpc = ports.get("http") or _FIRST_HTTP + index, ports.get("grpc") or _FIRST_GRPC + index
        by_grpc = self._all_by_grpc or text(unit, "endpoint", "type") == "GRPC"
        check = {"tcpSocket": {"port": grpc if by_grpc else http}}
        fields: dict[str, Any] = {
            field: {**check, "initialDelaySeconds": delay, **_TIMES} for field, delay in _PROBES.items()
        }
        fields["lifecycle"] = _PRE_STOP
        if not given:
            named = (("http", http), ("grpc", grpc))
            fields["ports"] = [{"name": name, "containerPort": port} for name, port in named]
        return fields


def _units(graph: Json) -> Iterator[Json]:
    """The units of a graph, each before its children."""
    waiting = [graph]
    while waiting:
        unit = waiting.pop()
        yield unit
        waiting += reversed(maps(unit, "children"))


def _is_prepackaged(unit: Json) -> bool:
    return text(unit, "implementation") not in ("", "UNKNOWN_IMPLEMENTATION")
