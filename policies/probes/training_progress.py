"""Liveness of a training by its progress: the annotation `mlchassis.dev/progress`, never by default.

`file PATH SILENCE` names a file or a directory that the training writes, such as its checkpoints, and the
longest time that normally passes between two writes.
"""

from __future__ import annotations

import posixpath
import shlex
from typing import Final

from msgspec import Struct

from policies.core.annotations import TRAINING_PROGRESS
from policies.core.pod_view import PodView
from policies.kube import quantities as units
from policies.kube.json import Json
from policies.kube.pods import Container, Role

_LEAST: Final = 120
"""Seconds. `find` counts minutes."""
_MOST: Final = 7 * 86400
_FAILURES: Final = 3
_DEPTH: Final = 2
"""Directories below PATH whose entries count, so that `checkpoint-500/state.pt` does."""


class TrainingProgress(Struct, frozen=True):
    path: str
    silence: int
    """Seconds without a write that are normal."""

    def probe(self, start: int) -> Json:
        """A livenessProbe that fails when nothing was written for longer than the silence, and not before the
        expected start is complete, in seconds.

        It passes where the image has no `find`; without a shell the kubelet cannot run it, and ignores that.
        """
        minutes = -(-self.silence // 60)
        look = f"find {shlex.quote(self.path)} -maxdepth {_DEPTH} -mmin -{minutes}"
        script = f'command -v find >/dev/null || exit 0; [ -n "$({look} 2>/dev/null | head -n 1)" ]'
        return {
            "exec": {"command": ["sh", "-c", script]},
            "initialDelaySeconds": max(self.silence, start),
            "periodSeconds": min(max(self.silence // 20, 30), 300),
            "timeoutSeconds": 30,
            "failureThreshold": _FAILURES,
        }


def parse_progress(value: object) -> TrainingProgress:
    """`file /checkpoints 45m`. Raises ValueError for others."""
    words = value.split() if isinstance(value, str) else []
    if len(words) != 3 or words[0] != "file":
        raise ValueError("use file, a path, and the longest time between two writes: file /checkpoints 45m")
    path, silence = words[1], units.parse_duration(words[2])
    if not path.startswith("/") or posixpath.normpath(path) == "/" or len(path) > 1024:
        raise ValueError(f"{path[:64]} is not the absolute path of a file or a directory")
    if not _LEAST <= silence <= _MOST:
        raise ValueError("the longest time between two writes is at least 2m and at most 7d")
    return TrainingProgress(posixpath.normpath(path), silence)


def progress_of(pod: PodView, container: Container) -> TrainingProgress | None:
    """The progress by which a container is judged: that of the container's own annotation, or of the pod's if
    it has one main container."""
    annotations = pod.chassis_annotations
    if container.role is not Role.MAIN:
        return None
    value = annotations.get(f"{TRAINING_PROGRESS}.{container.name}")
    if value is None and TRAINING_PROGRESS in annotations:
        alone = sum(each.role is Role.MAIN for each in pod.containers) == 1
        value = annotations[TRAINING_PROGRESS] if alone else None
    try:
        return None if value is None else parse_progress(value)
    except ValueError:
        return None  # `advise` reports it
