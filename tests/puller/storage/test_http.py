"""Stores that bend the rules of HTTP: slow ones, forgetful ones, ones that replace a file while it is
read."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from puller.model_config import ModelSpec
from puller.storage import addresses, hub, objects, webclient
from puller.storage.addresses import blocked
from puller.storage.base import StorageError
from puller.storage.fetch import Fetch
from tests.puller.errors import refused
from tests.puller.fakes import FaultStore, tarred
from tests.puller.storage.fetching import LIMITS, MB, fetch_of, zipped
from tests.steady import undisturbed
from tests.tables import table

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Odd(FaultStore):
    """Answers as the test sets; by default as a sound store."""

    answer: Answer | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        return await (self.answer or super().handle)(request)


@pytest.fixture
async def odd() -> AsyncIterator[Odd]:
    store = Odd()
    await store.start()
    yield store
    await store.stop()


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


async def send_range(
    request: web.Request, data: bytes, headers: dict[str, str] | None = None
) -> web.StreamResponse:
    response = ranged(request, data, headers)
    await response.prepare(request)
    await response.write(data[span(request)])
    return response


def fixed(**response: Any) -> Answer:
    """A server that sends the same response to every request."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(**response)

    return answer


async def test_a_slow_store_does_not_stall(odd: Odd, tmp_path: Path) -> None:
    """A stall is no byte at all: a link too slow for a chunk within the stall timeout loses nothing."""
    data = bytes(range(256)) * 200

    async def drip(request: web.Request) -> web.StreamResponse:
        response = ranged(request, data)
        await response.prepare(request)
        wanted = data[span(request)]
        for at in range(0, len(wanted), 4096):  # a chunk takes 0.65 s, the timeout is 0.5 s
            await response.write(wanted[at : at + 4096])
            await asyncio.sleep(0.05)
        return response

    odd.answer = drip

    async def attempt() -> None:
        fetch = fetch_of(odd.env, tmp_path, f"{odd.url}/web/m.bin", replace(LIMITS, stall_timeout=0.5))
        assert (await fetch.run() / "m.bin").read_bytes() == data

    await undisturbed(0.3, attempt)


