"""The program that runs in a vLLM's container, against servers that behave in every way."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from policies.core.facts import Facts
from policies.core.settings import default_settings
from policies.probes.progress import SHELL, TIMEOUT, program
from policies.probes.settings import StandardProbes
from policies.probes.standard_probes import mutate
from tests.steady import stillness

MODEL = 'it\'s "$(reboot)"; `reboot`\n'
COUNTERS = 'vllm:generation_tokens_total{model_name="m"} %d\nhttp_requests_total %d\n'
LONG_AGO = 1000
FAILS = 100
"""The exit status of a program that has found a hang."""
HUNG = 2.5
"""How much sooner the program gives up on a server that does not answer."""


@dataclass
class Server:
    """The answers of a server: a status and a body for each path, or no answer for `None`."""

    moves: bool = False
    answers: dict[str, tuple[int, bytes] | None] = field(default_factory=dict)
    seen: list[tuple[str, Any, str | None]] = field(default_factory=list)
    tokens: int = 0
    ended: threading.Event = field(default_factory=threading.Event)

    def answer(self, path: str, body: bytes, key: str | None) -> tuple[int, bytes] | None:
        self.seen.append((path, json.loads(body) if body else None, key))
        if path in self.answers:
            return self.answers[path]
        if path == "/metrics":
            self.tokens += self.moves
            return 200, (COUNTERS % (self.tokens, len(self.seen))).encode()
        if path == "/v1/models":
            lora = {"id": "lora", "parent": MODEL}
            return 200, json.dumps({"data": [lora, {"id": MODEL, "parent": None}]}).encode()
        return 200, b"{}"

    @property
    def canaries(self) -> list[tuple[str, Any, str | None]]:
        return [each for each in self.seen if each[1] is not None]


Start = Callable[[Server], int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts servers on 127.0.0.1; gives the port."""
    running: list[tuple[Server, ThreadingHTTPServer]] = []

    def started(server: Server, tls: ssl.SSLContext | None = None, family: int = socket.AF_INET) -> int:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                answer = server.answer(self.path, body, self.headers.get("Authorization"))
                if answer is None:
                    server.ended.wait(60)
                    return
                self.send_response(answer[0])
                self.end_headers()
                self.wfile.write(answer[1])

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
        running.append((server, http))
        return int(http.server_address[1])

    yield started
    for server, http in running:
        server.ended.set()
        http.shutdown()
        http.server_close()


@dataclass(frozen=True)
class Outcome:
    status: int
    said: str
    took: float


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., Outcome]:
    """Runs the program as kubelet would, with its times divided by `faster` and files below `tmp_path`."""

    def asked(port: int, *words: str, faster: float = 1, env: dict[str, str] | None = None) -> Outcome:
        text = program("vllm").replace('"/tmp", "/dev/shm"', repr(str(tmp_path)) + ",")
        times = "DEADLINE, HEALTH, PAGE, LATEST_CANARY = 25, 10, 3, 8"
        assert times in text
        shorter = ", ".join(str(float(each) / faster) for each in (25, 10, 3, 8))
        text = text.replace(times, f"DEADLINE, HEALTH, PAGE, LATEST_CANARY = {shorter}")
        text = text.replace("left() - PAGE - 1", f"left() - PAGE - {1 / faster}")
        # On a busy machine the interpreter starts slowly: the deadline counts from here.
        text = text.replace("END = time.monotonic() + DEADLINE - age()", "END = time.monotonic() + DEADLINE")
        for old in ('listdir("/proc")', '"/proc/%s/stat"', '"/proc/%s/io"', '"/proc/net/dev"'):
            assert old in text
            text = text.replace(old, old.replace("/proc", str(tmp_path / "proc")))
        command = [sys.executable, "-I", "-S", "-c", text, str(port), *(words or ("http", "0"))]
        remembered = tmp_path / f".mlchassis-liveness-{port}"
        before = remembered.read_bytes() if remembered.is_file() else None
        for _ in range(20):
            began = time.monotonic()
            with stillness() as longest:
                done = subprocess.run(
                    command, env=env or {}, capture_output=True, text=True, timeout=120, check=False
                )
            assert done.stderr == ""
            if faster != HUNG or longest() < 0.5:
                break
            # The server stopped, too: this proves nothing about the program.
            if before is None:
                remembered.unlink(missing_ok=True)
            else:
                remembered.write_bytes(before)
        return Outcome(done.returncode, done.stdout.strip(), time.monotonic() - began)

    return asked


