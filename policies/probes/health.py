"""The handlers of liveness and readiness, from annotations, the preset, or the container's readinessProbe.

If in doubt, the handler is None.

A readiness endpoint that waits for peers, a database or a model must not become liveness, because it restarts
healthy servers: Qdrant's `/readyz` while a shard moves, CockroachDB's `/health?ready=1`, LiteLLM's
`/health/readiness`. The webhook copies a readinessProbe only if its path names liveness, or if it is the
liveness path of the recognised server.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace

from policies.containers.programs import runs_alone
from policies.core.annotations import CANARY, HEALTH_PATH, HEALTH_PORT, LIVE_PATH, READY_PATH
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.pod_view import PodView
from policies.core.services import selecting
from policies.kube.json import Json, integer, mapping, text
from policies.kube.names import listed
from policies.kube.pods import Container, Role, port_number
from policies.probes.endpoints import (
    Health,
    Source,
    address_is_certain,
    declared_http_port,
    doubt_about,
    has_own_config,
    health_paths,
    http_get,
    is_asked_elsewhere,
    is_reachable,
    only_loopback,
    port_may_differ,
    preset_health,
    server_port,
    speaks_tls,
    turns_on_tls,
)
from policies.probes.preset import Asks, Protocol, dependency_of
from policies.probes.recognition import Server
from policies.probes.serving import (
    HEALTH_ANNOTATIONS,
    istio_came_first,
    istio_leaves_probes,
    recognised,
    serving_containers,
)
from policies.probes.standard_probes_settings import Mirror, StandardProbes, Unknown

DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"


class AnnotationError(ValueError):
    """Invalid annotations: a finding for each."""

    def __init__(self, *findings: Finding) -> None:
        super().__init__(" ".join(finding.message for finding in findings))
        self.findings = findings


def known_health(pod: PodView, container: Container, facts: Facts) -> Health | None:
    """The health endpoints of a serving container, from annotations and the preset; None if in doubt.

    Invalid annotations count as absent; `annotated_health` reports why.
    """
    return facts.pod_caches[pod].once_for(container, _known_health, pod, container, facts)


def _known_health(pod: PodView, container: Container, facts: Facts) -> Health | None:
    settings = facts.settings(StandardProbes)
    try:
        annotated = annotated_health(pod, container, facts)
    except AnnotationError:
        return None
    preset = _sure_health(pod, container, settings, facts)
    if annotated is None or preset is None:
        return annotated or preset
    return annotated.or_else(preset)


def _sure_health(pod: PodView, container: Container, settings: StandardProbes, facts: Facts) -> Health | None:
    """The endpoints of the recognised server, unless Services tell that it listens on another port."""
    known = preset_health(container, settings)
    return None if known is None or _asked_elsewhere(pod, container, facts) else known


def doubt_in(pod: PodView, container: Container, facts: Facts) -> tuple[str, str] | None:
    """Why a probe of a healthy recognised server could fail, and what the user can do, as `doubt_about`."""
    server = recognised(container, facts)
    if server is None:
        return None
    doubt = doubt_about(container, server, server_port(container, server))
    asked = None if doubt else _asked_elsewhere(pod, container, facts)
    if asked:
        why = f"a Service sends to port {listed(map(str, asked))}, on which a variable may make it listen"
        return why, "Declare the port that it listens on, or set it with a flag"
    return doubt


def _asked_elsewhere(pod: PodView, container: Container, facts: Facts) -> list[int]:
    """The ports that Services ask the pod for, if the container's server may listen there by a variable of
    `envFrom` or another option that cannot be read. No container declares them."""
    server = recognised(container, facts)
    if (
        server is None
        or not port_may_differ(server)
        or server.configured(server.preset.port_flags, server.preset.port_env) is not None
    ):
        return []
    declared = {port for each in pod.containers for port in each.tcp_ports}
    targets = {
        port.port if port.target_port is None else port.target_port
        for service in selecting(pod.typed.metadata.labels, facts)
        for port in service.spec.ports
    }
    numbers = {target for target in targets if isinstance(target, int)}
    sent = numbers == targets and numbers.isdisjoint({*declared, server_port(container, server)})
    return sorted(numbers) if sent else []


def right_port(pod: PodView, container: Container, probe: Any, facts: Facts) -> int | None:
    """The port on which the recognised server answers the path that a probe asks on another port.

    None if the probe may be right: an annotation names the port, or another program or container of the pod
    may answer on it.
    """
    asked = mapping(probe, "httpGet")
    health = known_health(pod, container, facts)
    path = text(asked, "path").partition("?")[0]
    if (
        health is None
        or ANNOTATION in (health.live_source, health.ready_source)
        or not path
        or asked.get("host")
    ):
        return None
    known = {
        text(handler, "httpGet", "path"): integer(handler, "httpGet", "port", default=0)
        for handler in (health.live, health.ready)
        if handler
    }
    port = port_number(container.typed, asked.get("port"))
    if path not in known or port in (None, known[path]) or not runs_alone(container):
        return None
    others = (other for other in pod.running if other.name != container.name)
    # One that declares no port may listen on any.
    return None if any(port in other.tcp_ports or not other.tcp_ports for other in others) else known[path]


def needs_tls(pod: PodView, container: Container, probe: Any, facts: Facts) -> bool:
    """Whether a probe without TLS asks the port of the pod's only program, a recognised server that speaks
    TLS there."""
    asked, server = mapping(probe, "httpGet"), recognised(container, facts)
    if not asked or asked.get("host") or text(asked, "scheme") == "HTTPS":
        return False
    if server is None or server.preset.protocol is not Protocol.HTTP or not turns_on_tls(server):
        return False
    port = served_port(pod, container, facts)
    return port is not None and port == port_number(container.typed, asked.get("port"))


def served_port(pod: PodView, container: Container, facts: Facts) -> int | None:
    """The health port of the pod's only program, a recognised server; None if other programs may listen."""
    health = known_health(pod, container, facts)
    several = not runs_alone(container) or len(pod.running) > 1
    port = integer(mapping(health.ready if health else None), "httpGet", "port", default=0)
    return None if several else port or None


