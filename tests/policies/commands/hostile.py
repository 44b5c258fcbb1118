"""Texts written to be costly, each class at any size: what a reader of commands must not choke on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """What `commands.read` is asked: a container's argv and its environment."""

    argv: list[str]
    env: list[dict[str, Any]]


def _argv(*words: str) -> Asked:
    return Asked(list(words), [])


def _times(unit: str, before: str = "", after: str = "") -> Callable[[int], Asked]:
    """A script of about `size` bytes that repeats `unit`."""
    return lambda size: _argv("sh", "-c", before + unit * (size // len(unit)) + after)


def _code(unit: str, before: str = "", after: str = "") -> Callable[[int], Asked]:
    return lambda size: _argv("python", "-c", before + unit * (size // len(unit)) + after)


def _word(program: str, unit: str, *, before: str = "", after: str = "") -> Callable[[int], Asked]:
    """One argument of about `size` bytes."""
    return lambda size: _argv(*program.split(), before + unit * (size // len(unit)) + after)


def _words(program: str, word: str) -> Callable[[int], Asked]:
    """Many arguments, of `size` bytes together."""
    return lambda size: _argv(*program.split(), *[word] * (size // len(word)))


def _doubling_functions(size: int) -> Asked:
    levels = [f"f{n}(){{ f{n + 1};f{n + 1}; }}" for n in range(max(2, min(26, size // 16)))]
    return _argv("sh", "-c", ";".join(levels) + ";f0")


def _chain_of_functions(size: int) -> Asked:
    return _argv("sh", "-c", ";".join(f"f{n}() f{n + 1}" for n in range(size // 13)) + ";f0")


def _nested_loops(size: int) -> Asked:
    levels = 28
    inside = "[ $n -lt 3 ];a $((n));" * (size // 22)
    return _argv("sh", "-c", "while [ $m = 1 ];do " * levels + inside + "done;" * levels)


def _nested_tests_in_loops(size: int) -> Asked:
    opened = "while true;do if [ $m -lt 1 ];then " * 14
    return _argv("sh", "-c", opened + "a;" * (size // 2) + "fi;done;" * 14)


def _nested_shells(size: int) -> Asked:
    levels = max(1, size // 12)
    return _argv(*["sh", "-c", 'sh -c "$0" "$@"', *['sh -c "$0" "$@"'] * min(levels, 1000), "curl db"])


def _nested_quoted_shells(size: int) -> Asked:
    text = "curl db"
    while len(text) < size:
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        text = f'sh -c "{quoted}";sh -c "{quoted}"'
    return _argv("sh", "-c", text[:size])


def _variables_that_grow(size: int) -> Asked:
    env = [{"name": "A0", "value": "x" * 64}]
    env += [{"name": f"A{n + 1}", "value": f"$(A{n})" * 8} for n in range(size // 48)]
    return Asked(["sh", "-c", "curl $(A9) $A9"], env)


def _many_references(size: int) -> Asked:
    return Asked(["echo", "$(A)" * (size // 4)], [{"name": "A", "value": "y" * 4000}])


def _costly_function(body: str) -> Callable[[int], Asked]:
    """A function that costs half of `size`, called by the other half."""

    def made(size: int) -> Asked:
        script = f"f() {{ {body * (size // 2 // len(body))}\n}}\n" + "f;" * (size // 4)
        return _argv("sh", "-c", script)

    return made


def _calls_of(function: str, filling: str) -> Callable[[int], Asked]:
    """The same, with the filling in the function or before it."""
    return lambda size: _argv(
        "sh", "-c", function.format(filling * (size // 2 // len(filling))) + "f;" * (size // 4)
    )


def _python_tests_in_loops(size: int) -> Asked:
    levels = 45
    lines = [" " * n + "while 1:" for n in range(levels)]
    lines += [" " * (levels + n) + "if a<b:" for n in range(levels)]
    lines.append(" " * (2 * levels) + "a;" * (size // 2))
    return _argv("python", "-c", "\n".join(lines))


def _python_long_import(size: int) -> Asked:
    return _argv("python", "-c", f"import {'a' * (size // 2)} as b\n" + "b();" * (size // 8))


def _python_long_string(size: int) -> Asked:
    return _argv("python", "-c", f"a='{'x' * 4000}'\nget(f'http://" + "{a}" * (size // 3) + "')")


HOSTILE: dict[str, Callable[[int], Asked]] = {
    "a duration of digits and a letter": _word("sleep", "9", after="x"),
    "a duration of digits and dots": _word("timeout", "1.", after="x"),
    "a timeout of curl": _word("curl -m", "9", after="x"),
    "letters of options": _word("curl", "e", before="-", after="!"),
    "letters of options after sh -c": _word("sh -c", "e", before="-", after="!"),
    "letters of options of sh": _word("sh", "e", before="-", after="!"),
    "many options": _words("curl", "-a"),
    "many URLs": _words("curl", "http://a"),
    "many words for an unknown program": _words("/app/check", "http://a"),
    "many words for env": _words("env", "A=b"),
    "env in env": _words("sh", "env"),
    "wrappers in wrappers": _words("nohup", "nice"),
    "names to look up": _words("getent hosts", "db"),
    "dig's tries": _words("dig +time=5", "+tries=9"),
    "addresses for socat": _words("socat", "TCP:a:1"),
    "a list of hosts": _word("kcat -b", "a:1,"),
    "a long host": _word("curl", "a.", before="http://"),
    "a long address": _word("curl", "1:", before="http://["),
    "slashes": _word("curl", "//"),
    "a connection string": _word("psql", "host=a "),
    "a loop that counts": _times("[ $n -lt 3 ];", "while ", " do n=$((n+1)); done"),
    "nested loops": _nested_loops,
    "nested tests in loops": _nested_tests_in_loops,
    "loops": _times("while a;do b;done;"),
    "lists of loops": _times("x ", "for i in ", ";do a;done"),
    "functions that double": _doubling_functions,
    "a chain of functions": _chain_of_functions,
    "a costly function": _costly_function("a;"),
    "a costly function of arrays": _costly_function("a=(x x x x);"),
    "a costly function of scripts": _calls_of('S=\'{}\'\nf() {{ sh -c "$S";eval "$S $S"; }}\n', "curl a;"),
    "a costly function of here-documents": _calls_of("S={}\nf() {{ a <<E\n$S$S$S$S\nE\n}}\n", "x"),
    "a costly function of lists": _calls_of("f() {{ for i in {}; do a; done; }}\n", "x "),
    "a costly function of arguments": _calls_of("f() {{ a {}; }}\n", "x "),
    "a costly function of tests": _costly_function("[[ x x x x x ]];"),
    "a costly function of words": _costly_function("a x x x x;"),
    "a costly function of code": _costly_function("python -c 'a.b(c)';"),
    "a costly function of ruby": _costly_function("ruby -e '``````````';"),
    "a costly function of cases": _costly_function("case x in a) b;; c) d;; esac;"),
    "a costly function of substitutions": _costly_function("a $(b $(c));"),
    "nested shells": _nested_shells,
    "nested quoted shells": _nested_quoted_shells,
    "doubling variables": _times("A=$A$A;", "A=aaaa;"),
    "doubling arguments": _times('set -- "$@" "$@" a;'),
    "long variables": _times("$B", f"B={'b' * 4000};a "),
    "long variables in here-documents": _times("$B", f"B={'b' * 4000};cat <<E\n", "\nE\n"),
    "splitting variables": _times("$B", "B='" + "b " * 2000 + "';a "),
    "trimmed variables": _times("${B%baaaaaaaaaaaaa*}", f"B={'a' * 4000};a "),
    "long patterns": _times("a", f"B={'a' * 4000};c ${{B%b", "*}"),
    "defaults in defaults": _times("${a:-", "a "),
    "default values": _times("${a:-${b:-c}}", "a "),
    "environment that grows": _variables_that_grow,
    "references to the environment": _many_references,
    "an environment of many variables": lambda size: Asked(
        ["sh", "-c", "curl $A1"], [{"name": f"A{n}", "value": f"$(A{n - 1})"} for n in range(size // 32)]
    ),
    "an environment of long names": lambda size: Asked(
        ["true"], [{"name": "é" * 1000, "valueFrom": {}} for _ in range(max(1, size // 1000))]
    ),
    "open parentheses": _times("("),
    "parentheses": _times("()"),
    "subshells": _times("(a);"),
    "quotes and parentheses": _times("('\""),
    "lists of URLs": _times("curl http://a,"),
    "indexes of nothing": _times("a[;"),
    "references to nothing": _times("$(a $$"),
    "all arguments": _times('a "$@";', "set -- a b c;"),
    "variables": _times("$A$A"),
    "evaluation in quotes": _times("eval 'eval "),
    "subshells of subshells": _times("((a);(a));"),
    "double quotes": _times('"'),
    "quoted words": _times('"a"'),
    "single quotes": _times("'"),
    "quoted characters": _times("\\'"),
    "open substitutions": _times("$("),
    "substitutions": _times("$(a)"),
    "quoted substitutions": _times('"$('),
    "backticks": _times("`a`"),
    "escaped backticks": _times("\\`", "a `", "`"),
    "arithmetic": _times("$((1))"),
    "open arithmetic": _times("$(("),
    "arithmetic in arithmetic": _times("$(((1) ) )"),
    "commands": _times("curl a;"),
    "short commands": _times("a;"),
    "pipelines": _times("a|", after="b"),
    "conditions": _times("a&&", after="b"),
    "open here-documents": _times("<<A "),
    "here-documents": _times("a <<A\nb\nA\n"),
    "lines of a here-document": _times("b\n", "cat <<A\n"),
    "substitutions of a here-document": _times("$(a)", "cat <<A\n"),
    "redirections": _times(">a "),
    "connections": _times("</dev/tcp/a/1 "),
    "if": _times("if "),
    "functions": _times("f()"),
    "function definitions": _times("f(){ a;};"),
    "lines": _times("\n"),
    "continued lines": _times("\\\n"),
    "comments": _times("#a\n"),
    "evaluation": _times("eval 'a;';"),
    "evaluation of evaluation": _times("eval "),
    "broken evaluation": _times("eval 'curl a )';"),
    "tests": _times("[[ a ]];"),
    "arrays": _times("a=(b);"),
    "indexes": _times("a[b]=c;"),
    "open indexes": _times("a["),
    "process substitutions": _times("<(a) ", "a "),
    "cases": _times("case a in b) c;; esac;"),
    "arms of a case": _times("a) b;;", "case x in ", " esac"),
    "patterns of a case": _times("a|", "case x in ", "b) c;; esac"),
    "assignments": _times("a=b "),
    "exports": _times("a=b ", "export "),
    "ANSI strings": _times("\\x41", "a $'", "'"),
    "a string of JavaScript": _word("node -e", "'http://a';"),
    "quotes of JavaScript": _word("node -e", "'\"`\n"),
    "Python: calls": _code("a.b(c);"),
    "Python: requests": _code("requests.get('http://a');"),
    "Python: attributes": _code(".b", "a"),
    "Python: calls of calls": _code("()", "a"),
    "Python: minus": _code("-", after="1"),
    "Python: brackets": _code("["),
    "Python: braces": _code("{"),
    "Python: parentheses": _code("(", after=")"),
    "Python: lambdas": _code("lambda:"),
    "Python: lambdas with defaults": _code("lambda a="),
    "Python: calls with generators": _code("f(a for a in "),
    "Python: strings": _code("'a'+", after="'a'"),
    "Python: format strings": _code("f'{a}'"),
    "Python: lines": _code("\n"),
    "Python: numbers": _code("9", "get(0x", ")"),
    "Python: digits": _code("9", "get(", ")"),
    "Python: imports": _code("import a;"),
    "Python: commands": _code("os.system('curl a');"),
    "Python: tests in loops": _python_tests_in_loops,
    "Python: a long import": _python_long_import,
    "Python: a long string": _python_long_string,
    "Python: comparison": _code("a<", after="b"),
    "Python: conditional expressions": _code("a if b else ", after="c"),
    "Python: nested lists": lambda size: _argv(
        "python", "-c", "connect(" + "[" * 99 + "'a'," * (size // 4) + "]" * 99 + ")"
    ),
    "Python: with": _code("with ("),
    "Python: decorators": _code("@a\n", after="def f():\n pass"),
    "Python: bad escapes": _code("\\d", "a='", "'"),
}