@pytest.mark.parametrize("header", ["ETag", "Last-Modified"])
async def test_versions_are_not_mixed_if_the_server_ignores_if_match(
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
        return await send_range(request, data, {header: said[header]})

    odd.answer = replaced
    fetch = fetch_of(odd.env, tmp_path, f"{odd.url}/web/m.bin", replace(LIMITS, connections=1))
    with refused("SourceChanged"):
        await fetch.run()
    tree = await fetch.run()
    assert (tree / "m.bin").read_bytes() == versions[1][0]


async def test_parts_of_the_right_version_stay_if_one_server_of_several_has_another(
    odd: Odd, tmp_path: Path
) -> None:
    """Servers behind one address may give the same file different ETags."""
    data, asked = bytes(range(256)) * (3 * MB // 256), list[str]()
    etags = iter(["a", "a", "b"])  # the question about the file, its first part, and its second part

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.headers["Range"])
        return await send_range(request, data, {"ETag": f'"{next(etags, "a")}"'})

    odd.answer = answer
    fetch = fetch_of(odd.env, tmp_path, f"{odd.url}/web/m.bin", replace(LIMITS, connections=1))
    with refused("SourceChanged"):
        await fetch.run()
    assert (await fetch.run() / "m.bin").read_bytes() == data
    assert asked.count(asked[1]) == 1, "the first part is not downloaded again"


async def test_an_unrequested_content_encoding_is_refused(odd: Odd, tmp_path: Path) -> None:
    odd.answer = fixed(body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
    with pytest.raises(StorageError, match=r"the server sends m\.json compressed"):
        await fetch_of(odd.env, tmp_path, f"{odd.url}/web/m.json").run()


def hub_of(files: dict[str, bytes], commit: str, request: web.Request) -> web.Response | None:
    """The hub's response about a repository of small files; None for another request."""
    if "/api/" not in request.path:
        return None
    siblings = [{"rfilename": name, "size": len(content)} for name, content in files.items()]
    return web.json_response({"sha": commit, "siblings": siblings})


@pytest.mark.parametrize(
    ("first", "headers"),
    [
        (gzip.compress(b"{}" + bytes(400), mtime=0), {"Content-Encoding": "gzip"}),
        (b"<html>log in</html>", {}),
    ],
    ids=["compressed", "another page"],
)
@pytest.mark.parametrize("size", [1000, 100_000])
async def test_another_response_is_not_continued_with_the_file(
    odd: Odd, tmp_path: Path, first: bytes, headers: dict[str, str], size: int
) -> None:
    """A proxy compresses a file, or sends a page of its own, without a length. The rest of the file must not
    be appended to that."""
    data = b"x" * size
    responses = iter([(first, headers)])

    async def answer(request: web.Request) -> web.StreamResponse:
        listing = hub_of({"config.json": data}, "a" * 40, request)
        if listing is not None:
            return listing
        content, said = next(responses, (b"", {}))
        if not content:
            return await send_range(request, data)
        response = web.StreamResponse(headers=said)
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(content)
        return response

    odd.answer = answer
    fetch = fetch_of(odd.env, tmp_path, "hf://org/model")
    with pytest.raises(StorageError):
        await fetch.run()
    assert (await fetch.run() / "config.json").read_bytes() == data


async def test_files_of_two_commits_of_the_hub_are_not_mixed(odd: Odd, tmp_path: Path) -> None:
    """The branch moves between two attempts. Small files have neither an ETag nor a digest in the listing."""
    commits = {"a" * 40: b"1", "b" * 40: b"2"}
    current = ["a" * 40]

    async def answer(request: web.Request) -> web.StreamResponse:
        files = {"config.json": commits[current[0]] * 10, "other.json": commits[current[0]] * 10}
        listing = hub_of(files, current[0], request)
        if listing is not None:
            return listing
        if request.path.endswith("other.json") and current[0].startswith("a"):
            await asyncio.sleep(0.3)  # the other file is complete
            return web.Response(status=404)
        commit = request.path.split("/resolve/")[1].split("/")[0]
        return await send_range(request, commits[commit] * 10)

    odd.answer = answer
    fetch = fetch_of(odd.env, tmp_path, "hf://org/model")
    with refused("NotFound"):
        await fetch.run()
    current[0] = "b" * 40
    tree = await fetch.run()
    assert (tree / "config.json").read_bytes() == (tree / "other.json").read_bytes() == b"2" * 10


@pytest.mark.parametrize("etags", ["of the content", "not those of the listing"])
async def test_versions_in_a_bucket_are_not_mixed_if_the_store_ignores_if_match(
    odd: Odd, tmp_path: Path, etags: str
) -> None:
    versions = [b"1" * 3 * MB, b"2" * 3 * MB]
    odd.objects["m/model.bin"] = versions[0]
    parts = 0

    async def replaced(request: web.Request) -> web.StreamResponse:
        nonlocal parts
        if "list-type" in request.query:
            listed = Odd(objects={"m/model.bin": b"listed"} if etags != "of the content" else odd.objects)
            listing = listed._list(request)
            listing.text = str(listing.text).replace("<Size>6<", f"<Size>{3 * MB}<")
            return listing
        parts += 1
        odd.objects["m/model.bin"] = versions[parts > 1]
        headers = {"ETag": odd._etag("m/model.bin"), "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        return await send_range(request, odd.objects["m/model.bin"], headers)

    odd.answer = replaced
    fetch = fetch_of(odd.env, tmp_path, "s3://bucket/m", replace(LIMITS, connections=1))
    with refused("SourceChanged"):
        await fetch.run()
    assert (await fetch.run() / "model.bin").read_bytes() == versions[1]


@pytest.mark.parametrize(
    "path", ["a/b/", "a//b", "a%2Fb", "a%20b", "a?sig=x%2Fy&b=1", "x/?q=1", "%C3%BC.bin", "a@b:c(d);e", ""]
)
async def test_a_url_is_requested_unchanged(odd: Odd, tmp_path: Path, path: str) -> None:
    asked: set[str] = set()

    async def noting(request: web.Request) -> web.StreamResponse:
        asked.add(request.raw_path)
        return await send_range(request, b"M")

    odd.answer = noting
    tree = await fetch_of(odd.env, tmp_path, f"{odd.url}/{path}").run()
    assert asked == {f"/{path}"}
    assert [file.read_bytes() for file in tree.iterdir()] == [b"M"]


@pytest.mark.parametrize("key", ["m#1", "m?x=1", "m%20", "m+1"])
async def test_keys_are_not_decoded_as_urls(odd: Odd, tmp_path: Path, key: str) -> None:
    odd.objects = {f"{key}/a": b"A", "m/a": b"another"}
    tree = await fetch_of(odd.env, tmp_path, f"s3://bucket/{key}").run()
    assert (tree / "a").read_bytes() == b"A"


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
async def test_invalid_responses_of_the_hub_are_retried(odd: Odd, tmp_path: Path, answer: bytes) -> None:
    odd.answer = fixed(body=answer, content_type="application/json")
    with refused("StorageUnavailable"):
        await fetch_of(odd.env, tmp_path, "hf://org/model").run()


async def test_a_missing_store_and_an_untrusted_one_have_different_errors(
    odd: Odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = replace(LIMITS, retry_timeout=0.0)
    with pytest.raises(StorageError, match=r"Connection refused\)$"):
        await fetch_of(odd.env, tmp_path, "http://127.0.0.1:1/m", limits).run()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(self_signed(tmp_path))
    site = web.TCPSite(odd.runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = odd.runner.addresses[-1][1]
    with pytest.raises(StorageError, match=r"\(certificate: self-signed certificate\)$"):
        await fetch_of(odd.env, tmp_path, f"https://127.0.0.1:{port}/m", limits).run()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "tls.pem"))
    odd.objects["m"] = b"M"
    tree = await fetch_of(odd.env, tmp_path, f"https://127.0.0.1:{port}/web/m?new=client", limits).run()
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


async def test_the_hubs_token_is_not_sent_to_other_hosts(odd: Odd, tmp_path: Path) -> None:
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
        return await send_range(request, data)

    odd.answer = hub
    fetch = fetch_of(odd.env, tmp_path, "hf://org/model")
    fetch.storage = replace(fetch.storage, env=odd.env | {"HF_TOKEN": "secret"})
    assert ((await fetch.run()) / "w.bin").read_bytes() == data
    assert {call.split()[0]: token for call, token in tokens.items()} == {
        "127.0.0.1": "Bearer secret",
        "localhost": "",
    }


# --- answers without a Content-Length ----------------------------------------------------------------


def in_chunks(data: bytes, *, cut: bool = False) -> Answer:
    """A server that sends an undeclared number of chunks; with `cut`, the last one is missing."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"ETag": '"1"'})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for at in range(0, len(data), 10_000):
            await response.write(data[at : at + 10_000])
        if cut and request.transport is not None:
            await asyncio.sleep(0)
            request.transport.abort()
        return response

    return answer


WEIGHTS = bytes(range(256)) * 300


@pytest.mark.parametrize("name", ["m.bin", "m.tar", "m.tar.gz", "m.zip"])
async def test_a_response_without_a_length_is_complete_with_its_last_chunk(
    odd: Odd, tmp_path: Path, name: str
) -> None:
    pack: dict[str, Callable[[], bytes]] = {
        "m.bin": lambda: WEIGHTS,
        "m.tar": lambda: tarred({"m.bin": WEIGHTS}),
        "m.tar.gz": lambda: gzip.compress(tarred({"m.bin": WEIGHTS})),
        "m.zip": lambda: zipped({"m.bin": WEIGHTS}),
    }
    data = pack[name]()
    odd.answer = in_chunks(data)
    fetch = fetch_of(odd.env, tmp_path, f"{odd.url}/web/{name}")
    digest = hashlib.sha256(data).hexdigest()
    fetch.spec = replace(fetch.spec, sha256=digest)
    tree = await fetch.run()
    assert [path.name for path in tree.iterdir()] == ["m.bin"]
    assert (tree / "m.bin").read_bytes() == WEIGHTS
    assert fetch.progress.done


async def test_a_response_without_its_last_chunk_is_incomplete(odd: Odd, tmp_path: Path) -> None:
    odd.answer = in_chunks(WEIGHTS, cut=True)
    fetch = fetch_of(odd.env, tmp_path, f"{odd.url}/web/m.bin")
    with refused("StorageUnavailable"):
        await fetch.run()
    odd.answer = in_chunks(WEIGHTS)
    assert (await fetch.run() / "m.bin").read_bytes() == WEIGHTS


async def test_a_response_without_a_length_is_limited_by_max_disk(odd: Odd, tmp_path: Path) -> None:
    odd.answer = in_chunks(bytes(4 * MB))
    fetch = fetch_of(odd.env, tmp_path, f"{odd.url}/web/m.bin")
    fetch.storage.budget.limit = MB
    with refused("OverMaxDisk"):
        await fetch.run()
    assert fetch.storage.budget.used == 0


async def test_a_response_without_length_and_chunks_is_refused(tmp_path: Path) -> None:
    """HTTP/1.0 without a length: a broken connection looks the same as the end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nhalf a model")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    store = Odd()
    store.port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(StorageError, match="the end of the file is unknown"):
            await fetch_of(store.env, tmp_path, f"{store.url}/m.bin").run()


# --- a transfer that stalls --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "silence", "requests"),
    [("http", "head", 1), ("http", "body", 2), ("s3", "head", 1), ("s3", "body", 3), ("hf", "head", 1)],
)
async def test_a_stalled_transfer_ends_the_attempt(
    odd: Odd, tmp_path: Path, scheme: str, silence: str, requests: int
) -> None:
    """No further request follows in this attempt, but for one that takes bytes as they come (S3)."""
    asked, over = 0, asyncio.Event()
    odd.objects["m/m.bin"] = WEIGHTS
    uri = {"http": f"{odd.url}/web/m.bin", "s3": "s3://bucket/m", "hf": "hf://o/m"}[scheme]

    async def still(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        if "list-type" in request.query:
            return odd._list(request)
        asked += 1
        if "Range" not in request.headers:
            await over.wait()
            return web.Response()
        response = ranged(request, WEIGHTS, {"ETag": '"1"'})
        if silence == "body":
            await response.prepare(request)
            await response.write(b"x")
            if request.headers["Range"] == "bytes=0-0":
                return response
        await over.wait()
        return response

    odd.answer = still
    limits = replace(LIMITS, stall_timeout=0.3, retry_timeout=3600)

    async def attempt() -> None:
        nonlocal asked, over
        asked, over = 0, asyncio.Event()
        try:
            with pytest.raises(StorageError) as caught:
                await fetch_of(odd.env, tmp_path, uri, limits).run()
        finally:
            over.set()
        assert caught.value.reason == "StorageTimeout"
        assert asked == requests - (scheme == "s3" and silence == "body")

    await undisturbed(0.1, attempt)


# --- where a model may come from, and the parts that are shown ----------------------------------------


@table(
    ("address", "expected"),
    [
        ("169.254.169.254", True),
        ("169.254.0.1", True),
        ("fe80::1%eth0", True),
        ("fd00:ec2::254", True),
        ("100.100.100.200", True),
        ("168.63.129.16", True),
        ("::ffff:169.254.169.254", True),
        ("64:ff9b::a9fe:a9fe", True),
        ("2002:a9fe:a9fe::1", True),
        ("127.0.0.1", False),
        ("10.0.0.1", False),
        ("64:ff9b::a00:1", False),
        ("fd00::1", False),
        ("100.100.100.201", False),
        ("example.com", False),
        ("", False),
    ],
)
def test_which_addresses_are_blocked(address: str, expected: bool) -> None:
    assert blocked(address) is expected


@pytest.mark.parametrize("prefix", ["64:ff9b:1::", "2001:db8:1:ff12::"])
@pytest.mark.parametrize("length", [32, 40, 48, 56, 64, 96])
def test_an_address_that_nat64_translates_to_a_blocked_one_is_blocked(prefix: str, length: int) -> None:
    """RFC 6052, 2.2: bits 64 to 71 are zero, the address is around them; the suffix is ignored."""
    for inner, expected in (("169.254.169.254", True), ("168.63.129.16", True), ("52.216.1.2", False)):
        bits = f"{int(ip_address(prefix)):0128b}"[:length] + f"{int(ip_address(inner)):032b}"
        if length < 96:
            bits = bits[:64] + "0" * 8 + bits[64:]
        for suffix in "01":
            assert blocked(str(ip_address(int(bits[:128].ljust(128, suffix), 2)))) is expected


@pytest.mark.parametrize(
    "uri",
    [
        "http://169.254.169.254/latest/meta-data/iam/security-credentials/",
        "http://[fd00:ec2::254]/latest",
        "http://[::ffff:169.254.169.254]/",
        "https://169.254.169.254/m.tar",
        "hf://o/m",
        "s3://bucket/m",
        "gs://bucket/m",
        "az://container/m",
    ],
)
async def test_a_link_local_storage_is_refused_without_a_packet(
    odd: Odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a socket was made")

    monkeypatch.setattr(webclient, "guarded_socket", never)
    fetch = fetch_of(odd.env, tmp_path, uri)
    names = ("HF_ENDPOINT", "AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST", "AZURE_STORAGE_ENDPOINT")
    env = dict.fromkeys(names, "http://169.254.169.254")
    env |= {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_ACCESS_KEY": "aGk="}
    fetch.storage = replace(fetch.storage, env=odd.env | env)
    with refused("AddressBlocked"):
        await fetch.run()


async def test_a_redirect_to_a_link_local_address_is_not_followed(odd: Odd, tmp_path: Path) -> None:
    odd.answer = fixed(status=302, headers={"Location": "http://169.254.169.254/latest/s3cret"})
    with refused("AddressBlocked") as caught:
        await fetch_of(odd.env, tmp_path, f"{odd.url}/m").run()
    assert "s3cret" not in str(caught.value)


@pytest.fixture
async def rebinding(monkeypatch: pytest.MonkeyPatch) -> str:
    """A name that leads to this machine when it is asked for the first time, and to the metadata then."""
    answers = iter(["127.0.0.1"])

    async def resolve(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        address = next(answers, "169.254.169.254")
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    return "store.example"


async def test_a_name_that_resolves_to_a_blocked_address_later_is_refused(
    odd: Odd, tmp_path: Path, rebinding: str
) -> None:
    odd.objects["m"] = b"M"
    fetch = fetch_of(odd.env, tmp_path, f"http://{rebinding}:{odd.port}/web/m")
    assert (await fetch.run() / "m").read_bytes() == b"M"
    with pytest.raises(StorageError) as caught:  # the connections were closed with the attempt
        await fetch.run()
    assert caught.value.reason == "AddressBlocked"


async def test_the_address_is_checked_where_it_is_connected_to(
    odd: Odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rebinding: str
) -> None:
    """With any change between resolver and connection, the socket itself is refused."""
    monkeypatch.setattr(webclient, "blocked", lambda _: False)
    await asyncio.get_running_loop().getaddrinfo(rebinding, 0)
    with refused("AddressBlocked"):
        await fetch_of(odd.env, tmp_path, f"http://{rebinding}:{odd.port}/web/m").run()


@pytest.mark.parametrize("uri", ["{}/web/m/a", "http://localhost:{port}/web/m/a", "s3://bucket/m"])
async def test_link_local_addresses_may_be_allowed(
    odd: Odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    """No packet is to leave for such an address: the loopback stands in for them."""
    loopback = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
    monkeypatch.setattr(addresses, "_BLOCKED", loopback)
    odd.objects["m/a"] = b"A"
    place = uri.format(odd.url, port=odd.port)
    with refused("AddressBlocked"):
        await fetch_of(odd.env, tmp_path, place).run()
    tree = await fetch_of(odd.env, tmp_path, place, replace(LIMITS, allow_link_local=True)).run()
    assert (tree / "a").read_bytes() == b"A"


@pytest.mark.parametrize("status", [200, 400, 403, 404, 418, 500, 503])
@pytest.mark.parametrize("uri", ["{}/web/m?sig=t0ken", "s3://bucket/m", "gs://bucket/m", "hf://org/model"])
async def test_no_text_of_a_server_is_shown(odd: Odd, tmp_path: Path, uri: str, status: int) -> None:
    """A config may name servers that its writer cannot reach, and the status is open to all."""

    headers = {"ETag": "s3cret", "Content-Encoding": "s3cret", "Content-Type": "s3cret/s3cret"}
    odd.answer = fixed(status=status, text='<s3cret> error: "s3cret"', headers=headers)
    fetch = fetch_of(odd.env, tmp_path, uri.format(odd.url), replace(LIMITS, retry_timeout=0.0))
    fetch.storage = replace(fetch.storage, env=odd.env | {"STORAGE_EMULATOR_HOST": odd.url})
    with pytest.raises(StorageError) as caught:
        await fetch.run()
    assert "s3cret" not in str(caught.value)
    assert "t0ken" not in str(caught.value)


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("/m", "without end"),
        ("ftp://host/m", "not allowed"),
        ("http://[", "not allowed"),
        ("file:///etc", "not allowed"),
    ],
)
async def test_bad_redirects_are_refused(odd: Odd, tmp_path: Path, location: str, said: str) -> None:
    odd.answer = fixed(status=302, headers={"Location": location})
    with pytest.raises(StorageError, match=said):
        await fetch_of(odd.env, tmp_path, f"{odd.url}/m", replace(LIMITS, retry_timeout=0.0)).run()


async def test_an_endless_response_of_the_hub_is_refused(
    odd: Odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "MAX_RESPONSE", 100_000)
    odd.answer = in_chunks(bytes(4 * MB))
    with pytest.raises(StorageError, match="longer than"):
        await fetch_of(odd.env, tmp_path, "hf://org/model").run()


async def test_names_and_directories_of_a_listing_are_bounded(
    odd: Odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd.objects = {f"m/{index}/a/b/c/d": b"" for index in range(30)}
    limits = replace(LIMITS, max_entries=100)
    with pytest.raises(StorageError, match="directories"):
        await fetch_of(odd.env, tmp_path, "s3://bucket/m", limits).run()
    monkeypatch.setattr(objects, "MAX_NAMES", 100)
    with pytest.raises(StorageError, match="names"):
        await fetch_of(odd.env, tmp_path, "s3://bucket/m").run()


@pytest.mark.parametrize(("size", "cuts"), [(1000, 0), (512_000, 0), (5000, 1)])
async def test_the_first_response_is_used(odd: Odd, tmp_path: Path, size: int, cuts: int) -> None:
    content = odd.objects["m/a"] = bytes(range(250)) * (size // 250)
    odd.cuts, odd.cut_after = cuts, 1000
    tree = await fetch_of(odd.env, tmp_path, f"{odd.url}/web/m/a").run()
    assert (tree / "a").read_bytes() == content
    assert cuts or odd.bytes_sent == size, "no byte is requested again"
    assert size > 1000 or len(odd.requests) == 1


async def test_a_short_object_of_another_digest_is_not_written(odd: Odd, tmp_path: Path) -> None:
    odd.objects["m/a"] = b"A"
    fetch = fetch_of(odd.env, tmp_path, f"{odd.url}/web/m/a")
    fetch.spec = replace(fetch.spec, sha256="0" * 64)
    with refused("DigestMismatch"):
        await fetch.run()
    assert not fetch.staging.exists()


async def test_a_connection_outlives_the_model_it_was_made_for(odd: Odd, tmp_path: Path) -> None:
    odd.objects |= {"m/a": b"A", "m/b": b"B"}
    peers = set()

    async def answer(request: web.Request) -> web.StreamResponse:
        peers.add(request.transport.get_extra_info("peername") if request.transport else None)
        return await FaultStore.handle(odd, request)

    odd.answer = answer
    fetch = fetch_of(odd.env, tmp_path, f"{odd.url}/web/m/a")
    storage = replace(fetch.storage, linger=60.0)
    for key in "ab":
        await Fetch(ModelSpec(key, f"{odd.url}/web/m/{key}"), tmp_path / key, storage).run()
    assert len(peers) == 1
    await storage.close()
