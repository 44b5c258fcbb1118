"""The servers of `servers.yaml`: how each is installed and started, and which preset it tries."""

from __future__ import annotations

import datetime
import fcntl
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from policies.core import data
from tests.e2e.node import images
from tests.manifests import manifest
from webhook.cli.reviewed import review_documents
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import Document

HERE: Final = Path(__file__).parent
VERIFIED: Final = HERE / "verified.yaml"
NOTICED: Final = HERE / "noticed.yaml"
OVERLOAD: Final = HERE / "overload.yaml"
RECORDERS: Final = {VERIFIED: "servers", NOTICED: "servers", OVERLOAD: "overload"}
"""The targets that write these files."""
HEADS: Final = {
    VERIFIED: "which real servers did what their presets say, and when.",
    NOTICED: "what the probes of real servers noticed, in seconds.",
    OVERLOAD: "what liveness did to healthy servers.",
}
SERVED: Final = HERE / "served"


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class Request(_Entry):
    """What a client of the server asks, and gets 200 for, once the server is ready."""

    port: int
    path: str
    body: Any = None
    """JSON of a POST; a GET without it."""
    headers: Mapping[str, str] = Field(default_factory=dict)


class Server(_Entry):
    """One real server."""

    preset: str
    requires: tuple[str, ...] = ()
    """The packages installed from PyPI, the server itself first."""
    go: str | None = None
    """Or a Go program with its version, such as `example.org/server/cmd/serve@v1.2.3`."""
    newest: datetime.date | None = None
    """The day up to which further packages are taken: the same ones in every run."""
    image: str
    """The image in which people run it; only its name is used."""
    served: str | None = None
    """The folder of `served` that it serves, if not the one of its name."""
    program: str | None = None
    """Where its program lies in the environment, as a pattern, if not in `bin`."""
    prepare: tuple[str, ...] = ()
    """A command that is run before it: to train what it serves."""
    beside: tuple[str, ...] = ()
    """Another pod's command, which it needs."""
    command: tuple[str, ...]
    env: Mapping[str, str] = Field(default_factory=dict)
    ports: tuple[int, ...] = ()
    """The container ports that the pod declares."""
    request: Request
    lacks: Mapping[Literal["worker", "model", "weights"], str] = Field(default_factory=dict)
    """What it does not have, so that no experiment with that applies to it, and why not."""
    unnoticed: Mapping[str, str] = Field(default_factory=dict)
    """Why its liveness does not notice some experiments, by the head of their column."""
    slow: Request | None = None
    """A request for which its model computes for a second, if it runs its own model instead of the toy."""
    weights: str = "weights"
    """The file with its model's weights."""
    toy: bool = False
    """Whether it runs `served/toy.py`, so that the test decides how long loading and answering take."""
    queues: bool = False
    """Whether it is ready before its model is, and keeps requests until then."""
    clients: int = 8
    """How many requests at once keep all its workers busy."""
    share: float = 0.1
    """The share of a processor that `make overload` gives it: it starts many processes if it needs more."""
    ci: bool = False
    """Whether it belongs to the few that every run of CI tries."""

    @property
    def version(self) -> str:
        """Name and version, such as `mlflow 3.17.2`."""
        if self.go:
            module, version = self.go.split("@")
            return f"{module.rpartition('/')[2]} {version}"
        return re.sub(r"(\[.*\])?==", " ", self.requires[0])


@cache
def servers() -> Mapping[str, Server]:
    """All of them, by name."""
    entries = data.parsed((HERE / "servers.yaml").read_text())
    return {name: Server.model_validate(entry) for name, entry in entries.items()}


@cache
def own_servers() -> Mapping[str, Server]:
    """Users' own servers, by name."""
    api = images.CONTEXTS / "own-server"
    requires = (api / "requirements.txt").read_text().split()

    def own(entry: dict[str, Any]) -> Server:
        name = f"{entry['command'][0]}=="
        first = sorted(requires, key=lambda each: not each.startswith(name))
        known = {"requires": first, "newest": "2026-11-20", "image": "acme/api:1", "served": str(api)}
        return Server.model_validate({**known, **entry})

    return {name: own(entry) for name, entry in data.parsed((HERE / "own.yaml").read_text()).items()}


def calls_toy(name: str) -> bool:
    """Whether requests of a server reach `served/toy.py`."""
    return any("toy.answer" in file.read_text() for file in (SERVED / name).rglob("*.py"))


def container(server: Server) -> dict[str, Any]:
    """The container that people write for it, without any probe."""
    return {
        "name": "server",
        "image": server.image,
        "command": list(server.command),
        "ports": [{"containerPort": port} for port in server.ports],
        "env": [{"name": name, "value": value} for name, value in server.env.items()],
    }


def injected(server: Server) -> dict[str, Any]:
    """The probes that a review adds to that container."""
    return probes_of(container(server))


def probes_of(container: dict[str, Any]) -> dict[str, Any]:
    """The probes that a review shows in a Pod with this container, by the field's name; empty where there are
    none."""
    pod = manifest("Pod", "served", {"containers": [container]}, namespace="models")
    document = Document("", 0, pod)
    (review,) = review_documents([document], load({}), ManifestCluster([document.obj]))
    assert review.decision.allowed, review.refusals
    final = review.final["spec"]["containers"][0]
    return {
        name: final[name] for name in ("startupProbe", "livenessProbe", "readinessProbe") if name in final
    }


def described(probe: dict[str, Any]) -> str:
    """What a probe asks, in a line."""
    if "exec" in probe:
        _, _, _, _, port, _, _, path, plan = probe["exec"]["command"][:9]
        shown = json.loads(plan)
        if not shown["page"] and shown["canaries"]:
            asked, body = shown["canaries"][0]
            return f"an answer to {'GET' if body is None else 'POST'} {asked} on {port}"
        if not shown["page"]:
            workers = f", and GET {path} once no worker is left" if shown["workers"] else ""
            return f"accepted connections on {port}{workers}"
        return f"progress, and GET {path} on {port}"
    if "tcpSocket" in probe:
        return f"an open port {probe['tcpSocket']['port']}"
    if "grpc" in probe:
        return f"gRPC health on {probe['grpc']['port']}"
    return f"GET {probe['httpGet']['path']} on {probe['httpGet']['port']}"


def verified() -> dict[str, dict[str, Any]]:
    """What `make servers` recorded of the presets, by the server's name."""
    return recorded(VERIFIED)


def recorded(file: Path) -> dict[str, dict[str, Any]]:
    """What a file holds, by the server's name."""
    found: dict[str, dict[str, Any]] = data.parsed(file.read_text()) if file.exists() else {}
    return found or {}


def record(name: str, entry: dict[str, Any], file: Path = VERIFIED) -> None:
    """Write down what a server did, next to what it was `seen` to do before in the same version."""
    head = f"# Written by `make {RECORDERS[file]}`: {HEADS[file]}\n"
    with file.open("a+") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        found = recorded(file)
        before = found.get(name, {})
        if "seen" in entry and before.get("server") == entry["server"]:
            entry = {**entry, "seen": {**before["seen"], **entry["seen"]}}
        found[name] = entry
        locked.truncate(0)
        locked.write(head + yaml.safe_dump(dict(sorted(found.items())), sort_keys=False, width=110))
