"""A store and a model server that fail on demand, and a ConfigMap volume as the kubelet writes it."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import tarfile
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from aiohttp import web

from puller.log import logger

BUCKET = "bucket"


class Listening:
    """A real aiohttp server on a free port, of the loopback unless `host` is another address."""

    host = "127.0.0.1"
    port = 0
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def runner(self) -> web.AppRunner:
        assert self._runner is not None
        return self._runner

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 20)
        app.router.add_route("*", "/{path:.*}", self.handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raise NotImplementedError


@dataclass
class FaultStore(Listening):
    """S3 (path style, ListObjectsV2) below /bucket, the same objects as plain HTTP below /web.

    `refuse`: answer this many further requests with 503. `cut_after`: each GET loses its connection after
    that many bytes of body, `cuts` times. `gate`: when set to an Event, GETs of bodies wait for it.
    `ranges` and `types` apply to /web.
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    refuse: int = 0
    cuts: int = 0
    cut_after: int = 0
    gate: asyncio.Event | None = None
    ranges: bool = True
    types: dict[str, str] = field(default_factory=dict)
    page: int = 1000
    gets: Counter[str] = field(default_factory=Counter)
    requests: list[tuple[str, str]] = field(default_factory=list)
    bytes_sent: int = 0
    waiting: int = 0
    _sorted: list[str] = field(default_factory=list)
    _etags: dict[str, tuple[bytes, str]] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "HF_ENDPOINT": f"{self.url}/hub",
        }

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs))
        if self.refuse > 0:
            self.refuse -= 1
            return web.Response(status=503, text="slow down")
        where, _, key = request.match_info["path"].partition("/")
        if where == BUCKET and "list-type" in request.query:
            return self._list(request)
        if where in (BUCKET, "web"):
            return await self._object(request, key, self.ranges or where == BUCKET)
        return web.Response(status=404)

    def _list(self, request: web.Request) -> web.Response:
        prefix = request.query.get("prefix", "")
        after = request.query.get("continuation-token", "")
        if len(self._sorted) != len(self.objects):
            self._sorted = sorted(self.objects)
        start = bisect_left(self._sorted, max(prefix, after))
        end = bisect_left(self._sorted, prefix + "\U0010ffff")
        keys = [key for key in self._sorted[start:end] if key > after]
        page, more = keys[: self.page], len(keys) > self.page
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{escape(self._etag(key))}</ETag><Size>{len(self.objects[key])}</Size></Contents>"
            for key in page
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        return web.Response(
            content_type="application/xml",
            text=f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{entries}{token}</ListBucketResult>",
        )

    async def _object(self, request: web.Request, key: str, ranges: bool) -> web.StreamResponse:
        data = self.objects.get(key)
        if data is None:
            return web.Response(status=404)
        etag = self._etag(key)
        if request.headers.get("If-Match", etag) != etag:
            return web.Response(status=412)
        headers = {
            "ETag": etag,
            "Content-Type": self.types.get(key, "application/octet-stream"),
            "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
        }
        status, start, end = 200, 0, len(data)
        if ranges and "Range" in request.headers:
            first, _, last = request.headers["Range"].removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) + 1 if last else len(data), len(data))
            if start >= len(data):
                return web.Response(status=416)
            status = 206
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        headers["Content-Length"] = str(end - start)
        response = web.StreamResponse(status=status, headers=headers)
        if request.method == "HEAD":
            await response.prepare(request)
            return response
        if request.headers.get("Range") == "bytes=0-0" and "If-Match" not in request.headers:
            # Only the kind of object: no download, yet.
            await response.prepare(request)
            await response.write(data[:1])
            return response
        self.gets[key] += 1
        if self.gate is not None:
            self.waiting += 1
            await self.gate.wait()
            self.waiting -= 1
        await response.prepare(request)
        with suppress(ConnectionError):
            await self._send(request, response, data[start:end])
        return response

    def _etag(self, key: str) -> str:
        """Worked out once for each content: a large object is asked for in many parts."""
        data = self.objects[key]
        known = self._etags.get(key)
        if known is None or known[0] is not data:
            known = self._etags[key] = data, f'"{hashlib.md5(data).hexdigest()}"'
        return known[1]

    async def _send(self, request: web.Request, response: web.StreamResponse, body: bytes) -> None:
        if self.cuts > 0 and len(body) > self.cut_after:
            self.cuts -= 1
            await response.write(body[: self.cut_after])
            self.bytes_sent += self.cut_after
            await asyncio.sleep(0.01)
            if request.transport is not None:
                request.transport.abort()
            return
        for at in range(0, len(body), 1 << 20):
            await response.write(body[at : at + (1 << 20)])
        self.bytes_sent += len(body)


