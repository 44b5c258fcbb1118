"""The health endpoints of a recognised server: its port, its paths, and whether a probe can reach them.

They follow from its flags, its variables and the declared ports. If in doubt, they are None: a wrong probe is
an outage.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from policies.containers.programs import has_option, programs, runs_alone
from policies.kube.images import image_matches
from policies.kube.json import Json
from policies.kube.objects.pods import ContainerSpec
from policies.kube.pods import Container, port_number, tcp_ports
from policies.kube.quantities import whole_number
from policies.probes.preset import Preset, Protocol
from policies.probes.recognition import GroupRole, Server
from policies.probes.standard_probes_settings import StandardProbes


class Source(Struct, frozen=True):
    """Where a handler is from."""

    name: str
    is_preset: bool = False

    def __str__(self) -> str:
        return f"preset {self.name}" if self.is_preset else self.name


class Health(Struct, frozen=True):
    """The handlers of liveness and readiness, such as `{"httpGet": {"path": "/health", "port": 8000}}`, and
    where they are from; None if unknown."""

    live: Json | None = None
    ready: Json | None = None
    live_source: Source | None = None
    ready_source: Source | None = None

    def or_else(self, other: Health) -> Health:
        """Each handler from this, or else from the other."""
        live, ready = self if self.live else other, self if self.ready else other
        return Health(live.live, ready.ready, live.live_source, ready.ready_source)


def preset_health(container: Container, settings: StandardProbes) -> Health | None:
    """The endpoints of the recognised server with its flags and variables; None if in doubt."""
    return container.cache.once_for(settings.recogniser, _preset_health, container, settings)


def _preset_health(container: Container, settings: StandardProbes) -> Health | None:
    server = settings.recogniser.server(container)
    port = server_port(container, server) if server else None
    if server is None or port is None or doubt_about(container, server, port):
        return None
    source = Source(server.name, is_preset=True)
    if server.preset.protocol is Protocol.GRPC:
        service = server.preset.grpc_service
        handler: Json = {"grpc": {"port": port} | ({"service": service} if service else {})}
        return Health(handler, handler, source, source)
    tls = speaks_tls(container, server, port)
    live, ready = (http_get(path, port, tls=tls) if path else None for path in health_paths(server))
    if server.preset.live_socket and (live or server.preset.live_path is None):
        live = {"tcpSocket": {"port": port}}
    return Health(live, ready, source, source)


def is_reachable(server: Server) -> bool:
    """Whether a probe on the right port reaches the server in every pod of the template."""
    return (
        server.role is GroupRole.SERVES
        and not server.conditional
        and not only_loopback(server)
        and not _endpoint_changed(server)
    )


def doubt_about(container: Container, server: Server, port: int | None) -> tuple[str, str] | None:
    """Why a probe of a healthy server could fail, and what the user can do, each as part of a sentence; None
    if it cannot fail. `port`: see `server_port`."""
    preset = server.preset
    if server.conditional:
        return "a script starts it only in some cases", "Add probes to the pods in which it serves"
    if server.role is GroupRole.WORKER:
        return "it is a worker of a group and answers no client", "Add probes to the pod that serves"
    if server.role is GroupRole.UNDECIDED:
        why = "it is one of several nodes, and only the first of them serves"
        return why, "Add probes to the first node only"
    if preset.doubt:
        return preset.doubt, preset.advice or _ANNOTATE
    if server.too_old:
        return "no health endpoint of this version is known", preset.advice or _ANNOTATE
    if server.version_missing:
        return "its endpoint depends on its version, which the image's tag does not give", _ANNOTATE
    if only_loopback(server):
        unless = "" if address_is_certain(server) else " unless its configuration sets another address"
        return (
            f"it listens only on loopback{unless}",
            f"{listen_everywhere(preset)}, or add probes with a command",
        )
    if has_own_config(container, preset):
        return "a mounted file may change its port or require TLS", _ANNOTATE
    if _endpoint_changed(server):
        return "its options move its health endpoint or protect it", _ANNOTATE
    sleeps = preset.sleep_flags
    if sleeps and (server.has_option(*sleeps) or server.may_have_option(*sleeps)):
        instead = "Annotate the pod template with mlchassis.dev/live-path and a path that computes nothing"
        return "it may sleep without its model, with which its health endpoint computes", instead
    if port is None:
        return "its port is not certain", "Declare the port that it listens on, or set it with a flag"
    if preset.protocol is Protocol.GRPC:
        tls = speaks_tls(container, server, port)
        return ("the kubelet's gRPC probes don't use TLS", "Add probes with a command") if tls else None
    if health_paths(server) == (None, None) and not (preset.live_socket and preset.live_path is None):
        named = preset.live_path or preset.ready_path
        what = "the model's name, which is part of its health endpoint," if named else "its health endpoint"
        return f"{what} is unknown", _ANNOTATE
    return None


_ANNOTATE: Final = (
    "Annotate the pod template with mlchassis.dev/health-path, if the kubelet can reach that endpoint"
)


def liveness_advice(container: Container, server: Server) -> str:
    """The endpoint that liveness should ask, as a phrase."""
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
"""Names of ports with another protocol or purpose."""


def server_port(container: Container, server: Server) -> int | None:
    """The port on which a recognised server answers; None if undecided.

    The first of: the value of its flag or variable; the preset's port, if it is declared and no unread option
    may change it; a declared port with the protocol's name, if such an option may; the preset's port, if no
    declared or asked port contradicts it; the only declared port. In some images a variable precedes it; in
    others it must agree.
    """
    port = _usual_port(container, server)
    for name, images in server.preset.other_port_env.items():
        other = _port_in(server.variables[name] or "") if name in server.variables else port
        port = other if other == port or image_matches(container.image, images) else None
    return port


def _usual_port(container: Container, server: Server) -> int | None:
    preset = server.preset
    value = server.configured(preset.port_flags, preset.port_env)
    if value is not None and not _HOST_ONLY.fullmatch(value):
        return _port_in(value)
    if preset.own_port:
        return preset.port
    declared = container.tcp_ports
    possible = [port for port, name in declared.items() if not _OTHERS[preset.protocol].search(name)]
    moved = port_may_differ(server)
    if preset.port in possible and not moved:
        return preset.port
    names = (*_NAMES[preset.protocol], *preset.port_names)
    named = [port for port, name in declared.items() if name in names]
    if len(named) == 1:  # a declared port is a comment: it doesn't move a server whose options are all known
        return named[0] if moved else None
    if preset.port in declared:
        return preset.port or None
    if not possible and not moved:
        return None if is_asked_elsewhere(container, server) else preset.port
    return possible[0] if moved and len(possible) == 1 else None


def port_may_differ(server: Server) -> bool:
    """Whether an option that cannot be read may set another port than the preset's."""
    preset = server.preset
    return (
        not preset.port
        or server.has_option(*preset.config_flags)
        or server.may_have_option(*preset.port_flags, *preset.config_flags)
        or server.has_variable(*preset.config_env)
        or (server.has_env_from and bool(preset.port_env))
        or (preset.image_port and not server.own_image)
        or server.weak_match
    )


