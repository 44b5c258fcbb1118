"""What liveness and readiness of a serving container ask: by annotation, preset or its own readinessProbe.

`policies.probes.endpoints` shows where a known server answers. Law: unsure is None.

A readiness that waits for peers, for a database or for a model restarts healthy servers when it is asked as
liveness: Qdrant's `/readyz` while a shard moves, CockroachDB's `/health?ready=1`, LiteLLM's
`/health/readiness`. It is only taken over if the path's name is about being alive, or if the server is known
and the path is its own liveness.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from policies.containers.programs import programs
from policies.core.annotations import HEALTH_PATH, HEALTH_PORT, LIVE_PATH, READY_PATH
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.kube import probe_timing
from policies.kube.json import Json, integer, mapping, text
from policies.kube.metadata import annotations_of
from policies.kube.pods import Container, Role
from policies.probes.endpoints import (
    Health,
    declared_http_port,
    health_paths,
    http_get,
    may_be_asked,
    preset_health,
    server_port,
    speaks_tls,
)
from policies.probes.preset import Protocol
from policies.probes.recognition import Server, port_number
from policies.probes.serving import HEALTH_ANNOTATIONS, istio_came_first, recognised, serving_containers
from policies.probes.settings import Mirror, StandardProbes, Unknown

DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"


class AnnotationError(ValueError):
    """Annotations that can't be used: which ones, why, and how to mend them."""

    def __init__(self, *findings: Finding) -> None:
        super().__init__(" ".join(finding.message for finding in findings))
        self.findings = findings


def known_health(pod: Json, container: Container, facts: Facts) -> Health | None:
    """Where a serving container answers for its health, by annotation or preset; None when unsure.

    Annotations that can't be used count as none; `annotated_health` reports why.
    """
    return facts.pod_cache(pod).once_for(container, _known_health, pod, container, facts)


def _known_health(pod: Json, container: Container, facts: Facts) -> Health | None:
    settings = facts.settings(StandardProbes)
    try:
        annotated = annotated_health(pod, container, facts)
    except AnnotationError:
        return None
    preset = preset_health(container, settings)
    if annotated is None or preset is None:
        return annotated or preset
    return Health(annotated.source, annotated.live or preset.live, annotated.ready or preset.ready)


def right_port(pod: Json, container: Container, probe: Any, facts: Facts) -> int | None:
    """The port on which the known server answers what a probe asks on another one.

    None where the probe may be right: an annotation names another port, or another program of the container
    or another container of the pod may answer there.
    """
    asked = mapping(probe, "httpGet")
    health = known_health(pod, container, facts)
    path = text(asked, "path").partition("?")[0]
    if health is None or health.source == ANNOTATION or not path or asked.get("host"):
        return None
    known = {
        text(handler, "httpGet", "path"): integer(handler, "httpGet", "port", default=0)
        for handler in (health.live, health.ready)
        if handler
    }
    port = port_number(container.spec, asked.get("port"))
    if path not in known or port in (None, known[path]) or len(programs(container)) > 1:
        return None
    others = (other for other in facts.view(pod).containers if other.name != container.name)
    return None if any(port in other.tcp_ports for other in others) else known[path]


def served_port(pod: Json, container: Container, facts: Facts) -> int | None:
    """The only port on which a pod listens as far as is known: that of a known server's health. None if other
    programs may listen."""
    health = known_health(pod, container, facts)
    several = len(programs(container)) > 1 or len(facts.view(pod).running) > 1
    port = integer(mapping(health.ready if health else None), "httpGet", "port", default=0)
    return None if several else port or None


# --- annotations -----------------------------------------------------------------------------


