"""The program that checks the progress of a server, as a vLLM has it, against every kind of fault."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from policies.containers.commands import PYTHON_SHELL
from policies.core.facts import Facts
from policies.core.settings import default_settings
from policies.probes.liveness_program import TIMEOUT, program
from policies.probes.standard_probes import mutate
from policies.probes.standard_probes_settings import StandardProbes
from tests.forked import started
from tests.servers.server import probes_of
from tests.steady import stillness
from webhook.server.pki import issue

MODEL = 'it\'s "$(reboot)"; `reboot`\n'
COUNTERS = 'vllm:generation_tokens_total{model_name="m"} %d\nhttp_requests_total %d\n'
LONG_AGO = 1000
_VLLM: dict[str, Any] = {"name": "a", "image": "vllm/vllm-openai", "args": ["--model=m"]}
PLAN: str = probes_of(_VLLM)["livenessProbe"]["exec"]["command"][8]
FAILS = 100
"""The exit status of a program that has detected a hang."""
SENT_LATELY = 2
"""Seconds since a server sent something to a client, in which that shows that it is busy."""
FASTER = 2.5
"""The program's timeouts are divided by this for servers that do not answer."""

Answer = tuple[int, bytes | int] | None
"""A status and a body, or the length of a body; None for no answer."""


@dataclass
class Server:
    """A vLLM with other answers on some paths."""

    answers: dict[str, Answer] = field(default_factory=dict)
    moves: bool = False
    """Whether its counters change."""
    requests: list[tuple[str, Any, str | None]] = field(default_factory=list)
    """The path, the body and the API key of each."""
    tokens: int = 0
    port: int = 0
    ended: threading.Event = field(default_factory=threading.Event)

    def answer(self, path: str, body: bytes, key: str | None) -> Answer:
        self.requests.append((path, json.loads(body) if body else None, key))
        if path in self.answers:
            return self.answers[path]
        if path == "/metrics":
            self.tokens += self.moves
            return 200, (COUNTERS % (self.tokens, len(self.requests))).encode()
        if path == "/v1/models":
            lora = {"id": "lora", "parent": MODEL}
            return 200, json.dumps({"data": [lora, {"id": MODEL, "parent": None}]}).encode()
        self.tokens += body != b""
        return 200, b"{}"

    @property
    def canaries(self) -> list[tuple[str, Any, str | None]]:
        return [each for each in self.requests if each[1] is not None]


@dataclass(frozen=True)
class Outcome:
    status: int
    message: str
    seconds: float


async def ended(text: str, argv: list[str], env: dict[str, str]) -> tuple[int, str]:
    """The exit status and the output of a program in Python that prints no errors."""
    async with asyncio.timeout(120), started(text, argv, env) as process:
        output, errors = await process.stdout.read(), await process.stderr.read()
        assert errors == b""
        return await process.wait(), output.decode()


@cache
def forks() -> None:
    """Waits until there is a process to fork, which takes seconds on a busy machine."""
    asyncio.run(ended("", [], {}))


class Kubelet:
    """Runs the program as the kubelet does, with its files in a folder of the test."""

    def __init__(self, folder: Path) -> None:
        forks()
        self.folder = folder
        self._running: list[tuple[Server, ThreadingHTTPServer]] = []

    def serve(
        self, server: Server, tls: ssl.SSLContext | None = None, family: int = socket.AF_INET
    ) -> Server:
        """Start a server on loopback."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                answer = server.answer(self.path, body, self.headers.get("Authorization"))
                if answer is None:
                    server.ended.wait(60)
                    return
                status, content = answer
                self.send_response(status)
                self.end_headers()
                self.wfile.write(b"x" * content if isinstance(content, int) else content)

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        class Family(ThreadingHTTPServer):
            address_family = family
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass

        http = Family(("127.0.0.1" if family == socket.AF_INET else "::1", 0), Handler)
        if tls is not None:
            http.socket = tls.wrap_socket(http.socket, server_side=True)
        threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True).start()
        self._running.append((server, http))
        server.port = int(http.server_address[1])
        return server

    def stop(self) -> None:
        for server, http in self._running:
            server.ended.set()
            http.shutdown()
            http.server_close()

    def state(self, port: int, subject: str = "liveness") -> Path:
        """The file between two runs."""
        return self.folder / f".mlchassis-{subject}-{port}"

    def probe(
        self,
        target: Server | int,
        *arguments: str,
        silent: float | None = None,
        faster: float = FASTER,
        env: dict[str, str] | None = None,
        armed: bool = True,
        path: str = "/health",
        plan: str = PLAN,
    ) -> Outcome:
        """Run the program. `silent`: seconds since the last progress of the server; `armed`: whether a canary
        was answered before."""
        if isinstance(target, Server) and not target.port:
            self.serve(target)
        port = target.port if isinstance(target, Server) else target
        state = self.state(port)
        started = self.folder / "proc" / "1" / "stat"
        first = started.read_text().rpartition(")")[2].split()[19] if started.exists() else "0"
        if silent is not None:
            tokens = target.tokens if isinstance(target, Server) else 0
            state.write_text(f"{first} {tokens} 0 0 0 0 0 {time.monotonic() - silent} {int(armed)}")
        given = (arguments or ("http", "0"))[:2]
        text = self._text(program(json.loads(plan), int(given[1])), faster)
        words = [str(port), *given, path, plan, *arguments[2:]]
        before = state.read_bytes() if state.is_file() else None
        for _ in range(20):
            began = time.monotonic()
            with stillness() as longest:
                status, output = asyncio.run(ended(text, words, env or {}))
            if faster != FASTER or longest() < 0.5:
                break
            # The server was stopped, too, so this shows nothing about the program.
            if before is None:
                state.unlink(missing_ok=True)
            else:
                state.write_bytes(before)
        return Outcome(status, output.strip(), time.monotonic() - began)

    def _text(self, text: str, faster: float) -> str:
        shorter = ", ".join(str(each / faster) for each in (25, 10, 3, 8))
        for old, new in {
            '"/tmp", "/dev/shm"': f"{str(self.folder)!r},",
            'LATEST_CANARY = 25 + PLAN["longest"], 10, 3, 8 + PLAN["longest"]': f"LATEST_CANARY = {shorter}",
            "left() - PAGE - 1": f"left() - PAGE - {1 / faster}",
            # On a busy machine the interpreter starts slowly: the deadline counts from here.
            "END = time.monotonic() + DEADLINE - age()": "END = time.monotonic() + DEADLINE",
            "each[4] < 30000": f"each[4] < {SENT_LATELY * 1000}",
            'listdir("/proc")': f'listdir("{self.folder}/proc")',
            '"/proc/%d/cmdline"': f'"{self.folder}/proc/%d/cmdline"',
            '"/proc/%s/cwd" % pid': f'"{self.folder}"',
            '"/proc/1/fd/1"': f'"{self.folder}/log"',
            '"/dev/termination-log"': f'"{self.folder}/termination-log"',
            '"/proc/%s/task"': f'"{self.folder}/proc/%s/task"',
            '"/proc/%s/task/%s/stat"': f'"{self.folder}/proc/%s/task/%s/stat"',
            '"/proc/%s/task/%s/wchan"': f'"{self.folder}/proc/%s/task/%s/wchan"',
            '"/proc/%s/stat"': f'"{self.folder}/proc/%s/stat"',
            '"/proc/%s/io"': f'"{self.folder}/proc/%s/io"',
            '"/proc/net/dev"': f'"{self.folder}/proc/net/dev"',
        }.items():
            assert old in program()
            text = text.replace(old, new)
        return text


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    kubelet = Kubelet(tmp_path)
    yield kubelet
    kubelet.stop()


@contextlib.contextmanager
def answering(answer: Callable[[bytes], bytes]) -> Iterator[int]:
    """A port that answers the head of each request, then closes the connection."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            head = b"".join(iter(lambda: self.rfile.readline().strip(b"\r\n"), b""))
            self.wfile.write(answer(head))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield int(server.server_address[1])
        server.shutdown()


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port on which nothing listens: it is held, so that no test next to this one gets it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


