"""The status pages of pullers, requested at the pods' addresses.

Law: a tenant controls the pod and its page. So a request has no credentials and no cookies, ends within
`SECONDS`, follows no redirect, decompresses nothing, and reads at most `LARGEST` bytes. Texts from a page are
limited in number and length and made printable.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from ipaddress import IPv6Address, ip_address
from typing import Final

import aiohttp
import orjson
from msgspec import Struct

from policies.kube.json import Json, integer, mapping, maps, text
from webhook.admission.printable import printable
from webhook.errors import message_of

SECONDS: Final = 3.0
LARGEST: Final = 256 << 10
"""The maximum bytes of a page. A puller of the first release lists all models, about a thousand fit."""
LISTED: Final = 50
"""Models that are not loaded, of one pod."""
_QUERY: Final = f"loaded=false&limit={LISTED}"
_MAX_LENGTH: Final = {"name": 253, "state": 40, "reason": 40, "message": 300}
"""The fields of `Unloaded`, with their maximum length."""
_MAX_MODELS: Final = 1_000_000
_LOADED: Final = "Loaded"


class NoStatus(Exception):
    """The pod returned no status page; the message contains the reason."""


class Unloaded(Struct, frozen=True):
    name: str
    state: str
    reason: str
    message: str

    @property
    def failed(self) -> bool:
        return self.state == "Failed"


class Page(Struct, frozen=True):
    total: int
    loaded: int
    unloaded: tuple[Unloaded, ...]
    """The first `LISTED` models that are not loaded, failed ones first."""

    @property
    def complete(self) -> bool:
        """Whether all models that are not loaded are listed."""
        return self.total - self.loaded <= len(self.unloaded)


GetStatus = Callable[[str, int], Awaitable[Page]]
"""Requests the status of the puller at an address and port. Raises NoStatus."""


def is_pod_address(address: str) -> bool:
    """Whether a pod can have the address: not loopback, link-local, multicast or unspecified. The proxy of
    the API server refuses the same addresses (k8s.io/apimachinery/pkg/util/proxy, IsProxyableIP)."""
    try:
        found = ip_address(address)
    except ValueError:
        return False
    if isinstance(found, IPv6Address):
        if found.scope_id is not None:
            return False
        found = found.ipv4_mapped or found
    return not (found.is_loopback or found.is_link_local or found.is_multicast or found.is_unspecified)


@asynccontextmanager
async def status_client(
    connections: int, is_allowed: Callable[[str], bool] = is_pod_address
) -> AsyncIterator[GetStatus]:
    """A client with a maximum number of connections."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=SECONDS),
        headers={"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "mlchassis"},
        auto_decompress=False,
        trust_env=False,
    ) as session:

        async def get_status(address: str, port: int) -> Page:
            if not is_allowed(address):
                raise NoStatus("the address is not a pod's")
            host = f"[{address}]" if ":" in address else address
            try:
                url = f"http://{host}:{port}/v1/models?{_QUERY}"
                async with session.get(url, allow_redirects=False) as response:
                    if response.status != 200:
                        raise NoStatus(f"status {response.status}")
                    raw = await _body(response)
            except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
                raise NoStatus(message_of(error)) from None
            return read(raw)

        yield get_status


async def _body(response: aiohttp.ClientResponse) -> bytes:
    raw = bytearray()
    async for chunk in response.content.iter_any():
        raw += chunk
        if len(raw) > LARGEST:
            raise NoStatus(f"the page is longer than {LARGEST >> 10} KiB")
    return bytes(raw)


def read(raw: bytes) -> Page:
    """Parse a status page. Raises NoStatus."""
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("models"), list):
        raise NoStatus("the page lists no models")
    listed = maps(document, "models")
    states = mapping(document, "counts")
    if states:
        counts = {name: integer(states, name, default=0) for name in states}
        total, loaded = sum(map(_count, counts.values())), _count(counts.get(_LOADED, 0))
    else:  # a puller of the first release
        total, loaded = len(listed), sum(text(each, "state") == _LOADED for each in listed)
    return Page(total, loaded, tuple(_unloaded(listed)))


def _count(number: int) -> int:
    return min(max(number, 0), _MAX_MODELS)


def _unloaded(listed: Iterable[Json]) -> list[Unloaded]:
    found = [each for each in listed if text(each, "name") and text(each, "state") != _LOADED]
    found.sort(key=lambda each: text(each, "state") != "Failed")
    return [
        Unloaded(*(printable(text(each, key)[:most])[:most] for key, most in _MAX_LENGTH.items()))
        for each in found[:LISTED]
    ]
