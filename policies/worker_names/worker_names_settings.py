"""The settings of `worker-names`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

from policies.core.settings import Duration, Field, Retired, Settings


class OnUnavailable(StrEnum):
    """The answer if the API server does not answer in time."""

    REFUSE = "refuse"
    ALLOW = "allow"


class WorkerNames(Settings):
    """Key `worker-names.yaml`."""

    retired: ClassVar[Mapping[str, Retired]] = {
        "strategy": Retired(
            "the setting strategy was removed and has no effect: names have numbers that only go up. "
            "Remove it"
        )
    }

    reservation: Duration = Field(
        75,
        ge=1,
        description="seconds for which an allocated name stays reserved although no such pod is listed. It "
        "must be longer than the longest request of the API server (its --request-timeout, 60 s by default) "
        "plus the clock difference between API servers",
    )
    on_unavailable: OnUnavailable = Field(
        OnUnavailable.REFUSE,
        description="when the API server can't be asked in time: refuse (the operator tries again) or allow "
        "(the pod keeps its random name, and a double creation goes through)",
    )
