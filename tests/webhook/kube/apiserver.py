"""A small API server for unit tests, over real HTTP: lists in pages, watches, compare-and-swap, RBAC.

It knows nothing of kinds: an object lives at the path that it was created under. Faults are asked for by
the test: `forbid` a path, `expire` the watch history, let lists expire or calls be put off.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any

from aiohttp import web

from policies.kube.json import Json, text


class Silence(Enum):
    """Two ways in which watches bring nothing while their connections live."""

    MUTE = "those that are open when it begins bring nothing any more, not even their end"
    HELD = "a proxy holds back what each brings until its end"


class FakeApiServer:
    """State and faults. `url` is set while it listens."""

    def __init__(self) -> None:
        self.url = ""
        self.token = "secret-token"
        self.objects: dict[str, Json] = {}
        self.history: list[tuple[int, str, str, Json]] = []
        self.version = 100
        self.oldest = 0
        self.forbidden: set[str] = set()
        self.because = ""
        self.spoilt: dict[str, Any] = {}
        """Answers with 200 in place of the stored objects, by path."""
        self.requests: list[tuple[str, str]] = []
        self.page_size: int | None = None
        self.limits: list[int] = []
        """Of each list that was asked for in pages."""
        self.expiring = 0
        """How many further pages of a list are answered with 410 and a token that goes on from there."""
        self.gone = False
        """Whether every watch begins and then ends with 410."""
        self.silence: Silence | None = None
        """What becomes of the events of watches."""
        self.putting_off = 0
        """How many requests are answered with 429."""
        self.losing = 0
        """How many lists are never answered."""
        self.before_write: Callable[[], Awaitable[object]] | None = None
        """What happens, once, just before the next write is carried out."""
        self._changed = asyncio.Condition()
        self._watches: set[asyncio.Task[Any]] = set()

    # --- what tests do ---------------------------------------------------------------------------------

    async def put(self, collection: str, item: Json) -> Json:
        """Create or replace an object; `collection` is the path of its (namespaced) collection."""
        path = f"{collection}/{item['metadata']['name']}"
        kind = "MODIFIED" if path in self.objects else "ADDED"
        return await self._store(kind, path, item)

    async def delete(self, path: str) -> None:
        item = self.objects.pop(path)
        await self._record("DELETED", path, item)

    async def forbid(self, *paths: str, because: str = "") -> None:
        """Answer 403 for collections under these paths, and end their watches.

        `because`: for example the words of a quota; by default those of the authorizer."""
        self.forbidden, self.because = set(paths), because
        await self.end_watches()

    async def expire(self) -> None:
        """Forget the watch history, as compaction does, and end all watches."""
        self.version += 1
        self.oldest = self.version
        await self.end_watches()

    async def end_watches(self) -> None:
        for task in list(self._watches):
            task.cancel()

    def kubeconfig(self, directory: Path) -> Path:
        """A kubeconfig for this server."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        path = directory / "kubeconfig"
        path.write_text(json.dumps(config))
        return path

    # --- HTTP ------------------------------------------------------------------------------------------

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        if request.headers.get("Authorization", "").lower() != f"bearer {self.token}":
            return _status(401, "Unauthorized", "who are you?")
        if any(request.path.startswith(path) for path in self.forbidden):
            cannot = f'User "mlchassis" cannot {request.method.lower()} path "{request.path}"'
            return _status(403, "Forbidden", f"it is forbidden: {self.because or cannot}")
        if request.path in self.spoilt:
            return web.json_response(self.spoilt[request.path])
        if self.putting_off:
            self.putting_off -= 1
            return _status(429, "TooManyRequests", "later")
        if request.method != "GET" and self.before_write is not None:
            happens, self.before_write = self.before_write, None
            await happens()
        path = request.path
        match request.method:
            case "GET" if path in self.objects:
                return web.json_response(self.objects[path])
            case "GET" if "watch" in request.query:
                return await self._watch(request)
            case "GET" if self._is_collection(request) and self.losing:
                self.losing -= 1
                await asyncio.Event().wait()
            case "GET" if self._is_collection(request):
                return self._list(request)
            case "POST":
                item = await request.json()
                target = f"{path}/{item['metadata']['name']}"
                if target in self.objects:
                    return _status(409, "AlreadyExists", f"{target} already exists")
                return web.json_response(await self._store("ADDED", target, item), status=201)
            case "PUT" | "PATCH" if path in self.objects:
                return await self._write(request)
            case "DELETE" if path in self.objects:
                return await self._delete(request)
        return _status(404, "NotFound", f"{path} not found")

    @staticmethod
    def _is_collection(request: web.Request) -> bool:
        return bool({"limit", "fieldSelector", "labelSelector"} & set(request.query))

    async def _write(self, request: web.Request) -> web.Response:
        stored, sent = self.objects[request.path], await request.json()
        version = (sent.get("metadata") or {}).get("resourceVersion")
        if version not in (None, stored["metadata"]["resourceVersion"]):
            return _status(409, "Conflict", "the object has been modified")
        if request.method == "PATCH":
            sent = _merged(stored, sent, strategic="strategic" in request.content_type)
        return web.json_response(await self._store("MODIFIED", request.path, sent))

    async def _delete(self, request: web.Request) -> web.Response:
        sent = await request.json() if request.can_read_body else {}
        expected = sent.get("preconditions", {}).get("resourceVersion")
        if expected not in (None, self.objects[request.path]["metadata"]["resourceVersion"]):
            return _status(409, "Conflict", "the object has been modified")
        await self.delete(request.path)
        return web.json_response({"kind": "Status", "status": "Success"})

    def _selected(self, request: web.Request, item_path: str, item: Json) -> bool:
        parent = request.path
        inside = parent in (item_path.rpartition("/")[0], _all_namespaces(item_path))
        fields = request.query.get("fieldSelector", "")
        wanted = [term.split("=") for term in request.query.get("labelSelector", "").split(",") if term]
        labels = item["metadata"].get("labels") or {}
        return (
            inside
            and (not fields or _has_field(item, fields))
            and all(labels.get(label) == value for label, value in wanted)
        )

    def _list(self, request: web.Request) -> web.Response:
        found = [item for path, item in self.objects.items() if self._selected(request, path, item)]
        start = int(request.query.get("continue") or 0)
        if start and self.expiring:
            self.expiring -= 1
            return _status(410, "Expired", "the list is too old", {"continue": str(start)})
        limit = int(request.query.get("limit", 500))
        self.limits.append(limit)
        end = start + (self.page_size or limit)
        metadata = {"resourceVersion": str(self.version)}
        if end < len(found):
            metadata["continue"] = str(end)
        return web.json_response({"kind": "List", "metadata": metadata, "items": found[start:end]})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        if since < self.oldest:
            return _status(410, "Expired", "too old resource version")
        response = web.StreamResponse()
        await response.prepare(request)
        if self.gone:
            expired = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
            await response.write(_event("ERROR", expired))
            return response
        task = asyncio.current_task()
        assert task is not None
        self._watches.add(task)
        loop, silence, began = asyncio.get_running_loop(), self.silence, since
        seconds, held = int(request.query.get("timeoutSeconds", 3600)), bytearray()
        end = loop.time() + seconds
        bookmark: float | None = end - min(2, seconds / 2)
        try:
            while loop.time() < end:
                events = bytearray()
                for version, kind, path, item in self.history:
                    if version > since and self._selected(request, path, item):
                        events += _event(kind, item)
                since = self.version
                if bookmark and loop.time() >= bookmark and self.version == began:
                    bookmark = None  # an API server sends none where its resource has not changed
                if bookmark and loop.time() >= bookmark:
                    events += _event("BOOKMARK", {"metadata": {"resourceVersion": str(since)}})
                    bookmark = None
                if self.silence is Silence.HELD:
                    held += events
                elif self.silence is None or silence is self.silence:
                    # A watch that begins while others are mute brings what happens.
                    await response.write(events)
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(bookmark or end), self._changed:
                        await self._changed.wait_for(lambda: self.version > since)  # noqa: B023
            if self.silence is Silence.MUTE and silence is None:
                await asyncio.Event().wait()  # its end does not come either
            await response.write(held)
        except asyncio.CancelledError:
            return response  # the end of a watch is an ordinary end of the body
        finally:
            self._watches.discard(task)
        return response

    async def _store(self, kind: str, path: str, item: Json) -> Json:
        metadata = {**item["metadata"], "resourceVersion": str(self.version + 1)}
        self.objects[path] = {**item, "metadata": metadata}
        await self._record(kind, path, self.objects[path])
        return self.objects[path]

    async def _record(self, kind: str, path: str, item: Json) -> None:
        self.version += 1
        item = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self.version)}}
        self.history.append((self.version, kind, path, item))
        async with self._changed:
            self._changed.notify_all()


