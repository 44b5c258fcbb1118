"""The settings of `disruption-guard`."""

from __future__ import annotations

from policies.core.annotations import TRAINING
from policies.core.settings import Duration, Field, Settings


class DisruptionGuard(Settings):
    """Key `disruption-guard.yaml`."""

    training_labels: tuple[str, ...] = Field(
        (f"{TRAINING}=true",),
        description="labels, `key=value` or `key`, that mark a pod which completes, or a Ray pod, as "
        "training although it requests no accelerator, such as the launcher of an MPIJob; "
        "`*` is any text",
    )
    max_duration: Duration = Field(
        14 * 86400,
        ge=1,
        description="the longest time that a training pod may keep its node from being drained",
    )
    add_deadline: bool = Field(
        False,
        description="whether a training pod without activeDeadlineSeconds gets maxDuration as its "
        "deadline, which ends every container that still runs",
    )
    pre_stop_sleep: Duration = Field(
        5, description="seconds that a serving container sleeps before it is stopped; 0: none"
    )
    drain: Duration = Field(
        20, description="seconds for open requests after the sleep, until the kubelet kills the server"
    )

    @property
    def whole_drain(self) -> int:
        """The sleep and the time for open requests, which a server that aborts these needs as its sleep. The
        kubelet kills a container whose sleep is as long as the grace period, so at least 1 s follows."""
        return self.pre_stop_sleep + max(self.drain, 1)
