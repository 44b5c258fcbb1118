"""The settings of `job-retries`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from policies.core.annotations import TRAINING
from policies.core.settings import Duration, Field, Settings


class Raises(StrEnum):
    """The Jobs whose values `job-retries` raises although the user set them."""

    ALL = "all"
    ACCELERATORS = "accelerators"
    NONE = "none"


class JobRetries(Settings):
    """Key `job-retries.yaml`."""

    retryable_exit_codes: tuple[Annotated[int, Field(ge=1, le=255)], ...] = Field(
        (137, 143),
        min_length=1,
        max_length=200,
        description="exit codes that are retried within backoffLimit: 143 is SIGTERM, 137 SIGKILL, which "
        "also ends a process that uses too much memory; every other code but 0 is a real "
        "error",
    )
    training_labels: tuple[str, ...] = Field(
        (f"{TRAINING}=true",),
        description="labels, `key=value` or `key`, that mark a Job as training although it requests no "
        "accelerator; `*` is any text",
    )
    raises: Raises = Field(
        Raises.NONE,
        description="Jobs whose ttlSecondsAfterFinished, history limits and backoffLimit 0 are raised "
        "although the manifest sets them: all Jobs, Jobs with accelerators, or none",
    )
    logs_on_error: bool = Field(
        True,
        description="whether pods of Jobs and other training pods get `terminationMessagePolicy: "
        "FallbackToLogsOnError`: if a container fails without a message, the end of its log is kept in the "
        "pod's status",
    )
    min_log_retention: Duration = Field(
        86400,
        description="the shortest time that a finished Job and the logs of its pods are kept; also the "
        "threshold of the rule job-logs-lost",
    )
    backoff_limit: int = Field(
        3,
        ge=1,
        le=2**31 - 1,
        description="the value to which a backoffLimit of 0 is raised if an eviction would fail the Job",
    )