# --- liveness ------------------------------------------------------------------------------------

HANGS: dict[str, Answer] = {"/v1/completions": None}


@pytest.mark.parametrize(
    ("answers", "silent", "status", "message"),
    [
        pytest.param(HANGS, 20, 0, "for 2", id="hung for less than any pod's patience"),
        pytest.param(HANGS, LONG_AGO, FAILS, "a request gets no answer", id="hung"),
        *(
            pytest.param({"/v1/completions": (status, b"")}, LONG_AGO, 0, f"({status})", id=f"{status}")
            for status in (401, 403, 429, 503)
        ),
        pytest.param({"/v1/completions": (500, b"")}, 200, 0, "", id="some calls fail"),
        pytest.param({"/v1/completions": (500, b"")}, LONG_AGO, FAILS, "every request fails", id="all fail"),
        *(
            pytest.param({**HANGS, "/metrics": page}, LONG_AGO, 0, "", id=f"counters {name}")
            for name, page in {
                "missing": (404, b""),
                "empty": (200, b""),
                "unknown": (200, b"vllm:" + b"x" * 100),
                "hostile": (200, b'evil{a="\nvllm:generation"} NaN\n\xff\xfe\x00'),
                "huge": (200, 12 << 20),
                "silent": None,
            }.items()
        ),
        *(
            pytest.param({**HANGS, "/v1/models": (200, models)}, LONG_AGO, 0, "", id=f"models {name}")
            for name, models in {
                "empty": b"",
                "list": b"[]",
                "without id": b'{"data": [{"parent": null}]}',
                "number": b'{"data": 3}',
                "binary": b"\xff",
                "nested": b"[" * 100_000,
                "endless": 24 << 20,
            }.items()
        ),
    ],
)
def test_outcome(
    answers: dict[str, Answer], silent: int, status: int, message: str, kubelet: Kubelet
) -> None:
    outcome = kubelet.probe(Server(answers), silent=silent)
    assert (outcome.status, message in outcome.message) == (status, True)
    assert outcome.seconds < TIMEOUT


@pytest.mark.parametrize(("moves", "silent"), [(False, None), (True, LONG_AGO)], ids=["first run", "busy"])
def test_a_canary_only_if_it_is_needed(moves: bool, silent: int | None, kubelet: Kubelet) -> None:
    server = Server(moves=moves)
    outcome = kubelet.probe(server, silent=silent)
    assert (outcome.status, outcome.message) == (0, "it works" if moves else "it answers")
    assert len(server.canaries) == (not moves), "a first run finds out whether a canary is answered"


def test_a_canary_that_waits_behind_work_passes(kubelet: Kubelet) -> None:
    server = Server(dict(HANGS))
    threading.Timer(0.5, lambda: setattr(server, "moves", True)).start()
    assert kubelet.probe(server, silent=LONG_AGO).status == 0
    assert kubelet.probe(server).message == "it works"


