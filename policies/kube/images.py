"""Image references."""

from __future__ import annotations

import re
from functools import lru_cache


def repository(image: str) -> str:
    """An image reference without registry, tag and digest."""
    return repository_and_tag(image)[0]


@lru_cache(maxsize=64)  # the images of one object are each compared with a hundred globs
def repository_and_tag(image: str) -> tuple[str, str]:
    """An image reference without registry and digest: `nvcr.io/nvidia/tritonserver:24.01` is
    `nvidia/tritonserver` and `24.01`."""
    path = image.partition("@")[0]
    first, slash, rest = path.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        path = rest
    head, slash, last = path.rpartition("/")
    name, _, tag = last.partition(":")
    return f"{head}{slash}{name}", tag


def image_matches(image: str, globs: tuple[str, ...]) -> bool:
    """Whether one of the globs matches the last segments of an image's path: `ray` matches
    `registry/acme/ray:2.9`, not `my-ray`. A glob with `:` is matched with path and tag."""
    if not globs:
        return False
    path, tag = repository_and_tag(image)
    for pattern, with_tag in _patterns(globs):
        if pattern.fullmatch(f"{path}:{tag}" if with_tag else path):
            return True
    return False


@lru_cache(maxsize=1024)
def _patterns(globs: tuple[str, ...]) -> tuple[tuple[re.Pattern[str], bool], ...]:
    """The globs as patterns, each with whether it includes the tag: one for all globs of a kind."""
    kinds = ([glob for glob in globs if (":" in glob) is with_tag] for with_tag in (False, True))
    patterns = ("|".join(f"(?:{glob_of(glob).pattern})" for glob in kind) for kind in kinds)
    return tuple((re.compile(text), bool(with_tag)) for with_tag, text in enumerate(patterns) if text)


@lru_cache(maxsize=1024)
def glob_of(pattern: str) -> re.Pattern[str]:
    """The pattern of a glob: `*` matches any text without `/`. Each `*` but the last ends at the first match
    of the text after it: backtracking would cost the square of the length of an image's name."""
    head, *rest = map(re.escape, pattern.split("*"))
    between = "".join(f"(?>[^/]*?{part})" for part in rest[:-1])
    return re.compile("(?:.*/)?" + head + between + "".join(f"[^/]*{part}" for part in rest[-1:]))
