"""Liveness of the users' own servers: what their connections show, and the canary of an annotation."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from policies.core.facts import Facts
from policies.core.settings import default_settings
from policies.probes.advice import advise
from policies.probes.standard_probes import mutate
from policies.probes.standard_probes_settings import StandardProbes
from tests.policies.probes.test_progress_program import FAILS, LONG_AGO, Answer, Kubelet, Outcome, Server
from tests.servers.server import probes_of

UVICORN: dict[str, Any] = {
    "name": "api",
    "image": "acme/api:1",
    "command": ["uvicorn", "app:app", "--host=0.0.0.0", "--port=8080"],
}
ACCEPTS: str = probes_of(UVICORN)["livenessProbe"]["exec"]["command"][8]
CANARY = {"mlchassis.dev/canary": "POST /predict", "mlchassis.dev/canary-body": '{"x": 1}'}


def injected(container: dict[str, Any], annotations: dict[str, str]) -> dict[str, Any]:
    """The container with its probes."""
    pod = {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}
    settings = default_settings(StandardProbes)
    changed: dict[str, Any] = mutate(pod, settings, Facts())["spec"]["containers"][0]
    return changed


def warnings(container: dict[str, Any], annotations: dict[str, str]) -> list[str]:
    pod = {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}
    return [each.message for each in advise(pod, default_settings(StandardProbes), Facts())]


ASKS: str = injected({**UVICORN, "command": ["python", "app.py"], "ports": [{"containerPort": 80}]}, CANARY)[
    "livenessProbe"
]["exec"]["command"][8]


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    kubelet = Kubelet(tmp_path)
    use(kubelet, 100)
    yield kubelet
    kubelet.stop()


def use(kubelet: Kubelet, ticks: int) -> None:
    """The CPU time of the server's processes, in hundredths of a second."""
    (process := kubelet.folder / "proc" / "1").mkdir(parents=True, exist_ok=True)
    numbers = ["0"] * 49
    numbers[11], numbers[19] = str(ticks), "5000"
    (process / "stat").write_text(f"1 (a) S {' '.join(numbers[1:])}")
    (process / "io").write_text("rchar: 0\n")


@contextmanager
def listener(backlog: int = 100) -> Iterator[tuple[socket.socket, int]]:
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as server:
        yield server, server.getsockname()[1]


@contextmanager
def accepting(server: socket.socket) -> Iterator[None]:
    """Meanwhile the server accepts every connection."""
    ended = threading.Event()
    server.settimeout(0.1)

    def accept() -> None:
        with ExitStack() as accepted:
            while not ended.is_set():
                with suppress(TimeoutError):
                    accepted.enter_context(server.accept()[0])

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


# --- a server that accepts connections, or not ---------------------------------------------------------


def accepts(kubelet: Kubelet, port: int, silent: float | None = None, *, armed: bool = True) -> Outcome:
    return kubelet.probe(port, silent=silent, armed=armed, path="", plan=ACCEPTS)


def age(
    kubelet: Kubelet, port: int, seconds: float, *, armed: bool | None = None, done: str | None = None
) -> None:
    """Make the program's state older. `armed`: whether the server has worked before."""
    first, before, _, *gauges, last, worked = kubelet.state(port).read_text().split()
    last = str(float(last) - seconds)
    worked = worked if armed is None else str(int(armed))
    # No connection had waited then: those of the test are not as old.
    words = [first, before if done is None else done, "0.0", *gauges, last, worked]
    kubelet.state(port).write_text(" ".join(words))


def arm(kubelet: Kubelet, port: int) -> None:
    """Let the server have worked before."""
    words = kubelet.state(port).read_text().split()
    kubelet.state(port).write_text(" ".join([*words[:-1], "1"]))


def test_a_server_that_accepts(kubelet: Kubelet) -> None:
    server = kubelet.serve(Server())
    assert [accepts(kubelet, server.port).status for _ in range(3)] == [0, 0, 0]
    assert accepts(kubelet, server.port, silent=LONG_AGO).message == "it works"
    assert server.requests == [], "nothing is sent"


