"""Whether a regular expression can take long: in how many ways it may read one text.

`re` tries one way after the other until one of them matches. A text that matches in none is then tried in
all of them, and where a pattern may read a part of a text in two ways (`(a+)+`), each repetition of that
part doubles them; where two loops may share a part (`a*a*$`), their number grows with a power of its length.

The pattern's parse tree becomes a position automaton (Glushkov's: a state for each character class), of
which two properties are decided, after Weber and Seidl, "On the degree of ambiguity of finite automata":

- exponential: a state lies on two cycles that read the same text;
- polynomial: two states p and q and one text that leads from p to p, from p to q, and from q to q.

A search tries every position of the text, which is a loop on any character before the pattern. Anchors,
word boundaries and lookarounds are taken as passed always: that finds too much rather than too little. A
state after which a match needs nothing more can't fail, so no text is tried again after it. A repetition
with a bound counts as unbounded inside another one, and is cut to a few rounds elsewhere.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any

ROUNDS = 3
"""Rounds of a bounded repetition that are looked at; more can't add a loop."""
SAMPLES = [chr(code) for code in range(128)] + list(
    "\x85\xa0²µ½éÉßǅǆλ٣一\u2003\u2028\ue000\ue001\ue002\ue003\ufb01😀"
)
"""The alphabet: characters beyond ASCII represent their kinds."""


class Verdict(Enum):
    LINEAR = "linear"
    POLYNOMIAL = "polynomial"
    EXPONENTIAL = "exponential"


class NotCheckableError(ValueError):
    """The pattern has a construct that no finite automaton can express."""


@dataclass
class _Part:
    """A part of the pattern: positions it may begin and end at, and whether it may be empty.

    `sure`: the positions after which it may end with no anchor or lookaround in between; `sure_empty`
    likewise. `free`: the positions that it may begin with anywhere in the text, no `^` before them.
    """

    empty: bool = True
    first: Counter[int] = field(default_factory=Counter)
    last: Counter[int] = field(default_factory=Counter)
    sure: frozenset[int] = frozenset()
    sure_empty: bool = True
    free: Counter[int] = field(default_factory=Counter)
    free_empty: bool = True