@pytest.fixture
def silent_since(tmp_path: Path) -> Callable[[int, float], None]:
    """Writes what the program remembers: the counters as they are, and when the server last lived."""

    def written(port: int, seconds: float, tokens: int = 0) -> None:
        counters = (COUNTERS % (tokens, 0)).encode().splitlines()[0]
        text = f"{zlib.crc32(counters)} {time.monotonic() - seconds}"
        (tmp_path / f".mlchassis-liveness-{port}").write_text(text)

    return written


Ask = Callable[..., Outcome]
Silent = Callable[[int, float], None]


def test_the_first_time_it_only_remembers(start: Start, ask: Ask) -> None:
    server = Server()
    outcome = ask(start(server))
    assert (outcome.status, outcome.said) == (0, "the engine works")
    assert server.canaries == []


def test_no_canary_while_the_counters_move(start: Start, ask: Ask, silent_since: Silent) -> None:
    server = Server(moves=True)
    silent_since(port := start(server), LONG_AGO)
    assert ask(port).status == 0
    assert server.canaries == []


def test_an_idle_server_answers_a_canary(start: Start, ask: Ask, silent_since: Silent) -> None:
    server = Server()
    silent_since(port := start(server), LONG_AGO)
    outcome = ask(port, "http", "0", "KEY", env={"KEY": "s3cret key"})
    assert (outcome.status, outcome.said) == (0, "the engine answers")
    [(path, body, key)] = server.canaries
    assert (path, body) == ("/v1/completions", {"model": MODEL, "prompt": "a", "max_tokens": 1})
    assert key == "Bearer s3cret key"
    assert {key for path, _, key in server.seen if not path.startswith("/v1")} == {None}


def test_a_hung_engine_fails_once_it_was_silent_for_long(
    start: Start, ask: Ask, silent_since: Silent
) -> None:
    server = Server(answers={"/v1/completions": None})
    silent_since(port := start(server), 20)
    patient = ask(port, faster=HUNG)
    assert patient.status == 0, "less than any pod's patience"
    assert "for 2" in patient.said
    silent_since(port, LONG_AGO)
    hung = ask(port, faster=HUNG)
    assert (hung.status, hung.said.startswith("a request for one token gets no answer")) == (FAILS, True)


def test_a_canary_that_waits_behind_work_passes(start: Start, ask: Ask, silent_since: Silent) -> None:
    server = Server(answers={"/v1/completions": None})
    silent_since(port := start(server), LONG_AGO)
    threading.Timer(0.5, lambda: setattr(server, "moves", True)).start()
    outcome = ask(port, faster=HUNG)
    assert outcome.status == 0
    assert ask(port).said == "the engine works"