def test_a_blocked_server_that_accepted_before(kubelet: Kubelet) -> None:
    with listener() as (server, port):
        with accepting(server):
            assert accepts(kubelet, port).status == accepts(kubelet, port).status == 0
        assert accepts(kubelet, port).status == 0, "it has just worked"
        age(kubelet, port, LONG_AGO)
        hung = accepts(kubelet, port)
        assert hung.status == FAILS
        assert hung.message.startswith("it accepts no connection, and nothing was finished for ")


@pytest.mark.parametrize("accepted", [1, 0])
def test_a_long_queue_that_moves(accepted: int, kubelet: Kubelet) -> None:
    with listener() as (server, port), ExitStack() as open_:
        for _ in range(5):
            open_.enter_context(socket.create_connection(("127.0.0.1", port)))
            time.sleep(0.1)
        accepts(kubelet, port)
        age(kubelet, port, LONG_AGO, armed=True)
        for _ in range(accepted):
            open_.enter_context(server.accept()[0])
        assert accepts(kubelet, port).status == (0 if accepted else FAILS)


@pytest.mark.parametrize("accepted", [5, 0])
def test_a_burst_is_accepted_one_by_one(accepted: int, kubelet: Kubelet) -> None:
    """The order of connections of one moment is not known: the last may be taken for the first. So one comes
    before them, or a slow machine, on which they take longer than a moment, would show another first. A
    machine that stops while their ages are read makes the later ones look older."""
    with listener(backlog=300) as (server, port), ExitStack() as open_:
        for number in range(200):
            open_.enter_context(socket.create_connection(("127.0.0.1", port)))
            time.sleep(1 if number == 0 else 0)
        time.sleep(1)
        accepts(kubelet, port)
        for _ in range(accepted):
            open_.enter_context(server.accept()[0])
        arm(kubelet, port)
        expected = "it works" if accepted else "it accepts no connection, and nothing was finished for "
        assert accepts(kubelet, port).message.startswith(expected)


def test_a_full_queue(kubelet: Kubelet) -> None:
    """The kernel drops further connections: a plain check of the port would fail under honest overload."""
    with listener(backlog=1) as (_, port), ExitStack() as open_:
        for _ in range(6):
            client = open_.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        unknown = accepts(kubelet, port)
        assert unknown.status == 0
        assert unknown.message.startswith(f"port {port} gets no answer; progress is not checked: ")
        age(kubelet, port, LONG_AGO, armed=True)
        assert accepts(kubelet, port).status == FAILS


@pytest.mark.parametrize(
    ("ticks", "armed", "silent"),
    [
        pytest.param(100_000, True, LONG_AGO, id="its processes compute"),
        pytest.param(100, False, LONG_AGO, id="it never accepted a connection"),
        pytest.param(100, True, 200, id="a slow request"),
        pytest.param(0, True, LONG_AGO, id="its processes cannot be seen"),
    ],
)
def test_a_blocked_server_that_passes(ticks: int, armed: bool, silent: float, kubelet: Kubelet) -> None:
    with listener() as (_, port):
        assert accepts(kubelet, port).status == 0
        use(kubelet, ticks)
        age(kubelet, port, silent, armed=armed)
        assert accepts(kubelet, port).status == 0


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (["sh", "-c", "exec gunicorn app:app"], False),
        (["/bin/bash", "-lc", "gunicorn app:app"], False),
        (["/usr/bin/python3.11", "-I", "-S", "-c", "import os"], False),
        (["tini", "--", "/bin/sh", "-c", "gunicorn app:app"], False),
        (["gunicorn", "-c", "none.py", "app:app"], True),
        (["tini", "--", "gunicorn", "-c", "none.py", "app:app"], True),
        (["/usr/bin/python3", "/usr/bin/gunicorn", "-c", "none.py"], True),
        (["python", "-u", "-m", "gunicorn", "-c", "none.py"], True),
        (["sh", "/start.sh", "-c", "none.py"], True),
    ],
)
def test_what_a_shell_runs_is_no_configuration_file(
    words: list[str], missing: bool, kubelet: Kubelet
) -> None:
    """The program itself runs behind `sh -c` and `python3 -c`; gunicorn's `-c` names a file."""
    (kubelet.folder / "proc" / "1" / "cmdline").write_text("\0".join([*words, ""]))
    server = kubelet.serve(Server())
    gunicorn = {**UVICORN, "command": ["gunicorn", "--bind=0.0.0.0:80", "app:app"]}
    plan = probes_of(gunicorn)["livenessProbe"]["exec"]["command"][8]
    messages = [kubelet.probe(server.port, armed=True, path="", plan=plan).message for _ in range(2)]
    assert ("none.py cannot be read" in messages[1]) is missing
    assert (messages[1] == "it works") is not missing