def listens_on_loopback(pod: PodView, container: Container, facts: Facts) -> bool:
    """Whether the pod's only program, a recognised server, listens only on loopback."""
    server = recognised(container, facts)
    if server is None or server.conditional or not only_loopback(server) or not address_is_certain(server):
        return False
    several = not runs_alone(container) or len(pod.running) > 1
    unknown = has_own_config(container, server.preset) or is_asked_elsewhere(container, server)
    return not several and not unknown


# --- annotations -----------------------------------------------------------------------------


def annotated_health(pod: PodView, container: Container, facts: Facts) -> Health | None:
    """The endpoints that the pod's annotations set for a container; None without annotations. Raises
    AnnotationError."""
    given = dict(_health_annotations(pod, container, facts)) if pod.chassis_annotations else None
    if not given:
        return None
    if invalid := [finding for name in given if (finding := _invalid(container, name, *given[name]))]:
        raise AnnotationError(*invalid)
    server = recognised(container, facts)
    if server is not None and server.preset.protocol is not Protocol.HTTP:
        server = None  # the annotations are about HTTP
    port = _annotated_port(container, given, server)
    paths = {name: value for name, (_, value) in given.items() if name not in (HEALTH_PORT, CANARY)}
    live = paths.get(LIVE_PATH, paths.get(HEALTH_PATH))
    ready = paths.get(READY_PATH, paths.get(HEALTH_PATH))
    if not paths:
        live, ready = health_paths(server) if server else (None, None)
    if live is None and ready is None and CANARY not in given:
        hint = f"Add {HEALTH_PATH} with the path of the health endpoint, such as /health."
        raise AnnotationError(
            _finding(given[HEALTH_PORT][0], "has a port, but no annotation has a path.", hint)
        )
    if live and server is not None and dependency_of(server.preset, live) is not None:
        live = None  # a failure of the other service would restart this one; `advise` reports it
    tls = speaks_tls(container, server, port)
    checks = [http_get(path, port, tls=tls) if path else None for path in (live, ready)]
    if live is None and CANARY in given:
        checks[0] = {"tcpSocket": {"port": port}}
    return Health(checks[0], checks[1], ANNOTATION, ANNOTATION)


