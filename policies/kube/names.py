"""Names: those that the API server accepts, how sentences list them, and the similar ones of a misspelt name.

Policies write only names that the API server accepts: it would refuse pods with a malformed label key from an
annotation or the settings. Source: `k8s.io/apimachinery/pkg/util/validation`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Final

_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_QUALIFIED: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_ONE_LABEL: Final = re.compile(_LABEL)
_VERSION: Final = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?")
_KIND: Final = re.compile(r"[A-Za-z](?:[-A-Za-z0-9]*[A-Za-z0-9])?")
_SEGMENT: Final = re.compile(r"[A-Za-z0-9:._-]+")


def is_subdomain(text: str) -> bool:
    """Whether it may name an object, such as a Secret (RFC 1123 subdomain)."""
    return len(text) <= 253 and _SUBDOMAIN.fullmatch(text) is not None


def is_label(text: str) -> bool:
    """Whether it may name a namespace (RFC 1123 label)."""
    return len(text) <= 63 and _ONE_LABEL.fullmatch(text) is not None


def is_api_version(text: str) -> bool:
    """Whether it may be an apiVersion: `v1`, or `group/v1`."""
    group, slash, version = text.rpartition("/")
    return (
        (not slash or is_subdomain(group)) and len(version) <= 63 and _VERSION.fullmatch(version) is not None
    )


def is_kind(text: str) -> bool:
    """Whether it may be the kind of an object."""
    return len(text) <= 63 and _KIND.fullmatch(text) is not None


def is_path_segment(text: str) -> bool:
    """Whether it may be an object's name in the path of a request. Wider than a subdomain: roles and some
    custom resources have colons and capitals in their names."""
    return len(text) <= 253 and text not in (".", "..") and _SEGMENT.fullmatch(text) is not None


def is_label_key(text: str) -> bool:
    """Whether it may be the key of a label, a taint or a topology: `name` or `domain/name`."""
    prefix, slash, name = text.rpartition("/")
    return (not slash or is_subdomain(prefix)) and len(name) <= 63 and _QUALIFIED.fullmatch(name) is not None


MAX_NAMES: Final = 8
"""The most names in a sentence; the others are counted."""
_MAX_CHARACTERS: Final = 80


def shortened(text: str, most: int) -> str:
    """The text, cut to a number of characters with an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def plural(count: int, one: str, several: str = "") -> str:
    """A number with its noun, such as `2 pods`."""
    return f"{count} {one if count == 1 else several or f'{one}s'}"


def listed(names: Iterable[str], most: int = MAX_NAMES) -> str:
    """The first names for a sentence, and the number of the others: `a, b and 3 others`."""
    every = list(names)
    shown = ", ".join(shortened(name, _MAX_CHARACTERS) for name in every[:most])
    others = len(every) - most
    return f"{shown} and {others:,} other{'s' if others > 1 else ''}" if others > 0 else shown


def is_label_value(text: str) -> bool:
    """Whether it may be the value of a label or a taint, such as the empty text."""
    return not text or (len(text) <= 63 and _QUALIFIED.fullmatch(text) is not None)


def is_numbered(pod: str, prefix: str) -> bool:
    """Whether a name consists of the prefix and one or two numbers: `train-workers-0-3`."""
    numbers = pod.removeprefix(prefix).split("-")
    return pod.startswith(prefix) and len(numbers) <= 2 and all(map(str.isdecimal, numbers))


_MAX_LENGTH: Final = 200
"""Characters: the name is compared with every known one."""


SIMILAR: Final = 0.8
"""From 0 to 1: the similarity of a name that was probably meant."""
VERY_SIMILAR: Final = 0.85
"""The same for names in a namespace or a cluster, of which others may be made by other files."""


def closest(name: str, known: Iterable[str], least: float = 0.6) -> str:
    """The most similar known name, with a similarity of `least` (0 to 1) or more; empty if there is none."""
    if len(name) > _MAX_LENGTH:
        return ""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=least)), "")


_ROLES: Final = frozenset(
    {
        "router",
        "gateway",
        "proxy",
        "metrics",
        "exporter",
        "console",
        "dashboard",
        "dashboards",
        "ui",
        "operator",
        "controller",
        "webhook",
        "epp",
        "picker",
        "prefill",
        "decode",
        "embedder",
        "embedding",
        "reranker",
        "ro",
        "rw",
        "reader",
        "replica",
        "replicas",
        "ext",
        "external",
    }
)
"""Words of names by which two parts of one program differ: `llm-router` is no misspelt `llm`."""
_DIGITS: Final = re.compile(r"[0-9]+")


def alike(name: str, known: Iterable[str]) -> str:
    """The only known name that contains a name as whole words, or is contained in it, as `vectors` in
    `vectors-svc`; else the one of which the name is a misspelling; empty if there is none, or if the two have
    other numbers or name other parts of a program."""
    every = list(known)
    parts = [each for each in every if f"-{each}-" in f"-{name}-" or f"-{name}-" in f"-{each}-"]
    if len(parts) > 1:
        return ""
    like = parts[0] if parts else closest(name, every, SIMILAR)
    other_words = set(name.split("-")) ^ set(like.split("-"))
    return like if _has_numbers_of(name, like) and other_words.isdisjoint(_ROLES) else ""


def misspelt(name: str, known: Iterable[str]) -> str:
    """The known name of which a name is a misspelling; empty if there is none. A name with further words,
    other numbers or another short word is that of something else: `kata-qemu-se`, `kata-qemu-sev`."""
    like = closest(name, known, VERY_SIMILAR)
    words = list(zip(name.split("-"), like.split("-"), strict=False))
    certain = name.count("-") == like.count("-") and _has_numbers_of(name, like)
    return like if certain and all(len(one) > 3 for one, two in words if one != two) else ""


def _has_numbers_of(name: str, other: str) -> bool:
    return _DIGITS.findall(name) == _DIGITS.findall(other)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: `; did you mean timeout?`, or an empty text."""
    close = closest(name, known)
    return f"; did you mean {close}?" if close else ""


def containing(words: str, known: Iterable[str]) -> Sequence[str]:
    """The known names that contain the words of a name in any order: `standard-probes` contains `probes`."""
    wanted = set(words.lower().replace("_", "-").split("-"))
    return [name for name in known if wanted <= set(name.split("-"))]
