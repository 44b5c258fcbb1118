"""The disk budget: how many bytes the models may take, reserved before they are written."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from puller.quantities import human
from puller.reasons import StatusReason
from puller.storage.base import StorageError


@dataclass
class DiskBudget:
    """The disk space of all models: at most `limit` bytes (0: no limit), and never more than is free.

    Shared by the event loop and the threads that unpack.
    """

    root: Path
    limit: int = 0
    _sizes: dict[str, int] = field(default_factory=dict)
    _written: dict[str, Callable[[], int]] = field(default_factory=dict)
    _total: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def set_used(self, key: str, size: int) -> None:
        """Record that `key` takes `size` bytes, all of them already on disk."""
        with self._lock:
            self._set(key, size)

    def release(self, key: str) -> None:
        self.set_used(key, 0)

    def reserve(self, key: str, size: int, written: Callable[[], int]) -> None:
        """Reserve `size` bytes in all for `key`. `written` returns how many of them are on disk. Raises
        StorageError if they do not fit; then nothing changes."""
        with self._lock:
            others = self._total - self._sizes.get(key, 0)
            if self.limit and others + size > self.limit:
                raise StorageError(
                    StatusReason.OVER_MAX_DISK,
                    f"{human(size)} do not fit: models take {human(others)} of {human(self.limit)} allowed.",
                )
            try:
                free = shutil.disk_usage(self.root).free
            except OSError as error:
                raise StorageError(
                    StatusReason.MODEL_DIR_UNUSABLE, f"the free space is unknown: {error}"
                ) from None
            pending = [
                self._sizes.get(other, 0) - done() for other, done in self._written.items() if other != key
            ]
            free = max(free - sum(pending), 0)
            missing = size - written()
            if missing > free:
                raise StorageError(
                    StatusReason.DISK_FULL, f"{human(missing)} more are needed and {human(free)} are free."
                )
            self._set(key, size)
            self._written[key] = written

    @property
    def used(self) -> int:
        """Bytes of all models."""
        with self._lock:
            return self._total

    def _set(self, key: str, size: int) -> None:
        self._total += size - self._sizes.pop(key, 0)
        self._written.pop(key, None)
        if size:
            self._sizes[key] = size
