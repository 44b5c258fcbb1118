"""Image references: what a container runs, without where it comes from."""

from __future__ import annotations

import re
from functools import lru_cache


def repository(image: str) -> str:
    """An image reference without registry, tag and digest."""
    return repository_and_tag(image)[0]


@lru_cache(maxsize=64)  # of the images of one object, each is held against a hundred globs
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
    """Whether one of the globs matches the end of an image's path in whole segments: `ray` is in
    `registry/acme/ray:2.9`, not in `my-ray`. A glob with `:` is matched against path and tag."""
    if not globs:
        return False
    path, tag = repository_and_tag(image)
    return any(
        pattern.fullmatch(f"{path}:{tag}" if with_tag else path) for pattern, with_tag in _patterns(globs)
    )


@lru_cache(maxsize=1024)
def _patterns(globs: tuple[str, ...]) -> tuple[tuple[re.Pattern[str], bool], ...]:
    """Each glob as a pattern, and whether it is one of path and tag."""
    return tuple((glob_of(glob), ":" in glob) for glob in globs)


@lru_cache(maxsize=1024)
def glob_of(pattern: str) -> re.Pattern[str]:
    """The pattern of a glob: `*` matches any text without `/`. Each but the last one ends at the first match
    of the text after it, without backtracking: an image's name may be long, and trying every other end costs
    its square."""
    head, *rest = map(re.escape, pattern.split("*"))
    between = "".join(f"(?>[^/]*?{part})" for part in rest[:-1])
    return re.compile("(?:.*/)?" + head + between + "".join(f"[^/]*{part}" for part in rest[-1:]))
