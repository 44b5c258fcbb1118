"""Commands, timeouts, loops, scripts, and what hostile text can't do to the reader."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.commands import CommandSummary, ScriptLoop, read
from policies.commands.model import StepBudget
from policies.commands.shell import MAX_DEPTH, ShellError, parse
from tests.tables import table


def sh(script: str) -> CommandSummary:
    return read(["sh", "-c", script])


@table(
    ("script", "seconds"),
    [
        ("curl -m 3 localhost", 3),
        ("curl --max-time 0.5 localhost", 0.5),
        ("curl --connect-timeout 2 --max-time 10 localhost", 10),
        ("curl --connect-timeout 2 localhost", 2),
        ("curl -m 2 --retry 2 localhost", 6),
        ("wget -T 2 -t 3 localhost", 6),
        ("wget --tries 1 -T 2 -qO- localhost:1 | grep x && wget --tries=1 -T 10 localhost:2", 12),
        ("nc -zw 3 localhost 80", 3),
        ("grpc_health_probe -addr=:1 -connect-timeout=500ms -rpc-timeout 2s", 2),
        ("timeout 5 curl -m 10 localhost", 5),
        ("timeout 10 curl -m 5 localhost", 5),
        ("timeout -k 2 5s cat x", 7),
        ("timeout -t 5 cat x", 5),
        ("sleep 1; sleep 2m", 121),
        ("curl -m 2 localhost & curl -m 3 localhost", 3),
        ("curl -m 2 a | curl -m 3 b", 3),
        ("if curl -m 1 a; then curl -m 2 b; else curl -m 5 c; fi", 6),
        ("for i in 1 2 3; do curl -m 2 a; done", 6),
        ("for i in $(seq 1 30); do nc -w 2 db 80 && exit; sleep 1; done", 90),
        ("for i in {1..5}; do sleep 1; done", 5),
        ("for ((i=0; i<4; i++)); do sleep 1; done", 4),
        ("while true; do sleep 1; done", math.inf),
        ("timeout 60 sh -c 'until nc -z db 80; do sleep 1; done'", 60),
        ('x="$(curl -m 4 a)"', 4),
        ("python -c 'import requests; requests.get(\"http://a\", timeout=3)'", 3),
        ("dig +time=2 +tries=3 x", 6),
        ("curl -s localhost", 0),
    ],
)
def test_seconds(script: str, seconds: float) -> None:
    assert sh(script).seconds == pytest.approx(seconds)


@table(
    ("script", "bounded", "count"),
    [
        ("until nslookup db; do echo waiting; sleep 2; done", False, None),
        ("while ! nc -z db 80; do sleep 1; done", False, None),
        ("while true; do curl -s db && break; sleep 1; done", False, None),
        ('while [ "$(curl -s -w %{http_code} db)" != 200 ]; do sleep 1; done', False, None),
        ("until [ $(curl -s -o /dev/null -w %{http_code} db) -eq 200 ]; do sleep 1; done", False, None),
        ("while ! (echo >/dev/tcp/db/80); do sleep 1; done", False, None),
        ("for ((;;)); do curl db && break; sleep 1; done", False, None),
        ("for i in $(seq 30); do curl db && break; sleep 1; done", True, 30),
        ("for i in {1..60}; do curl db && exit 0; sleep 1; done", True, 60),
        ("i=0; while [ $i -lt 30 ]; do curl db && break; i=$((i+1)); sleep 1; done", True, 30),
        ("n=0; until curl db; do n=$((n+1)); [ $n -ge 30 ] && exit 1; sleep 1; done", True, None),
        ("n=0; until curl db; do ((n++)); if [[ $n -gt 9 ]]; then exit 1; fi; sleep 1; done", True, None),
        ("until curl db || (( n++ >= 30 )); do sleep 1; done", True, 30),
        ("until curl db; do [ $SECONDS -gt 300 ] && exit 1; sleep 1; done", True, None),
        ("n=0; until curl db; do n=`expr $n + 1`; test $n -gt 9 && exit 1; sleep 1; done", True, None),
        (
            "e=$(($(date +%s)+60)); until curl db; do [ $(date +%s) -gt $e ] && exit 1; sleep 1; done",
            True,
            None,
        ),
        ("timeout 60 bash -c 'until curl db; do sleep 1; done'", True, None),
        ("while read host; do curl $host; sleep 1; done < hosts", True, None),
    ],
)
def test_loops(script: str, bounded: bool, count: int | None) -> None:
    (loop,) = sh(script).loops
    assert (loop.bounded, loop.count) == (bounded, count)
    assert loop.hosts


@pytest.mark.parametrize(
    ("script", "endless"),
    [
        ("while true; do date; sleep 1; done", True),
        ("f() { while :; do date; done; }; f", True),
        ("while true; do date || exit 1; done", False),
        ("while ! nc -z db 80; do sleep 1; done", False),
        ("while true; do date; done & wait", False),
        ("[ -f x ] && while true; do date; done", False),
        ("timeout 60 sh -c 'while true; do date; done'", False),
    ],
)
def test_which_loops_a_script_always_runs_forever(script: str, endless: bool) -> None:
    assert [loop.endless for loop in sh(script).loops] == [endless]


@pytest.mark.parametrize(
    ("script", "alternative"),
    [
        ("until nc -z db 80 || [ -f /skip ]; do sleep 1; done", True),
        ("until nc -z db 80 ||\n [ -f /skip ]; do sleep 1; done", True),
        ("until date; nc -z db 80 || [ -f /skip ]; do sleep 1; done", True),
        ("until nc -z db 80 && nc -z api 80; do sleep 1; done", False),
        ("while ! nc -z db 80 && [ ! -f /skip ]; do sleep 1; done", True),
        ("while ! curl 'http://db/?a=1&&b=2'; do sleep 1; done", False),
        ("while [[ -z $x && -z $y ]]; do x=$(nc -z db 80); done", True),
        ("until nc -z db 80; do sleep 1 || exit 1; done", False),
        ("until nc -z db 80; do [ -f /skip ] && break; sleep 1; done", True),
        ("until nc -z db 80; do if test -f /skip; then exit 0; fi; sleep 1; done", True),
        ("while :; do nc -z db 80 && break; [ -f /skip ] && break; sleep 1; done", True),
        ("while true; do if nc -z db 80; then break; fi; sleep 1; done", False),
        ("until [ -f /skip -o $(curl db) = ok ]; do sleep 1; done", True),
        ("while [ ! -f /skip -a $(curl db) != ok ]; do sleep 1; done", True),
        ("while [ -a /lock ]; do nc -z db 80; done", False),
        ("until nc -z db 80; [ -f /skip ]; do sleep 1; done", True),
        ("while nc -z db 80; [ $? -ne 0 ]; do sleep 1; done", False),
        ("for i in a b; do nc -z db 80; done", False),
    ],
)
def test_which_loops_another_command_may_end(script: str, alternative: bool) -> None:
    assert [loop.alternative for loop in sh(script).loops] == [alternative]


@pytest.mark.parametrize(
    ("command", "ends"),
    [
        ("sleep infinity", True),
        ("sleep 2d", True),
        ("sleep 60", False),
        ("tail -F log", True),
        ("tail -fn0 log", True),
        ("tail --follow=name log", True),
        ("tail -n 5 log", False),
        ("tail -f --pid=7 log", False),
        ("ray start --head", False),
    ],
)
def test_after_which_commands_a_script_may_not_go_on(command: str, ends: bool) -> None:
    last = sh(f"if [ -f skip ]; then {command}; fi; date").commands[-1]
    assert (last.name, last.conditional) == ("date", ends)


def test_a_python_loop_that_never_ends() -> None:
    code = (
        "import time, socket\nwhile True:\n"
        "  try: socket.create_connection(('db', 1)); break\n"
        "  except OSError: time.sleep(1)"
    )
    (loop,) = read(["python", "-c", code]).loops
    assert loop == ScriptLoop("while", bounded=False, hosts=loop.hosts)
    assert [host.name for host in loop.hosts] == ["db"]
    (bounded,) = read(["timeout", "60", "python", "-c", code]).loops
    assert bounded.bounded


@pytest.mark.parametrize(
    ("argv", "scripts"),
    [
        (["sh", "/health/ping.sh", "5"], ["/health/ping.sh"]),
        (["sh", "-c", "/health/ping.sh 5"], ["/health/ping.sh"]),
        (["python3", "-u", "/app/check.py"], ["/app/check.py"]),
        (["python", "-m", "app.health"], ["-m app.health"]),
        (["bash", "-ec", "exec perl check.pl"], ["check.pl"]),
        (["cat", "/app/check.py"], []),
        (["python", "-c", "print(1)"], []),
        (["sh", "-c", "test -x /health/ping.sh"], []),
    ],
)
def test_script_files(argv: list[str], scripts: list[str]) -> None:
    assert list(read(argv).scripts) == scripts


def test_commands_are_in_reading_order_without_their_wrappers() -> None:
    summary = sh("timeout 3 env A=b /usr/bin/md5sum -c x | grep -q OK && find / -name '*.bin'")
    assert [command.name for command in summary.commands] == ["sh", "md5sum", "grep", "find"]
    assert summary.commands[1].argv == ("/usr/bin/md5sum", "-c", "x")


def test_calls_of_python_code() -> None:
    code = "import torch as t; from transformers import AutoModel as A\nt.load('x'); A.from_pretrained('y')"
    (command,) = read(["python", "-c", code]).commands
    assert {"torch", "torch.load", "transformers.AutoModel.from_pretrained"} <= set(command.calls)


@pytest.mark.parametrize("name", ["DB_HOST", "lower_case", "X1"])
def test_an_unknown_part_is_shown_as_it_is_spelled(name: str) -> None:
    (host,) = sh(f"curl http://${name}:80/x").hosts
    assert host.name == f"${name}"


# What hostile text can't do


def test_functions_that_call_each_other_end() -> None:
    levels = ";".join(f"f{n}() {{ f{n + 1}; f{n + 1}; }}" for n in range(24))
    summary = sh(f"{levels}; f0")
    assert "the command is too long to be read whole" in summary.undecidable
    assert sh("f() { curl a; f; }; f").hosts


def test_variables_that_double_end() -> None:
    env = [{"name": "A0", "value": "x" * 64}]
    env += [{"name": f"A{n + 1}", "value": f"$(A{n})$(A{n})$(A{n})"} for n in range(40)]
    assert read(["curl", "$(A40)"], env).hosts[0].reach == "undecidable"
    doubling = ";".join(f"A{n + 1}=$A{n}$A{n}" for n in range(60))
    assert read(["sh", "-c", f"{doubling}; curl $A60"], env).hosts


def test_depth_is_bounded() -> None:
    def nested(levels: int) -> str:
        return "(" + "( " * (levels - 1) + "curl a" + ")" * levels

    assert [host.name for host in sh(nested(10).replace("((", "( (")).hosts] == ["a"]
    with pytest.raises(ShellError, match="deeper"):
        parse("( " * (MAX_DEPTH + 1) + "a" + ")" * (MAX_DEPTH + 1), StepBudget())


JUNK = st.text(alphabet="abc $(){}[]'\"`\\;&|<>#\n=~!*?-/:@.%\ue000\ue003", max_size=80)
SHELL_WORDS = (
    "curl http://db/ sh -c $( ) ' \" ` && | ; if then fi do done while until for in case esac { } (( )) [[ ]]"
    " <<EOF EOF $X ${X:- X=1 timeout 5 python -c eval exec >/dev/tcp/a/1"
)
TOKENS = st.lists(st.sampled_from([*SHELL_WORDS.split(), "\n"]), max_size=25).map(" ".join)
ARGUMENT = st.one_of(JUNK, TOKENS, st.text(max_size=30))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
ENTRY = st.one_of(
    JSON,
    st.fixed_dictionaries({"name": st.sampled_from(["X", "PGHOST"]), "value": ARGUMENT}),
    st.fixed_dictionaries({"name": st.just("X"), "valueFrom": JSON}),
)


PROGRAMS = st.sampled_from(["curl", "nc", "psql", "python", "-c", "env", "dig"])
CODE = st.one_of(JUNK, st.text(max_size=60), st.sampled_from(["-" * 20000 + "1", "a" + ".b" * 20000]))
ARGV = st.one_of(
    st.one_of(ARGUMENT, JUNK).map(lambda script: ["sh", "-c", script]),
    CODE.map(lambda code: ["python", "-c", code]),
    st.lists(ARGUMENT | PROGRAMS, max_size=6),
    st.lists(JSON, max_size=4),
)


@settings(max_examples=200)
@given(argv=ARGV, env=st.lists(ENTRY, max_size=3), static=st.booleans())
def test_never_raises(argv: list[Any], env: list[Any], static: bool) -> None:
    assert isinstance(read(argv, env, static=static), CommandSummary)


def test_a_number_too_long_to_print_is_no_address() -> None:
    (host,) = read(["python", "-c", f"import requests; requests.get(0x{'f' * 20_000})"]).hosts
    assert host.reach == "undecidable"


@given(name=st.from_regex(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True), port=st.integers(1, 65535))
def test_any_other_host_is_external_however_it_is_quoted(name: str, port: int) -> None:
    url = f"http://{name}:{port}/health"
    expected = {(name, "local" if name == "localhost" else "external")}
    for script in (
        f"curl {url}",
        f"curl '{url}'",
        f'sh -c "curl -s \\"{url}\\""',
        f"U={url}; true && curl $U",
    ):
        assert {(host.name, str(host.reach)) for host in sh(script).hosts} == expected


def test_a_deep_stack_above_is_survived() -> None:
    script = "$(" * (MAX_DEPTH - 2) + "curl db" + ")" * (MAX_DEPTH - 2)

    def called_from(depth: int) -> CommandSummary:
        return sh(script) if depth == 0 else called_from(depth - 1)

    assert [host.name for host in called_from(0).hosts] == ["db"]
    # How many frames the reading takes differs from one Python to the next.
    limit = sys.getrecursionlimit()
    notes = [note for left in range(300, 60, -40) for note in called_from(limit - left).undecidable]
    assert any("nested too deep" in note for note in notes)


@pytest.mark.parametrize(
    ("script", "forgiven"),
    [
        ("a", []),
        ("a || true", ["a", "true"]),
        ("a && b || :", ["a", "b", ":"]),
        ("a || b", []),
        ("a || true; b", ["a", "true"]),
        ("a &", ["a"]),
        ("a && b & c", ["a", "b"]),
        ("(a; b) & c", ["a", "b"]),
        ("nohup sh -c 'a; b' & c", ["sh", "a", "b"]),
        ("{ a || b; } || true", ["a", "b", "true"]),
        ("if a; then b & fi; c", ["b"]),
    ],
)
def test_a_command_is_forgiven_if_its_failure_ends_nothing(script: str, forgiven: list[str]) -> None:
    commands = read(["sh", "-c", script]).commands
    assert [each.name for each in commands if each.forgiven] == forgiven


def test_a_script_does_not_wait_for_a_loop_in_the_background() -> None:
    loops = read(["sh", "-c", "(until a; do b; done) & until c; do d; done"]).loops
    assert [loop.background for loop in loops] == [True, False]


@table(
    ("script", "variables"),
    [
        ("A=b serve", {"A": "b"}),
        ("env A=b C=d serve", {"A": "b", "C": "d"}),
        ("A=b timeout 5 serve", {"A": "b"}),
        ("A=b sh -c 'C=d serve'", {"A": "b", "C": "d"}),
        ("A=$(hostname) serve", {"A": "$(hostname)"}),
        ("A=b true; serve", {}),
        ("A=b; serve", {}),
    ],
)
def test_variables_of_one_command(script: str, variables: dict[str, str]) -> None:
    [served] = [each for each in sh(script).commands if each.name == "serve"]
    assert dict(served.variables) == variables