def annotated_health(pod: Json, container: Container, facts: Facts) -> Health | None:
    """The endpoints that the pod's annotations give a container; None if they give none.

    Raises AnnotationError when they can't be used.
    """
    given = dict(_health_annotations(pod, container, facts)) if facts.view(pod).ours else None
    if not given:
        return None
    if wrong := [finding for name in given if (finding := _misread(container, name, *given[name]))]:
        raise AnnotationError(*wrong)
    server = recognised(container, facts)
    if server is not None and server.preset.protocol is not Protocol.HTTP:
        server = None  # the annotations speak of HTTP
    port = _annotated_port(container, given, server)
    paths = {name: value for name, (_, value) in given.items() if name != HEALTH_PORT}
    live = paths.get(LIVE_PATH, paths.get(HEALTH_PATH))
    ready = paths.get(READY_PATH, paths.get(HEALTH_PATH))
    if not paths:
        live, ready = health_paths(server) if server else (None, None)
    if live is None and ready is None:
        key, _ = given[HEALTH_PORT]
        raise AnnotationError(
            _finding(
                key,
                "has a port, but no annotation has a path.",
                f"Add {HEALTH_PATH} with the path of the health endpoint, such as /health.",
            )
        )
    tls = speaks_tls(container, server, port)
    handlers = (http_get(path, port, tls=tls) if path else None for path in (live, ready))
    return Health(ANNOTATION, *handlers)


def _health_annotations(
    pod: Json, container: Container, facts: Facts
) -> Iterator[tuple[str, tuple[str, str]]]:
    """(annotation without suffix, (key as written, value)) of the annotations for one container."""
    annotations = facts.view(pod).ours
    for name in HEALTH_ANNOTATIONS:
        suffixed = f"{name}.{container.name}"
        if suffixed in annotations:
            yield name, (suffixed, str(annotations[suffixed]))
        elif name in annotations and is_meant(pod, container, facts):
            yield name, (name, str(annotations[name]))


def is_meant(pod: Json, container: Container, facts: Facts) -> bool:
    """Whether a health annotation without a container suffix means this container.

    It means the only serving container, or the one that `kubectl.kubernetes.io/default-container`
    names, or the only one that declares the port in `mlchassis.dev/health-port`.
    """
    return facts.pod_cache(pod).once(_meant, pod, facts) == container.name


def _meant(pod: Json, facts: Facts) -> str | None:
    """The name of the container that a health annotation without a suffix means."""
    serving = [item for item in serving_containers(pod, facts) if item.role is Role.MAIN]
    if len(serving) > 1:
        annotations = annotations_of(pod)
        default, port = annotations.get(DEFAULT_CONTAINER), annotations.get(HEALTH_PORT)
        named = [item for item in serving if item.name == default]
        declaring = [item for item in serving if port_number(item.spec, port) in item.tcp_ports]
        serving = named or declaring
    return serving[0].name if len(serving) == 1 else None


def _annotated_port(container: Container, given: dict[str, tuple[str, str]], server: Server | None) -> int:
    if HEALTH_PORT in given:
        port = port_number(container.spec, given[HEALTH_PORT][1].strip())
    else:
        port = (server and server_port(container, server)) or declared_http_port(container.spec)
    if port is None:
        key, _ = next(iter(given.values()))
        raise AnnotationError(
            _finding(
                key,
                f"has no effect: the port on which container {container.name} answers is unknown.",
                f"Add {HEALTH_PORT}, or name the container's port http.",
            )
        )
    return port


def _misread(container: Container, name: str, key: str, value: str) -> Finding | None:
    """The faults in the value of one health annotation."""
    if name == HEALTH_PORT:
        if port_number(container.spec, value.strip()) is not None:
            return None
        return _finding(
            key,
            f"is {value!r}: neither a port number nor the name of a port of container {container.name}.",
            "Write a number from 1 to 65535 or the name of a declared port.",
        )
    if value.startswith("/") and value.isprintable() and " " not in value and len(value) <= 2048:
        return None
    return _finding(
        key, f"is {value!r}, which is not an HTTP path.", "Write a path that begins with /, such as /health."
    )


def _finding(key: str, what: str, hint: str) -> Finding:
    return Finding(f"metadata.annotations[{key}]", f"Annotation {key} {what}", hint)


# --- the first source that knows ------------------------------------------------------------------


ANNOTATION: Final = "annotation"
MIRRORED: Final = "readinessProbe"
NOBODY: Final = "nobody"


class Handlers(NamedTuple):
    """What liveness and readiness ask; None where nothing is known."""

    live: Json | None
    ready: Json | None
    live_from: str
    """The source: `ANNOTATION`, `preset <name>`, `MIRRORED` (never asked at the start) or `NOBODY`."""
    ready_from: str


