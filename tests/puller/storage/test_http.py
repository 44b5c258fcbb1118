"""Stores that bend the rules of HTTP: slow ones, forgetful ones, ones that replace what is being read."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from puller.spec import ModelSpec
from puller.storage.base import DiskBudget, Limits, StorageError
from puller.storage.fetch import Fetch, Storage
from tests.puller.fakes import FaultStore

MB = 1 << 20
LIMITS = Limits(
    part_size=MB, chunk_size=1 << 16, stall_timeout=0.5, retry_initial=0.01, retry_max=0.05, trouble_timeout=1
)
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Odd(FaultStore):
    """Answers what the test says; without that, as a sound store."""

    answer: Answer | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        return await (self.answer or super().handle)(request)


@pytest.fixture
async def odd() -> AsyncIterator[Odd]:
    store = Odd()
    await store.start()
    yield store
    await store.stop()


def fetch_of(odd: Odd, tmp_path: Path, uri: str, limits: Limits = LIMITS) -> Fetch:
    staging = tmp_path / "staging"
    staging.mkdir()
    storage = Storage(odd.env, limits, DiskBudget(tmp_path), tmp_path, asyncio.Semaphore(limits.connections))
    return Fetch(ModelSpec("m", uri), staging, storage)


def ranged(request: web.Request, data: bytes, headers: dict[str, str] | None = None) -> web.StreamResponse:
    """The head of an answer to a ranged GET, as a server gives it that knows no ETags."""
    first, _, last = request.headers["Range"].removeprefix("bytes=").partition("-")
    end = min(int(last) + 1, len(data))
    said = {
        "Content-Range": f"bytes {first}-{end - 1}/{len(data)}",
        "Content-Length": str(end - int(first)),
    }
    return web.StreamResponse(status=206, headers=said | (headers or {}))


def span(request: web.Request) -> slice:
    first, _, last = request.headers["Range"].removeprefix("bytes=").partition("-")
    return slice(int(first), int(last) + 1)


async def test_a_store_that_is_merely_slow_gets_there(odd: Odd, tmp_path: Path) -> None:
    """A stall is no byte at all: a link too slow for a chunk within the stall timeout loses nothing."""
    data = bytes(range(256)) * 200

    async def drip(request: web.Request) -> web.StreamResponse:
        response = ranged(request, data)
        await response.prepare(request)
        wanted = data[span(request)]
        for at in range(0, len(wanted), 4096):  # a chunk takes 0.8 s, the timeout is 0.5 s
            await response.write(wanted[at : at + 4096])
            await asyncio.sleep(0.05)
        return response

    odd.answer = drip
    tree = await fetch_of(odd, tmp_path, f"{odd.url}/web/m.bin").run()
    assert (tree / "m.bin").read_bytes() == data


@pytest.mark.parametrize("header", ["ETag", "Last-Modified"])
async def test_versions_are_never_mixed_by_a_server_that_ignores_if_match(
    odd: Odd, tmp_path: Path, header: str
) -> None:
    versions = [
        (
            bytes([letter]) * 3 * MB,
            {"ETag": f'"{letter}"', "Last-Modified": f"Thu, 0{day} Jan 2026 00:00:00 GMT"},
        )
        for letter, day in ((65, 1), (66, 8))
    ]
    now = iter([0, 0])  # the question about it and the first part; then it is another

    async def replaced(request: web.Request) -> web.StreamResponse:
        data, said = versions[next(now, 1)]
        response = ranged(request, data, {header: said[header]})
        await response.prepare(request)
        await response.write(data[span(request)])
        return response

    odd.answer = replaced
    fetch = fetch_of(odd, tmp_path, f"{odd.url}/web/m.bin", replace(LIMITS, connections=1))
    with pytest.raises(StorageError) as caught:
        await fetch.run()
    assert caught.value.reason == "SourceChanged"
    tree = await fetch.run()
    assert (tree / "m.bin").read_bytes() == versions[1][0]


async def test_compressed_bytes_are_not_taken_for_the_model(odd: Odd, tmp_path: Path) -> None:
    async def compressed(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})

    odd.answer = compressed
    with pytest.raises(StorageError, match=r"the server sends m\.json as gzip"):
        await fetch_of(odd, tmp_path, f"{odd.url}/web/m.json").run()


@pytest.mark.parametrize(
    "path", ["a/b/", "a//b", "a%2Fb", "a%20b", "a?sig=x%2Fy&b=1", "x/?q=1", "%C3%BC.bin", "a@b:c(d);e", ""]
)
async def test_a_url_is_asked_for_as_it_is_written(odd: Odd, tmp_path: Path, path: str) -> None:
    asked: set[str] = set()

    async def noting(request: web.Request) -> web.StreamResponse:
        asked.add(request.raw_path)
        response = ranged(request, b"M")
        await response.prepare(request)
        await response.write(b"M")
        return response

    odd.answer = noting
    tree = await fetch_of(odd, tmp_path, f"{odd.url}/{path}").run()
    assert asked == {f"/{path}"}
    assert [file.read_bytes() for file in tree.iterdir()] == [b"M"]


@pytest.mark.parametrize("key", ["m#1", "m?x=1", "m%20", "m+1"])
async def test_a_key_is_no_url(odd: Odd, tmp_path: Path, key: str) -> None:
    odd.objects = {f"{key}/a": b"A", "m/a": b"another"}
    tree = await fetch_of(odd, tmp_path, f"s3://bucket/{key}").run()
    assert (tree / "a").read_bytes() == b"A"


async def test_a_content_type_tells_an_archive_in_a_bucket_too(odd: Odd, tmp_path: Path) -> None:
    odd.objects["m"] = b"no tar"
    odd.types["m"] = "application/x-tar"
    with pytest.raises(StorageError) as caught:
        await fetch_of(odd, tmp_path, "s3://bucket/m").run()
    assert caught.value.reason == "BadArchive"


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"sha": "%s", "siblings": ["x"]}' % (b"a" * 40),
        b'{"sha": "%s", "siblings": [{"size": 1}]}' % (b"a" * 40),
        b'{"sha": "%s", "siblings": [{"rfilename": 1, "size": 1}]}' % (b"a" * 40),
        b'{"sha": "%s", "siblings": [{"rfilename": "a", "size": -1}]}' % (b"a" * 40),
        b'{"sha": "%s", "siblings": [{"rfilename": "a", "size": 1, "lfs": "x"}]}' % (b"a" * 40),
        b'{"sha": "main", "siblings": []}',
    ],
)
async def test_a_hub_that_makes_no_sense_is_waited_for(odd: Odd, tmp_path: Path, answer: bytes) -> None:
    async def hub(_: web.Request) -> web.StreamResponse:
        return web.Response(body=answer, content_type="application/json")

    odd.answer = hub
    with pytest.raises(StorageError) as caught:
        await fetch_of(odd, tmp_path, "hf://org/model").run()
    assert caught.value.reason == "StorageUnavailable"


async def test_a_store_that_is_not_there_is_told_from_one_that_is_not_trusted(
    odd: Odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = replace(LIMITS, trouble_timeout=0.0)
    with pytest.raises(StorageError, match=r"Connection refused\)$"):
        await fetch_of(odd, tmp_path, "http://127.0.0.1:1/m", limits).run()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(self_signed(tmp_path))
    site = web.TCPSite(odd.runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = odd.runner.addresses[-1][1]
    (tmp_path / "staging").rmdir()
    with pytest.raises(StorageError, match=r"\(certificate: \w+\)$"):
        await fetch_of(odd, tmp_path, f"https://127.0.0.1:{port}/m", limits).run()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "tls.pem"))
    odd.objects["m"] = b"M"
    (tmp_path / "staging").rmdir()
    tree = await fetch_of(odd, tmp_path, f"https://127.0.0.1:{port}/web/m?new=client", limits).run()
    assert (tree / "m").read_bytes() == b"M"


def self_signed(directory: Path) -> Path:
    """A file with a key and its certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "store")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = directory / "tls.pem"
    unsealed = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, unsealed)
    file.write_bytes(pem + certificate.public_bytes(serialization.Encoding.PEM))
    return file