def _health_annotations(
    pod: PodView, container: Container, facts: Facts
) -> Iterator[tuple[str, tuple[str, str]]]:
    """(annotation without suffix, (key with suffix, value)) for one container."""
    annotations = pod.chassis_annotations
    for name in HEALTH_ANNOTATIONS:
        suffixed = f"{name}.{container.name}"
        if suffixed in annotations:
            yield name, (suffixed, str(annotations[suffixed]))
        elif name in annotations and annotations_apply_to(pod, container, facts):
            yield name, (name, str(annotations[name]))


def annotations_apply_to(pod: PodView, container: Container, facts: Facts) -> bool:
    """Whether health annotations without a container suffix apply to this container."""
    return container.name == facts.pod_caches[pod].once(_default_container, pod, facts)


def _default_container(pod: PodView, facts: Facts) -> str | None:
    """The name of the only serving container, of the one that `kubectl.kubernetes.io/default-container`
    names, or of the only one that declares the port in `mlchassis.dev/health-port`."""
    serving = [item for item in serving_containers(pod, facts) if item.role is Role.MAIN]
    if len(serving) > 1:
        annotations = pod.typed.metadata.annotations
        default, port = annotations.get(DEFAULT_CONTAINER), annotations.get(HEALTH_PORT)
        named = [item for item in serving if item.name == default]
        declaring = [item for item in serving if port_number(item.typed, port) in item.tcp_ports]
        serving = named or declaring
    return serving[0].name if len(serving) == 1 else None


def not_for_liveness(pod: PodView, container: Container, facts: Facts) -> tuple[str, Asks] | None:
    """The annotation with the path of liveness, if that path of the recognised server checks more than its
    process, and what it checks."""
    given = dict(_health_annotations(pod, container, facts)) if pod.chassis_annotations else {}
    key, path = given.get(LIVE_PATH, ("", ""))
    server = recognised(container, facts)
    if not path or server is None or server.preset.protocol is not Protocol.HTTP:
        return None
    others = dependency_of(server.preset, path)
    return None if others is None else (key, others)


def _annotated_port(container: Container, given: dict[str, tuple[str, str]], server: Server | None) -> int:
    if HEALTH_PORT in given:
        port = port_number(container.typed, given[HEALTH_PORT][1].strip())
    else:
        port = (server and server_port(container, server)) or declared_http_port(container.typed)
    if port is None:
        key, _ = next(iter(given.values()))
        what = f"has no effect, because the port on which container {container.name} answers is unknown."
        raise AnnotationError(_finding(key, what, f"Add {HEALTH_PORT}, or name the container's port http."))
    return port


def _invalid(container: Container, name: str, key: str, value: str) -> Finding | None:
    """The fault in the value of one health annotation."""
    if name == HEALTH_PORT:
        if port_number(container.typed, value.strip()) is not None:
            return None
        return _finding(
            key,
            f"is {value!r}: neither a port number nor the name of a port of container {container.name}.",
            "Use a number from 1 to 65535 or the name of a declared port.",
        )
    if name == CANARY:
        return None  # standard-probes reports it
    if value.startswith("/") and value.isprintable() and " " not in value and len(value) <= 2048:
        return None
    return _finding(
        key, f"is {value!r}, which is not an HTTP path.", "Use a path that begins with /, such as /health."
    )


def _finding(key: str, what: str, hint: str) -> Finding:
    return Finding(f"metadata.annotations[{key}]", f"Annotation {key} {what}", hint)


# --- the first source with a handler --------------------------------------------------------------


ANNOTATION: Final = Source("annotation")
MIRRORED: Final = Source("readinessProbe")
"""The source of a liveness handler that is never used for a startupProbe."""
FALLBACK: Final = Source("fallback")