@pytest.mark.parametrize(
    ("key", "sent"),
    [
        ('it\'s "$(reboot)"; `reboot`', 'Bearer it\'s "$(reboot)"; `reboot`'),
        ("k\r\nContent-Length: 0\r\n\r\nDELETE / HTTP/1.0", None),
        ("k\u0141", None),
    ],
    ids=["quotes", "another header", "no header's text"],
)
def test_a_hostile_api_key_stays_a_key(
    key: str, sent: str | None, start: Start, ask: Ask, silent_since: Silent
) -> None:
    server = Server()
    silent_since(port := start(server), LONG_AGO)
    assert ask(port, "http", "0", "KEY", env={"KEY": key, "LC_ALL": "C.UTF-8"}).said == "the engine answers"
    assert [path for path, _, _ in server.seen] == [
        *("/health", "/metrics", "/v1/models", "/v1/completions", "/metrics"),
    ]
    assert {given for path, _, given in server.seen if path.startswith("/v1")} == {sent}


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling", "/classify", "/score"])
def test_pooling_models(path: str, start: Start, ask: Ask, silent_since: Silent) -> None:
    others = ("/v1/completions", "/v1/embeddings", "/pooling", "/classify", "/score")
    server = Server(answers={each: (404, b"") for each in others if each != path})
    silent_since(port := start(server), LONG_AGO)
    assert ask(port).said == "the engine answers"
    server.answers[path] = None
    silent_since(port, LONG_AGO)
    assert ask(port, faster=HUNG).status == FAILS


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_an_answer_without_the_engine_is_no_evidence(
    status: int, start: Start, ask: Ask, silent_since: Silent
) -> None:
    server = Server(answers={"/v1/completions": (status, b"")})
    silent_since(port := start(server), LONG_AGO)
    outcome = ask(port)
    assert (outcome.status, outcome.said) == (0, "cannot tell")


@pytest.mark.parametrize(
    "page",
    [
        (404, b""),
        (200, b""),
        (200, b"vllm:" + b"x" * 100),
        (200, b'evil{a="\nvllm:generation"} NaN\n\xff\xfe\x00'),
        (200, b"x" * (50 << 20)),
        None,
    ],
    ids=["missing", "empty", "unknown", "hostile", "huge", "silent"],
)
def test_without_counters_a_hang_looks_like_work(
    page: tuple[int, bytes] | None, start: Start, ask: Ask, silent_since: Silent
) -> None:
    server = Server(answers={"/v1/completions": None, "/metrics": page})
    silent_since(port := start(server), LONG_AGO)
    outcome = ask(port, faster=HUNG)
    assert outcome.status == 0
    assert outcome.took < TIMEOUT


@pytest.mark.parametrize(
    "models",
    [b"", b"[]", b'{"data": [{"parent": null}]}', b'{"data": 3}', b"\xff", b"[" * 100_000],
    ids=["empty", "list", "no id", "number", "no text", "nested"],
)
def test_without_a_model_it_is_undecided(models: bytes, start: Start, ask: Ask, silent_since: Silent) -> None:
    server = Server(answers={"/v1/completions": None, "/v1/models": (200, models)})
    silent_since(port := start(server), LONG_AGO)
    assert ask(port, faster=HUNG).status == 0


@pytest.mark.parametrize("health", [None, (503, b"")], ids=["silent", "503"])
def test_a_health_check_that_fails(
    health: tuple[int, bytes] | None, start: Start, ask: Ask, silent_since: Silent
) -> None:
    server = Server(answers={"/health": health})
    silent_since(port := start(server), 0)
    assert ask(port, faster=HUNG).status == 0
    silent_since(port, LONG_AGO)
    outcome = ask(port, faster=HUNG)
    assert outcome.status == FAILS
    assert outcome.said.startswith("GET /health")
    server.moves = True
    assert ask(port, faster=HUNG).status == 0, "the engine works"


def test_an_answer_without_end(start: Start, ask: Ask, silent_since: Silent) -> None:
    class Endless(Server):
        def answer(self, path: str, body: bytes, key: str | None) -> tuple[int, bytes] | None:
            if path != "/v1/models":
                return super().answer(path, body, key)
            return 200, b"x" * (200 << 20)

    silent_since(port := start(Endless()), LONG_AGO)
    outcome = ask(port, faster=HUNG)
    assert outcome.status == 0
    assert outcome.took < TIMEOUT


def test_nothing_listens(ask: Ask) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        outcome = ask(free.getsockname()[1])
    assert outcome.status == FAILS
    assert "nothing listens" in outcome.said


def test_a_server_that_only_listens_on_ipv6(start: Callable[..., int], ask: Ask) -> None:
    assert ask(start(Server(), family=socket.AF_INET6)).said == "the engine works"


