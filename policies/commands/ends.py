"""Whether loops end and after how many rounds, and which programs end or block a script."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from policies.commands import syntax
from policies.commands.durations import seconds
from policies.commands.model import StepBudget

_BRACE_RANGE = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_COMPARISON = re.compile(r"[<>]=?|==|!=")
_COMPARING = frozenset({"-lt", "-le", "-gt", "-ge", "-eq", "-ne"})
_EXITS = frozenset({"exit", "break", "return"})
_CALCULATORS = frozenset({"expr", "bc", "date"})
_CLOCKS = frozenset({"SECONDS", "EPOCHSECONDS"})
MAX_COUNT = 1_000_000
_A_DAY = 24 * 3600
_FOLLOW = re.compile(r"-[a-zA-Z0-9+]*[fF]|--follow")


def is_bounded(loop: syntax.Loop, budget: StepBudget) -> bool:
    """Whether the text limits the loop by a list, by `read`, or by comparing a counter or a clock.

    A `break` that depends only on the awaited host is not a limit.
    """
    if loop.head is not None:
        return bool(_COMPARISON.search(loop.head))
    if loop.condition is None:
        return True
    counters = _counters(loop, budget)
    for simple in _simples(loop.condition, budget):
        if _program(simple) in ("read", "getopts", "shift") or _compares(simple, counters, budget):
            return True
    return any(_exits_by_counter(script, counters, budget) for script in _scripts(loop.body, budget))


def is_endless(loop: syntax.Loop, budget: StepBudget) -> bool:
    """Whether the loop never ends: `while true` or `while sleep 60` without an exit."""
    if loop.keyword != "while" or loop.condition is None:
        return False
    programs = [
        _program(simple) for simple in _simples(loop.condition, budget) if isinstance(simple, syntax.Simple)
    ]
    return programs in (["true"], [":"], ["sleep"]) and not _exits(loop.body, budget)


def has_alternative(loop: syntax.Loop, budget: StepBudget) -> bool:
    """Whether one of several commands in the condition ends the loop, or another one in its body does."""
    if loop.condition is None:
        return False
    operator, option = ("||", "-o") if loop.keyword == "until" else ("&&", "-a")
    items = [item for script in _scripts(loop.condition, budget) for item in script.items]
    simples = list(_simples(loop.condition, budget))
    if any(item.operator == operator for item in items):
        return True
    tests = (each for each in simples if _is_test(each))
    if any(word.literal in (operator, option) for each in tests for word in each.words[2:]):
        return True
    last = loop.condition.items[-1:]
    if any(each.operator == ";" and all(map(_is_constant, _direct(each))) for each in last):
        return True  # the last command of the condition decides, and it asks no host
    ends = sum(map(_succeeds, _simples(loop.body, budget)))
    return ends > (list(map(_program, simples)) in (["true"], [":"]))


def _is_test(command: syntax.Simple | syntax.Test) -> bool:
    return isinstance(command, syntax.Test) or _program(command) in ("test", "[")


def _is_constant(command: syntax.Simple | syntax.Test) -> bool:
    """Whether it is a test without expansions: `[ -f /ready ]`."""
    return _is_test(command) and all(word.literal is not None for word in command.words)


def _succeeds(command: syntax.Simple | syntax.Test) -> bool:
    """Whether it ends a loop without an error."""
    words = [word.literal for word in command.words] if isinstance(command, syntax.Simple) else []
    return words[:1] == ["break"] or words in (["exit"], ["exit", "0"], ["return"], ["return", "0"])


def rounds(loop: syntax.Loop, budget: StepBudget) -> int | None:
    """The maximum number of rounds, if the text sets one."""
    if loop.words is not None:
        return _count_of_words(loop.words, budget)
    text = loop.head
    if text is None and loop.condition is not None:
        counters = _counters(loop, budget)
        tests = [simple for simple in _simples(loop.condition, budget) if _compares(simple, counters, budget)]
        text = " ".join(_plain(word) for test in tests for word in test.words)
    limits = [int(number) for number in re.findall(r"(?<![\w$])\d{1,9}(?!\w)", text or "")]
    return min(max(limits), MAX_COUNT) if limits and max(limits) > 0 else None


def _count_of_words(words: tuple[syntax.Word, ...], budget: StepBudget) -> int | None:
    total = 0
    for word in words:
        text = word.literal
        if text is None:
            match word.parts:
                case (syntax.Substitution(script=script),) if (
                    numbers := _sequence(script, budget)
                ) is not None:
                    total += len(numbers)
                    continue
            return None
        span = _BRACE_RANGE.fullmatch(text)
        total += abs(int(span[2]) - int(span[1])) + 1 if span else 1
    return min(total, MAX_COUNT)


def last_number(words: tuple[syntax.Word, ...], budget: StepBudget) -> str:
    """The last number of a `for` loop's list: `0 1 2`, `{0..2}` or `$(seq 0 2)`; empty for other lists."""
    last = [_last_of(word, budget) for word in words]
    return last[-1] if last and all(last) else ""