def is_asked_elsewhere(container: Container, server: Server) -> bool:
    """Whether the author's probes ask the container's only program on another port than its default, which a
    variable or a file of the user's image may have changed."""
    preset = server.preset
    if server.own_image or not (preset.port_env or preset.address_in_files) or not runs_alone(container):
        return False
    typed = container.typed
    for probe in (typed.startup_probe, typed.readiness_probe, typed.liveness_probe):
        action = probe and (probe.http_get or probe.tcp_socket)
        if action and not action.host and port_number(typed, action.port) not in (None, preset.port):
            return True
        asked = _OWN_PORT.findall(" ".join(probe.exec.command)) if probe and probe.exec else []
        if asked and str(preset.port) not in asked:
            return True
    return False


_OWN_PORT: Final = re.compile(r"(?:localhost|127\.0\.0\.1|0\.0\.0\.0):([0-9]{2,5})\b")
"""In a command, the port that it asks of its own container."""


def declared_http_port(container: ContainerSpec) -> int | None:
    """The declared HTTP port: the only TCP port, or the only one with a name of HTTP."""
    declared = tcp_ports(container)
    possible = [port for port, name in declared.items() if not _OTHERS[Protocol.HTTP].search(name)]
    if len(declared) == 1:
        return possible[0] if possible else None
    named = [port for port, name in declared.items() if name in _NAMES[Protocol.HTTP]]
    return named[0] if len(named) == 1 else None