def test_nothing_listens(kubelet: Kubelet) -> None:
    with listener() as (_, port):
        pass
    assert accepts(kubelet, port).status == FAILS


# --- a canary ---------------------------------------------------------------------------------------------


def asks(
    kubelet: Kubelet, server: Server, silent: float | None = None, *, armed: bool = True, used: int = 100
) -> Outcome:
    use(kubelet, used)
    return kubelet.probe(server, silent=silent, armed=armed, path="", plan=ASKS)


def test_an_answered_canary(kubelet: Kubelet) -> None:
    server = Server()
    assert [asks(kubelet, server).message for _ in range(2)] == ["it answers"] * 2
    assert server.requests == [("/predict", {"x": 1}, None)] * 2


def test_a_hang_behind_a_live_event_loop(kubelet: Kubelet) -> None:
    server = kubelet.serve(Server())
    asks(kubelet, server)
    server.answers["/predict"] = None
    assert asks(kubelet, server).status == 0, "it has just answered"
    age(kubelet, server.port, LONG_AGO)
    assert asks(kubelet, server).message.startswith("a request gets no answer, and nothing was finished for")
    assert asks(kubelet, server).status == FAILS


@pytest.mark.parametrize(
    ("answer", "armed", "used"),
    [
        pytest.param(None, True, 100_000, id="overload: its processes compute"),
        pytest.param(None, False, 100, id="no canary was ever answered"),
        *(pytest.param((status, b""), True, 100, id=str(status)) for status in (400, 422, 429, 500, 503)),
    ],
)
def test_a_canary_that_is_not_answered_and_passes(
    answer: Answer, armed: bool, used: int, kubelet: Kubelet
) -> None:
    server = Server({"/predict": answer})
    assert asks(kubelet, server, silent=LONG_AGO, armed=armed, used=used).status == 0


@pytest.mark.parametrize("body", [None, {"x": 2}])
def test_a_body_from_a_variable(body: dict[str, int] | None, kubelet: Kubelet) -> None:
    """Without the variable, because its ConfigMap does not exist, no canary is sent."""
    server, env = Server(), {"BODY": json.dumps(body)} if body else {}
    plan = json.dumps({**json.loads(ASKS), "canaries": [["/predict", ""]], "body": "BODY"})
    use(kubelet, 100)
    assert kubelet.probe(server, path="", plan=plan, env=env).status == 0
    assert server.requests == ([("/predict", body, None)] if body else [])


def test_a_client_that_gets_answers(kubelet: Kubelet) -> None:
    """It keeps its connection and asks again: no canary is sent while its answers come."""
    with listener() as (listening, port):
        with accepting(listening):
            accepts(kubelet, port)
        with socket.create_connection(("127.0.0.1", port)) as client, listening.accept()[0] as served:
            age(kubelet, port, LONG_AGO, armed=True, done="0.0")
            for piece in (b"question", b"next question"):
                client.sendall(piece)
                served.recv(100)
                if piece == b"question":
                    served.sendall(b"answer")
                    time.sleep(0.1)
            assert kubelet.probe(port, path="", plan=ASKS).message == "it works"


