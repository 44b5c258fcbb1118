"""The reasons for the fields that mutators add. Their texts are formatted only if they are read.

Law: a text uses only values that were computed for the decision; it reads nothing from the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from policies.kube.names import shortened

Lazy: TypeAlias = str | Callable[[], str]
"""A text, or the function that formats it."""

MAX_REASON_LENGTH: Final = 400
"""Characters: reasons contain names that users chose."""


class Reason(NamedTuple):
    """Why one field of an object is added or raised."""

    path: str
    """The field, with names of list elements: `spec.containers[vllm].startupProbe`."""
    policy: str
    """Id of the policy."""
    why: str
    """Without a full stop: `115 min: 140 GB at 64 MiB/s, three times (vllm, from Llama-3.1-70B)`."""
    setting: str = ""
    """The setting of the policy that changes the value: `startupFactor`. Empty if only the mode does."""
    annotation: str = ""
    """The annotation of the pod template or the Job that changes the value for one workload, with the present
    value: `mlchassis.dev/expected-start.vllm=39m`. Empty if there is none."""


class Reasons:
    """The reasons of one mutator for one object."""

    __slots__ = ("_given", "_place", "policy")

    def __init__(self, policy: str = "") -> None:
        self.policy = policy
        self._given: list[tuple[str, Lazy, str, Lazy]] = []
        self._place: Callable[[str], str] | None = None

    def give(self, path: str, why: Lazy, *, setting: str = "", annotation: Lazy = "") -> None:
        """Add the reason for a field. The arguments are the fields of `Reason`."""
        self._given.append((path, why, setting, annotation))

    def __iter__(self) -> Iterator[Reason]:
        """The formatted reasons, in the order in which they were given."""
        self._format()
        for path, why, setting, annotation in self._given:
            yield Reason(
                self._place(path) if self._place else path,
                self.policy,
                shortened(_formatted(why), MAX_REASON_LENGTH),
                setting,
                _formatted(annotation),
            )

    def _format(self) -> None:
        """Format the texts, for all instances that share them."""
        self._given[:] = [
            (path, _formatted(why), setting, _formatted(annotation))
            for path, why, setting, annotation in self._given
        ]

    def fields(self) -> list[tuple[str, str]]:
        """The path of each field in the pod itself, and the reason."""
        return [(path, shortened(_formatted(why), MAX_REASON_LENGTH)) for path, why, _, _ in self._given]

    def local(self) -> Reasons:
        """The same reasons with paths in the pod."""
        return self._copy(self._given)

    def placed(self, place: Callable[[str], str]) -> Reasons:
        """The same reasons with paths that `place` converts."""
        return self._copy(self._given, place)

    def _copy(
        self, given: list[tuple[str, Lazy, str, Lazy]], place: Callable[[str], str] | None = None
    ) -> Reasons:
        copy = Reasons(self.policy)
        copy._given, copy._place = given, place
        return copy


def _formatted(text: Lazy) -> str:
    return text if isinstance(text, str) else text()


class _NoReasons(Reasons):
    """Reasons that are not recorded."""

    __slots__ = ()

    def give(self, path: str, why: Lazy, *, setting: str = "", annotation: Lazy = "") -> None:
        pass


NO_REASONS: Final[Reasons] = _NoReasons()
"""Ignores every reason."""


# --- numbers in words ------------------------------------------------------------------------------

_TIMES: Final[Mapping[float, str]] = {
    2: "twice",
    3: "three times",
    4: "four times",
    5: "five times",
    6: "six times",
}


def times(factor: float) -> str:
    """`3.0` -> `three times`, `4.5` -> `4.5 times`; empty for 1."""
    return "" if factor == 1 else _TIMES.get(factor) or f"{factor:g} times"


def in_words(seconds: int) -> str:
    """Seconds in words: `45 s`, `115 min`, `20 h`, `14 days`."""
    for unit, size, least in (("days", 86_400, 2), ("h", 3600, 5), ("min", 60, 2)):
        if seconds >= least * size:
            return f"{_number(seconds / size)} {unit}"
    return f"{seconds} s"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}".removesuffix(".0")