def health_to_inject(pod: PodView, container: Container, settings: StandardProbes, facts: Facts) -> Health:
    """The handlers of liveness and readiness, each from the first source that has one. Raises
    AnnotationError."""
    annotated, preset = annotated_health(pod, container, facts), _sure_health(pod, container, settings, facts)
    known = (annotated or Health()).or_else(preset or Health())
    after_istio = istio_came_first(pod)
    if istio_leaves_probes(pod):
        return Health()
    if after_istio:  # Istio's proxy admits only probes that Istio has rewritten
        known = Health()
    if known.live:
        return known
    readiness = container.spec.get("readinessProbe")
    if live := _mirrored(known.ready if readiness is None else readiness, container, settings):
        return replace(known, live=live, live_source=MIRRORED)
    if known.ready or after_istio:
        return known
    handler = _fallback(container, settings)
    return Health(handler, handler, FALLBACK, FALLBACK)


def _fallback(container: Container, settings: StandardProbes) -> Json | None:
    """The handler that the setting `unknown` gives to a container without a known endpoint."""
    if settings.recogniser.server(container) is not None:
        return None  # the server is recognised and its endpoint is not: a guess could restart it
    port = declared_http_port(container.typed)
    if settings.unknown is Unknown.TCP:
        port = port or next(iter(container.tcp_ports), None)
        return {"tcpSocket": {"port": port}} if port else None
    if settings.unknown is Unknown.HTTP:
        return http_get("/health", port) if port else None
    return None


# --- a readinessProbe copied to liveness ----------------------------------------------------------

_HANDLERS: Final = ("httpGet", "tcpSocket", "grpc", "exec")
_ALIVE: Final = frozenset({"live", "livez", "liveness", "alive", "liveliness", "livecheck"})
_HEALTHY: Final = "/-/healthy"
"""The path of Prometheus, Alertmanager and others."""
_GENERAL: Final = frozenset(
    {"health", "healthz", "healthcheck", "health-check", "health_check", "ping", "heartbeat"}
)
"""Paths that may check only the process, or all dependencies of the server."""
_NOT_LIVENESS: Final = ("ready", "readi", "status", "start", "deep", "full")
_DISABLED: Final = 24 * 3600
"""Seconds. A user who lets a check fail for a day has disabled it."""


def handler_of(probe: Any) -> Json:
    """The handler of a probe, without its timing."""
    return {key: probe[key] for key in _HANDLERS if isinstance(probe, dict) and probe.get(key)}


def _mirrored(readiness: Any, container: Container, settings: StandardProbes) -> Json | None:
    """The handler of a readinessProbe if liveness may use it; None if not, or if in doubt."""
    handler = handler_of(readiness)
    (kind, action), *_ = handler.items() or [("", None)]
    if settings.mirror is Mirror.OFF or not isinstance(action, dict) or action.get("host"):
        return None
    if kind in ("httpGet", "tcpSocket") and port_number(container.typed, action.get("port")) is None:
        return None  # the kubelet cannot send it
    written = container.typed.readiness_probe
    if written is not None and written.give_up >= _DISABLED:
        return None
    similar = settings.mirror is Mirror.SIMILAR
    server = settings.recogniser.server(container)
    path = text(action, "path") if kind == "httpGet" else ""
    if path and server is not None and dependency_of(server.preset, path) is not None:
        return None
    if kind == "httpGet":
        suitable = _names_liveness(text(action, "path"), similar=similar)
    elif kind == "grpc":
        service = text(action, "service").lower()
        suitable = service in _ALIVE or (similar and not service)
    else:
        suitable = similar and kind == "tcpSocket"
    return handler if suitable or _is_server_liveness(kind, action, container, settings) else None


def _names_liveness(path: str, *, similar: bool) -> bool:
    if any(word in path.lower() for word in _NOT_LIVENESS):
        return False
    route = path.partition("?")[0].rstrip("/")
    name = route.rpartition("/")[2].lower()
    return name in _ALIVE or route.endswith(_HEALTHY) or (similar and name in _GENERAL)


def _is_server_liveness(kind: str, action: Json, container: Container, settings: StandardProbes) -> bool:
    """Whether a handler asks the liveness endpoint of the recognised server."""
    server = settings.recogniser.server(container)
    if server is None or not is_reachable(server):
        return False
    if kind == "grpc":
        service = server.preset.grpc_service or ""
        return server.preset.protocol is Protocol.GRPC and text(action, "service").lower() == service.lower()
    return kind == "httpGet" and text(action, "path") == health_paths(server)[0]
