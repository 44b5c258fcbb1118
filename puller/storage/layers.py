"""The layers of an image, with whiteouts applied: the content of one directory of it."""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass, field

from puller.files import remove_tree
from puller.reasons import StatusReason
from puller.storage.archive import Unpacker
from puller.storage.base import StorageError, safe_path
from puller.storage.objects import selected

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"


@dataclass
class LayerUnpacker(Unpacker):
    """Writes the content of the directory `subtree` of an image. Call `begin` before each layer. Without
    `subtree`, unpacks ordinary archives, without whiteouts."""

    subtree: str = ""
    _own: set[str] = field(default_factory=set)
    """Paths of this layer: its whiteouts apply only to lower layers."""

    def begin(self) -> None:
        self._own.clear()

    def _selected_name(self, raw: str) -> str:
        if not self.subtree:
            return super()._selected_name(raw)
        self._check_stopped()
        self._entries += 1
        self._check_entries(self._entries)
        full = self._full(raw)
        above, base = posixpath.split(full)
        if base == _OPAQUE:
            self._hide(above, itself=False)
            return ""
        if base.startswith(_WHITEOUT):
            self._hide(posixpath.join(above, base.removeprefix(_WHITEOUT)), itself=True)
            return ""
        name = self._below(full)
        if name:
            self._own.add(name)
        return name if name and selected(name, self.files) else ""

    def _clean(self, raw: str) -> str:
        return self._below(self._full(raw)) if self.subtree else super()._clean(raw)

    def _symlink(self, name: str, target: str) -> None:
        if self.subtree and target.startswith(f"/{self.subtree}/"):  # an image's links may name its own root
            inside = target.removeprefix(f"/{self.subtree}/")
            target = posixpath.relpath(inside, posixpath.dirname(name) or ".")
        super()._symlink(name, target)

    @staticmethod
    def _full(raw: str) -> str:
        if ".." in raw.split("/"):
            raise StorageError(StatusReason.HOSTILE_ARCHIVE, f"{raw[:200]!r} leads out of the image.")
        return posixpath.normpath(raw.lstrip("/") or ".")

    def _below(self, full: str) -> str:
        """The path below `subtree`; empty for other paths."""
        prefix = f"{self.subtree}/"
        return safe_path(full.removeprefix(prefix)) if full.startswith(prefix) else ""

    def _hide(self, full: str, *, itself: bool) -> None:
        """Remove the files of lower layers below a path, with `itself` also at the path."""
        whole = f"{self.subtree}/".startswith(f"{full}/") or full in ("", ".")
        name = "" if whole else self._below(full)
        if not whole and not name:
            return
        for link in [link for link in self._symlinks if self._hidden(link, name, itself)]:
            del self._symlinks[link]
        top = self.into / name
        if itself and name and not top.is_dir():
            if name not in self._own:
                top.unlink(missing_ok=True)
            return
        for parent, directories, files in os.walk(top, topdown=False):
            self._check_stopped()
            below = os.path.relpath(parent, self.into)
            for file in files:
                if posixpath.normpath(posixpath.join(below, file)) not in self._own:
                    os.unlink(os.path.join(parent, file))  # noqa: PTH108, PTH118
            for directory in directories:
                path = posixpath.normpath(posixpath.join(below, directory))
                if path not in self._own and not os.listdir(os.path.join(parent, directory)):  # noqa: PTH118, PTH208
                    os.rmdir(os.path.join(parent, directory))  # noqa: PTH106, PTH118
        if itself and name and name not in self._own and top.is_dir() and not any(top.iterdir()):
            remove_tree(top)

    def _hidden(self, link: str, name: str, itself: bool) -> bool:
        if link in self._own:
            return False
        return link.startswith(f"{name}/") or not name or (itself and link == name)
