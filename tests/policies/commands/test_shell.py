"""The shell parser: each construct of the language, and that it takes what a shell takes."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.commands import read
from policies.commands.model import StepBudget
from policies.commands.shell import ShellError, parse
from tests.tables import table

CONSTRUCTS: dict[str, list[str]] = {
    "a; b & c && d || e | f": ["a", "b", "c", "d", "e", "f"],
    "a |& b": ["a", "b"],
    "! a | b; time -p c": ["a", "b", "c"],
    "{ a; b; }; (c; d)": ["a", "b", "c", "d"],
    "( (a) ); ((1+1)) && b": ["a", "b"],
    "((a);(b))": ["a", "b"],
    "if a; then b; elif c; then d; else e; fi": ["a", "b", "c", "d", "e"],
    "while a; do b; done; until c; do d; done": ["a", "b", "c", "d"],
    "for i in 1 2; do a; done; for i; do b; done": ["a", "b"],
    "for ((i=0; i<3; i++)); do a; done; for ((;;)) { b; }": ["a", "b"],
    "select x in 1 2; do a; break; done": ["a", "break"],
    "case $x in 1|2) a;; (3) b ;& *) c; esac; d": ["a", "b", "c", "d"],
    "case x in esac; a": ["a"],
    "f() { a; }; f; g() (b); g; function h { c; }; h; function k() { d; }; k": ["a", "b", "c", "d"],
    "f()\n{\na\n}\nf": ["a"],
    "[[ $x == a* && ( -f y || $z =~ ^a(b|c)$ ) ]] && a": ["a"],
    "A=1 B+=2 C[0]=3 D=(x y z) a": ["a"],
    "local E=(1 2); a": ["local", "a"],
    'a "$(b "$(c)")" `d \\`e\\``': ["c", "b", "e", "d", "a"],
    "a <(b) >(c)": ["b", "c", "a"],
    "a >x 2>&1 <y >>z &>w {fd}>v; >only": ["a"],
    "a <<E; b\n$(c)\nE\nd": ["c", "a", "b", "d"],
    "a <<'E' | b\n$(c)\nE\nd": ["a", "b", "d"],
    "a <<-E\n\tx\n\tE\nb": ["a", "b"],
    "a <<X <<Y\n1\nX\n2\nY\nb": ["a", "b"],
    'a <<< "$(b)"': ["b", "a"],
    "a # b; c\nd#e": ["a", "d#e"],
    "a \\\n b\\\nc; d": ["a", "d"],
    'a ${x:-$(b)} ${#y} ${z[@]} ${!w} ${v//a/b} ${u["${t}"]} ${s%%*}': ["b", "a"],
    "a $'it\\'s' $\"x\" '\"' \"'\"; b": ["a", "b"],
    "a }; b {; c done if": ["a", "b", "c"],
    "a &&\n\n# so\nb |\nc": ["a", "b", "c"],
    "\n\n a;\n": ["a"],
    "a $((1+(2*3))) $(( x ? 1 : 2 )) $[1]": ["a"],
    "a=$(b) && c": ["b", "c"],
    "exec 3<>/x; a": ["exec", "a"],
    "": [],
}


@table("script", CONSTRUCTS)
def test_commands_of_a_construct(script: str) -> None:
    found = [command.name for command in read(["bash", "-c", script]).commands]
    assert found == ["bash", *CONSTRUCTS[script]]


BROKEN = [
    *(
        "a )",
        "(a",
        "a | ; b",
        "&& a",
        "a &&",
        "a ;; b",
        "a >",
        "(( 1",
        "[[ a",
        "a=(b",
        "f() ",
        "{ a; ",
        "done",
    ),
    *("if a; then b", "if a; b; fi", "while a; b; done", "for; do a; done", "case x a) b;; esac"),
    *("a 'b", 'a "b', "a `b", "a $(b", "a ${b", "a ${b^"),
]


@table("script", BROKEN)
def test_broken_text_is_an_error(script: str) -> None:
    with pytest.raises(ShellError):
        parse(script, StepBudget())
    assert any("could not be read" in note for note in read(["sh", "-c", script]).undecidable)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is the oracle")
def test_bash_agrees() -> None:
    """bash accepts each text listed as a construct, and refuses each one listed as broken."""
    scripts = {**dict.fromkeys(CONSTRUCTS, True), **dict.fromkeys(BROKEN, False)}
    for script, accepted in scripts.items():
        answer = subprocess.run(["bash", "-n", "-c", script], capture_output=True, check=False)
        assert (answer.returncode == 0) is accepted, script


def test_the_part_before_an_error_is_kept() -> None:
    with pytest.raises(ShellError) as error:
        parse("a; b\nc | | d", StepBudget())
    assert len(error.value.partial.items) == 2
    assert error.value.position == 4


# Scripts made from a grammar, with their programs, in order.

Made = tuple[str, list[str]]
WORD = st.sampled_from(
    ["x", "'a b'", '"$V"', "${V:-d}", "$((1+1))", "a\\ b", "$'\\n'", "2>/dev/null", "#", "if"]
)


@st.composite
def simple(draw: st.DrawFn) -> Made:
    name = draw(st.sampled_from(["p", "q", "prog-3", "./run"]))
    words = [word for word in draw(st.lists(WORD, max_size=3)) if word != "#"]
    return " ".join([name, *words]), [name.rpartition("/")[2]]


TEMPLATES = {
    "( {0} )": 1,
    "{{ {0}; }}": 1,
    "{{ ! {0}; }}": 1,
    "{0} >/dev/null 2>&1": 1,
    "for i in 1 $V; do {0}; done": 1,
    "{0}; {1}": 2,
    "{0}\n{1}": 2,
    "{0} && {1}": 2,
    "{0} || {1}": 2,
    "{0} | {1}": 2,
    "if {0}; then {1}; fi": 2,
    "while {0}; do {1}; done": 2,
    "until {0}; do\n{1}\ndone": 2,
    "case $V in a|b) {0};; *) {1};; esac": 2,
    "if {0}\nthen\n{1}\nelse {2}\nfi": 3,
}


@st.composite
def compound(draw: st.DrawFn, inner: st.SearchStrategy[Made]) -> Made:
    template = draw(st.sampled_from(sorted(TEMPLATES)))
    parts = [draw(inner) for _ in range(TEMPLATES[template])]
    return template.format(*(text for text, _ in parts)), [name for _, names in parts for name in names]


@given(made=st.recursive(simple(), compound, max_leaves=12))
def test_every_program_of_a_script_is_found_in_order(made: Made) -> None:
    script, expected = made
    parse(script, StepBudget())
    assert [command.name for command in read(["sh", "-c", script]).commands[1:]] == expected