def test_it_passes_when_its_time_is_over(start: Start, ask: Ask, silent_since: Silent) -> None:
    slow = Server(answers={"/health": None})
    silent_since(port := start(slow), LONG_AGO)
    text = ask(port, faster=10_000)
    assert text.status == 0, "however silent the server was"


@pytest.mark.skipif(os.geteuid() != 0, reason="root may write everywhere")
def test_what_it_remembers_is_no_link(start: Start, ask: Ask, tmp_path: Path) -> None:
    port = start(Server())
    (target := tmp_path / "precious").write_text("kept")
    (tmp_path / f".mlchassis-liveness-{port}").symlink_to(target)
    assert ask(port).said.startswith("cannot tell: neither")
    assert target.read_text() == "kept"


def test_without_a_place_to_remember_it_passes(start: Start, ask: Ask, tmp_path: Path) -> None:
    port = start(Server(answers={"/v1/completions": None}))
    (tmp_path / f".mlchassis-liveness-{port}").mkdir()
    assert ask(port).said.startswith("cannot tell: neither")


def test_a_fifo_in_its_place_does_not_block(start: Start, ask: Ask, tmp_path: Path) -> None:
    port = start(Server())
    os.mkfifo(tmp_path / f".mlchassis-liveness-{port}")
    assert ask(port).status == 0


