"""The client of the API server: all reads and writes go through `ApiServer`.

Law: objects are plain JSON in dicts, never typed models, which drop unknown fields, and every call has a
timeout. The kubernetes client provides the connection: kubeconfig, in-cluster token, TLS, proxies.

Callers depend on small protocols (`calls.Calls`, `calls.Writes`, `reflector.Lister`) that `ApiServer`
implements.
"""

from __future__ import annotations

import asyncio
import importlib
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import aiohttp
import orjson

from policies.kube.json import MAX_LEVELS, Json, dig, integer, mapping, text
from webhook.errors import UserError, message_of
from webhook.kube.calls import ApiError
from webhook.kube.own_pod import own_namespace

if TYPE_CHECKING:
    from kubernetes.aio.client import ApiClient

CONNECT_SECONDS = 5.0
CALL_SECONDS = 10.0
LIST_SECONDS = 60.0
RETRY_SECONDS = 1.0
"""The pause before a call that was answered with 429 is repeated."""
LIST_PAGE = 75
"""Objects of the first page. A Node with its list of images has about 20 KB: such a page has 1.5 MB."""
PAGE_BYTES = 1_500_000
"""The approximate size of further pages; the number of objects follows from the size of the page before.
For each page, API servers of 1.34 and newer iterate over all objects that follow (`ListPrefix` of their watch
cache), so the cost of a list in small pages is quadratic. About ten lists are read concurrently at the start,
and a page in memory takes several times its size."""
LARGEST_PAGE = 5_000
LARGEST_ANSWER = 32 * 1024 * 1024
"""The maximum bytes of an answer or watch event. A page that is larger is requested again in smaller
pages."""
WATCH_SECONDS = 30
"""The requested length of a watch. A watch can become silent while its connection lives: a proxy keeps its
events back, or the other end is gone without a FIN. Silence proves nothing, since most resources rarely
change, so watches are short. The next one needs no list (docs/scaling.md has the cost)."""
GRACE_SECONDS = 5
"""How long a watch may exceed its requested length."""

ADMISSION_REGISTRATION = "admissionregistration.k8s.io/v1"
BAD_ANSWER, TOO_LARGE, UNREACHABLE = "BadAnswer", "TooLarge", "Unreachable"


class NoApiServer(UserError):
    """There is no API server: neither a service account of a pod nor a kubeconfig."""


def load_client() -> None:
    """Import the client before a process forks, so that the children share its memory."""
    for name in ("config", "client"):
        importlib.import_module(f"kubernetes.aio.{name}")


