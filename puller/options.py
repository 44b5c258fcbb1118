"""The settings from the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from puller.model_config import SCHEMES
from puller.servers.base import Timeouts
from puller.storage.base import Limits


@dataclass(frozen=True)
class PullerOptions:
    """Times in seconds, sizes in bytes (0: no limit)."""

    config_dir: Path = Path("/mnt/configs")
    model_dir: Path = Path("/mnt/models")
    pvc_dir: Path = Path("/mnt/pvc")
    server: str = "v2"
    server_url: str = "http://127.0.0.1:8080"
    server_model_dir: Path | None = None
    server_api_key: str = field(default="", repr=False)
    host: str = ""
    port: int = 9081
    ready_when: str = "all"
    num_workers: int = 4
    load_workers: int = 4
    max_disk: int = 0
    max_memory: int = 0
    resync: float = 60.0
    config_poll: float = 5.0
    server_poll: float = 2.0
    backoff_initial: float = 0.5
    backoff_max: float = 60.0
    grace: float = 25.0
    schemes: tuple[str, ...] = SCHEMES
    pod_uid: str = ""
    cache_dir: Path | None = None
    cache_size: int = 0
    timeouts: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits)