def _last_of(word: syntax.Word, budget: StepBudget) -> str:
    match word.parts:
        case (syntax.Substitution(script=script),):
            numbers = _sequence(script, budget)
            return str(numbers[-1]) if numbers else ""
    text = word.literal or ""
    span = _BRACE_RANGE.fullmatch(text)
    text = span[2] if span else text
    return text if text.isascii() and text.isdigit() else ""


def _sequence(script: syntax.Script, budget: StepBudget) -> range | None:
    """`seq 30` or `seq 1 30` -> 1 to 30."""
    simples = list(_simples(script, budget))
    if len(simples) != 1 or _program(simples[0]) != "seq":
        return None
    numbers = [word.literal or "" for word in simples[0].words[1:]]
    if not numbers or not all(
        number.isascii() and number.isdigit() and len(number) < 10 for number in numbers
    ):
        return None
    first = int(numbers[0]) if len(numbers) > 1 else 1
    step = int(numbers[1]) or 1 if len(numbers) == 3 else 1
    return range(first, int(numbers[-1]) + 1, step)


def _scripts(script: syntax.Script, budget: StepBudget) -> Iterator[syntax.Script]:
    """The script and every script in it, except in substitutions."""
    pending = [script]
    while pending:
        current = pending.pop()
        budget.spend(1 + len(current.items))
        yield current
        for item in current.items:
            for command in item.pipeline.commands:
                pending.extend(_inner(command))


def _inner(command: syntax.Command) -> Iterator[syntax.Script]:
    match command:
        case syntax.Group(body=body):
            yield body
        case syntax.If(branches=branches, otherwise=otherwise):
            for condition, body in branches:
                yield condition
                yield body
            if otherwise is not None:
                yield otherwise
        case syntax.Loop(condition=condition, body=body):
            if condition is not None:
                yield condition
            yield body
        case syntax.Case(arms=arms):
            yield from arms
        case syntax.Function(body=inner) | syntax.Redirected(command=inner):
            yield from _inner(inner)


def _simples(script: syntax.Script, budget: StepBudget) -> Iterator[syntax.Simple | syntax.Test]:
    for inner in _scripts(script, budget):
        for item in inner.items:
            for simple in _direct(item):
                budget.spend(sum(map(_size, simple.words)))
                yield simple


def _direct(item: syntax.Item) -> Iterator[syntax.Simple | syntax.Test]:
    for command in item.pipeline.commands:
        plain = command.command if isinstance(command, syntax.Redirected) else command
        if isinstance(plain, syntax.Simple | syntax.Test):
            yield plain