@pytest.mark.parametrize(
    ("key", "sent"),
    [
        ('it\'s "$(reboot)"; `reboot`', 'Bearer it\'s "$(reboot)"; `reboot`'),
        ("k\r\nContent-Length: 0\r\n\r\nDELETE / HTTP/1.0", None),
        ("k\u0141", None),
    ],
    ids=["quotes", "another header", "not ASCII"],
)
def test_only_requests_of_the_api_have_the_key(key: str, sent: str | None, kubelet: Kubelet) -> None:
    server, env = Server(), {"KEY": key, "LC_ALL": "C.UTF-8"}
    outcome = kubelet.probe(server, "http", "0", "KEY", silent=LONG_AGO, env=env)
    assert (outcome.status, outcome.message) == (0, "it answers")
    keys = [None, None, sent, sent, None]
    paths = ["/health", "/metrics", "/v1/models", "/v1/completions", "/metrics"]
    assert [(path, given) for path, _, given in server.requests] == list(zip(paths, keys, strict=True))
    assert server.canaries[0][1] == {"model": MODEL, "prompt": "a", "max_tokens": 1}


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling", "/classify", "/score"])
def test_pooling_models(path: str, kubelet: Kubelet) -> None:
    others = ("/v1/completions", "/v1/embeddings", "/pooling", "/classify", "/score")
    server = Server({each: (404, b"") for each in others if each != path})
    with_key = kubelet.probe(server, "http", "0", "KEY", silent=LONG_AGO, env={"KEY": "k"})
    assert with_key.message == "it answers"
    assert {key for _, _, key in server.canaries} == {"Bearer k"}
    server.answers[path] = None
    assert kubelet.probe(server, silent=LONG_AGO).status == FAILS


@pytest.mark.parametrize("health", [None, (503, b"")], ids=["silent", "503"])
def test_a_failing_health_check(health: Answer, kubelet: Kubelet) -> None:
    server = Server({"/health": health})
    assert kubelet.probe(server, silent=0).status == 0
    outcome = kubelet.probe(server, silent=LONG_AGO)
    assert (outcome.status, outcome.message.startswith("GET /health")) == (FAILS, True)
    server.moves = True
    assert kubelet.probe(server).status == 0, "it works"


@pytest.mark.parametrize(
    ("reads", "status"),
    [(True, 0), (False, FAILS)],
    ids=["a client is sent an answer", "it does not read on"],
)
def test_a_server_too_busy_for_checks_that_answers_clients(
    reads: bool, status: int, kubelet: Kubelet
) -> None:
    """https://github.com/vllm-project/vllm/pull/38157"""
    slow = Server({"/health": None, "/metrics": None, "/stream": (200, 1 << 30)})
    kubelet.serve(slow)
    done = threading.Event()
    with socket.create_connection(("127.0.0.1", slow.port)) as client:
        client.settimeout(10)
        client.sendall(b"GET /stream HTTP/1.0\r\n\r\n")
        client.recv(1 << 16)
        time.sleep(0 if reads else 2 * SENT_LATELY)

        def read() -> None:
            while reads and not done.wait(0.05):
                client.recv(1 << 22)

        reader = threading.Thread(target=read)
        reader.start()
        outcome = kubelet.probe(slow, silent=LONG_AGO)
        done.set()
        reader.join()
    assert outcome.status == status, outcome.message
    assert ("it answers clients" in outcome.message) == reads


def test_nothing_listens(kubelet: Kubelet, free_port: int) -> None:
    outcome = kubelet.probe(free_port)
    assert (outcome.status, "nothing listens" in outcome.message) == (FAILS, True)


@pytest.mark.parametrize("size", range(40, 90, 7))
def test_a_page_in_chunks(size: int, kubelet: Kubelet) -> None:
    """No end of a chunk hides a part of a number, wherever it is."""
    tokens = 10**30

    def answer(head: bytes) -> bytes:
        page = f"x 1\nvllm:generation_tokens_total {tokens}\nvllm:num_requests_running 0\n".encode()
        path = head.split(b" ")[1]
        parts = [page[at : at + size] for at in range(0, len(page), size)] if path == b"/metrics" else [b"{}"]
        body = b"".join(b"%x;a=b\r\n%s\r\n" % (len(part), part) for part in parts)
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"

    with answering(answer) as port:
        kubelet.probe(port)
        shown = kubelet.state(port).read_text().split()[1]
    assert float(shown) == float(tokens)


_NO_IPV6 = """
import socket
connect = socket.create_connection
def without_ipv6(address, seconds):
    if ":" in address[0]:
        raise OSError(99, "Cannot assign requested address")
    return connect(address, seconds)
socket.create_connection = without_ipv6
"""


def test_nothing_listens_without_ipv6(
    kubelet: Kubelet, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = kubelet._text
    monkeypatch.setattr(kubelet, "_text", lambda *given: _NO_IPV6 + text(*given))
    outcome = kubelet.probe(free_port, silent=0)
    assert (outcome.status, "nothing listens" in outcome.message) == (FAILS, True)


@pytest.mark.parametrize("start", ["0", "1"])
@pytest.mark.parametrize("others", [("127.0.0.2",), ("127.0.0.2", "127.0.0.3")])
def test_a_server_that_listens_on_another_address_passes(
    start: str, others: tuple[str, ...], kubelet: Kubelet
) -> None:
    """The kubelet's own probes ask the pod's address, which it may have from `status.podIP`."""
    with contextlib.ExitStack() as sockets:
        port = 0
        for address in others:
            server = sockets.enter_context(socket.socket())
            server.bind((address, port))
            server.listen()
            port = server.getsockname()[1]
        outcome = kubelet.probe(port, "http", start, silent=LONG_AGO)
    assert (outcome.status, outcome.message) == (0, "cannot tell: it does not listen on loopback")


def test_a_value_that_is_no_number_hides_no_other(kubelet: Kubelet) -> None:
    pages = iter(range(100))

    class Engines(Server):
        def answer(self, path: str, body: bytes, key: str | None) -> Answer:
            if path != "/metrics":
                return super().answer(path, body, key)
            name = "vllm:generation_tokens_total"
            values = f"+Inf NaN {next(pages)}.5e+3".split()
            return 200, "".join(f'{name}{{engine="{n}"}} {each}\n' for n, each in enumerate(values)).encode()

    server = Engines(dict(HANGS))
    for _ in range(2):
        assert kubelet.probe(server, silent=None).message == "it works"


def test_it_passes_at_its_deadline(kubelet: Kubelet) -> None:
    assert kubelet.probe(Server({"/health": None}), silent=LONG_AGO, faster=10_000).status == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="root may write everywhere")
