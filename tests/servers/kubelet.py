"""Asks a probe as the kubelet does: pkg/probe/http and pkg/probe/exec of Kubernetes 1.36."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

HEADERS: Final = {"User-Agent": "kube-probe/1.36", "Accept": "*/*", "Connection": "close"}
REDIRECTS: Final = 10
BODY: Final = 10 * 1024
FASTER: Final = 10
"""The times of liveness by progress are divided by this."""


@dataclass(frozen=True)
class Answer:
    """Whether a probe succeeds, and the answer: `200 OK`, or the error."""

    success: bool
    detail: str


def ask(probe: dict[str, Any], address: str, host: str) -> Answer:
    """Ask once, within the probe's own time-out.

    `address` is where to connect to; `host` is the pod's address in the Host header, an IPv6 one in brackets:
    a server that listens only on IPv4 can still be asked how it takes such a header.
    """
    deadline = time.monotonic() + probe.get("timeoutSeconds", 1)
    if "tcpSocket" in probe:
        return _connect(probe["tcpSocket"]["port"], address, deadline)
    get = probe["httpGet"]
    scheme = get.get("scheme", "HTTP").lower()
    url = urljoin(f"{scheme}://{host}:{get['port']}", get.get("path", "/"))
    try:
        for _ in range(REDIRECTS + 1):
            status, location = _get(url, address, deadline)
            if status not in (301, 302, 303, 307, 308) or location is None:
                return Answer(200 <= status < 400, str(status))
            there = urljoin(url, location)
            if urlsplit(there).hostname != urlsplit(url).hostname:
                return Answer(True, f"{status} to another host, {there}")
            url = there
    except TimeoutError:
        return Answer(False, "no answer in time")
    except ConnectionRefusedError:
        return Answer(False, "connection refused")
    except (OSError, http.client.HTTPException) as error:
        return Answer(False, f"{type(error).__name__}: {error}")
    return Answer(False, f"more than {REDIRECTS} redirects")


def _connect(port: int, address: str, deadline: float) -> Answer:
    try:
        with socket.create_connection((address, port), timeout=_left(deadline)):
            return Answer(True, "connected")
    except OSError as error:
        return Answer(
            False, "connection refused" if isinstance(error, ConnectionRefusedError) else str(error)
        )


def run(command: Sequence[str], env: Mapping[str, str], timeout: float) -> Answer:
    """Run an exec probe's command: exit status 0 in time is success."""
    try:
        done = subprocess.run(
            command, env=dict(env), capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return Answer(False, "no answer in time")
    return Answer(done.returncode == 0, (done.stdout + done.stderr).strip())


def hastened(probe: dict[str, Any]) -> dict[str, Any]:
    """A probe by progress that is `FASTER` times as impatient; other probes as they are."""
    if "exec" not in probe:
        return probe
    command = list(probe["exec"]["command"])
    shorter = {
        "SILENT = 30\n": "SILENT = 3\n",
        "BROKEN = 300\n": "BROKEN = 30\n",
        "jitter() % 60": "jitter() % 6",
    }
    for old, new in shorter.items():
        assert old in command[3]
        command[3] = command[3].replace(old, new)
    plan = json.loads(command[8])
    command[8] = json.dumps({**plan, "silence": plan["silence"] // FASTER})
    return {**probe, "exec": {"command": command}, "periodSeconds": probe["periodSeconds"] // FASTER}


def _get(url: str, address: str, deadline: float) -> tuple[int, str | None]:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    with socket.create_connection((address, port), timeout=_left(deadline)) as plain:
        # The kubelet verifies no certificate.
        connection = plain if parts.scheme == "http" else ssl._create_unverified_context().wrap_socket(plain)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        lines = [f"GET {target or '/'} HTTP/1.1", f"Host: {parts.netloc}"]
        lines += [f"{name}: {value}" for name, value in HEADERS.items()]
        connection.settimeout(_left(deadline))
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        response = http.client.HTTPResponse(connection, method="GET")
        response.begin()
        connection.settimeout(_left(deadline))
        response.read(BODY)
        return response.status, response.getheader("Location")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("no answer within the probe's time-out")
    return left
