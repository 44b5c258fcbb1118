"""Image references, and the globs that match them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from policies.kube.cache import BoundedCache

_VERSION: Final = re.compile(r"v?(\d{1,4}(?:\.\d{1,6}){0,3})(?![\d.])", re.ASCII)
_DOCKER_HUB: Final = "docker.io"


def repository(image: str) -> str:
    """An image reference without registry, tag and digest."""
    return repository_and_tag(image)[0]


def registry(image: str) -> str:
    """The registry of an image reference; docker.io if it names none."""
    return _host(image) or _DOCKER_HUB


def _host(image: str) -> str:
    first, slash, _ = image.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else ""


@lru_cache(maxsize=64)  # the images of one object are each compared with a hundred globs
def repository_and_tag(image: str) -> tuple[str, str]:
    """An image reference without registry and digest: `nvcr.io/nvidia/tritonserver:24.01` is
    `nvidia/tritonserver` and `24.01`."""
    path = image.partition("@")[0]
    if host := _host(path):
        path = path[len(host) + 1 :]
    head, slash, last = path.rpartition("/")
    name, _, tag = last.partition(":")
    return f"{head}{slash}{name}", tag


def full_name(image: str) -> str:
    """An image reference with its registry and tag, without digest: `docker.io/library/alpine:3`."""
    host, (path, tag) = registry(image), repository_and_tag(image)
    library = "library/" if host == _DOCKER_HUB and "/" not in path else ""
    return f"{host}/{library}{path}:{tag}"


def is_newest(image: str) -> bool:
    """Whether an image reference names no release: the newest one, unless a node keeps an older image."""
    return "@" not in image and repository_and_tag(image)[1] in ("", "latest")


def numbers_of_tag(tag: str) -> tuple[int, ...]:
    """`17.2-alpine` -> 17, 2; empty for a tag that begins with no number."""
    number = _VERSION.match(tag)
    return tuple(map(int, number[1].split("."))) if number else ()


def image_matches(image: str, globs: tuple[str, ...], excluded: tuple[str, ...] = ()) -> bool:
    """Whether one of the globs matches the last segments of an image's path, and none of the excluded ones:
    `ray` matches `registry/acme/ray:2.9`, not `my-ray`. A glob with `:` is matched with path and tag."""
    path, tag = repository_and_tag(image)

    def matches(glob: str) -> bool:
        return glob_matches(glob, f"{path}:{tag}" if ":" in glob else path)

    return any(map(matches, globs)) and not any(map(matches, excluded))


def glob_matches(glob: str, path: str) -> bool:
    """Whether a glob matches the last segments of a path: as many as the glob has. `*` matches any text
    without `/`, and each but the last ends at the first match of the text after it: backtracking would cost
    the square of the length of an image's name."""
    segments = glob.count("/") + 1
    end = path if path.count("/") < segments else "/".join(path.rsplit("/", segments)[1:])
    first, *rest = glob.split("*")
    if not rest:
        return end == glob
    if not end.startswith(first):
        return False
    at = len(first)
    for part in rest[:-1]:
        at = end.find(part, at) + len(part)
        if at < len(part):
            return False
    # With as many slashes as the glob, none is left for what a `*` matches.
    return len(end) - at >= len(rest[-1]) and end.endswith(rest[-1])


class Globs:
    """Globs of images, as `policies.kube.images.image_matches` reads them."""

    def __init__(self, globs: Iterable[str]) -> None:
        self._globs = tuple(dict.fromkeys(globs))
        self._known: BoundedCache[str, tuple[frozenset[str], tuple[str, ...]]] = BoundedCache(1 << 20)
        """By path: the globs without a tag that match it, and those whose tag decides."""

    def matching(self, image: str) -> frozenset[str]:
        """The globs that match an image."""
        path, tag = repository_and_tag(image)
        known = self._known.get(path)
        if known is None:
            found = [glob for glob in self._globs if glob_matches(glob.partition(":")[0], path)]
            tagged = tuple(glob for glob in found if ":" in glob)
            known = frozenset(found).difference(tagged), tagged
            self._known.put(path, known, len(path) + 100 * len(found))
        always, tagged = known
        return (
            always.union([each for each in tagged if glob_matches(each, f"{path}:{tag}")])
            if tagged
            else always
        )