class _Automaton:
    def __init__(self, pattern: str | bytes, flags: int) -> None:
        if isinstance(pattern, bytes):
            pattern, flags = pattern.decode("latin-1"), flags | re.ASCII
        self.parsed = _parser.parse(pattern, flags)
        self.flags = self.parsed.state.flags
        self.alphabet = sorted({*SAMPLES, *pattern})
        self.classes: list[int] = []
        """What each position reads: a bit for each character of the alphabet."""
        self.follow: dict[int, Counter[int]] = {}
        self.root = self.sequence(self.parsed, self.flags, inside=False)

    # From the parse tree to positions

    def sequence(self, items: Iterable[Any], flags: int, *, inside: bool) -> _Part:
        whole = _Part()
        for op, argument in items:
            whole = self.joined(whole, self.part(op, argument, flags, inside=inside))
        return whole

    def part(self, op: Any, argument: Any, flags: int, *, inside: bool) -> _Part:
        names = _constants
        if op in (names.LITERAL, names.NOT_LITERAL, names.IN, names.ANY):
            return self.position(self.read_by(op, argument, flags))
        if op is names.BRANCH:
            parts = [self.sequence(branch, flags, inside=inside) for branch in argument[1]]
            return _Part(
                empty=any(part.empty for part in parts),
                first=sum((part.first for part in parts), Counter()),
                last=sum((part.last for part in parts), Counter()),
                sure=frozenset().union(*(part.sure for part in parts)),
                sure_empty=any(part.sure_empty for part in parts),
                free=sum((part.free for part in parts), Counter()),
                free_empty=any(part.free_empty for part in parts),
            )
        if op is names.SUBPATTERN:
            _, added, removed, items = argument
            return self.sequence(items, (flags | added) & ~removed, inside=inside)
        if op in (names.MAX_REPEAT, names.MIN_REPEAT):
            low, high, items = argument
            return self.repeated(items, low, high, flags, inside=inside)
        if op is names.AT:
            begins = argument in (names.AT_BEGINNING, names.AT_BEGINNING_STRING)
            every_line = flags & re.MULTILINE and argument is names.AT_BEGINNING
            return _Part(sure_empty=False, free_empty=not begins or bool(every_line))
        if op in (names.ASSERT, names.ASSERT_NOT):
            if argument[1].getwidth()[1] > 8:
                raise NotCheckableError("a lookaround that may read much")
            return _Part(sure_empty=False)
        raise NotCheckableError(str(op))

    def repeated(self, items: Any, low: int, high: int, flags: int, *, inside: bool) -> _Part:
        unbounded = high is _constants.MAXREPEAT or (inside and high > ROUNDS)
        most = ROUNDS if unbounded else min(high, ROUNDS)
        needed = min(low, most)
        whole = _Part()
        for _ in range(needed - 1 if unbounded and needed else needed):
            whole = self.joined(whole, self.sequence(items, flags, inside=inside or high > 1))
        if unbounded:
            looped = self.sequence(items, flags, inside=True)
            self.link(looped.last, looped.first)
            if not low:
                looped = replace(looped, empty=True, sure_empty=True, free_empty=True)
            return self.joined(whole, looped)
        rest = _Part()
        for _ in range(most - needed):  # a?, (aa?)?, …
            one = self.joined(self.sequence(items, flags, inside=inside or high > 1), rest)
            rest = replace(one, empty=True, sure_empty=True, free_empty=True)
        return self.joined(whole, rest)

    def joined(self, left: _Part, right: _Part) -> _Part:
        self.link(left.last, right.first)
        return _Part(
            empty=left.empty and right.empty,
            first=left.first + right.first if left.empty else left.first,
            last=left.last + right.last if right.empty else right.last,
            sure=right.sure | (left.sure if right.sure_empty else frozenset()),
            sure_empty=left.sure_empty and right.sure_empty,
            free=left.free + right.free if left.free_empty else left.free,
            free_empty=left.free_empty and right.free_empty,
        )

    def link(self, last: Counter[int], first: Counter[int]) -> None:
        for before, ways in last.items():
            for after, more in first.items():
                self.follow[before][after] += ways * more

    def position(self, read: int) -> _Part:
        number = len(self.classes)
        self.classes.append(read)
        self.follow[number] = Counter()
        alone = Counter([number])
        return _Part(False, alone, alone, frozenset([number]), False, alone, False)

    def read_by(self, op: Any, argument: Any, flags: int) -> int:
        single = _parser.SubPattern(self.parsed.state, [(op, argument)])
        matches = _compiler.compile(single, flags).fullmatch
        return sum(1 << n for n, character in enumerate(self.alphabet) if matches(character))

    # Runs of the automaton

    def prepared(self, *, whole: bool, search: bool) -> None:
        if search:
            start = self.position((1 << len(self.alphabet)) - 1)
            self.link(start.last, start.first + self.root.free)
        if not whole:
            for done in self.root.sure:
                self.classes[done] = 0

    def loops(self) -> list[set[int]]:
        """The strongly connected parts that hold a cycle."""
        reach = {state: self.reached(state) for state in self.follow}
        parts: list[set[int]] = []
        for state in self.follow:
            if state in reach[state] and not any(state in part for part in parts):
                parts.append({other for other in reach[state] if state in reach[other]})
        return parts

    def reached(self, start: int) -> set[int]:
        return _reachable([start], lambda state: self.next(state))

    def next(self, state: int) -> Iterator[int]:
        if self.classes[state]:
            yield from (after for after in self.follow[state] if self.classes[after])

    def is_exponential(self, part: set[int]) -> bool:
        for state in part:
            if any(self.follow[state][after] > 1 for after in self.next(state) if after in part):
                return True

        def step(pair: tuple[int, int]) -> Iterator[tuple[int, int]]:
            for left in self.next(pair[0]):
                for right in self.next(pair[1]):
                    if left in part and right in part and self.classes[left] & self.classes[right]:
                        yield left, right

        for state in part:
            apart = {pair for pair in _reachable([(state, state)], step) if pair[0] != pair[1]}
            if any((state, state) in _reachable([pair], step) for pair in apart):
                return True
        return False

    def is_polynomial(self, first: set[int], second: set[int]) -> bool:
        """Whether a text leads from a state of `first` back to it, on to one of `second`, and round there."""

        def step(at: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
            for left in self.next(at[0]):
                if left not in first:
                    continue
                for right in self.next(at[2]):
                    common = self.classes[left] & self.classes[right]
                    if right not in second or not common:
                        continue
                    for middle in self.next(at[1]):
                        if self.classes[middle] & common:
                            yield left, middle, right

        return any((p, q, q) in _reachable([(p, p, q)], step) for p in first for q in second if p != q)


def _reachable(starts: list[Any], step: Any) -> set[Any]:
    """The states reached in one step or more."""
    seen: set[Any] = set()
    pending = deque(starts)
    while pending:
        for after in step(pending.popleft()):
            if after not in seen:
                seen.add(after)
                pending.append(after)
    return seen


def ambiguity(pattern: str | bytes, flags: int = 0, *, whole: bool, search: bool) -> Verdict:
    """How the ways to read a text may grow with it. `whole`: fullmatch; `search`: every position is tried.

    Raises NotCheckableError for backreferences, conditions, possessive repetitions and long lookarounds.
    """
    automaton = _Automaton(pattern, flags)
    automaton.prepared(whole=whole, search=search)
    loops = automaton.loops()
    if any(automaton.is_exponential(part) for part in loops):
        return Verdict.EXPONENTIAL
    for first in loops:
        for second in loops:
            if automaton.is_polynomial(first, second):
                return Verdict.POLYNOMIAL
    return Verdict.LINEAR
