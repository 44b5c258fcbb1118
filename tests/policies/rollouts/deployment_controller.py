"""The loop of the Deployment controller in numbers: what it makes and removes where there is little room.

After `rolloutRolling`, `reconcileOldReplicaSets` and `NewRSNewReplicas` of Kubernetes 1.37
(pkg/controller/deployment/rolling.go). A pod that has a place is ready and available one step later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from policies.rollouts.rollouts import RollingUpdate


@dataclass
class ReplicaSet:
    """How many pods one should have, how many have a place, and how many of those are available."""

    wanted: int = 0
    placed: int = 0
    available: int = 0

    def scale(self, wanted: int) -> None:
        """Pods without a place go first, then those that are not available."""
        self.wanted = wanted
        self.placed = min(self.placed, wanted)
        self.available = min(self.available, self.placed)

    @property
    def waiting(self) -> int:
        return self.wanted - self.placed


def roll_out(update: RollingUpdate, room: int, favours_old: Iterator[bool]) -> tuple[bool, int, int]:
    """Whether a rollout ends with all pods of the new revision, the least pods that were available after the
    first, and the most that there were. `favours_old`: which revision gets the next free place."""
    old, new = ReplicaSet(update.replicas), ReplicaSet()
    _settle(old, new, room, favours_old)
    least, most = old.available, old.wanted
    while _step(update, old, new):
        most = max(most, old.wanted + new.wanted)
        least = min(least, old.available + new.available)
        _settle(old, new, room, favours_old)
    return (old.wanted, new.available) == (0, update.replicas), least, most


def _settle(old: ReplicaSet, new: ReplicaSet, room: int, favours_old: Iterator[bool]) -> None:
    """Pods take the places that are free, and become available."""
    while (old.waiting or new.waiting) and old.placed + new.placed < room:
        takes = old if old.waiting and (not new.waiting or next(favours_old)) else new
        takes.placed += 1
    old.available, new.available = old.placed, new.placed


def _step(update: RollingUpdate, old: ReplicaSet, new: ReplicaSet) -> bool:
    """One pass of the controller: whether it changed anything."""
    total = old.wanted + new.wanted
    up = min(update.replicas + update.surge - total, update.replicas - new.wanted)
    if up > 0:
        new.scale(new.wanted + up)
        return True
    least = update.replicas - update.unavailable
    most_down = total - least - (new.wanted - new.available)
    if not old.wanted or most_down <= 0:
        return False
    before = old.wanted
    old.scale(old.wanted - min(most_down, old.wanted - old.available))
    spare = old.available + new.available - least
    if spare > 0:
        old.scale(old.wanted - min(old.wanted, spare))
    return old.wanted < before
