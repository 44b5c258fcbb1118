"""Matches images with many globs at once: a hundred globs identify servers and sidecars. The results are
cached by repository, because images of a workload differ only in their tags."""

from __future__ import annotations

from collections.abc import Iterable

from policies.containers.bounded_cache import BoundedCache
from policies.kube.images import glob_matches, repository_and_tag


class Globs:
    """Globs of images, as `policies.kube.images.image_matches` reads them."""

    def __init__(self, globs: Iterable[str]) -> None:
        distinct = dict.fromkeys(globs)
        self._of_paths = tuple(glob for glob in distinct if ":" not in glob)
        self._of_tags = tuple(glob for glob in distinct if ":" in glob)
        self._known: BoundedCache[str, frozenset[str]] = BoundedCache(1 << 20)

    def matching(self, image: str) -> frozenset[str]:
        """The globs that match an image."""
        path, tag = repository_and_tag(image)
        known = self._known.get(path)
        if known is None:
            known = frozenset(glob for glob in self._of_paths if glob_matches(glob, path))
            self._known.put(path, known, len(path) + 100 * len(known))
        tagged = [glob for glob in self._of_tags if glob_matches(glob, f"{path}:{tag}")]
        return known.union(tagged) if tagged else known