_HOST_ONLY: Final = re.compile(r"[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+")
"""A host without scheme and port. In a URL the scheme sets the port: Ollama's `http://0.0.0.0` is port 80."""


def _port_in(value: str) -> int | None:
    """`8000`, `0.0.0.0:8000`, `http://0.0.0.0:8000/` -> 8000."""
    digits = value.rpartition("//")[2].partition("/")[0].rpartition(":")[2]
    port = whole_number(digits, 5)
    return port if port and port < 65536 else None


# --- the endpoint ------------------------------------------------------------------------------


def _endpoint_changed(server: Server) -> bool:
    """Whether the server's options remove the endpoint, move it, or restrict who may ask it."""
    preset = server.preset
    return (
        server.has_option(*preset.unless_flags)
        or server.may_have_option(*preset.unless_flags, *preset.headless_flags, *preset.tls_flags)
        or server.has_variable(*preset.unless_env)
    )


def has_own_config(container: Container, preset: Preset) -> bool:
    """Whether a volume is mounted where the server reads its configuration."""
    mounted = [mount.mount_path.rstrip("/") for mount in container.typed.volume_mounts]
    return any(f"{path}/".startswith(f"{place}/") for path in mounted for place in preset.config_mounts)


def listen_everywhere(preset: Preset) -> str:
    """What to do about a server that listens only on loopback, as a sentence without its full stop."""
    flags = (*preset.listen_flags, *(f"{flag} 0.0.0.0" for flag in preset.host_flags))
    return f"Make it listen on all addresses{f' ({flags[0]})' if flags else ''}"


def only_loopback(server: Server) -> bool:
    """Whether the server listens only on loopback, where the kubelet's probes can't reach it."""
    preset = server.preset
    address = server.configured(preset.host_flags, preset.host_env)
    if address is None:
        if server.has_option(*preset.listen_flags):
            return False
        return preset.loopback and not (preset.image_listens and server.own_image)
    if address.startswith(("unix:", "/")) or address.endswith(".sock"):
        return True  # a Unix socket
    host = address.rpartition("//")[2].strip("[]")
    return host.startswith(("127.", "localhost", "::1"))


def address_is_certain(server: Server) -> bool:
    """Whether no option or file that cannot be read may set the address."""
    preset = server.preset
    if server.configured(preset.host_flags, ()) is not None:
        return True
    return not (
        preset.address_in_files
        or server.may_hold_options
        or server.has_option(*preset.config_flags)
        or server.has_variable(*preset.config_env)
        or (server.has_env_from and bool(preset.host_env))
    )


def speaks_tls(container: Container, server: Server | None, port: int) -> bool:
    """Whether a port of a container uses TLS, by its name or by the flags and variables of its programs."""
    if container.tcp_ports.get(port, "").startswith("https"):
        return True
    if server is None:
        started = programs(container)
        return any(has_option(program, "--ssl-keyfile", "--keyfile") for program in started)
    return turns_on_tls(server)


def turns_on_tls(server: Server) -> bool:
    """Whether the server's own flags or variables turn on TLS."""
    argv = tuple(" ".join(server.argv).split())  # with options inside an option
    return has_option(argv, *server.preset.tls_flags) or server.has_variable(*server.preset.tls_env)


def health_paths(server: Server) -> tuple[str | None, str | None]:
    """The liveness and readiness paths, with the model's name inserted; None if the name is unknown."""
    preset = server.preset
    if "{model}" not in f"{preset.live_path}{preset.ready_path}":
        return preset.live_path, preset.ready_path
    model = server.configured(preset.model_flags, preset.model_env)
    if model is None and not (server.has_env_from and preset.model_env):
        model = preset.default_model
    if not model or not model.replace("-", "").replace("_", "").replace(".", "").isalnum():
        return None, None
    live, ready = (path and path.replace("{model}", model) for path in (preset.live_path, preset.ready_path))
    return live, ready
