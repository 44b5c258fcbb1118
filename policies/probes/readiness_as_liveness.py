"""Whether a readinessProbe may be asked as liveness, too, because it shows that the server is alive.

A readiness that waits for peers, for a database or for a model restarts healthy servers when it is asked as
liveness: Qdrant's `/readyz` while a shard moves, CockroachDB's `/health?ready=1`, LiteLLM's
`/health/readiness`. Law: the path's name is about being alive, or the server is known and the path is its own
liveness.
"""

from __future__ import annotations

from typing import Any, Final

from policies.kube import probe_timing
from policies.kube.json import Json, text
from policies.kube.pods import Container
from policies.probes.endpoints import health_paths, may_be_asked
from policies.probes.preset import Protocol
from policies.probes.settings import Mirror, StandardProbes

HANDLERS: Final = ("httpGet", "tcpSocket", "grpc", "exec")
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
    return {key: probe[key] for key in HANDLERS if isinstance(probe, dict) and probe.get(key)}


def mirrored(readiness: Any, container: Container, settings: StandardProbes) -> Json | None:
    """The handler of a readinessProbe, if liveness may ask the same; None if not, or if unsure."""
    handler = handler_of(readiness)
    (kind, action), *_ = handler.items() or [("", None)]
    if settings.mirror is Mirror.OFF or not isinstance(action, dict) or action.get("host"):
        return None
    if probe_timing.give_up(readiness) >= _NEVER:
        return None
    similar = settings.mirror is Mirror.SIMILAR
    if kind == "httpGet":
        path = text(action, "path")
        alike = _says_alive(path) or (similar and _is_general(path)) or _is_own(path, container, settings)
    elif kind == "grpc":
        service = text(action, "service").lower()
        alike = service in _ALIVE or (similar and not service) or _is_own_grpc(service, container, settings)
    else:
        alike = similar and kind == "tcpSocket"
    return handler if alike else None


def _says_alive(path: str) -> bool:
    """Whether a path is by its own name about being alive."""
    route = path.partition("?")[0].rstrip("/")
    if any(word in path.lower() for word in _OTHERWISE):
        return False
    return route.rpartition("/")[2].lower() in _ALIVE or route.endswith(_HEALTHY)


def _is_general(path: str) -> bool:
    route = path.partition("?")[0].rstrip("/")
    return route.rpartition("/")[2].lower() in _GENERAL and not any(
        word in path.lower() for word in _OTHERWISE
    )


def _is_own(path: str, container: Container, settings: StandardProbes) -> bool:
    """Whether a path is the liveness of the server that is known to run."""
    server = settings.recogniser.server(container)
    return server is not None and may_be_asked(server) and path == health_paths(server)[0]


def _is_own_grpc(service: str, container: Container, settings: StandardProbes) -> bool:
    server = settings.recogniser.server(container)
    if server is None or not may_be_asked(server) or server.preset.protocol is not Protocol.GRPC:
        return False
    return service == (server.preset.grpc_service or "").lower()