@pytest.mark.parametrize("kind", ["link", "folder", "fifo"])
def test_a_state_that_is_no_file(kind: str, kubelet: Kubelet, tmp_path: Path) -> None:
    server = kubelet.serve(Server(dict(HANGS)))
    (target := tmp_path / "precious").write_text("kept")
    state = kubelet.state(server.port)
    if kind == "link":
        state.symlink_to(target)
    elif kind == "folder":
        state.mkdir()
    else:
        os.mkfifo(state)
    outcome = kubelet.probe(server)
    assert outcome.status == 0
    assert kind == "fifo" or "neither /tmp nor" in outcome.message
    assert target.read_text() == "kept"


def test_ipv6(kubelet: Kubelet) -> None:
    assert kubelet.probe(kubelet.serve(Server(), family=socket.AF_INET6)).message == "it answers"


def test_an_untrusted_certificate(kubelet: Kubelet, tmp_path: Path) -> None:
    bundle = issue(["another.example"], datetime(2001, 1, 1, tzinfo=UTC))
    (tmp_path / "cert").write_bytes(bundle.certificate)
    (tmp_path / "key").write_bytes(bundle.key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    server = kubelet.serve(Server(), tls=tls)
    assert kubelet.probe(server, "https", "0").message == "it answers"


def test_two_servers_in_a_pod_are_distinguished(kubelet: Kubelet) -> None:
    hung = Server(dict(HANGS))
    assert kubelet.probe(hung, silent=LONG_AGO).status == FAILS
    assert kubelet.probe(Server(moves=True)).status == 0


@pytest.mark.parametrize("pause", [0.1, 60])
@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/completions"])
def test_an_answer_byte_by_byte(path: str, pause: float, kubelet: Kubelet) -> None:
    """A status counts, and the probe ends in time however slowly the bytes arrive."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket) -> None:
        asked = connection.recv(1 << 16).split()[1].decode()
        answers = {"/v1/models": b'{"data": [{"id": "m"}]}'}
        try:
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
            while asked == path:
                connection.sendall(b"x")
                time.sleep(pause)
            connection.sendall(answers.get(asked, b""))
        except OSError:
            pass
        connection.close()

    def serve() -> None:
        while True:
            try:
                connection = listening.accept()[0]
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    outcome = kubelet.probe(int(listening.getsockname()[1]), silent=LONG_AGO)
    listening.close()
    assert outcome.status == 0
    assert outcome.seconds < TIMEOUT


# --- what it finds where it runs -----------------------------------------------------------------


def test_a_hang_before_any_canary_was_answered_is_left_to_the_endpoint(kubelet: Kubelet) -> None:
    """Only what worked before in this container can show a hang."""
    server = Server(dict(HANGS))
    outcome = kubelet.probe(server, silent=LONG_AGO, armed=False)
    assert (outcome.status, outcome.message) == (
        0,
        "GET /health answers 200; progress is not checked: no request of the check has been answered yet",
    )
    server.answers["/health"] = (503, b"")
    assert kubelet.probe(server, silent=LONG_AGO, armed=False).status == FAILS, "as httpGet does"
    del server.answers["/v1/completions"], server.answers["/health"]
    assert kubelet.probe(server).message == "it answers"
    server.answers |= HANGS
    later(kubelet, server)
    assert kubelet.probe(server).status == FAILS, "a canary was answered"


def test_a_busy_server_is_asked_until_a_canary_was_answered(kubelet: Kubelet) -> None:
    server = Server(moves=True)
    for _ in range(3):
        assert kubelet.probe(server).status == 0
    assert len(server.canaries) == 1


def later(kubelet: Kubelet, server: Server) -> None:
    """Make the state older than any pod's patience."""
    state = kubelet.state(server.port)
    *numbers, last, armed = state.read_text().split()
    state.write_text(" ".join([*numbers, str(float(last) - LONG_AGO), armed]))


def test_an_answer_that_no_counter_shows_proves_nothing(kubelet: Kubelet) -> None:
    server = Server({"/metrics": (200, b"vllm:generation_tokens_total 7\n")})
    assert kubelet.probe(server).message == "it answers"
    server.answers |= HANGS
    later(kubelet, server)
    assert kubelet.probe(server).status == 0


@pytest.mark.parametrize(
    "page",
    [b"", b"vllm:avg_generation_throughput_toks_per_s 3\n", b"vllm:generation_tokens_totals 3\n"],
    ids=["empty", "before 0.3", "another name"],
)
@pytest.mark.parametrize(("health", "status"), [(200, 0), (503, FAILS)])
def test_a_page_without_finished_work(page: bytes, health: int, status: int, kubelet: Kubelet) -> None:
    """It decides as the endpoint does, asks for nothing, and says once in the container's log why."""
    (log := kubelet.folder / "log").touch()
    server = Server({"/metrics": (200, page), "/health": (health, b"")})
    for _ in range(2):
        outcome = kubelet.probe(server)
        assert outcome.status == status
        assert outcome.message.endswith("progress is not checked: GET /metrics shows no finished work yet")
    assert server.canaries == []
    assert log.read_text() == f"mlchassis liveness: {outcome.message}\n"


def test_only_finished_work_is_life(kubelet: Kubelet) -> None:
    """Not what the program's own request moves, nor what is refused or thrown away."""
    pages = iter(range(100))

    class Wedged(Server):
        def answer(self, path: str, body: bytes, key: str | None) -> Answer:
            if path != "/metrics":
                return super().answer(path, body, key)
            n = next(pages)
            names = (
                "num_requests_waiting",
                "prefix_cache_queries_total",
                "request_success_total",
                "num_preemptions_total",
                "kv_cache_usage_perc",
            )
            moving = "".join(f"vllm:{name} {n}\n" for name in names)
            return 200, f"vllm:generation_tokens_total 0\nvllm:num_requests_running 0\n{moving}".encode()

    assert kubelet.probe(Wedged(dict(HANGS)), silent=LONG_AGO).status == FAILS


@pytest.mark.parametrize(("running", "preempted", "status"), [(1, 0, 0), (0, 0, FAILS), (1, 1, FAILS)])
def test_a_part_of_a_prompt_is_life(running: int, preempted: int, status: int, kubelet: Kubelet) -> None:
    text = (
        f"vllm:generation_tokens_total 0\nvllm:num_requests_running {running}\n"
        f"vllm:kv_cache_usage_perc 0.123456789\nvllm:num_preemptions_total {preempted}\n"
    )
    server = Server({**HANGS, "/metrics": (200, text.encode())})
    assert kubelet.probe(server, silent=LONG_AGO).status == status


def test_a_paused_server_passes(kubelet: Kubelet) -> None:
    server = Server({**HANGS, "/is_paused": (200, b'{"is_paused":true}')})
    assert kubelet.probe(server, silent=LONG_AGO).message == "it is paused"
    server.answers["/is_paused"] = (200, b'{"is_paused":false}')
    assert kubelet.probe(server, silent=LONG_AGO).status == FAILS


_NIXL = '{"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}'
_MOONCAKE = _NIXL.replace("Nixl", "Mooncake")
_OFFLOADING = '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}'
_BOTH = (
    '{"kv_connector": "MultiConnector", "kv_role": "kv_both", '
    f'"kv_connector_extra_config": {{"connectors": [{_NIXL}, {_OFFLOADING}]}}}}'
)
_WITH_OTHER = _BOTH.replace("OffloadingConnector", "P2pNcclConnector")
_KV = "it is started with --kv-transfer-config"
_SLEEP = "it is started with --enable-sleep-mode"


@pytest.mark.parametrize(
    ("words", "config", "why"),
    [
        (["vllm", "serve", "m", "--kv_transfer_config={}"], "", "it is started with --kv-transfer-config"),
        (["vllm", "serve", "--ec-transfer-config.a", "b"], "", "it is started with --ec-transfer-config"),
        (["vllm", "--kv-transfer-config", _NIXL], "", ""),
        (["vllm", "--kv-transfer-config", _MOONCAKE], "", ""),
        (["vllm", "--kv-transfer-config", _MOONCAKE.replace("Connector", "StoreConnector")], "", _KV),
        (["vllm", f"--kv_transfer_config={_BOTH}"], "", ""),
        (["vllm", "--kv-transfer-config", _WITH_OTHER], "", _KV),
        (["vllm", "--kv-transfer-config", '{"kv_role": "kv_both"}'], "", _KV),
        (["vllm", "--kv-transfer-config", "[" * 20_000], "", _KV),
        (["vllm", "--kv-transfer-config.kv_connector", "NixlConnector"], "", _KV),
        (["vllm", "--kv-transfer-config", _NIXL, "--enable-sleep-mode"], "", _SLEEP),
        (["vllm", "--config", "c.yaml"], f"kv-transfer-config: '{_NIXL}'\n", ""),
        (
            ["vllm", "--config", "c.yaml"],
            f"kv-transfer-config: '{_WITH_OTHER}'\n",
            "its configuration has --kv-transfer-config",
        ),
        (
            ["vllm", "--config", "c.yaml"],
            "kv_transfer_config: {}\n",
            "its configuration has --kv-transfer-config",
        ),
        (
            ["vllm", "--config=c.yaml"],
            '"enable-sleep-mode": true\n',
            "its configuration has --enable-sleep-mode",
        ),
        (["vllm", "--config", "none.yaml"], "", "none.yaml cannot be read"),
        (["vllm", "--config", "c.yaml", "--max-model-len", "9"], "# kv-transfer\nport: 80\n", ""),
    ],
)
def test_flags_that_only_the_running_server_shows(
    words: list[str], config: str, why: str, kubelet: Kubelet, tmp_path: Path
) -> None:
    (process := tmp_path / "proc" / "1").mkdir(parents=True)
    (process / "cmdline").write_text("\0".join([*words, ""]))
    (tmp_path / "c.yaml").write_text(config)
    server = Server()
    outcome = kubelet.probe(server)
    assert outcome.message == (
        f"GET /health answers 200; progress is not checked: {why}" if why else "it answers"
    )
    assert len(server.canaries) == (not why)


@pytest.mark.parametrize(
    ("value", "asked"),
    [
        (_NIXL, True),
        (_MOONCAKE, True),
        (_BOTH, True),
        (_WITH_OTHER, False),
        ('{"kv_role": "kv_both"}', False),
        ("[" * 20_000, False),
        ("NixlConnector", False),
        ("$(KV)", False),
    ],
)
def test_the_webhook_reads_a_value_as_the_program_does(value: str, asked: bool) -> None:
    probes = probes_of({**_VLLM, "args": ["--model=m", "--kv-transfer-config", value]})
    assert ("exec" in probes["livenessProbe"]) is asked


@pytest.mark.parametrize("words", [["--api-key", "in its arguments"], ["--api_key=in its arguments"]])
def test_a_key_in_the_arguments(words: list[str], kubelet: Kubelet, tmp_path: Path) -> None:
    (process := tmp_path / "proc" / "1").mkdir(parents=True)
    (process / "cmdline").write_text("\0".join(["vllm", "serve", *words, ""]))
    server = Server()
    assert kubelet.probe(server).message == "it answers"
    assert server.canaries[0][2] == "Bearer in its arguments"


# --- the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("python3", "fails"),
    [
        (None, False),
        ("exit 1", False),
        ("exit 2", False),
        ("kill -9 $$", False),
        ("exit 0", False),
        ("exit 100", True),
    ],
    ids=["missing", "no module", "usage", "killed", "alive", "hung"],
)
def test_only_its_own_status_fails_the_probe(python3: str | None, fails: bool, tmp_path: Path) -> None:
    """A server whose image has no python3, or one that does not start, is never restarted."""
    assert (in_image(tmp_path, python3) != 0) is fails


