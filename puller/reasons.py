"""The reasons in the status and the metrics: why a step failed, or why a model is not loaded yet.

Law: the reasons are public. docs/puller.md explains each, which a test checks.
"""

from __future__ import annotations

from enum import StrEnum


class StatusReason(StrEnum):
    # The config.
    INVALID_SPEC = "InvalidSpec"

    # The storage.
    NOT_FOUND = "NotFound"
    ACCESS_DENIED = "AccessDenied"
    ADDRESS_BLOCKED = "AddressBlocked"
    BAD_SETTINGS = "BadSettings"
    STORAGE_UNAVAILABLE = "StorageUnavailable"
    STORAGE_TIMEOUT = "StorageTimeout"
    SOURCE_CHANGED = "SourceChanged"
    SOURCE_UNREADABLE = "SourceUnreadable"
    TOO_MANY_OBJECTS = "TooManyObjects"
    CANCELLED = "Cancelled"

    # The downloaded bytes.
    DIGEST_MISMATCH = "DigestMismatch"
    HOSTILE_PATH = "HostilePath"
    HOSTILE_ARCHIVE = "HostileArchive"
    ARCHIVE_BOMB = "ArchiveBomb"
    BAD_ARCHIVE = "BadArchive"
    BAD_MANIFEST = "BadManifest"

    # The disk.
    DISK_FULL = "DiskFull"
    OVER_MAX_DISK = "OverMaxDisk"
    MODEL_DIR_UNUSABLE = "ModelDirUnusable"

    # The model server.
    OVER_MAX_MEMORY = "OverMaxMemory"
    LOAD_FAILED = "LoadFailed"
    NOT_READY = "NotReady"
    NO_VERSION = "NoVersion"
    UNLOAD_FAILED = "UnloadFailed"
    CONFIG_UNWRITABLE = "ConfigUnwritable"
    SERVER_UNAVAILABLE = "ServerUnavailable"
    SERVER_LOST = "ServerLost"
    SERVER_TIMEOUT = "ServerTimeout"
    WAITING_FOR_SERVER = "WaitingForServer"

    # Others.
    QUEUED = "Queued"
    INTERNAL_ERROR = "InternalError"


class StepError(Exception):
    """A step that failed for a known reason. The message is one sentence."""

    def __init__(self, reason: StatusReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


BAD_CONTENT = frozenset(
    {
        StatusReason.DIGEST_MISMATCH,
        StatusReason.BAD_ARCHIVE,
        StatusReason.HOSTILE_ARCHIVE,
        StatusReason.HOSTILE_PATH,
        StatusReason.ARCHIVE_BOMB,
    }
)
"""The content is bad until the object is replaced."""

NO_ROOM = frozenset({StatusReason.DISK_FULL, StatusReason.OVER_MAX_DISK})

SERVER_SILENT = frozenset(
    {StatusReason.SERVER_UNAVAILABLE, StatusReason.SERVER_LOST, StatusReason.SERVER_TIMEOUT}
)
"""The model server did not respond."""
