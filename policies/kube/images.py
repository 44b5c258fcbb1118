"""Image references: what a container runs, without where it comes from."""

from __future__ import annotations

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
