"""Which programs a shell starts as children for certain: as tried with dash, bash and busybox ash."""

from __future__ import annotations

import pytest

from policies.commands import children
from tests.tables import table

CHILD = [
    *(
        "serve m | tee x",
        "a && serve m; b",
        "serve m || exit_",
        "serve m &\nwait",
        "{ a; serve m; } > log; b",
    ),
    *("while :; do serve m; done", "until serve m; do a; done; serve m; b", "for i in 1 2; do serve m; done"),
    *("if a; then serve m; fi; b", "if a; then b; else (serve m); fi; c", "case x in a) serve m;; esac\nb"),
]
NO_CHILD = [
    *("serve m", "a; serve m", "a && serve m\n", "if a; then serve m; fi", "case x in a) serve m;; esac"),
    *("f() { serve m; b; }; f; c", "exec serve m", "serve m & exec tail -f log", "tini serve m; b"),
    *("trap 'kill $!' TERM; serve m & wait", "serve m; (", ""),
]


@table("script", [*CHILD, *NO_CHILD])
def test_a_program_is_certainly_a_child_or_not(script: str) -> None:
    assert (("serve", "m") in [*children(["/bin/sh", "-c", script])]) is (script in CHILD)


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["sh"],
        ["sh", "-c"],
        ["bash", "run.sh", "-c", "serve m; b"],
        ["tini", "--", "sh", "-c", "serve m; b"],
        ["python3", "-c", "serve m; b"],
        ["sh", "-c", "$(" * 100],
        ["sh", "-c", "serve m; " * 200_000],
    ],
    ids=range(8),
)
def test_no_script_that_can_be_read(argv: list[str]) -> None:
    assert [*children(argv)] == []


def test_options_before_the_script() -> None:
    assert [*children(["bash", "-euo", "pipefail", "--norc", "-c", "serve $M; b", "c"])] == [("serve", "$")]
