"""Where a recognised server answers for its health: its port, its paths, whether a probe reaches it.

From its flags, its variables and the declared ports. Law: unsure is None, for a wrong probe is an outage.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from policies.containers.programs import has_option, programs
from policies.kube.json import Json, maps, text
from policies.kube.pods import Container, tcp_ports
from policies.probes.preset import Preset, Protocol
from policies.probes.recognition import Part, Server
from policies.probes.settings import StandardProbes


@dataclass(frozen=True, slots=True)
class Health:
    """A known health endpoint: handlers such as `{"httpGet": {"path": "/health", "port": 8000}}`.

    None where that half is not known. `source` is `annotation` or `preset <name>`.
    """

    source: str
    live: Json | None
    ready: Json | None


def preset_health(container: Container, settings: StandardProbes) -> Health | None:
    """Where the recognised server answers, its flags and variables heeded; None when unsure."""
    return container.cache.once_for(settings.recogniser, _preset_health, container, settings)


def _preset_health(container: Container, settings: StandardProbes) -> Health | None:
    server = settings.recogniser.server(container)
    port = server_port(container, server) if server else None
    if server is None or port is None or unsure(container, server, port):
        return None
    source = f"preset {server.name}"
    if server.preset.protocol is Protocol.GRPC:
        service = server.preset.grpc_service
        handler: Json = {"grpc": {"port": port} | ({"service": service} if service else {})}
        return Health(source, handler, handler)
    tls = speaks_tls(container, server, port)
    live, ready = (http_get(path, port, tls=tls) if path else None for path in health_paths(server))
    if live and server.preset.live_socket:
        live = {"tcpSocket": {"port": port}}
    return Health(source, live, ready)


def may_be_asked(server: Server) -> bool:
    """Whether a probe can reach the server wherever its port is, and finds it in every such pod."""
    elsewhere = _only_loopback(server) or _answers_elsewhere(server)
    return not (server.sometimes or elsewhere or server.part is not Part.SERVES)


def unsure(container: Container, server: Server, port: int | None) -> tuple[str, str] | None:
    """Why a probe of a recognised server could fail although all is well, and how to mend that, each as part
    of a sentence; None where it could not. `port`: see `server_port`."""
    preset = server.preset
    if server.sometimes:
        return "a script starts it only in some cases", "Write probes for the pods in which it serves"
    if server.part is Part.WORKER:
        return "it is a worker of a group and answers no client", "Write probes for the pod that serves"
    if server.part is Part.EITHER:
        return (
            "it is one of several nodes, of which only the first serves",
            "Write probes for the first node only",
        )
    if preset.doubt:
        return preset.doubt, preset.advice or _ANNOTATE
    if server.outdated:
        return "no health endpoint of this version is known", preset.advice or _ANNOTATE
    if server.undated:
        return "its endpoint depends on its version, which the image's tag does not give", _ANNOTATE
    if _only_loopback(server):
        flag = "".join(f" ({flag} 0.0.0.0)" for flag in preset.host_flags[:1])
        return (
            "it listens on loopback only",
            f"Make it listen on all addresses{flag}, or write probes with a command",
        )
    if _has_own_config(container, preset):
        return "a mounted file may change its port or require TLS", _ANNOTATE
    if _answers_elsewhere(server):
        return "its options move its health endpoint or keep it from everybody", _ANNOTATE
    if port is None:
        return ("its port is not certain", "Declare the port it listens on, or give it in a flag")
    if preset.protocol is Protocol.GRPC:
        tls = speaks_tls(container, server, port)
        return ("the kubelet's gRPC probes don't use TLS", "Write probes with a command") if tls else None
    if health_paths(server) == (None, None):
        named = preset.live_path or preset.ready_path
        what = "the model's name, which is part of its health endpoint," if named else "its health endpoint"
        return f"{what} is unknown", _ANNOTATE
    return None


_ANNOTATE: Final = "Annotate the pod template with mlchassis.dev/health-path, if the kubelet can ask it"


def alive_by(container: Container, server: Server) -> str:
    """What liveness should ask of a recognised server, in words."""
    live, _ = health_paths(server)
    port = server_port(container, server)
    if live and not server.preset.live_socket:
        return f"GET {live} on port {port}" if port else f"GET {live}"
    return server.preset.alive or ("a tcpSocket" + (f" on port {port}" if port else " on its port"))


def http_get(path: str, port: int, *, tls: bool = False) -> Json:
    """An httpGet handler."""
    return {"httpGet": {"path": path, "port": port} | ({"scheme": "HTTPS"} if tls else {})}


# --- the port ---------------------------------------------------------------------------------

_NAMES: Final = {
    Protocol.HTTP: ("http", "https", "http1", "rest", "web", "api"),
    Protocol.GRPC: ("grpc", "h2c"),
}
_OTHERS: Final = {
    Protocol.HTTP: re.compile("grpc|h2c|metric|prom|admin|mgmt|management"),
    Protocol.GRPC: re.compile("http|rest|metric|prom|admin|mgmt|management"),
}
"""Names of ports that speak something else, or of something else."""


def server_port(container: Container, server: Server) -> int | None:
    """The port on which a recognised server answers; None if it is undecided.

    It is the value of its flag or variable; else the preset's port, if it is declared and no unread option
    may change it; else a declared port with the protocol's name; else the preset's port, if no declared port
    contradicts it; else the only declared one.
    """
    preset = server.preset
    told = server.told(preset.port_flags, preset.port_env)
    if told is not None and not _HOST_ALONE.fullmatch(told):
        return _port_in(told)
    if preset.own_port:
        return preset.port
    declared = container.tcp_ports
    possible = [port for port, name in declared.items() if not _OTHERS[preset.protocol].search(name)]
    moved = _may_have_moved(server)
    if preset.port in possible and not moved:
        return preset.port
    names = (*_NAMES[preset.protocol], *preset.port_names)
    named = [port for port, name in declared.items() if name in names]
    if len(named) == 1:
        return named[0]
    if preset.port in declared or (not possible and not moved):
        return preset.port or None
    return possible[0] if moved and len(possible) == 1 else None


def _may_have_moved(server: Server) -> bool:
    """Whether something that can't be read here may have set another port than the preset's own."""
    preset = server.preset
    return (
        not preset.port
        or server.has_option(*preset.config_flags)
        or server.may_have_option(*preset.port_flags, *preset.config_flags)
        or server.has_variable(*preset.config_env)
        or (server.open and bool(preset.port_env))
        or (preset.image_port and not server.own_image)
        or server.by_name
    )


def declared_http_port(container: Json) -> int | None:
    """The declared TCP port that speaks HTTP: the only one that may, or the only one named so."""
    declared = tcp_ports(container)
    possible = [port for port, name in declared.items() if not _OTHERS[Protocol.HTTP].search(name)]
    if len(declared) == 1:
        return possible[0] if possible else None
    named = [port for port, name in declared.items() if name in _NAMES[Protocol.HTTP]]
    return named[0] if len(named) == 1 else None


_HOST_ALONE: Final = re.compile(r"[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+")
"""In a URL the scheme would set the port: Ollama's `http://0.0.0.0` is port 80."""