def _size(word: syntax.Word) -> int:
    """The steps for reading a word."""
    return 1 + sum(len(part.text) // 16 for part in word.parts if isinstance(part, syntax.Arithmetic))


def _program(command: syntax.Simple | syntax.Test) -> str:
    """The program of a simple command; empty for a test."""
    return (command.words[0].literal or "") if isinstance(command, syntax.Simple) and command.words else ""


def _plain(word: syntax.Word) -> str:
    return "".join(part.text for part in word.parts if isinstance(part, syntax.Literal | syntax.Arithmetic))


def _counters(loop: syntax.Loop, budget: StepBudget) -> set[str]:
    """The variables that the loop changes by arithmetic, and the shell's clocks."""
    counters = set(_CLOCKS)
    for script in (loop.condition, loop.body):
        for simple in _simples(script, budget) if script else ():
            if isinstance(simple, syntax.Test):
                counters.update(_NAME.findall(" ".join(map(_plain, simple.words))))
                continue
            program = _program(simple)
            if program in ("let", "expr"):
                counters.update(_NAME.findall(" ".join(map(_plain, simple.words[1:]))))
            for assignment in simple.assignments:
                if any(_is_arithmetic(part, budget) for part in assignment.value.parts):
                    counters.add(assignment.name)
            for word in simple.words:  # `: $((n+=1))`, `[ $((n++)) -lt 30 ]`
                for part in word.parts:
                    if isinstance(part, syntax.Arithmetic):
                        counters.update(_NAME.findall(part.text))
    return counters


def _is_arithmetic(part: object, budget: StepBudget) -> bool:
    if isinstance(part, syntax.Substitution):
        return any(_program(each) in _CALCULATORS for each in _simples(part.script, budget))
    return isinstance(part, syntax.Arithmetic)


def _compares(simple: syntax.Simple | syntax.Test, counters: set[str], budget: StepBudget) -> bool:
    """`[ $n -lt 30 ]`, `[[ n -gt 30 ]]`, `(( n < 30 ))`, `[ $(date +%s) -gt $end ]` on a counter."""
    words = simple.words
    if isinstance(simple, syntax.Simple):
        if _program(simple) not in ("[", "test"):
            return False
        words = words[1:]
    if (
        isinstance(simple, syntax.Test)
        and len(words) == 1
        and isinstance(words[0].parts[0], syntax.Arithmetic)
    ):
        text = words[0].parts[0].text
        return bool(_COMPARISON.search(text)) and bool(counters & set(_NAME.findall(text)))
    if not any(word.literal in _COMPARING for word in words):
        return False
    return any(
        (isinstance(part, syntax.Variable) and part.name in counters) or _is_arithmetic(part, budget)
        for word in words
        for part in word.parts
    )


def _exits_by_counter(script: syntax.Script, counters: set[str], budget: StepBudget) -> bool:
    """Whether a loop's body has `if [ $n -gt 30 ]; then exit 1; fi` or `[ $n -gt 30 ] && exit 1`."""
    compared = False
    for item in script.items:
        if item.operator == ";":
            compared = False
        for command in item.pipeline.commands:
            plain = command.command if isinstance(command, syntax.Redirected) else command
            match plain:
                case syntax.Simple() if compared and _program(plain) in _EXITS:
                    return True
                case syntax.Group(body=body) if compared and _exits(body, budget):
                    return True
                case syntax.If(branches=branches):
                    for condition, body in branches:
                        tests = _simples(condition, budget)
                        if any(_compares(each, counters, budget) for each in tests) and _exits(body, budget):
                            return True
                case syntax.Simple() | syntax.Test():
                    compared = compared or _compares(plain, counters, budget)
    return False


def _exits(script: syntax.Script, budget: StepBudget) -> bool:
    """Whether a script contains `exit`, `break` or `return`."""
    return any(_program(each) in _EXITS for each in _simples(script, budget))


def ends_script(words: Sequence[str]) -> bool:
    """Whether a command ends the script with success, or runs as long as the container."""
    match ("".join(words[:1]).rpartition("/")[2], *words[1:]):
        case ("exit", "0") | ("wait", *_):
            return True
        case ("sleep", length) if (seconds(length) or 0) >= _A_DAY:
            return True
        case ("ray", "start", *arguments):
            return "--block" in arguments
    return runs_forever(words)


def runs_forever(words: Sequence[str]) -> bool:
    """Whether a command sleeps forever or follows a file."""
    match ("".join(words[:1]).rpartition("/")[2], *words[1:]):
        case ("sleep", "infinity" | "inf"):
            return True
        case ("tail", *arguments):
            return any(map(_FOLLOW.match, arguments)) and not any("--pid" in word for word in arguments)
    return False
