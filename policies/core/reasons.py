"""Why a mutator adds what it adds: given where it is decided, put into words where somebody reads them.

Law: a reason costs next to nothing until it is read. The words are made from values that were computed for
the decision, without another question to the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from policies.kube.names import shortened

Words: TypeAlias = str | Callable[[], str]
"""A text, or the function that makes it."""

LONGEST_REASON: Final = 400
"""Characters. A limit is needed because reasons contain names that a user chose."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one field of an object is added, or raised."""

    path: str
    """The field, list elements by name: `spec.containers[vllm].startupProbe`, `spec.tolerations[a.b/c]`."""
    policy: str
    """Id of the policy."""
    why: str
    """In words, no full stop: `115 min: 140 GB at 64 MiB/s, three times (vllm, from Llama-3.1-70B)`."""
    setting: str = ""
    """The field of the policy's settings that leads there, as in YAML: `startupFactor`. Empty where it is the
    policy's mode only."""
    annotation: str = ""
    """The annotation, of the pod template or the Job, that changes this for one workload, with the value that
    changes nothing: `mlchassis.dev/expected-start.vllm=39m`. Empty where there is none."""


class Reasons:
    """The reasons that one mutator gives while it decides about one object."""

    __slots__ = ("_given", "_place", "policy")

    def __init__(self, policy: str = "") -> None:
        self.policy = policy
        self._given: list[tuple[str, Words, str, Words]] = []
        self._place: Callable[[str], str] | None = None

    def give(self, path: str, why: Words, *, setting: str = "", annotation: Words = "") -> None:
        """The reason for a field that is being added. `path`, `setting`, `annotation`: as in `Reason`."""
        self._given.append((path, why, setting, annotation))

    def __iter__(self) -> Iterator[Reason]:
        """The reasons in words, in the order in which they were given."""
        self._say()
        for path, why, setting, annotation in self._given:
            yield Reason(
                self._place(path) if self._place else path,
                self.policy,
                shortened(_said(why), LONGEST_REASON),
                setting,
                _said(annotation),
            )

    def _say(self) -> None:
        """Put the reasons into words, once for all that share them."""
        self._given[:] = [
            (path, _said(why), setting, _said(annotation)) for path, why, setting, annotation in self._given
        ]

    def fields(self) -> Iterator[tuple[str, str]]:
        """The path of each field in the pod itself and the reason why it is added."""
        for path, why, _, _ in self._given:
            yield path, shortened(_said(why), LONGEST_REASON)

    def settled(self) -> Reasons:
        """The same reasons in words, holding nothing of what they were found in."""
        self._say()
        said = Reasons(self.policy)
        said._place, said._given = self._place, list(self._given)
        return said

    def local(self) -> Reasons:
        """The same reasons, with paths relative to the pod."""
        inner = Reasons(self.policy)
        inner._given = self._given
        return inner

    def placed(self, place: Callable[[str], str]) -> Reasons:
        """The same reasons, in the object that holds what they are about."""
        moved = Reasons(self.policy)
        moved._given, moved._place = self._given, place
        return moved


def _said(words: Words) -> str:
    return words if isinstance(words, str) else words()


class _Unread(Reasons):
    """Reasons that are not recorded."""

    __slots__ = ()

    def give(self, path: str, why: Words, *, setting: str = "", annotation: Words = "") -> None:
        pass


UNREAD: Final[Reasons] = _Unread()
"""Takes every reason and keeps none."""


# --- words that reasons share ----------------------------------------------------------------------

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
