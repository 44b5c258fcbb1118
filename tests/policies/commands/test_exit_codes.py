"""Whose exit codes a script hides."""

import pytest

from policies.commands import unseen


@pytest.mark.parametrize(
    ("script", "hidden"),
    [
        ("a | b", {"a": "b"}),
        ("a | b | c", {"a": "b", "b": "c"}),
        ("timeout 5 a | b; c", {"a": "b"}),
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
    ],
)
def test_a_script_hides_exit_codes(script: str, hidden: dict[str, str]) -> None:
    assert {each.words[0]: each.by for each in unseen(["/bin/bash", "-c", script])} == hidden


def test_options_of_the_shell_are_read() -> None:
    assert not list(unseen(["bash", "-o", "pipefail", "-c", "a | b"]))
    assert not list(unseen(["sh", "-ec", "a; exit 0"]))
    assert not list(unseen(["a", "-c", "b | c"]))
    assert not list(unseen([]))