def _has_field(item: Json, selector: str) -> bool:
    """Whether an object is selected by one field, `=` or `!=`. An absent field is empty."""
    path, operator, value = re.split("(!?=)", selector, maxsplit=1)
    return (text(item, *path.split(".")) == value) is (operator == "=")


def _event(kind: str, item: Json) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def _all_namespaces(path: str) -> str:
    """`/api/v1/namespaces/ns/services/a` -> `/api/v1/services`."""
    head, _, rest = path.partition("/namespaces/")
    parts = rest.split("/")
    return f"{head}/{parts[1]}" if len(parts) == 3 else path.rsplit("/", 1)[0]


def _merged(stored: Json, patch: Json, *, strategic: bool) -> Json:
    """JSON merge patch; `strategic` merges lists of named maps by name, as Kubernetes does here."""
    result = dict(stored)
    for key, value in patch.items():
        old = result.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            result[key] = _merged(old, value, strategic=strategic)
        elif strategic and isinstance(value, list) and isinstance(old, list):
            changes = {item["name"]: item for item in value}
            result[key] = [_merged(item, changes.get(item["name"], {}), strategic=True) for item in old]
        else:
            result[key] = value
    return result


def _status(code: int, reason: str, message: str, metadata: Json | None = None) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    body["metadata"] = metadata or {}
    return web.json_response(body, status=code)


async def until(predicate: Callable[[], object], seconds: float = 60) -> None:
    """Wait until a client has processed the answers as the test expects; there is no event to await."""
    async with asyncio.timeout(seconds):
        while not predicate():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def turns(count: int) -> None:
    """Let all tasks go on for so many turns of the event loop, of 5 ms or more."""
    for _ in range(count):
        await asyncio.sleep(0.005)


@asynccontextmanager
async def running(tls: ssl.SSLContext | None = None) -> AsyncIterator[FakeApiServer]:
    """The server on a free port of the loopback."""
    fake = FakeApiServer()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.2, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    fake.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield fake
    finally:
        await fake.end_watches()
        await runner.cleanup()