# --- the black box ----------------------------------------------------------------------------------------


def test_a_hang_is_described_in_the_termination_log(kubelet: Kubelet) -> None:
    box = kubelet.folder / "termination-log"
    box.touch()
    for thread, place in enumerate(("futex_wait_queue", "futex_wait_queue", "0")):
        (task := kubelet.folder / "proc" / "1" / "task" / str(thread)).mkdir(parents=True)
        (task / "stat").write_text("1 (python3) S 0")
        (task / "wchan").write_text(place)
    server = kubelet.serve(Server())
    asks(kubelet, server)
    server.answers["/predict"] = None
    age(kubelet, server.port, LONG_AGO)
    assert asks(kubelet, server).status == FAILS
    first, shown, *threads = box.read_text().splitlines()
    assert first.startswith("mlchassis liveness, at 20")
    assert ": a request gets no answer, and nothing was finished for 10" in first
    assert shown.startswith("it showed: done 0")
    assert threads == ["threads:", "2 python3 S futex_wait_queue", "1 python3 S"]
    del server.answers["/predict"]
    assert asks(kubelet, server).status == 0
    assert box.read_text() == "", "it was alive after all"


def test_a_message_of_the_server_stays(kubelet: Kubelet) -> None:
    box = kubelet.folder / "termination-log"
    box.write_text("out of memory")
    with listener() as (_, port):
        accepts(kubelet, port)
        assert box.read_text() == "out of memory"
        age(kubelet, port, LONG_AGO, armed=True)
        assert accepts(kubelet, port).status == FAILS
    assert box.read_text() == "out of memory"


# --- what is injected -----------------------------------------------------------------------------------


def plan_of(container: dict[str, Any]) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads(container["livenessProbe"]["exec"]["command"][8])
    return plan


def test_a_canary_for_any_server() -> None:
    container = {"name": "a", "image": "acme/api:1", "ports": [{"containerPort": 9000}]}
    annotations = {**CANARY, "mlchassis.dev/canary-time": "60s"}
    probe = (changed := injected(container, annotations))["livenessProbe"]
    assert plan_of(changed)["canaries"] == [["/predict", '{"x": 1}']]
    assert (plan_of(changed)["longest"], plan_of(changed)["silence"]) == (45, 300)
    assert (probe["timeoutSeconds"], probe["periodSeconds"]) == (75, 75)
    assert changed["startupProbe"]["tcpSocket"] == {"port": 9000}
    assert injected(changed, annotations) == changed


def test_a_path_and_a_canary() -> None:
    annotations = {**CANARY, "mlchassis.dev/health-path": "/health"}
    changed = injected({**UVICORN}, annotations)
    assert changed["livenessProbe"]["exec"]["command"][7] == "/health"
    assert changed["readinessProbe"]["httpGet"] == {"path": "/health", "port": 8080}


def test_a_body_in_a_config_map() -> None:
    annotations = {**CANARY, "mlchassis.dev/canary-body": "configMap:canaries/api.json"}
    changed = injected({**UVICORN, "env": [{"name": "A", "value": "1"}]}, annotations)
    assert changed["env"] == [
        {"name": "A", "value": "1"},
        {
            "name": "MLCHASSIS_CANARY_BODY",
            "valueFrom": {"configMapKeyRef": {"name": "canaries", "key": "api.json", "optional": True}},
        },
    ]
    assert plan_of(changed)["canaries"] == [["/predict", ""]]
    assert plan_of(changed)["body"] == "MLCHASSIS_CANARY_BODY"
    assert injected(changed, annotations) == changed


def test_a_body_variable_of_the_container_stays() -> None:
    annotations = {**CANARY, "mlchassis.dev/canary-body": "configMap:canaries/api.json"}
    env = [{"name": "MLCHASSIS_CANARY_BODY", "value": "{}"}]
    assert injected({**UVICORN, "env": env}, annotations)["env"] == env


