"""Names of models that wait for a slot, or for a time."""

from __future__ import annotations

import heapq
from collections.abc import Iterator


class WorkQueue:
    """Names that wait for slots of several kinds, by descending priority, then by name."""

    def __init__(self, slots: dict[str, int]) -> None:
        self._free = dict(slots)
        self._waiting: dict[str, list[tuple[int, str]]] = {slot: [] for slot in slots}
        self._queued: set[tuple[str, str]] = set()

    def push(self, slot: str, priority: int, name: str) -> None:
        """Queue a name, unless it is queued already."""
        if (slot, name) not in self._queued:
            self._queued.add((slot, name))
            heapq.heappush(self._waiting[slot], (-priority, name))

    def startable(self) -> Iterator[tuple[str, str]]:
        """(slot, name), as long as slots are free and names wait. Call `take` to use the slot."""
        for slot, waiting in self._waiting.items():
            while waiting and self._free[slot] > 0:
                name = heapq.heappop(waiting)[1]
                self._queued.discard((slot, name))
                yield slot, name

    def take(self, slot: str) -> None:
        self._free[slot] -= 1

    def give_back(self, slot: str) -> None:
        self._free[slot] += 1


class Timers:
    """Times for names; in seconds, monotonic."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._armed: dict[str, float] = {}

    def arm(self, name: str, when: float) -> None:
        """Set the time of a name; it replaces an earlier one."""
        if self._armed.get(name) != when:
            self._armed[name] = when
            heapq.heappush(self._heap, (when, name))

    def due(self, now: float) -> Iterator[str]:
        """The names whose time has come, each once."""
        while self._heap and self._heap[0][0] <= now:
            when, name = heapq.heappop(self._heap)
            if self._armed.get(name) == when:
                del self._armed[name]
                yield name

    def pause(self, now: float) -> float:
        """Seconds until the next time; infinity if there is none."""
        return self._heap[0][0] - now if self._heap else float("inf")