def test_an_untrusted_certificate(start: Callable[..., int], ask: Ask, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody-else")])
    then = datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, then, then)
    certificate = builder.sign(key, hashes.SHA256())
    (tmp_path / "cert").write_bytes(certificate.public_bytes(Encoding.PEM))
    (tmp_path / "key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    assert ask(start(Server(), tls=tls), "https", "0").said == "the engine works"


def test_two_servers_in_a_pod_are_distinguished(start: Start, ask: Ask, silent_since: Silent) -> None:
    well, hung = Server(moves=True), Server(answers={"/v1/completions": None})
    first, second = start(well), start(hung)
    silent_since(second, LONG_AGO)
    assert ask(first).status == 0
    assert ask(second, faster=HUNG).status == FAILS


@pytest.mark.parametrize("pause", [0.1, 60])
@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/completions"])
def test_an_answer_that_drips(path: str, pause: float, start: Start, ask: Ask, silent_since: Silent) -> None:
    """A status counts, and a byte now and then, or none, keeps no probe beyond its time."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = int(listening.getsockname()[1])

    def drip(connection: socket.socket) -> None:
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
            threading.Thread(target=drip, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    silent_since(port, LONG_AGO)
    outcome = ask(port, faster=HUNG)
    listening.close()
    assert outcome.status == 0
    assert outcome.took < TIMEOUT


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
def test_only_its_own_verdict_fails_the_probe(python3: str | None, fails: bool, tmp_path: Path) -> None:
    """An image without python3, or with one that does not start, never gets its server restarted."""
    for tool in ("sh", "kill"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "")
    if python3 is not None:
        (tmp_path / "python3").write_text(f"#!/bin/sh\n{python3}\n")
        (tmp_path / "python3").chmod(0o755)
    command = [*SHELL, "the 'text' `x`", "80", "http"]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, check=False)
    assert (done.returncode != 0) is fails


def test_the_shell_passes_its_arguments_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\nprintf '%s|' \"$@\"\n")
    (tmp_path / "python3").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([*SHELL, "the 'text' `x`\n$HOME", "80"], env=env, capture_output=True, text=True)
    assert done.stdout == "-I|-S|-c|the 'text' `x`\n$HOME|80|"


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("$(KEY)", ["KEY"]),
        ("$(reboot)", ["reboot"]),
        ("$(KEY; reboot)", None),
        ("$KEY'; reboot; '", None),
        ("`reboot`", None),
        ("${KEY:-$(reboot)}", None),
        ("$(KEY)\n", None),
    ],
)
def test_no_text_of_a_manifest_is_in_the_command(key: str, names: list[str] | None) -> None:
    """Only a port, a scheme, a number and names of variables follow the program."""
    name = 'it\'s "$(reboot)"; `reboot`'
    server = {
        "name": "chat",
        "image": "vllm/vllm-openai:v0.32.0",
        "args": ["acme/toy", "--served-model-name", name, f"--api-key={key}"],
        "env": [
            {"name": each, "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
            for each in ("KEY", "reboot")
        ],
    }
    settings = default_settings(StandardProbes)
    pod = mutate({"spec": {"containers": [server]}}, settings, Facts())
    probe = pod["spec"]["containers"][0]["livenessProbe"]
    if names is None:
        assert "httpGet" in probe
    else:
        assert probe["exec"]["command"] == [*SHELL, program("vllm"), "8000", "http", "0", *names]


# --- the start -----------------------------------------------------------------------------------

STALLED = 1300
"""Seconds without any work that are too many for each pod."""


@dataclass
class Processes:
    """What /proc shows of a container: its first process and one more."""

    folder: Path
    began: int = 5000
    ticks: int = 100
    pages: int = 10_000
    moved: int = 1 << 20
    received: int = 1 << 20

    def show(self) -> None:
        for pid, began in ((1, self.began), (7, self.began + 9)):
            (process := self.folder / str(pid)).mkdir(parents=True, exist_ok=True)
            rest = ["0"] * 49
            rest[11], rest[19], rest[21] = str(self.ticks // pid), str(began), str(self.pages // pid)
            (process / "stat").write_text(f"{pid} (a b) c) S {' '.join(rest[1:])}")
            (process / "io").write_text(f"rchar: {self.moved}\nwchar: 0\n")
        (self.folder / "net").mkdir(exist_ok=True)
        head = "Inter-|   Receive\n face |bytes    packets\n"
        lines = f"    lo: 999999999 1\n  eth0: {self.received} 5\n"
        (self.folder / "net" / "dev").write_text(head + lines)

    def work(self, **more: int) -> None:
        for name, amount in more.items():
            setattr(self, name, getattr(self, name) + amount)
        self.show()


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    found = Processes(tmp_path / "proc")
    found.show()
    return found


@pytest.fixture
def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def earlier(tmp_path: Path) -> Callable[[int, float], None]:
    """Makes what the program remembers of a start so many seconds older."""

    def moved(port: int, seconds: float) -> None:
        file = tmp_path / f".mlchassis-start-{port}"
        first, began, worked, *done = (float(word) for word in file.read_text().split())
        then = (first, began - seconds, worked - seconds, *done)
        file.write_text(" ".join(f"{number:f}" for number in then))

    return moved


WATCHED = ("http", "7200")


def test_a_start_that_does_nothing_fails_after_a_while(
    ask: Ask, processes: Processes, free_port: int, earlier: Silent
) -> None:
    assert ask(free_port, *WATCHED).status == 0
    earlier(free_port, 800)
    assert ask(free_port, *WATCHED).status == 0, "less than any pod's patience"
    earlier(free_port, 500)
    processes.work(ticks=2000, pages=-9000, moved=1000, received=9000)  # idle work: swapping, polling, probes
    outcome = ask(free_port, *WATCHED)
    assert (outcome.status, "have done nothing for 13" in outcome.said) == (FAILS, True)


@pytest.mark.parametrize(
    "work",
    [{"ticks": 8000}, {"pages": 3000}, {"moved": 2 << 20}, {"received": 1 << 18}, {"moved": -(1 << 20)}],
    ids=["computes", "loads", "writes", "receives", "ends a process"],
)
def test_a_start_that_works_passes(
    work: dict[str, int], ask: Ask, processes: Processes, free_port: int, earlier: Silent
) -> None:
    processes.work(moved=1 << 22)
    ask(free_port, *WATCHED)
    for _ in range(2):
        earlier(free_port, STALLED)
        processes.work(**{name: amount // 2 for name, amount in work.items()})
        processes.work(**{name: amount // 2 for name, amount in work.items()})
        outcome = ask(free_port, *WATCHED)
        assert (outcome.status, "worked 0 s ago" in outcome.said) == (0, True)


def test_little_by_little_is_progress(
    ask: Ask, processes: Processes, free_port: int, earlier: Silent
) -> None:
    ask(free_port, *WATCHED)
    for _ in range(3):
        earlier(free_port, STALLED / 4)
        processes.work(moved=1 << 18)
        assert ask(free_port, *WATCHED).status == 0
    earlier(free_port, STALLED / 4)
    assert ask(free_port, *WATCHED).status == 0


def test_the_budget_ends_every_start(ask: Ask, processes: Processes, free_port: int, earlier: Silent) -> None:
    ask(free_port, *WATCHED)
    earlier(free_port, 7200)
    processes.work(ticks=10_000)
    outcome = ask(free_port, *WATCHED)
    assert (outcome.status, outcome.said.startswith("it has not answered for 720")) == (FAILS, True)


def test_a_server_that_has_served_and_refuses_fails_at_once(
    start: Start, ask: Ask, processes: Processes, tmp_path: Path
) -> None:
    port = start(Server())
    assert ask(port, *WATCHED).said == "the engine works"
    memory = tmp_path / f".mlchassis-start-{port}"
    assert memory.exists()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        other = free.getsockname()[1]
    memory.rename(tmp_path / f".mlchassis-start-{other}")
    outcome = ask(other, *WATCHED)
    assert (outcome.status, "nothing listens" in outcome.said) == (FAILS, True)
    processes.work(began=100)  # the container was restarted, and its /tmp is a volume
    assert ask(other, *WATCHED).said.startswith("it starts")


def test_a_server_that_answers_503_while_it_loads(
    start: Start, ask: Ask, processes: Processes, silent_since: Silent, earlier: Silent
) -> None:
    server = Server(answers={"/health": (503, b"")})
    silent_since(port := start(server), LONG_AGO)
    assert ask(port, *WATCHED).said.startswith("it starts")
    del server.answers["/health"]
    assert ask(port, *WATCHED).said == "the engine answers"


@pytest.mark.parametrize("hidden", ["1", "", "stat"], ids=["the first", "all", "their times"])
def test_processes_that_cannot_be_seen(hidden: str, ask: Ask, processes: Processes, free_port: int) -> None:
    if hidden == "stat":
        processes.work(ticks=-processes.ticks)
    else:
        shutil.rmtree(processes.folder / hidden)
    outcome = ask(free_port, *WATCHED)
    assert (outcome.status, outcome.said.startswith("cannot tell")) == (0, True)


def test_an_unreadable_file_does_not_count(
    ask: Ask, processes: Processes, free_port: int, earlier: Silent
) -> None:
    (processes.folder / "net" / "dev").unlink()
    for pid in ("1", "7"):
        (processes.folder / pid / "io").unlink()
    ask(free_port, *WATCHED)
    earlier(free_port, STALLED)
    assert ask(free_port, *WATCHED).status == FAILS
    earlier(free_port, 0)
    (processes.folder / "1" / "stat").write_text(
        (processes.folder / "1" / "stat").read_text().replace(" 100 ", " 9000 ", 1)
    )
    assert ask(free_port, *WATCHED).status == 0


@pytest.mark.parametrize(
    "text", ["", "nan nan nan nan nan nan nan", "inf " * 7, "1 2 3", "x", "5000 1e18 1e18 0 0 0 0", "9" * 600]
)
def test_the_first_run_passes_with_any_memory(
    text: str, ask: Ask, processes: Processes, free_port: int, tmp_path: Path
) -> None:
    (tmp_path / f".mlchassis-start-{free_port}").write_text(text)
    outcome = ask(free_port, *WATCHED)
    assert (outcome.status, outcome.said) == (0, "it starts; its processes worked 0 s ago")


def test_its_text_is_nothing_that_kubelet_expands() -> None:
    assert "$(" not in program("vllm")
    assert '"""' not in program("vllm").splitlines()[0]
    assert len(program("vllm")) < 10_000
    assert "$(" not in "".join(SHELL)