def test_nothing_in_a_body_is_expanded() -> None:
    annotations = {**CANARY, "mlchassis.dev/canary-body": '{"x": "$(SECRET)"}'}
    changed = injected({**UVICORN}, annotations)
    assert "$(" not in changed["livenessProbe"]["exec"]["command"][8]
    assert plan_of(changed)["canaries"] == [["/predict", '{"x": "$(SECRET)"}']]


@pytest.mark.parametrize(
    ("annotations", "why"),
    [
        ({"mlchassis.dev/canary": "PUT /x"}, "is not GET or POST and a path"),
        ({"mlchassis.dev/canary": "POST predict"}, "is not GET or POST and a path"),
        ({**CANARY, "mlchassis.dev/canary-body": "{x"}, "it is not JSON"),
        (
            {**CANARY, "mlchassis.dev/canary-body": "configMap:canaries"},
            "is not configMap: with a name, a slash",
        ),
        ({**CANARY, "mlchassis.dev/canary-body": "[" * 100_000}, "are more than"),
        ({**CANARY, "mlchassis.dev/canary-time": "1h"}, "is not between 1 s and 300 s"),
        ({"mlchassis.dev/canary-time": "10s"}, "has no effect without mlchassis.dev/canary"),
        ({"mlchassis.dev/canry": "POST /x"}, "is unknown"),
    ],
)
def test_invalid_annotations(annotations: dict[str, str], why: str) -> None:
    (message,) = warnings({**UVICORN, "livenessProbe": {"tcpSocket": {"port": 8080}}}, annotations)
    assert why in message


def test_a_canary_next_to_another_liveness_probe() -> None:
    (message,) = warnings({**UVICORN, "livenessProbe": {"tcpSocket": {"port": 8080}}}, CANARY)
    assert message == "Container api has another livenessProbe, so POST /predict is never sent."


@pytest.mark.parametrize(
    ("command", "port", "silence"),
    [
        (["uvicorn", "app:app", "--host", "0.0.0.0"], "8000", 300),
        (["python", "-m", "uvicorn", "app:app", "--host=::", "--port=80"], "80", 300),
        (["gunicorn", "-b", "0.0.0.0:8080", "app:app"], "8080", 300),
        (["gunicorn", "--bind=:8080", "--timeout", "900", "app:app"], "8080", 900),
        (["gunicorn", "--bind=[::]:8080", "--timeout=0", "app:app"], "8080", 300),
        (["hypercorn", "app:app", "--bind", "0.0.0.0:5000"], "5000", 300),
        (["fastapi", "run", "app.py"], "8000", 300),
        (["flask", "run", "--host=0.0.0.0"], "5000", 300),
        (["flask", "--app", "api:create", "-e", ".env", "run", "--host=0.0.0.0"], "5000", 300),
        (["python3", "-m", "flask", "--app=api", "run", "--host", "0.0.0.0", "-p", "80"], "80", 300),
    ],
)
def test_known_commands(command: list[str], port: str, silence: int) -> None:
    changed = injected({"name": "a", "image": "acme/api:1", "command": command}, {})
    assert changed["livenessProbe"]["exec"]["command"][4] == port
    assert plan_of(changed)["silence"] == silence


@pytest.mark.parametrize(
    "command",
    [
        ["uvicorn", "app:app"],
        ["uvicorn", "app:app", "--uds", "/run/app.sock"],
        ["uvicorn", "app:app", "--host=0.0.0.0", "--port=$PORT"],
        ["gunicorn", "app:app"],
        ["gunicorn", "-b", "unix:/run/app.sock", "app:app"],
        ["flask", "run"],
        ["flask", "db", "upgrade"],
        ["flask", "--app", "run", "--host=0.0.0.0"],
        ["flask", "--app", "api", "db", "upgrade"],
        ["flask", "--app"],
    ],
)
def test_a_port_that_kubelet_cannot_ask(command: list[str]) -> None:
    container = {"name": "a", "image": "acme/api:1", "command": command}
    assert injected(container, {}) == container