def in_image(folder: Path, python3: str | None, curl: str | None = None, start: str = "0") -> int:
    """The status of the command in an image with these programs, of which some are absent."""
    for tool in ("sh", "kill", "readlink"):
        (folder / tool).symlink_to(shutil.which(tool) or "")
    for name, script in {"python3": python3, "curl": curl}.items():
        if script is not None:
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
    shell = [word.replace("/proc/", f"{folder}/proc/") for word in PYTHON_SHELL]
    command = [*shell, "the 'text' `x`", "80", "http", start, "/health", "{}"]
    return subprocess.run(command, env={"PATH": str(folder)}, capture_output=True, check=False).returncode


@pytest.mark.parametrize("python3", [None, "exit 1", "kill -9 $$"], ids=["missing", "broken", "killed"])
@pytest.mark.parametrize(
    ("status", "start", "fails"),
    [
        (0, 0, False),
        (7, 0, True),
        (22, 0, True),
        (28, 0, True),
        (52, 0, True),
        (2, 0, False),
        (7, 7200, False),
    ],
    ids=["answers", "refused", "503", "silent", "broken off", "usage", "starts"],
)
def test_without_python_curl_asks_the_endpoint(
    python3: str | None, status: int, start: int, fails: bool, tmp_path: Path
) -> None:
    """As a plain probe does, unless only the program could distinguish a start from a hang."""
    script = f'[ "$5" = http://localhost:80/health ] && exit {status}; exit 99'
    assert (in_image(tmp_path, python3, script, str(start)) != 0) is fails