class ApiServer:
    """A connection pool to one API server.

    `context` is the name of the kubeconfig's context, empty inside a pod; `namespace` is the default one.
    A call that is answered with 429 is repeated up to `retries` times.
    """

    def __init__(
        self, client: ApiClient, context: str = "", namespace: str = "default", retries: int = 0
    ) -> None:
        self._client: Any = client  # the generated client has no annotations
        self.context, self.namespace = context, namespace
        self._retries = retries
        self._server_time, self._received_at = time.time(), time.monotonic()

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, kubeconfig: Path | str | None = None, context: str | None = None, retries: int = 0
    ) -> AsyncIterator[ApiServer]:
        """Connect with a kubeconfig (or several, separated by colons) and one of its contexts, or with the
        pod's service account; NoApiServer if there is neither.

        This makes no request: the first call fails if the API server is down.
        """
        # Imported here because the import takes a second and 25 MB, and not every command needs it.
        from kubernetes.aio import config
        from kubernetes.aio.client import ApiClient, Configuration

        configuration, named, namespace = Configuration(), "", own_namespace("default")
        try:
            if kubeconfig:
                loader = await config.load_kube_config(  # type: ignore[no-untyped-call]
                    str(kubeconfig), context=context, client_configuration=configuration
                )
                chosen = loader.current_context
                named, namespace = chosen["name"], chosen["context"].get("namespace") or "default"
            else:
                config.load_incluster_config(  # type: ignore[no-untyped-call]
                    client_configuration=configuration
                )
            # Python 3.13 refuses CAs without a key identifier, which many clusters still have.
            configuration.disable_strict_ssl_verification = True
            # A watch holds its connection: nine reflectors and the other calls must not wait in line.
            configuration.connection_pool_maxsize = 64
            client = ApiClient(configuration)
        except Exception as error:  # neither the loader nor the client checks much of what it reads
            raise NoApiServer(message_of(error)) from error
        client.user_agent = "mlchassis"
        try:
            yield cls(client, named, namespace, retries)
        finally:
            await client.close()  # type: ignore[no-untyped-call]

    def now(self) -> float:
        """Seconds since the epoch by the API server's clock, at most a second or two behind it.

        It follows from the Date of the last answer; before the first one, this process's clock is used.
        """
        return self._server_time + time.monotonic() - self._received_at

    def _set_time(self, date: str | None) -> None:
        with suppress(TypeError, ValueError):
            self._server_time = parsedate_to_datetime(date or "").timestamp()
            self._received_at = time.monotonic()

    # --- verbs -----------------------------------------------------------------------------------------

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Json | None:
        """The object (or list) at an API path, by a consistent read; None if it does not exist."""
        try:
            return await self.call("GET", path, query=query)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        timeout: float = CALL_SECONDS,  # noqa: ASYNC109 (handed to aiohttp, which cancels the call)
    ) -> Json:
        """Send a request and return the answer. ApiError without an answer or with a status from 400."""
        options = {"query": query, "body": body, "content_type": content_type, "headers": headers}
        return _json(await self._answer(method, path, timeout, **options))

    async def _answer(self, method: str, path: str, seconds: float, **options: Any) -> bytes:
        limits = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        attempts = 0
        try:
            while True:
                response = await self._send(method, path, limits, **options)
                async with response:
                    raw = await _body(response)
                self._set_time(response.headers.get("Date"))
                if response.status == 429 and attempts < self._retries:
                    attempts += 1
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                if response.status >= 400:
                    raise _error(response.status, _status(raw))
                return raw
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiError(0, UNREACHABLE, f"{method} {path}: {message_of(error)}") from error

    async def pages(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        consistent: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[tuple[list[Json], str]]:
        """A list in pages of about PAGE_BYTES, each with the list's resourceVersion.

        If the list takes longer than the API server keeps its snapshot (minutes), a consistent list fails
        with ApiError 410; another one continues with a newer snapshot. Every object is a dict with metadata;
        ApiError for any other answer.
        """
        token, limit = "", LIST_PAGE
        while True:
            page = {**query, "limit": str(limit)} | ({"continue": token} if token else {})
            try:
                raw = await self._answer("GET", path, LIST_SECONDS, query=page, headers=headers)
            except ApiError as error:
                if error.reason == TOO_LARGE and limit > 1:
                    limit = max(1, limit // 8)
                    continue
                if consistent or not error.resume:
                    raise
                token = error.resume
                continue
            answer, size = _json(raw), len(raw)
            del raw
            items, metadata = items_of(answer), mapping(answer, "metadata")
            if items:
                limit = min(max(1, PAGE_BYTES * len(items) // size), LARGEST_PAGE)
            yield items, text(metadata, "resourceVersion")
            token = text(metadata, "continue")
            if not token:
                return

    async def objects(self, path: str, query: Mapping[str, str] | None = None) -> AsyncIterator[Json]:
        """The objects of a list, page by page, not from a single snapshot."""
        async for page, _ in self.pages(path, query or {}, consistent=False):
            for each in page:
                yield each

    async def watch(
        self, path: str, query: Mapping[str, str], resource_version: str, seconds: int = WATCH_SECONDS
    ) -> AsyncGenerator[Json, None]:
        """Watch events after `resource_version`, including bookmarks, until the server ends the watch.

        The first item is empty: the watch is open.
        """
        query = {
            **query,
            "watch": "1",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        # Without this timeout a connection that died without a FIN stays open.
        silence = seconds + GRACE_SECONDS
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence)
        try:
            response = await self._send("GET", path, limits, query=query)
            async with response:
                if response.status >= 400:
                    raise _error(response.status, _status(await _body(response)))
                yield {}
                async for line in _lines(response.content):
                    event = _json(line)
                    if event.get("type") == "ERROR":
                        status = mapping(event, "object")
                        raise _error(integer(status, "code", default=500), status)
                    if not isinstance(dig(event, "object", "metadata"), dict):
                        raise ApiError(0, BAD_ANSWER, f"watch {path}: an event without an object")
                    yield event
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiError(0, UNREACHABLE, f"watch {path}: {message_of(error)}") from error

    async def _send(
        self,
        method: str,
        path: str,
        limits: aiohttp.ClientTimeout,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> aiohttp.ClientResponse:
        url = path + (f"?{urlencode(query)}" if query else "")
        types = {"Accept": "application/json", "Content-Type": content_type}
        method, url, all_headers, content, _ = await self._client.param_serialize(
            method, url, header_params=types | dict(headers or {}), body=body, auth_settings=["BearerToken"]
        )
        sent = await self._client.rest_client.request(
            method, url, headers=all_headers, body=content, _request_timeout=limits
        )
        response: aiohttp.ClientResponse = sent.response
        return response

    async def unless_conflict(
        self, method: str, path: str, body: Json, content_type: str = "application/json"
    ) -> bool:
        """Write or delete an object; False if another writer created, changed or deleted it before."""
        try:
            await self.call(method, path, body=body, content_type=content_type)
        except ApiError as error:
            if error.status == 409 or (method != "POST" and error.status == 404):
                return False
            raise
        return True


def items_of(answer: Json) -> list[Json]:
    """The objects of a list. ApiError if the answer is not a list."""
    items = answer.get("items", ())
    if items is None:
        return []  # Go encodes an empty slice as null
    if not isinstance(items, list):
        raise ApiError(0, BAD_ANSWER, "the answer to a list has no items")
    if not all(isinstance(item, dict) and isinstance(item.get("metadata"), dict) for item in items):
        raise ApiError(0, BAD_ANSWER, "the answer to a list has items that are no objects")
    return items


async def _body(response: aiohttp.ClientResponse) -> bytes:
    raw = bytearray()
    async for chunk in response.content.iter_any():
        raw += chunk
        if len(raw) > LARGEST_ANSWER:
            raise ApiError(0, TOO_LARGE, f"the answer is longer than {LARGEST_ANSWER >> 20} MiB")
    return bytes(raw)


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    # StreamReader.readline raises on a line longer than its buffer.
    rest = bytearray()
    async for chunk in content.iter_any():
        *ends, last = chunk.split(b"\n")
        for end in ends:
            rest += end
            if rest:
                yield bytes(rest)
            rest.clear()
        rest += last
        if len(rest) > LARGEST_ANSWER:
            raise ApiError(0, TOO_LARGE, f"an event is longer than {LARGEST_ANSWER >> 20} MiB")


def _json(raw: bytes) -> Json:
    try:
        answer = parse_answer(raw)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise ApiError(0, BAD_ANSWER, f"the answer is no JSON object: {_start(raw)}")
    return answer


def _status(raw: bytes) -> Json:
    """The Status object of an error; a proxy may answer with any text."""
    try:
        return _json(raw)
    except ApiError:
        return {"message": _start(raw)}


def _start(raw: bytes) -> str:
    return raw[:200].decode(errors="replace")


def _error(status: int, answer: Json) -> ApiError:
    resume = text(answer, "metadata", "continue") if status == 410 else ""
    return ApiError(status, text(answer, "reason"), text(answer, "message"), resume)


# --- the JSON of answers --------------------------------------------------------------------------
# Law: one object never makes the others unreadable. Users may write JSON of any form into a field such as the
# `opaque.parameters` of a ResourceClaimTemplate, and API servers return it as it is: nested thousands of
# levels deep, with half of a surrogate pair, or with bytes that are not UTF-8. orjson refuses all of these.


LEVELS: Final = MAX_LEVELS + 10
"""The levels of an answer that are read: one object of it may still have more than a review reads, which then
says so, and orjson can write them."""
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)
"""A string also ends with the text: otherwise each of its escaped quotes would begin another search."""


def parse_answer(raw: bytes) -> Any:
    """The value of a JSON text, with null in place of what is nested deeper than LEVELS, and U+FFFD in place
    of what is no character. Raises orjson.JSONDecodeError for anything else that is not JSON."""
    try:
        value = orjson.loads(raw)
        orjson.dumps(value)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return orjson.loads(b"".join(_readable(raw)))
    return value


def _readable(raw: bytes) -> Iterator[bytes]:
    """The parts of the text that orjson reads."""
    level, end = 0, 0
    for found in _TOKEN.finditer(raw):
        token = found[0]
        if token in (b"[", b"{"):
            level += 1
            if level == LEVELS + 1:
                yield raw[end : found.start()]
        elif token in (b"]", b"}"):
            level -= 1
            if level == LEVELS:
                yield b"null"
                end = found.end()
        elif level <= LEVELS and (text := _readable_text(token)) != token:
            yield raw[end : found.start()]
            yield text
            end = found.end()
    if level <= LEVELS:
        yield raw[end:]


_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def _readable_text(token: bytes) -> bytes:
    """A JSON string with U+FFFD in place of what is no character."""
    if b"\\u" not in token and token.isascii():
        return token
    text = _ESCAPE.sub(lambda found: b"\\ufffd" if found["half"] else found[0], token)
    return text.decode(errors="replace").encode()