@dataclass
class FakeServer(Listening):
    """A V2 model server. Loading reads the model's files, so that `serving` has the model's content.

    `refuse_loads`: answer this many further loads with 500. `hang_loads`, `hang_unloads`, `hang_ready`: do
    not answer these until the event is set. `hung`: answer nothing. `load_seconds`: how long a load takes.
    `other`: answers outside of this protocol.
    """

    model_dir: Path = Path()
    serving: dict[str, bytes] = field(default_factory=dict)
    refuse_loads: dict[str, int] = field(default_factory=dict)
    hang_loads: asyncio.Event | None = None
    hang_unloads: asyncio.Event | None = None
    hang_ready: asyncio.Event | None = None
    hung: asyncio.Event | None = None
    load_seconds: float = 0.0
    loads: Counter[str] = field(default_factory=Counter)
    unloads: Counter[str] = field(default_factory=Counter)
    in_flight: Counter[str] = field(default_factory=Counter)
    overlaps: int = 0
    files_at_unload: dict[str, bool] = field(default_factory=dict)
    log: list[tuple[str, str]] = field(default_factory=list)
    other: Callable[[web.Request], Awaitable[tuple[int, Any]]] | None = None

    async def restart(self, pause: float = 0.0) -> None:
        """Stop, lose all models, and start on the same port."""
        await self.stop()
        self.serving.clear()
        await asyncio.sleep(pause)
        await self.start()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.hung is not None:
            await self.hung.wait()
        parts = request.match_info["path"].split("/")
        match parts:
            case ["v2", "health", _]:
                return web.Response()
            case ["v2", "models", name, "ready"]:
                if self.hang_ready is not None:
                    await self.hang_ready.wait()
                return web.Response(status=200 if name in self.serving else 404)
            case ["v2", "repository", "models", name, "load"]:
                return await self._load(name)
            case ["v2", "repository", "models", name, "unload"]:
                return await self._unload(name)
        if self.other is None:
            return web.Response(status=404)
        status, body = await self.other(request)
        return web.json_response(body, status=status)

    async def _load(self, name: str) -> web.Response:
        self.loads[name] += 1
        self.log.append(("load", name))
        self.in_flight[name] += 1
        self.overlaps += self.in_flight[name] > 1
        try:
            if self.hang_loads is not None:
                await self.hang_loads.wait()
            await asyncio.sleep(self.load_seconds)
            if self.refuse_loads.get(name, 0) > 0:
                self.refuse_loads[name] -= 1
                return web.json_response({"error": "cannot load"}, status=500)
            content = tree_bytes(self.model_dir / name)
            if content is None:
                return web.json_response({"error": "not found"}, status=404)
            self.serving[name] = content
            return web.json_response({})
        finally:
            self.in_flight[name] -= 1

    async def _unload(self, name: str) -> web.Response:
        self.unloads[name] += 1
        self.log.append(("unload", name))
        if self.hang_unloads is not None:
            await self.hang_unloads.wait()
        self.files_at_unload[name] = (self.model_dir / name).is_dir()
        return web.json_response({}, status=200 if self.serving.pop(name, None) is not None else 404)


def tree_bytes(directory: Path) -> bytes | None:
    """All file content below, without the puller's own notes; None when there is no such directory."""
    if not directory.is_dir():
        return None
    files = sorted(path for path in directory.rglob("*") if path.is_file() and not is_note(path))
    return b"".join(path.read_bytes() for path in files)


def is_note(path: Path) -> bool:
    return path.name.startswith("SUCCESS.") or path.name in (".loaded", ".loading")


@dataclass
class ConfigVolume:
    """A ConfigMap volume: every write makes a new timestamped directory and swaps `..data`."""

    path: Path
    _count: int = 0

    def write(self, models: dict[str, Any] | list[Any] | str, **keys: Any) -> None:
        """`models`: name -> URI or modelSpec, the list itself, or its raw text. `keys`: `<name>.json` too."""
        if isinstance(models, dict):
            models = [{"modelName": name, "modelSpec": _spec(spec)} for name, spec in models.items()]
        files = {"models.json": models if isinstance(models, str) else json.dumps(models)}
        files |= {
            f"{name}.json": spec if isinstance(spec, str) else json.dumps(spec) for name, spec in keys.items()
        }
        self.write_files(files)

    def write_files(self, files: dict[str, str]) -> None:
        self._count += 1
        self.path.mkdir(exist_ok=True)
        fresh = self.path / f"..2026_{self._count}"
        fresh.mkdir()
        for name, text in files.items():
            (fresh / name).write_text(text)
        data = self.path / "..data"
        old = data.resolve() if data.is_symlink() else None
        scratch = self.path / "..data_tmp"
        scratch.symlink_to(fresh.name)
        scratch.replace(data)
        for name in files:
            link = self.path / name
            if not link.is_symlink():
                link.symlink_to(f"..data/{name}")
        for link in self.path.glob("[!.]*"):
            if link.name not in files:
                link.unlink()
        if old is not None:
            for path in old.iterdir():
                path.unlink()
            old.rmdir()


def _spec(spec: Any) -> dict[str, Any]:
    base = {"framework": "sklearn", "memory": "1Mi"}
    return base | ({"storageUri": spec} if isinstance(spec, str) else spec)


def tarred(files: dict[str, bytes]) -> bytes:
    """A plain tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


async def until(condition: Callable[[], object], seconds: float = 60.0, what: str = "") -> None:
    """Wait for something that has no event to wait for."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"did not come true in {seconds} s{': ' if what else ''}{what}")
        await asyncio.sleep(0.005)


@contextmanager
def logged() -> Iterator[list[dict[str, Any]]]:
    """What the puller logs meanwhile, in this process: one dictionary a line."""
    lines: list[dict[str, Any]] = []

    def write(level: str, event: str, fields: dict[str, Any]) -> None:
        lines.append(fields | {"event": event, "level": level})

    before, logger.write = logger.write, write  # type: ignore[method-assign]
    try:
        yield lines
    finally:
        logger.write = before  # type: ignore[method-assign]
