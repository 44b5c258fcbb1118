"""The fast path against the engine: `python -m tests.differential [--seconds 60] [--seed 1] [--rounds N]`.

Hostile tenants send reviews to a server with the fast path, as an API server writes them, while facts and
policies change. Each answer must be what the engine decides of that review, byte for byte, and each line of
the log must be one line that names it. A tenant knows how the fast path works: names are repeated elsewhere,
cut off, in capitals; text looks like uids, times, tokens, constants, JSON and heads of HTTP.

A round has its own seed: `--seed S --rounds 1` repeats the one that failed. Time bounds the number of rounds,
never a round.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import logging
import random
import sys
import time
from collections import Counter
from dataclasses import replace
from typing import Any, Final, cast

import structlog

from policies.kube.json import Json, replaced, text
from tests.webhook.fast_path.test_memo import POLICIES, World
from tests.webhook.fast_path.test_plain import Wire
from tests.webhook.fast_path.test_replicas import written
from webhook import fast_path
from webhook.admission import engine
from webhook.admission.answer import Response, allowed, render
from webhook.admission.canonical import CONSTANT, CONSTANTS, TOKEN_PREFIX
from webhook.admission.envelope import BadReview, Request, parse
from webhook.admission.messages import respond
from webhook.admission.review import Review
from webhook.config.source import LivePolicy
from webhook.server import admission_server, endpoints, journal, log
from webhook.server.admission_server import AdmissionServer, Readiness
from webhook.server.connections import FastPath
from webhook.server.metrics import Metrics

REVIEWS: Final = 150
"""Of one round."""
MEMO: Final = 2**20
HEAD: Final = (
    "POST /{}?timeout=10s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
)
SWITCHED: Final = (*POLICIES, {"webhook.yaml": "fastPath: false"})


class Differs(AssertionError):
    """The fast path has given another answer than the engine."""


# --- tenants -------------------------------------------------------------------------------------------

_CONSTANT: Final = CONSTANT.decode()
_PLACES: Final[tuple[tuple[str | int, ...], ...]] = (
    ("metadata", "labels", "own"),
    ("metadata", "annotations", "own"),
    ("metadata", "annotations", "mlchassis.dev/health-path"),
    ("metadata", "annotations", "mlchassis.dev/health-port"),
    ("metadata", "annotations", "mlchassis.dev/expected-start"),
    ("metadata", "annotations", "mlchassis.dev/exempt"),
    ("metadata", "annotations", "mlchassis.dev/helth-path"),
    ("metadata", "annotations", "uid"),
    ("metadata", "namespace"),
    ("spec", "serviceAccountName"),
    ("spec", "restartPolicy"),
    ("spec", "containers", 0, "name"),
    ("spec", "containers", 0, "image"),
    ("spec", "containers", 0, "command"),
    ("spec", "containers", 0, "livenessProbe"),
    ("spec", "volumes"),
    ("spec", "x"),
)


def hostile(request: Request, chance: random.Random, seed: int) -> Request:
    """The request of a tenant who means to be taken for another one, or to break out of where a text belongs.

    What a tenant writes follows from `seed`, so that it comes again under another name.
    """
    obj = request.object
    assert obj is not None
    drawn = random.Random(seed)
    if drawn.random() < 0.15 and isinstance(obj.get("metadata"), dict):
        prefix = drawn.choice(
            ("w" * drawn.choice((70, 75, 79, 200)) + "-", "a", "kube-api-access-", "uid-", "web.")
        )
        metadata = {**obj["metadata"], "generateName": prefix, "name": prefix + _end(chance)}
        obj, request = {**obj, "metadata": metadata}, replace(request, name=metadata["name"])
    name = text(obj, "metadata", "name")
    for _ in range(drawn.randrange(3)):
        said = _said(name, drawn)
        place = drawn.choice(_PLACES)
        value: Any = said
        if place[-1] == "command":
            value = ["sh", "-c", f"curl http://{said}/ || {said}"]
        elif place[-1] == "livenessProbe":
            value = {"httpGet": {"path": f"/{said}", "port": said}, "periodSeconds": 1}
        elif place[-1] == "volumes":
            value = [{"name": said}, {"name": f"kube-api-access-{_end(chance)}"}]
        obj = _placed(obj, place, value)
    if drawn.random() < 0.1:
        request = replace(request, name=_said(name, drawn))
    if drawn.random() < 0.1:
        request = replace(request, username=_said(name, drawn), namespace=_said(name, drawn))
    return replace(request, object=obj)


def _end(chance: random.Random) -> str:
    return "".join(chance.choices("bcdfghjklmnpqrstvwxz2456789", k=5))


def _said(name: str, drawn: random.Random) -> str:
    """A text that is, or looks like, a value of only one replica."""
    own = (
        *(name, name[:-1], name[:-5], name[-5:], name.upper(), f"x{name}", f"{name}\n{name}", f'"{name}"'),
        *(f"{name[:-5]}{_CONSTANT}", name[:-5] + _CONSTANT[:2], _CONSTANT, TOKEN_PREFIX.decode() + _CONSTANT),
        *(CONSTANTS["uid"], CONSTANTS["creationTimestamp"], "2026-01-05T09:30:00Z", "kube-api-access-bcdfg"),
        *(
            '"}\n{"event":"denied"}',
            "\r\n\r\nPOST /validate HTTP/1.1",
            "\u2028\u202e\x85\x1b[2J",
            '"uid":"a"',
        ),
        *("liveness-missing=" + name, "é" * 30, "\\", '\\"', ":" * 20, "00000", "a" * 500),
    )
    return drawn.choice(own)


def _placed(obj: Json, place: tuple[str | int, ...], value: object) -> Json:
    try:
        return replaced(obj, place, value)
    except (KeyError, IndexError, TypeError, AttributeError):
        return obj


def body_of(request: Request, chance: random.Random) -> bytes:
    body = written(request)
    if chance.random() < 0.03:
        body = body.replace(b'"name":"', b'"name":"\\u0077', 1)
    if chance.random() < 0.02:
        body = body.replace(b'":"', b'": "', 1)
    return body


# --- one round -----------------------------------------------------------------------------------------


class Round:
    """A server with the fast path, and what it has logged."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = World(seed)
        self.metrics = Metrics(["Pod"])
        self.policy = LivePolicy(self.metrics)
        self.recalled = 0
        memo = fast_path.Memo(MEMO, self._counted)
        self.counts = Counter[str]()
        self.server = AdmissionServer(
            endpoints.endpoints(self.policy, self.world.cluster, memo=memo),
            self._failed,
            self.metrics,
            Readiness(str),
            fast_path=cast(FastPath, fast_path),
            fast_path_on=lambda: self.policy.config.webhook.fast_path,
        )
        self.stream = io.StringIO()

    def _counted(self, outcome: str) -> None:
        self.counts[outcome] += 1

    @staticmethod
    def _failed(name: str, request: Request) -> Response:
        return allowed([f"{name} failed"])

    async def run(self) -> None:
        listener = admission_server.listen("127.0.0.1", 0)
        await self.server.start(listener, None)
        try:
            for _ in range(REVIEWS):
                await self._step()
        finally:
            await self.server.drain(0)

    async def _step(self) -> None:
        chance = self.chance
        if chance.random() < 0.03:
            self.world.change()
        if chance.random() < 0.02:
            self.policy.offer(chance.choice(SWITCHED), "test")
        request = self.world.request()
        if chance.random() < 0.7:
            request = hostile(request, chance, chance.randrange(25))
        for again in range(chance.choice((1, 1, 3, 4))):
            if again:
                request = self._replica(request)
            await self._compare(chance.choice(("mutate", "validate")), body_of(request, chance))

    def _replica(self, request: Request) -> Request:
        """Another replica of the same template after its changes."""
        obj, chance = request.object or {}, self.chance
        metadata = obj.get("metadata")
        if not isinstance(metadata, dict) or chance.random() < 0.2:
            return replace(request, uid=f"{chance.getrandbits(64):016x}")
        old, prefix = text(obj, "metadata", "name"), text(obj, "metadata", "generateName")
        name = prefix + _end(chance) if prefix and old.startswith(prefix) else old
        own = {"name": name, "uid": f"{chance.getrandbits(64):016x}"}
        asked = name if request.name == old else request.name
        return replace(
            request, uid=own["uid"][::-1], name=asked, object={**obj, "metadata": {**metadata, **own}}
        )

    async def _compare(self, endpoint: str, body: bytes) -> None:
        self.stream.seek(0)
        self.stream.truncate()
        status, answer = await self._post(endpoint, body)
        try:
            request = parse(body)
        except BadReview as error:
            expected = (400, f"{error}\n".encode())
        else:
            decide = engine.mutate if endpoint == "mutate" else engine.validate
            response = respond(decide(Review(request, self.policy.config, self.world.cluster)))
            expected = (200, render(request.uid, response))
        if (status, answer) != expected:
            raise Differs(f"{endpoint} {body!r}:\n{answer!r}\nand not\n{expected[1]!r}")
        if status == 200:
            self._compare_lines(endpoint, request, response)

    def _compare_lines(self, endpoint: str, request: Request, response: Response) -> None:
        lines = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        said = [line for line in lines if line["event"] in ("changed", "denied")]
        outcome = "denied" if not response.allowed else "changed" if response.patch else None
        about = journal.log_fields(request)
        expected = [{"event": outcome, "endpoint": endpoint, **about}] if outcome else []
        found = [{key: line.get(key) for key in ("event", "endpoint", *about)} for line in said]
        if found != expected or any(line["level"] == "error" for line in lines):
            raise Differs(f"the log of {request.uid} has {lines}, and not {expected}")

    async def _post(self, endpoint: str, body: bytes) -> tuple[int, bytes]:
        assert self.server._acceptor is not None
        wire, connection = Wire(), self.server._acceptor._new_connection()
        connection.connection_made(wire)
        await asyncio.sleep(0)  # aiohttp's task begins
        connection.data_received(HEAD.format(endpoint, len(body)).encode() + body)
        async with asyncio.timeout(60):
            while b"\r\n\r\n" not in wire.written:  # noqa: ASYNC110
                await asyncio.sleep(0)
            head, _, answer = wire.written.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            while len(answer) < length:
                await asyncio.sleep(0)
                answer = wire.written.partition(b"\r\n\r\n")[2]
        connection.connection_lost(None)
        await asyncio.sleep(0)
        return int(head.split()[1]), answer


def run(seed: int) -> Counter[str]:
    """One round; how often the memo knew an answer. Differs if an answer is another one."""
    root, configuration = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    each = Round(seed)
    log.configure("info", "json", each.stream)
    try:
        with asyncio.Runner() as runner:
            runner.run(each.run())
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.configure(**configuration)
    return each.counts


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    arguments.add_argument(
        "--seconds", type=float, default=60, help="no round begins after these (%(default)s)"
    )
    arguments.add_argument("--seed", type=int, default=1, help="of the first round (%(default)s)")
    arguments.add_argument("--rounds", type=int, help="this many at most")
    asked = arguments.parse_args()
    admission_server.LAST_HANDSHAKES_SECONDS = 0  # type: ignore[misc]
    began, counts, seed = time.monotonic(), Counter[str](), asked.seed
    while time.monotonic() - began < asked.seconds and seed - asked.seed != asked.rounds:
        try:
            counts += run(seed)
        except Differs as error:
            print(f"seed {seed}: {error}", file=sys.stderr)
            return 1
        seed += 1
    print(f"{seed - asked.seed} rounds from seed {asked.seed}: {dict(counts)}; no answer differs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