def test_the_python_of_a_process_is_used_if_none_is_in_the_path(tmp_path: Path) -> None:
    for pid, name in {"1": "bash", "7": "python3.12"}.items():
        (tmp_path / "proc" / pid).mkdir(parents=True)
        (program := tmp_path / "env" / "bin" / name).parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\nexit 100\n")
        program.chmod(0o755)
        (tmp_path / "proc" / pid / "exe").symlink_to(program)
    assert in_image(tmp_path, None) == 1


def test_a_bare_interpreter_runs_it(kubelet: Kubelet, free_port: int) -> None:
    """As the shell starts it. The other tests fork it from a process with more modules."""
    text = kubelet._text(program(json.loads(PLAN)), FASTER)
    command = [sys.executable, "-I", "-S", "-c", text, str(free_port), "http", "0", "/health", PLAN]
    done = subprocess.run(command, env={}, capture_output=True, text=True, check=False)
    told = f"nothing listens on port {free_port}\n"
    assert (done.returncode, done.stdout, done.stderr) == (FAILS, told, "")


def test_the_shell_passes_its_arguments_unchanged(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\nprintf '%s|' \"$@\"\n")
    (tmp_path / "python3").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [*PYTHON_SHELL, "the 'text' `x`\n$HOME", "80"], env=env, capture_output=True, text=True
    )
    assert done.stdout == "-I|-S|-c|the 'text' `x`\n$HOME|80|"


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("$(KEY)", ["KEY"]),
        ("$(reboot)", ["reboot"]),
        ("$(KEY; reboot)", ["VLLM_API_KEY"]),
        ("$KEY'; reboot; '", ["VLLM_API_KEY"]),
        ("`reboot`", ["VLLM_API_KEY"]),
        ("${KEY:-$(reboot)}", ["VLLM_API_KEY"]),
        ("$(KEY)\n", ["VLLM_API_KEY"]),
    ],
)
def test_no_text_of_a_manifest_is_in_the_command(key: str, names: list[str]) -> None:
    """Only a port, a scheme, a number and names of variables follow the program."""
    server = {
        "name": "chat",
        "image": "vllm/vllm-openai:v0.32.0",
        "args": ["acme/toy", "--served-model-name", 'it\'s "$(reboot)"; `reboot`', f"--api-key={key}"],
        "env": [
            {"name": each, "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
            for each in ("KEY", "reboot")
        ],
    }
    pod = mutate({"spec": {"containers": [server]}}, default_settings(StandardProbes), Facts())
    probe = pod["spec"]["containers"][0]["livenessProbe"]
    assert probe["exec"]["command"] == [
        *PYTHON_SHELL,
        program(json.loads(PLAN)),
        "8000",
        "http",
        "0",
        "/health",
        PLAN,
        *names,
    ]


def test_the_text_has_nothing_that_kubelet_expands() -> None:
    assert "$(" not in program()
    assert '"""' not in program().splitlines()[0]
    assert len(program(json.loads(PLAN))) < 16_600, "every such pod holds it"
    assert "$(" not in "".join(PYTHON_SHELL)


# --- the start -----------------------------------------------------------------------------------

STALLED = 1300
"""Seconds without any work that are too many for each pod."""


@dataclass
class Starting:
    """A container that starts, with a first process and one more in /proc."""

    kubelet: Kubelet
    port: int
    began: int = 5000
    ticks: int = 100
    pages: int = 10_000
    moved: int = 1 << 20
    received: int = 1 << 20

    @property
    def proc(self) -> Path:
        return self.kubelet.folder / "proc"

    def work(self, **more: int) -> None:
        for name, amount in more.items():
            setattr(self, name, getattr(self, name) + amount)
        for pid, began in ((1, self.began), (7, self.began + 9)):
            (process := self.proc / str(pid)).mkdir(parents=True, exist_ok=True)
            rest = ["0"] * 49
            rest[11], rest[19], rest[21] = str(self.ticks // pid), str(began), str(self.pages // pid)
            (process / "stat").write_text(f"{pid} (a b) c) S {' '.join(rest[1:])}")
            (process / "io").write_text(f"rchar: {self.moved}\nwchar: 0\n")
        (self.proc / "net").mkdir(exist_ok=True)
        head = "Inter-|   Receive\n face |bytes    packets\n"
        lines = f"    lo: 999999999 1\n  eth0: {self.received} 5\n"
        (self.proc / "net" / "dev").write_text(head + lines)

    def probe(self, target: Server | None = None, silent: float | None = None) -> tuple[int, str]:
        outcome = self.kubelet.probe(target or self.port, "http", "7200", silent=silent, faster=1)
        return outcome.status, outcome.message

    def later(self, seconds: float) -> None:
        """Make the program's state older."""
        file = self.kubelet.state(self.port, "start")
        first, began, worked, *done = (float(word) for word in file.read_text().split())
        state = (first, began - seconds, worked - seconds, *done)
        file.write_text(" ".join(f"{number:f}" for number in state))


@pytest.fixture
def starting(kubelet: Kubelet, free_port: int) -> Starting:
    found = Starting(kubelet, free_port)
    found.work()
    return found


BUSY = b"""bentoml_service_request_total{endpoint="/predict",http_response_code="200"} 7.0
bentoml_service_request_total{endpoint="/livez",http_response_code="200"} %d
bentoml_service_request_total{endpoint="/predict",http_response_code="504"} %d
bentoml_service_request_in_progress{endpoint="/predict"} 3.0
bentoml_service_last_request_timestamp_seconds{pid="9"} %d
"""
IDLE = BUSY.replace(b'progress{endpoint="/predict"} 3.0', b'progress{endpoint="/predict"} 0.0')
BENTOML: dict[str, Any] = {
    "name": "a",
    "image": "acme/iris",
    "command": ["bentoml", "serve"],
    "ports": [{"containerPort": 3000}],
}


@pytest.mark.parametrize(
    ("page", "arrives", "computes", "status", "message"),
    [
        pytest.param(BUSY, 1, 1000, FAILS, "work waits, and nothing was finished", id="hangs"),
        pytest.param(BUSY, 0, 0, 0, "it has nothing to do", id="a gauge that a killed worker left"),
        pytest.param(IDLE, 1, 0, 0, "it has nothing to do", id="idle"),
        pytest.param(BUSY, 1, 10_000, 0, "its processes compute", id="a long call"),
    ],
)
def test_a_server_that_may_not_be_asked(
    page: bytes, arrives: int, computes: int, status: int, message: str, starting: Starting
) -> None:
    """Neither answered health checks nor requests that time out are finished work."""
    kubelet = starting.kubelet
    plan = probes_of(BENTOML)["livenessProbe"]["exec"]["command"][8]
    server = Server({"/metrics": (200, BUSY.replace(b" 7.0", b" 6.0") % (0, 0, 0))})
    assert kubelet.probe(server, plan=plan).status == 0
    server.answers["/metrics"] = 200, BUSY % (1, 1, 1)
    assert kubelet.probe(server, plan=plan).message == "it works"
    server.answers["/metrics"] = 200, page % (2, 2, 1 + arrives)
    later(kubelet, server)
    starting.work(ticks=computes)
    outcome = kubelet.probe(server, plan=plan)
    assert (outcome.status, message in outcome.message) == (status, True), outcome
    assert server.canaries == []


TRITON: dict[str, Any] = {"name": "a", "image": "nvcr.io/nvidia/tritonserver:24.10-py3"}


@pytest.mark.parametrize(
    ("state", "failing", "status"),
    [("Z", 1, FAILS), ("T", 1, FAILS), ("Z", 0, 0), ("S", 1, 0)],
    ids=["lost", "stopped", "idle", "alive"],
)
def test_a_process_that_works_for_requests_has_ended_or_was_stopped(
    state: str, failing: int, status: int, starting: Starting
) -> None:
    kubelet = starting.kubelet
    plan = probes_of(TRITON)["livenessProbe"]["exec"]["command"][8].replace("8002", "0")
    page = 'nv_inference_request_success{model="m"} %d\nnv_inference_request_failure{model="m"} %d\n'
    server = Server({"/metrics": (200, (page % (6, 0)).encode())})
    assert kubelet.probe(server, plan=plan).status == 0
    server.answers["/metrics"] = 200, (page % (7, 0)).encode()
    assert kubelet.probe(server, plan=plan).message == "it works"
    server.answers["/metrics"] = 200, (page % (7, failing)).encode()
    stub = starting.proc / "7" / "stat"
    stub.write_text(f"7 (triton_python_b) {state} " + stub.read_text().rpartition(") S ")[2])
    later(kubelet, server)
    assert kubelet.probe(server, plan=plan).status == status


TORCHSERVE: dict[str, Any] = {"name": "a", "image": "pytorch/torchserve:0.12.0-cpu"}


@pytest.mark.parametrize(
    ("health", "worker", "status"),
    [(500, False, FAILS), (500, True, 0), (200, False, 0), (None, False, 0)],
    ids=["none is left", "the others work", "none is needed", "busy"],
)
def test_a_server_that_fails_as_soon_as_one_worker_has_ended(
    health: int | None, worker: bool, status: int, starting: Starting
) -> None:
    kubelet = starting.kubelet
    plan = probes_of(TORCHSERVE)["livenessProbe"]["exec"]["command"][8]
    words = ["/usr/bin/python", "/ts/model_service_worker.py" if worker else "/ts/other.py", "--sock-type"]
    (starting.proc / "7" / "cmdline").write_bytes("\0".join([*words, ""]).encode())
    server = Server({"/ping": (200, b"")})
    assert kubelet.probe(server, plan=plan, path="/ping").status == 0
    server.answers["/ping"] = None if health is None else (health, b"")
    later(kubelet, server)
    outcome = kubelet.probe(server, plan=plan, path="/ping")
    assert outcome.status == status, outcome
    assert ("no process works for requests" in outcome.message) == (status == FAILS)


def test_a_server_that_may_not_be_asked_and_whose_processes_are_hidden(kubelet: Kubelet) -> None:
    """Whether it computes is unknown, so the endpoint decides."""
    plan = probes_of(BENTOML)["livenessProbe"]["exec"]["command"][8]
    server = Server({"/metrics": (200, BUSY.replace(b" 7.0", b" 6.0") % (0, 0, 0))})
    for page in (BUSY, BUSY):
        assert kubelet.probe(server, plan=plan).status == 0
        server.answers["/metrics"] = 200, page % (1, 1, 1)
    server.answers["/metrics"] = 200, BUSY % (2, 2, 2)
    later(kubelet, server)
    outcome = kubelet.probe(server, plan=plan)
    assert (outcome.status, outcome.message.endswith("its processes cannot be seen")) == (0, True), outcome


def test_an_idle_start_fails_after_a_while(starting: Starting) -> None:
    assert starting.probe()[0] == 0
    starting.later(800)
    assert starting.probe()[0] == 0, "less than any pod's patience"
    starting.later(500)
    starting.work(ticks=2000, pages=-9000, moved=1000, received=9000)  # swapping, polling, probes
    status, message = starting.probe()
    assert (status, "have done nothing for 13" in message) == (FAILS, True)


@pytest.mark.parametrize(
    "work",
    [{"ticks": 8000}, {"pages": 3000}, {"moved": 2 << 20}, {"received": 1 << 18}, {"moved": -(1 << 20)}],
    ids=["computes", "loads", "writes", "receives", "ends a process"],
)
def test_a_start_that_works_passes(work: dict[str, int], starting: Starting) -> None:
    starting.work(moved=1 << 22)
    starting.probe()
    for _ in range(2):
        starting.later(STALLED)
        starting.work(**work)
        status, message = starting.probe()
        assert (status, "worked 0 s ago" in message) == (0, True)


def test_small_steps_add_up_to_progress(starting: Starting) -> None:
    starting.probe()
    for moved in (1 << 18, 1 << 18, 1 << 18, 0):
        starting.later(STALLED / 4)
        starting.work(moved=moved)
        assert starting.probe()[0] == 0


def test_the_budget_ends_every_start(starting: Starting) -> None:
    starting.probe()
    starting.later(7200)
    starting.work(ticks=10_000)
    status, message = starting.probe()
    assert (status, message.startswith("it has not answered for 720")) == (FAILS, True)


def test_a_server_that_has_served_and_refuses_fails_at_once(starting: Starting, kubelet: Kubelet) -> None:
    server = Server()
    assert starting.probe(server)[1] == "it answers"
    kubelet.state(server.port, "start").rename(kubelet.state(starting.port, "start"))
    status, message = starting.probe()
    assert (status, "nothing listens" in message) == (FAILS, True)
    starting.work(began=100)  # the container was restarted, and its /tmp is a volume
    assert starting.probe()[1].startswith("it starts")


def test_a_server_that_answers_503_while_it_loads(starting: Starting) -> None:
    server = Server({"/health": (503, b"")})
    assert starting.probe(server, silent=LONG_AGO)[1].startswith("it starts")
    del server.answers["/health"]
    assert starting.probe(server)[1] == "it answers"


@pytest.mark.parametrize("hidden", ["1", "", "stat"], ids=["the first", "all", "their times"])
def test_invisible_processes(hidden: str, starting: Starting) -> None:
    if hidden == "stat":
        starting.work(ticks=-starting.ticks)
    else:
        shutil.rmtree(starting.proc / hidden)
    status, message = starting.probe()
    assert (status, message.startswith("cannot tell")) == (0, True)


def test_an_unreadable_file_does_not_count(starting: Starting) -> None:
    for name in ("net/dev", "1/io", "7/io"):
        (starting.proc / name).unlink()
    starting.probe()
    starting.later(STALLED)
    assert starting.probe()[0] == FAILS
    stat = starting.proc / "1" / "stat"
    stat.write_text(stat.read_text().replace(" 100 ", " 9000 ", 1))
    assert starting.probe()[0] == 0


@pytest.mark.parametrize(
    "text", ["", "nan nan nan nan nan nan nan", "inf " * 7, "1 2 3", "x", "5000 1e18 1e18 0 0 0 0", "9" * 600]
)
def test_the_first_run_passes_with_any_state(text: str, starting: Starting, kubelet: Kubelet) -> None:
    kubelet.state(starting.port, "start").write_text(text)
    assert starting.probe() == (0, "it starts; its processes worked 0 s ago")