def handlers(pod: Json, container: Container, settings: StandardProbes, facts: Facts) -> Handlers:
    """The handlers for liveness and readiness, each from the first source that knows. Raises
    AnnotationError."""
    known = [annotated_health(pod, container, facts), preset_health(container, settings)]
    after_istio = istio_came_first(pod)
    if after_istio:  # only what Istio has rewritten already gets past its proxy
        known = []
    ready, ready_from = next(((each.ready, each.source) for each in known if each and each.ready), (None, ""))
    live, live_from = next(((each.live, each.source) for each in known if each and each.live), (None, ""))
    if live is None:
        own = container.spec.get("readinessProbe")
        live, live_from = _mirrored(ready if own is None else own, container, settings), MIRRORED
    if live is None and ready is None and not after_istio:
        live = ready = _unknown(container, settings)
        live_from = ready_from = NOBODY
    return Handlers(live, ready, live_from, ready_from)


def _unknown(container: Container, settings: StandardProbes) -> Json | None:
    """The probes that the setting `unknown` gives to an unknown container."""
    if settings.recogniser.server(container) is not None:
        return None  # known, but not where it answers: a guess may kill it
    port = declared_http_port(container.spec)
    if settings.unknown is Unknown.TCP:
        port = port or next(iter(container.tcp_ports), None)
        return {"tcpSocket": {"port": port}} if port else None
    if settings.unknown is Unknown.HTTP:
        return http_get("/health", port) if port else None
    return None


# --- the own readinessProbe, asked as liveness -----------------------------------------------------

_HANDLERS: Final = ("httpGet", "tcpSocket", "grpc", "exec")
_ALIVE: Final = frozenset({"live", "livez", "liveness", "alive", "liveliness", "livecheck"})
_HEALTHY: Final = "/-/healthy"
"""Prometheus and its relatives."""
_GENERAL: Final = frozenset(
    {"health", "healthz", "healthcheck", "health-check", "health_check", "ping", "heartbeat"}
)
"""Paths that may be about being alive, or about all dependencies of the server."""
_OTHERWISE: Final = ("ready", "readi", "status", "start", "deep", "full")
_NEVER: Final = 24 * 3600
"""Seconds. Who lets a check fail for a day has switched it off."""


def handler_of(probe: Any) -> Json:
    """The handler of a probe, without its timing."""
    return {key: probe[key] for key in _HANDLERS if isinstance(probe, dict) and probe.get(key)}


def _mirrored(readiness: Any, container: Container, settings: StandardProbes) -> Json | None:
    """The handler of a readinessProbe, if liveness may ask the same; None if not, or if unsure."""
    handler = handler_of(readiness)
    (kind, action), *_ = handler.items() or [("", None)]
    if settings.mirror is Mirror.OFF or not isinstance(action, dict) or action.get("host"):
        return None
    if probe_timing.give_up(readiness) >= _NEVER:
        return None
    similar = settings.mirror is Mirror.SIMILAR
    if kind == "httpGet":
        alike = _is_about_liveness(text(action, "path"), similar=similar)
    elif kind == "grpc":
        service = text(action, "service").lower()
        alike = service in _ALIVE or (similar and not service)
    else:
        alike = similar and kind == "tcpSocket"
    return handler if alike or _is_own(kind, action, container, settings) else None


def _is_about_liveness(path: str, *, similar: bool) -> bool:
    if any(word in path.lower() for word in _OTHERWISE):
        return False
    route = path.partition("?")[0].rstrip("/")
    name = route.rpartition("/")[2].lower()
    return name in _ALIVE or route.endswith(_HEALTHY) or (similar and name in _GENERAL)


def _is_own(kind: str, action: Json, container: Container, settings: StandardProbes) -> bool:
    """Whether a handler asks the liveness of the server that is known to run."""
    server = settings.recogniser.server(container)
    if server is None or not may_be_asked(server):
        return False
    if kind == "grpc":
        of = server.preset.grpc_service or ""
        return server.preset.protocol is Protocol.GRPC and text(action, "service").lower() == of.lower()
    return kind == "httpGet" and text(action, "path") == health_paths(server)[0]
