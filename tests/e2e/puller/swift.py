"""OpenStack Swift with its S3 API: a store that checks signatures and knows ranges, on the loopback."""

from __future__ import annotations

import shutil
import subprocess
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from urllib.error import URLError

import obstore
from obstore.store import S3Store

from tests.e2e.processes import Process, free_port
from tests.e2e.puller.venvs import venv

ACCESS_KEY, SECRET_KEY = "test:tester", "testing"

_COMMON = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = root
swift_dir = {state}
devices = {state}/devices
mount_check = false
log_level = WARNING
"""
_BACKEND = (
    _COMMON
    + """
fallocate_reserve = 0
disable_fallocate = true
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""
)
_PROXY = (
    _COMMON
    + """
[pipeline:main]
pipeline = catch_errors listing_formats s3api tempauth slo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:slo]
use = egg:swift#slo
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
"""
)


class Swift:
    """Four processes and three rings of one device. `env` is what a pod would be given."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.port = free_port()
        self._processes: list[Process] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def env(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
        }

    def __enter__(self) -> Swift:
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            process.kill()
        shutil.rmtree(self.state / "devices", ignore_errors=True)

    def store(self, bucket: str) -> S3Store:
        """A client with the right credentials."""
        return S3Store(
            bucket,
            endpoint=self.url,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            region="us-east-1",
            client_options={"allow_http": True},
        )

    def make_bucket(self, bucket: str) -> S3Store:
        """Create a bucket; the client for it."""
        store = self.store(bucket)
        request = urllib.request.Request(obstore.sign(store, "PUT", "", timedelta(minutes=1)), method="PUT")
        with urllib.request.urlopen(request, timeout=10) as response:
            assert response.status == 200
        return store

    def _start(self) -> None:
        bin_dir = venv("swift")
        (self.state / "devices" / "d1").mkdir(parents=True)
        (self.state / "swift.conf").write_text(
            "[swift-hash]\nswift_hash_path_prefix = a\nswift_hash_path_suffix = b\n"
            "[storage-policy:0]\nname = one\ndefault = yes\n"
        )
        for kind in ("account", "container", "object"):
            port = free_port()
            self._ring(bin_dir, kind, port)
            self._serve(bin_dir, kind, _BACKEND, {"kind": kind, "port": str(port)})
        proxy = self._serve(bin_dir, "proxy", _PROXY, {"port": str(self.port)})
        proxy.wait_until(self._answers, 60)

    def _ring(self, bin_dir: Path, kind: str, port: int) -> None:
        builder = self.state / f"{kind}.builder"
        tool = bin_dir / "swift-ring-builder"
        for arguments in (
            ("create", "4", "1", "1"),
            ("add", f"r1z1-127.0.0.1:{port}/d1", "1"),
            ("rebalance",),
        ):
            done = subprocess.run([tool, builder, *arguments], capture_output=True, text=True, check=False)
            assert done.returncode in (0, 1), done.stdout + done.stderr  # 1 is a warning

    def _serve(self, bin_dir: Path, kind: str, template: str, values: Mapping[str, str]) -> Process:
        config = self.state / f"{kind}-server.conf"
        config.write_text(template.format(state=self.state, **values))
        process = Process(
            f"swift-{kind}", [bin_dir / f"swift-{kind}-server", config], self.state / f"{kind}.log"
        )
        self._processes.append(process)
        return process

    def _answers(self) -> bool:
        """Whether a bucket can be made, which takes all four."""
        with suppress(URLError, ConnectionError, TimeoutError):
            self.make_bucket("probe")
            return True
        return False