async def test_the_hubs_token_stays_with_the_hub(odd: Odd, tmp_path: Path) -> None:
    """Large files are redirected to another host, which must not learn the token."""
    tokens: dict[str, str] = {}
    data = b"weights"

    async def hub(request: web.Request) -> web.StreamResponse:
        tokens[f"{request.host.split(':')[0]} {request.path}"] = request.headers.get("Authorization", "")
        if "/api/" in request.path:
            files = [
                {"rfilename": "w.bin", "size": len(data), "lfs": {"sha256": hashlib.sha256(data).hexdigest()}}
            ]
            return web.json_response({"sha": "a" * 40, "siblings": files})
        if request.path != "/cdn":
            raise web.HTTPFound(f"http://localhost:{odd.port}/cdn")
        response = ranged(request, data)
        await response.prepare(request)
        await response.write(data[span(request)])
        return response

    odd.answer = hub
    fetch = fetch_of(odd, tmp_path, "hf://org/model")
    fetch.storage = replace(fetch.storage, env=odd.env | {"HF_TOKEN": "secret"})
    assert ((await fetch.run()) / "w.bin").read_bytes() == data
    assert {call.split()[0]: token for call, token in tokens.items()} == {
        "127.0.0.1": "Bearer secret",
        "localhost": "",
    }
