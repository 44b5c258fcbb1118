"""A change of CA with two replicas, in every order of their calls to the API server.

Each call is one step, which takes a second. Between any two of them another replica may have its turn, and
the Secret may be deleted or changed. After each step, the certificate that a replica serves must be trusted
by an API server that lags as far behind as it may.

All orders are gone through in which one is interrupted by another once, and a sample of those where it is
more often.
"""

from __future__ import annotations

import base64
import random
import types
from collections.abc import Callable, Coroutine, Generator, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import chain
from typing import Any

import pytest
import structlog

from policies.kube.json import Json
from tests.webhook.server.test_ca_bundle import after, configuration
from webhook.server import ca_bundle, pki, tls_reload
from webhook.server.ca_bundle import LAG, RESOURCES, Registration
from webhook.server.pki import Bundle
from webhook.server.tls_reload import ManagedSecret, ServingCertificate, Switch

HOSTS = ("a.svc",)
NAMESPACE, SECRET = "mlchassis-system", "mlchassis-tls"
SAMPLE = 50
MAX_SWITCHES = 8
TURNS = 5
"""How often each replica looks at the Secret before it rests."""
NOW = datetime.now(UTC).replace(microsecond=0)
FIRST = pki.issue(HOSTS, NOW - timedelta(days=1))
THEIRS = pki.issue(HOSTS, NOW - timedelta(days=1))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no handshakes here, a signature costs more than all the rest, and each order repeats most of
    the previous one: what follows from its arguments alone is computed once."""
    monkeypatch.setattr(tls_reload, "_load", lambda *_: None)
    monkeypatch.setattr(tls_reload, "_server_context", lambda: None)
    monkeypatch.setattr(pki, "_certificates", cache(pki._certificates))
    monkeypatch.setattr(pki, "_signed_by", cache(pki._signed_by))
    monkeypatch.setattr(pki, "certificates_in", cache(pki.certificates_in))
    monkeypatch.setattr(pki, "_names", cache(pki._names))
    monkeypatch.setattr(pki, "made_by_us", cache(pki.made_by_us))
    monkeypatch.setattr(ca_bundle, "_time", cache(ca_bundle._time))
    monkeypatch.setattr(base64, "b64decode", cache(base64.b64decode))
    for module in (tls_reload, ca_bundle):
        monkeypatch.setattr(module, "log", structlog.wrap_logger(None, processors=[dropped]))
    spare = iter([pki._new_ca(NOW) for _ in range(4)])
    made: list[tuple[bytes, bytes]] = []

    def new_ca(_: datetime) -> tuple[bytes, bytes]:
        # Another one each time within an order; the same ones in the next order.
        issued = World.current.issued
        World.current.issued += 1
        while len(made) <= issued:
            made.append(next(spare))
        return made[issued]

    monkeypatch.setattr(pki, "_new_ca", new_ca)


def dropped(*_: object) -> MutableMapping[str, Any]:
    raise structlog.DropEvent


@types.coroutine
def call() -> Generator[None, None, None]:
    """One call to the API server: others may have their turn before it is carried out."""
    yield


class World:
    """The API server: a Secret, two configurations and their history, and a clock."""

    current: World

    def __init__(self) -> None:
        World.current = self
        self.issued = 0
        self.clock = NOW
        self.version = 1
        self.secret: Json | None = None
        self.put(tls_reload._to_secret(FIRST, labelled()))
        self.configurations = {name: configuration(FIRST.ca, FIRST.ca) for name in RESOURCES}
        self.history: dict[str, list[tuple[datetime, frozenset[bytes]]]] = {name: [] for name in RESOURCES}
        for name in RESOURCES:
            self._remember(name, NOW - timedelta(days=1))

    def now(self) -> float:
        return self.clock.timestamp()

    # --- the Secret ------------------------------------------------------------------------------------

    def put(self, secret: Json) -> bool:
        self.version += 1
        metadata = {**secret["metadata"], "resourceVersion": str(self.version)}
        self.secret = {**secret, "metadata": metadata}
        return True

    async def get(self, path: str) -> Json | None:
        await call()
        _, resource, _ = path.rsplit("/", 2)
        return self.secret if resource == "secrets" else self.configurations[resource]

    async def unless_conflict(self, method: str, path: str, body: Json, content_type: str = "") -> bool:
        await call()
        if method == "PATCH":
            return self._patched(path.rsplit("/", 2)[1], body)
        if method == "POST":
            return self.secret is None and self.put(body)
        if self.secret is None:
            return False
        expected = self.secret["metadata"]["resourceVersion"]
        return bool(body["metadata"]["resourceVersion"] == expected and self.put(body))

    # --- the configurations ----------------------------------------------------------------------------

    def _remember(self, resource: str, since: datetime) -> None:
        entries = self.configurations[resource]["webhooks"]
        (trusted,) = {
            frozenset(pki.certificates_in(base64.b64decode(entry["clientConfig"].get("caBundle", ""))))
            for entry in entries
        }
        self.history[resource].append((since, trusted))

    def _patched(self, resource: str, fields: Json) -> bool:
        found = self.configurations[resource]
        if fields["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            return False
        self.version += 1
        written = after(found, fields)
        written["metadata"]["resourceVersion"] = str(self.version)
        self.configurations[resource] = written
        self._remember(resource, self.clock)
        return True

    def pages(self, *_: Any) -> Any:
        raise NotImplementedError

    watch = pages

    def seen(self) -> Iterator[frozenset[bytes]]:
        """What an API server may take for the caBundle of a configuration just now."""
        oldest = self.clock - LAG + timedelta(seconds=2)  # the annotation has whole seconds, and is rounded
        for versions in self.history.values():
            for since, trusted in reversed(versions):
                yield trusted
                if since <= oldest:
                    break


def labelled() -> Json:
    return ManagedSecret(World.__new__(World), NAMESPACE, SECRET, HOSTS)._empty()


class Served(ServingCertificate):
    def __init__(self) -> None:
        self.bundle = None

    def install(self, bundle: Bundle) -> bool:
        self.bundle = bundle
        return True


@dataclass
class Replica:
    world: World
    serving: Served = field(default_factory=Served)

    def __post_init__(self) -> None:
        source = ManagedSecret(self.world, NAMESPACE, SECRET, HOSTS)

        async def used() -> bytes:
            return (await source.read()).ca + (self.serving.bundle.ca if self.serving.bundle else b"")

        self.registration = Registration(self.world, "mlchassis", used)
        self.succession = Switch(source, self.serving, self.registration.trusts)

    def started(self) -> Replica:
        self.serving.install(FIRST)
        return self

    async def certificate(self) -> None:
        for _ in range(TURNS):
            await self.succession.step()

    async def ca_bundle(self) -> None:
        for _ in range(2):
            await self.registration._reconcile(await self.registration._used())


@cache
def signers(certificate: bytes, ca: bytes) -> frozenset[bytes]:
    leaf = pki._leaf(certificate)
    return frozenset(one for one in pki.certificates_in(ca) if pki._signed_by(leaf, pki._leaf(one)))


def trusted(world: World, replica: Replica) -> bool:
    served = replica.serving.bundle
    if served is None:
        return True  # it is not ready, so it gets no calls
    signed_by = signers(served.certificate, served.ca)
    assert signed_by
    return all(seen & signed_by for seen in world.seen())


# --- the orders ----------------------------------------------------------------------------------------

Actor = Coroutine[Any, None, None]
Act = Callable[[World], None]


class Order:
    """One order of the steps: at the steps in `switches`, the actor that is named there goes on."""

    def __init__(self, replicas: Callable[[World], list[Replica]], acts: Sequence[Act]) -> None:
        self._replicas, self._acts = replicas, acts

    def run(self, switches: dict[int, int]) -> tuple[World, list[Replica], list[int]]:
        """The result, and how many could have gone on at each step."""
        world = World()
        replicas = self._replicas(world)
        actors: list[Actor] = [self._somebody(world)]
        for replica in replicas:
            actors += [replica.certificate(), replica.ca_bundle()]
        running, choices = 0, []
        while actors:
            choices.append(len(actors))
            running = switches.get(len(choices) - 1, running) % len(actors)
            try:
                actors[running].send(None)
            except StopIteration:
                del actors[running]
                running = 0
            world.clock += timedelta(seconds=1)
            for replica in replicas:
                assert trusted(world, replica), f"not trusted: {switches}"
        return world, replicas, choices

    async def _somebody(self, world: World) -> None:
        for act in self._acts:
            await call()
            act(world)

    def all(self, most: int = 1) -> Iterator[tuple[World, list[Replica]]]:
        """Every order with at most so many switches."""
        waiting: list[dict[int, int]] = [{}]
        while waiting:
            switches = waiting.pop()
            world, replicas, choices = self.run(switches)
            yield world, replicas
            if len(switches) < most:
                steps = range(max(switches, default=-1) + 1, len(choices))
                waiting += [{**switches, step: other} for step in steps for other in range(choices[step])]

    def some(self, count: int) -> Iterator[tuple[World, list[Replica]]]:
        """Orders with more switches, the same ones each time."""
        drawn = random.Random(0)
        for _ in range(count):
            switches = {
                drawn.randrange(60): drawn.randrange(60) for _ in range(drawn.randint(2, MAX_SWITCHES))
            }
            world, replicas, _ = self.run(switches)
            yield world, replicas


def delete(world: World) -> None:
    world.secret = None


def take_out_the_key(world: World) -> None:
    if world.secret is None:
        return
    data = {key: value for key, value in world.secret["data"].items() if key != "ca.key"}
    world.put({**world.secret, "data": data})


def damage(world: World) -> None:
    assert world.secret is not None
    rubbish = base64.b64encode(b"rubbish").decode()
    world.put({**world.secret, "data": {**world.secret["data"], "tls.crt": rubbish, "ca.key": rubbish}})


def put_theirs(world: World) -> None:
    theirs = Bundle(THEIRS.certificate, THEIRS.key, THEIRS.ca)
    world.put(tls_reload._to_secret(theirs, {"metadata": {"namespace": NAMESPACE, "name": SECRET}}))


def one_runs_one_starts(world: World) -> list[Replica]:
    return [Replica(world).started(), Replica(world)]


def both_run(world: World) -> list[Replica]:
    return [Replica(world).started(), Replica(world).started()]


@pytest.mark.parametrize("replicas", [one_runs_one_starts, both_run])
@pytest.mark.parametrize(
    "acts",
    [[delete], [delete, delete], [take_out_the_key, delete], [take_out_the_key], [damage], [put_theirs]],
)
def test_served_certificates_are_trusted_in_every_order(
    acts: list[Act], replicas: Callable[[World], list[Replica]]
) -> None:
    order = Order(replicas, acts)
    for world, several in chain(order.all(), order.some(SAMPLE)):
        settle(world, several)


def settle(world: World, replicas: list[Replica]) -> None:
    """Each has its turn until they serve the same, which is what the Secret holds."""
    for _ in range(20):
        for replica in replicas:
            drive(world, replica.succession.step())
            assert trusted(world, replica)
        held = tls_reload._from_secret(world.secret) if world.secret else None
        if all(replica.serving.bundle == held for replica in replicas):
            return
    raise AssertionError("they do not agree")


def drive(world: World, work: Coroutine[Any, None, Any]) -> None:
    while True:
        try:
            work.send(None)
        except StopIteration:
            return
        world.clock += timedelta(seconds=1)
