"""Whose exit codes a script hides."""

import pytest

from policies.commands import unseen


@pytest.mark.parametrize(
    ("script", "hidden"),
    [
        ("a | tee b", {"a": "tee"}),
        ("a | gzip | tee b", {"a": "gzip", "gzip": "tee"}),
        ("timeout 5 a | gzip > b; aws s3 cp b s3://c", {"a": "gzip"}),
        ("a | tee b; rm c; cp b d", {"a": "tee"}),
        (". venv/bin/activate; a | tee b", {"a": "tee"}),
        ("a || true", {"a": "|| true"}),
        ("a; exit 0", {"a": "exit 0"}),
        ("a && b; echo done", {"b": "echo done"}),
        ("a; b", {}),
        ("set -e; a; echo done", {}),
        ("set -euo pipefail; a | b", {}),
        ("a | b; [ -s out ]", {}),
        ("a | b; if c; then exit 1; fi", {}),
        ("a || b", {}),
        ("a || exit 1; echo done", {}),
        ("a | b; exit $?", {}),
        ("a & b", {}),
        ("if a; then b | c; fi", {}),
        ("a |", {}),
        ("a | b", {}),
        ("a | tee b | grep -q complete", {}),
        ("a | tee b; c", {}),
        ("a | tee b; cp c d", {}),
        ("a | tee b; zgrep -q complete b", {}),
        ("! a; echo", {}),
        ("shopt -so pipefail; a | tee b", {}),
        ("if (set -o pipefail); then set -o pipefail; fi; a | tee b", {}),
        ("strict() { set -euo pipefail; }; strict; a | tee b; echo", {}),
        ("{ set -e; }; a; echo", {}),
        (". lib.sh; a | tee b", {}),
        ("source lib.sh && a | tee b", {}),
        ("set $OPTIONS; a | tee b", {}),
    ],
)
def test_a_script_hides_exit_codes(script: str, hidden: dict[str, str]) -> None:
    assert {each.words[0]: each.by for each in unseen(["/bin/bash", "-c", script])} == hidden


def test_only_the_end_of_a_long_script_is_read() -> None:
    assert len(list(unseen(["sh", "-c", "a | tee b; echo; " * 1000]))) <= 32


def test_options_of_the_shell_are_read() -> None:
    assert not list(unseen(["bash", "-o", "pipefail", "-c", "a | tee b"]))
    assert not list(unseen(["sh", "-ec", "a; exit 0"]))
    assert not list(unseen(["a", "-c", "b | c"]))
    assert not list(unseen([]))
    assert not list(unseen(["sh", "-c"]))
    assert not list(unseen(["sh", "-c", ""]))
