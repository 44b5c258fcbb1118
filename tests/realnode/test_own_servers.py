"""The outage in users' own servers, by real ones: overload, then a hang, under each kind of liveness.

It takes 25 minutes, nearly all of it waiting. The injected checks restart a container after 7 to 11 minutes.
The overload lasts as long, to show that it restarts nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from policies.core.annotations import CANARY, CANARY_BODY, HEALTH_PATH
from tests.e2e.controlplane import LEFT_ALONE
from tests.e2e.node.cluster import RealNode
from tests.e2e.node.images import OWN_SERVER
from tests.e2e.node.webhook import Webhook
from tests.realnode import evidence
from tests.realnode.arms import Arm, api
from tests.realnode.experiments.model_api import Figures
from tests.realnode.traffic import ask, overload

pytestmark = [pytest.mark.realnode, pytest.mark.scheduled]

PORT = 8000
CALL = 1
"""Seconds that the model takes for a call."""
CLIENTS = 10
"""Clients for each call that the server runs at once."""
ARMED = 60
"""Seconds in which every check has passed."""
OVERLOAD, WATCHED = 600, 660
"""Seconds: as long as an injected check takes to restart a container, and a minute more."""
SAYS = "mlchassis liveness, at "


@dataclass(frozen=True)
class Own:
    """A server, and what its outage must show."""

    command: str
    path: str
    at_once: int
    """Calls that it runs at the same time; as many that never return hang it."""
    behind: bool
    """Whether its health checks wait behind the calls."""
    accepts: bool = True
    """Whether it goes on accepting connections while it hangs."""
    replaces: bool = False
    """Whether it replaces its hung workers itself."""


BIND = "--bind=0.0.0.0:8000"
SERVERS = {
    "uvicorn, `async def`": Own("uvicorn asgi:app --host=0.0.0.0", "/loop", 1, behind=True, accepts=False),
    "fastapi run, `def`": Own("fastapi run asgi.py", "/thread", 4, behind=False),
    "gunicorn, 2 sync workers": Own(
        f"gunicorn wsgi:app --workers=2 {BIND}", "/predict", 2, behind=True, accepts=False, replaces=True
    ),
    "the same with `--timeout 0`": Own(
        f"gunicorn wsgi:app --workers=2 --timeout=0 {BIND}", "/predict", 2, behind=True, accepts=False
    ),
    "gunicorn, 4 threads": Own(f"gunicorn wsgi:app --threads=4 {BIND}", "/predict", 4, behind=True),
    "gunicorn, uvicorn worker, `async def`": Own(
        f"gunicorn asgi:app -k uvicorn_worker.UvicornWorker {BIND}",
        "/loop",
        1,
        behind=True,
        accepts=False,
        replaces=True,
    ),
    "gunicorn, uvicorn worker, `def`": Own(
        f"gunicorn asgi:app -k uvicorn_worker.UvicornWorker {BIND}", "/thread", 4, behind=False
    ),
    "flask run": Own("flask --app wsgi run --host=0.0.0.0 --port=8000", "/predict", 4, behind=False),
}
NONE, PLAIN, CONNECTIONS, ASKED = "none", "GET /health", "connections", "canary"


def chosen(kind: str, server: Own) -> Mapping[str, str]:
    """What a team writes for a kind of liveness."""
    if kind == PLAIN:
        return {HEALTH_PATH: "/health"}
    return {CANARY: f"POST {server.path}", CANARY_BODY: "{}"} if kind == ASKED else {}


def outage(arm: Arm, name: str, server: Own) -> Figures:
    """Ten times as many clients as the server can answer; then it hangs, and clients ask every 5 s."""
    arm.wait("created", lambda: any("podIP" in item["status"] for item in arm.pods(name)))
    (pod,) = arm.pods(name)
    address, path = pod["status"]["podIP"], f"{server.path}?seconds={CALL}"

    def answers() -> bool:
        return ask(address, PORT, server.path)

    arm.wait("answered", answers)
    time.sleep(ARMED)
    overload(address, CLIENTS * server.at_once, path, OVERLOAD, timeout=60, port=PORT)
    honest = arm.restarts(name)
    arm.wait("answered after the overload", answers)
    silent = False
    while not silent:
        began, hung_with = time.monotonic(), arm.restarts(name)
        overload(address, server.at_once, f"{server.path}?hang=1", timeout=5, port=PORT)
        silent = not (answers() or answers())
    restarted: float | None = None
    again: float | None = None
    while time.monotonic() < began + WATCHED and again is None:
        if restarted is None and arm.restarts(name) > hung_with:
            restarted = time.monotonic() - began
        if answers():
            again = time.monotonic() - began
        time.sleep(5)
    described = arm.kubectl("describe", "pod", pod["metadata"]["name"])
    return {
        "honest": honest,
        "restarted": restarted,
        "again": again,
        "says": next((line.strip() for line in described.splitlines() if SAYS in line), ""),
    }


@pytest.fixture(scope="module")
def figures(node: RealNode, webhook: Webhook) -> Iterator[dict[str, dict[str, Figures]]]:
    """What each server showed under each kind of liveness; all run at the same time."""
    arms = {True: Arm(node, "own-servers", True), False: Arm(node, "own-servers-bare", False)}
    node.create_namespace(arms[True].namespace, {})
    node.create_namespace(arms[False].namespace, LEFT_ALONE)
    kinds = (NONE, PLAIN, CONNECTIONS, ASKED)
    with ThreadPoolExecutor(len(SERVERS) * len(kinds)) as pool:
        running = {}
        for n, (server, own) in enumerate(SERVERS.items()):
            for kind in kinds:
                arm, name = arms[kind != NONE], f"own-{n}-{kinds.index(kind)}"
                command, env = own.command.split(), {"CALLS": own.at_once}
                arm.create(
                    api(name, env=env, annotations=chosen(kind, own), image=OWN_SERVER, command=command)
                )
                running[server, kind] = pool.submit(outage, arm, name, own)
        found = {server: {kind: running[server, kind].result() for kind in kinds} for server in SERVERS}
    evidence.keep("own_servers", found)
    yield found
    for arm in arms.values():
        node.api.delete("namespaces", arm.namespace)


@pytest.mark.parametrize("name", SERVERS)
def test_outage(figures: dict[str, dict[str, Figures]], name: str) -> None:
    own, found = SERVERS[name], figures[name]
    restarts = {kind: each["honest"] for kind, each in found.items()}
    assert (restarts.pop(PLAIN) > 0) is own.behind, "overload restarts servers that only are slow"
    assert set(restarts.values()) == {0}, "a server that works is never restarted"
    noticed = {kind for kind, each in found.items() if each["restarted"] is not None}
    again = {kind for kind, each in found.items() if each["again"] is not None}
    if own.replaces:
        assert again == set(found)
        assert not noticed & {NONE, CONNECTIONS, ASKED}
        return
    assert again == noticed
    assert NONE not in noticed
    assert (PLAIN in noticed) is own.behind
    assert (CONNECTIONS in noticed) is not own.accepts
    assert ASKED in noticed
    for kind in noticed & {CONNECTIONS, ASKED}:
        assert SAYS in found[kind]["says"], "kubectl describe pod shows why"