def _port_in(value: str) -> int | None:
    """`8000`, `0.0.0.0:8000`, `http://0.0.0.0:8000/` -> 8000."""
    digits = value.rpartition("//")[2].partition("/")[0].rpartition(":")[2]
    return int(digits) if digits.isascii() and digits.isdigit() and 0 < int(digits) < 65536 else None


# --- what a probe meets there ------------------------------------------------------------------


def _answers_elsewhere(server: Server) -> bool:
    """Whether its options remove the endpoint, move it to another path, or restrict who may ask."""
    preset = server.preset
    return (
        server.has_option(*preset.unless_flags)
        or server.may_have_option(*preset.unless_flags, *preset.headless_flags, *preset.tls_flags)
        or server.has_variable(*preset.unless_env)
    )


def _has_own_config(container: Container, preset: Preset) -> bool:
    """Whether something is mounted where the server reads its configuration."""
    mounted = [text(mount, "mountPath").rstrip("/") for mount in maps(container.spec, "volumeMounts")]
    return any(f"{path}/".startswith(f"{place}/") for path in mounted for place in preset.config_mounts)


def _only_loopback(server: Server) -> bool:
    """Whether the server listens only on loopback, where kubelet's probes can't reach it."""
    preset = server.preset
    told = server.told(preset.host_flags, preset.host_env)
    if told is None:
        return preset.loopback and not (preset.image_listens and server.own_image)
    if told.startswith(("unix:", "/")) or told.endswith(".sock"):
        return True  # a Unix socket
    host = told.rpartition("//")[2].strip("[]")
    return host.startswith(("127.", "localhost", "::1"))


def speaks_tls(container: Container, server: Server | None, port: int) -> bool:
    """Whether a port of a container speaks TLS, by its name, or by the flags and variables of its
    programs."""
    if container.tcp_ports.get(port, "").startswith("https"):
        return True
    if server is None:
        started = programs(container)
        return any(has_option(program, "--ssl-keyfile", "--keyfile") for program in started)
    words = tuple(part for word in server.words for part in word.split())  # options within an option too
    told = server.variables.keys()
    return has_option(words, *server.preset.tls_flags) or not told.isdisjoint(server.preset.tls_env)


def health_paths(server: Server) -> tuple[str | None, str | None]:
    """The liveness and readiness paths, with the model's name put in; None where it isn't known."""
    preset = server.preset
    if "{model}" not in f"{preset.live_path}{preset.ready_path}":
        return preset.live_path, preset.ready_path
    model = server.told(preset.model_flags, preset.model_env)
    if model is None and not (server.open and preset.model_env):
        model = preset.default_model
    if not model or not model.replace("-", "").replace("_", "").replace(".", "").isalnum():
        return None, None
    live, ready = (path and path.replace("{model}", model) for path in (preset.live_path, preset.ready_path))
    return live, ready
