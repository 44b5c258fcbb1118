"""From a URI to a verified tree: every scheme that can be had on the loopback."""

from __future__ import annotations

import asyncio
import errno
import gzip
import hashlib
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from puller.log import logger
from puller.model_config import ModelSpec
from puller.storage.base import StorageError, safe_path
from puller.storage.disk_budget import DiskBudget
from puller.storage.fetch import Fetch, listing_sha256
from puller.storage.objects import archive_kind, selected
from puller.store import archive_dir
from tests.puller.errors import refused
from tests.puller.fakes import FaultStore, logged, tarred
from tests.puller.storage.fetching import FILES, LIMITS, MB, fetch_of, fetched, files_of, zipped


@pytest.fixture
async def store() -> AsyncIterator[FaultStore]:
    found = FaultStore()
    await found.start()
    yield found
    await found.stop()


async def test_a_prefix_is_fetched_over_several_pages(store: FaultStore, tmp_path: Path) -> None:
    store.page = 2
    store.objects = {f"deep/m/{name}": content for name, content in FILES.items()} | {"deep/m2/x": b"other"}
    assert await fetched(store.env, tmp_path, "s3://bucket/deep/m/") == FILES
    assert await fetched(store.env, tmp_path, "s3://bucket/deep/m", files=("*.json",)) == {
        "sub/config.json": b"{}"
    }


@pytest.mark.parametrize(
    ("uri", "keys", "paths"),
    [
        ("s3://bucket", ["a", "b/c"], ["a", "b/c"]),
        ("s3://bucket/m", ["m/", "m/sub/", "m/sub/x"], ["sub/x"]),
        (
            "s3://bucket/m",
            ["m/a b+c%20d#e~f.bin", "m/ü/ñ.txt", "m/q?x=1&y"],
            ["a b+c%20d#e~f.bin", "q?x=1&y", "ü/ñ.txt"],
        ),
    ],
    ids=["bucket", "directory placeholders", "odd characters"],
)
async def test_the_files_of_a_prefix(
    store: FaultStore, tmp_path: Path, uri: str, keys: list[str], paths: list[str]
) -> None:
    store.objects = {key: b"" if key.endswith("/") else key.encode() for key in keys}
    found = await fetched(store.env, tmp_path, uri)
    assert sorted(found) == paths
    assert all(content.decode().endswith(path) for path, content in found.items())


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("m.tar", tarred),
        ("m.tar.gz", lambda files: gzip.compress(tarred(files))),
        ("m.tgz", lambda files: gzip.compress(tarred(files))),
        ("m.zip", zipped),
    ],
)
@pytest.mark.parametrize("scheme", ["s3", "http", "file"])
async def test_archives_are_unpacked_and_not_kept(
    store: FaultStore, tmp_path: Path, name: str, pack: Any, scheme: str
) -> None:
    data = pack(FILES)
    store.objects[name] = data
    (tmp_path / name).write_bytes(data)
    uri = {
        "s3": f"s3://bucket/{name}",
        "http": f"{store.url}/web/{name}",
        "file": f"file://{tmp_path}/{name}",
    }[scheme]
    digest = hashlib.sha256(data).hexdigest()
    assert await fetched(store.env, tmp_path, uri, sha256=digest) == FILES
    with pytest.raises(StorageError, match="expected 0000"):
        await fetched(store.env, tmp_path, uri, sha256="0" * 64)


async def test_an_archive_of_directories_alone_is_no_model(store: FaultStore, tmp_path: Path) -> None:
    store.objects["m.zip"] = zipped({"d/e/": b""})
    with refused("NotFound"):
        await fetched(store.env, tmp_path, "s3://bucket/m.zip")


async def test_a_broken_archive_download_resumes(store: FaultStore, tmp_path: Path) -> None:
    store.objects["m.tar"] = tarred(FILES)
    store.cuts, store.cut_after = 6, MB // 2
    assert await fetched(store.env, tmp_path, "s3://bucket/m.tar") == FILES
    assert store.cuts == 0
    assert store.bytes_sent < 4.5 * MB


async def test_an_archive_is_fetched_in_a_later_attempt(store: FaultStore, tmp_path: Path) -> None:
    store.objects["m.tar"] = tarred(FILES)
    limits = replace(LIMITS, retry_timeout=0.1)
    fetch = fetch_of(store.env, tmp_path, "s3://bucket/m.tar", limits)
    store.cuts, store.cut_after = 10_000, 0
    with refused("StorageUnavailable"):
        await files_of(fetch)
    store.cuts = 0
    assert await files_of(fetch) == FILES


@pytest.mark.parametrize("ranges", [True, False])
async def test_a_plain_url(store: FaultStore, tmp_path: Path, ranges: bool) -> None:
    store.ranges = ranges
    store.objects["model.bin"] = FILES["model.bin"]
    found = await fetched(store.env, tmp_path, f"{store.url}/web/model.bin?signature=a%2Fb")
    assert found == {"model.bin": FILES["model.bin"]}
    assert {method for method, _ in store.requests} == {"GET"}, "a URL that is signed for GET answers no HEAD"
    assert all(path.endswith("?signature=a%2Fb") for _, path in store.requests)


async def test_a_url_without_ranges_starts_over(store: FaultStore, tmp_path: Path) -> None:
    store.ranges = False
    store.objects["model.bin"] = FILES["model.bin"]
    fetch = fetch_of(store.env, tmp_path, f"{store.url}/web/model.bin")
    store.cuts, store.cut_after = 1000, MB
    with pytest.raises(StorageError):
        await files_of(fetch)
    store.cuts = 0
    assert await files_of(fetch) == {"model.bin": FILES["model.bin"]}


@pytest.mark.parametrize("uri", ["{}/web/download", "s3://bucket/download"])
async def test_a_content_type_identifies_an_archive(store: FaultStore, tmp_path: Path, uri: str) -> None:
    store.objects["download"] = gzip.compress(tarred(FILES))
    store.types["download"] = "application/gzip; charset=binary"
    assert await fetched(store.env, tmp_path, uri.format(store.url)) == FILES


@pytest.mark.parametrize("name", [".loaded", ".loading", "SUCCESS.x"])
async def test_a_single_object_with_a_reserved_name_is_refused(
    store: FaultStore, tmp_path: Path, name: str
) -> None:
    """The model would be empty, and the object a record of the puller."""
    store.objects[name] = b"x"
    (tmp_path / name).touch()
    for uri in (f"s3://bucket/{name}", f"{store.url}/web/{name}", f"file://{tmp_path}/{name}"):
        with refused("HostilePath"):
            await fetched(store.env, tmp_path, uri)


async def test_an_empty_object(store: FaultStore, tmp_path: Path) -> None:
    store.objects["e"] = b""
    assert await fetched(store.env, tmp_path, f"{store.url}/web/e") == {"e": b""}
    assert await fetched(store.env, tmp_path, "s3://bucket/e") == {"e": b""}


async def test_digests(store: FaultStore, tmp_path: Path) -> None:
    store.objects = {"m/a": b"A", "m/b": b"B", "solo": b"S"}
    one = hashlib.sha256(b"S").hexdigest()
    assert await fetched(store.env, tmp_path, "s3://bucket/solo", sha256=one)
    many = listing_sha256({name: hashlib.sha256(name.upper().encode()).hexdigest() for name in "ab"})
    assert await fetched(store.env, tmp_path, "s3://bucket/m", sha256=many)
    with refused("DigestMismatch"):
        await fetched(store.env, tmp_path, "s3://bucket/m", sha256=one)


async def test_the_digest_of_many_files_is_that_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "t" / "sub").mkdir(parents=True)
    (tmp_path / "t" / "a").write_text("A")
    (tmp_path / "t" / "sub" / "b").write_text("B")
    command = "find * -type f | LC_ALL=C sort | xargs sha256sum | sha256sum"
    process = await asyncio.create_subprocess_shell(
        command, cwd=tmp_path / "t", stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    digests = {"a": hashlib.sha256(b"A").hexdigest(), "sub/b": hashlib.sha256(b"B").hexdigest()}
    assert said.split()[0].decode() == listing_sha256(digests)


def files_in(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["m.tar", "m.zip", "m.bin"])
async def test_bad_content_is_fetched_twice_and_again_after_it_was_replaced(
    store: FaultStore, tmp_path: Path, name: str
) -> None:
    digest = hashlib.sha256(b"right").hexdigest()
    store.objects[name] = b"wrong"
    fetch = fetch_of(store.env, tmp_path, f"s3://bucket/{name}", sha256=digest if name == "m.bin" else "")
    for _ in range(5):
        with pytest.raises(StorageError) as caught:
            await files_of(fetch)
        assert caught.value.reason in ("DigestMismatch", "BadArchive")
        assert fetch.storage.budget.used == 0
        assert files_in(fetch.staging) == files_in(archive_dir(fetch.staging)) == []
    assert store.gets[name] == 2
    right = {"m.tar": tarred(FILES), "m.zip": zipped(FILES), "m.bin": b"right"}[name]
    store.objects[name] = right
    assert await files_of(fetch) == ({"m.bin": b"right"} if name == "m.bin" else FILES)


class Azure(FaultStore):
    """The List Blobs and Get Blob of an Azure container."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"].startswith("SharedKey account:")
        if request.query.get("comp") != "list":
            return await self._object(
                request, request.match_info["path"].removeprefix("container/"), ranges=True
            )
        blobs = "".join(
            f"<Blob><Name>{key}</Name><Properties>"
            "<Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified>"
            f"<Content-Length>{len(data)}</Content-Length><Content-Type>x</Content-Type>"
            f'<Etag>"{hashlib.md5(data).hexdigest()}"</Etag></Properties></Blob>'
            for key, data in self.objects.items()
            if key.startswith(request.query["prefix"])
        )
        text = f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>"
        return web.Response(content_type="application/xml", text=text)


@pytest.mark.parametrize("base", ["az://container", "https://account.blob.core.windows.net/container"])
async def test_azure_blobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str) -> None:
    azure = Azure(objects={"m/a": b"A", "m2/x": b"X", "m.tar": tarred({"b": b"B"})})
    await azure.start()
    env = {
        "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "AZURE_STORAGE_ACCESS_KEY": "a2V5",
        "AZURE_STORAGE_ENDPOINT": azure.url,
    }
    monkeypatch.setattr(Azure, "env", env)
    try:
        assert await fetched(azure.env, tmp_path, f"{base}/m") == {"a": b"A"}
        assert await fetched(azure.env, tmp_path, f"{base}/m.tar") == {"b": b"B"}
    finally:
        await azure.stop()


async def test_google_storage(store: FaultStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.objects = {"m/a": b"A", "m.tar": tarred({"b": b"B"})}
    base = FaultStore.env.fget(store)  # type: ignore[attr-defined]
    monkeypatch.setattr(FaultStore, "env", base | {"STORAGE_EMULATOR_HOST": store.url})
    assert await fetched(store.env, tmp_path, "gs://bucket/m") == {"a": b"A"}
    assert await fetched(store.env, tmp_path, "gs://bucket/m.tar") == {"b": b"B"}


@pytest.mark.parametrize("key", ["m/a", "m.tar"])
async def test_max_disk_is_checked_before_the_download(store: FaultStore, tmp_path: Path, key: str) -> None:
    store.objects[key] = bytes(MB)
    with pytest.raises(StorageError, match=r"1\.0 MiB do not fit"):
        await fetched(store.env, tmp_path, f"s3://bucket/{key.removesuffix('/a')}", max_disk=MB - 1)
    assert store.gets[key] == 0


@pytest.mark.parametrize(
    ("status", "reason"), [(403, "AccessDenied"), (401, "AccessDenied"), (404, "NotFound")]
)
async def test_a_refusal_has_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, reason: str
) -> None:
    class Refusing(FaultStore):
        async def handle(self, request: web.Request) -> web.StreamResponse:
            return web.Response(status=status, text="<Error><StringToSign>secret</StringToSign></Error>")

    store = Refusing()
    await store.start()
    monkeypatch.setattr(logger, "_level", 0)
    try:
        for uri in ("s3://bucket/m", f"{store.url}/web/m?sig=secret"):
            with logged() as lines, refused(reason) as caught:
                await fetched(store.env, tmp_path, uri)
            assert "secret" not in str(caught.value)
            assert "secret" not in str(lines)
    finally:
        await store.stop()


class Hub(FaultStore):
    """The two calls of the Hugging Face hub that a pull needs; large files are redirected, as there."""

    commit = "a" * 40
    tokens: list[str]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.tokens.append(request.headers.get("Authorization", ""))
        parts = request.match_info["path"].split("/", 5)
        if parts[:2] == ["hub", "api"]:
            assert request.match_info["path"] == "hub/api/models/org/model/revision/v1"
            siblings = [
                {
                    "rfilename": name,
                    "size": len(content),
                    "lfs": {"sha256": hashlib.sha256(content).hexdigest()},
                }
                for name, content in self.objects.items()
            ]
            return web.json_response({"sha": self.commit, "siblings": siblings})
        if parts[:4] == ["hub", "org", "model", "resolve"]:
            name = request.match_info["path"].split(f"{self.commit}/", 1)[1]
            if len(self.objects[name]) > 100:
                raise web.HTTPFound(f"/web/{name}")
            return await self._object(request, name, ranges=True)
        return await self._object(request, request.match_info["path"].removeprefix("web/"), ranges=True)


async def test_a_hub_repository_at_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub()
    hub.tokens = []
    hub.objects = dict(FILES)
    await hub.start()
    monkeypatch.setattr(Hub, "env", property(lambda self: FaultStore.env.fget(self) | {"HF_TOKEN": "hf_x"}))  # type: ignore[attr-defined]
    try:
        assert await fetched(hub.env, tmp_path, "hf://org/model:v1") == FILES
        assert set(hub.tokens) == {"Bearer hf_x"}
        assert await fetched(hub.env, tmp_path, "hf://org/model:v1", files=("*.json",)) == {
            "sub/config.json": b"{}"
        }
    finally:
        await hub.stop()


@pytest.mark.parametrize("path", ["", "/a", "a//b", "../a", "a/./b", "a/..", "a\n", "x" * 256, "a\x00"])
def test_unsafe_paths(path: str) -> None:
    with pytest.raises(StorageError):
        safe_path(path)


def test_globs_and_kinds() -> None:
    assert selected("a/b.json", ("*.json",))
    assert selected("w/x/y", ("w/**",))
    assert not selected("b.bin", ("*.json",))
    assert archive_kind("M.TAR.GZ") == "tar.gz"
    assert archive_kind("weights.gz", "application/gzip") == ""
    assert archive_kind("model.pt", "application/zip") == ""
    assert archive_kind("x", "application/zip") == "zip"


# Files and reservations after a failed attempt.


async def test_a_broken_download_reserves_only_its_bytes_on_disk(store: FaultStore, tmp_path: Path) -> None:
    store.objects["m/a"] = bytes(3 * MB)
    store.cuts, store.cut_after = 1000, 1 << 19
    one = fetch_of(store.env, tmp_path, "s3://bucket/m", replace(LIMITS, retry_timeout=0.0))
    budget = one.storage.budget
    with pytest.raises(StorageError):
        await one.run()
    done = one.progress.done
    assert 0 < budget.used == done < 3 * MB
    store.cuts, store.bytes_sent = 0, 0
    await one.run()
    assert budget.used == 3 * MB
    assert store.bytes_sent == 3 * MB - done, "the next attempt resumes"


@pytest.mark.parametrize("later", [{"m/a": b"3"}, {"m/1/a": b"3"}])
async def test_an_attempt_leaves_no_directories_to_the_next(
    store: FaultStore, tmp_path: Path, later: dict[str, bytes]
) -> None:
    """TensorFlow Serving would take an empty directory `2` for a version."""
    store.objects = {"m/a/2": b"1", "m/2/b": b"2"}
    fetch = fetch_of(store.env, tmp_path, "s3://bucket/m")
    await fetch.run()
    store.objects = later
    tree = await fetch.run()
    assert {f"m/{path.relative_to(tree)}" for path in tree.rglob("*") if path.is_file()} == set(later)
    assert not (tree / "2").exists()


async def test_a_file_that_disappears_during_a_download_is_downloaded_again(
    store: FaultStore, tmp_path: Path
) -> None:
    store.objects = {"m/a": bytes(3 * MB), "m/b": bytes(3 * MB)}
    store.cuts, store.cut_after = 1000, 1 << 19
    fetch = fetch_of(store.env, tmp_path, "s3://bucket/m", replace(LIMITS, retry_timeout=0.0))
    with refused("StorageUnavailable"):
        await fetch.run()
    (fetch.staging / "a").unlink()
    store.cuts = 0
    with refused("ModelDirUnusable"):
        await fetch.run()
    assert {path.name for path in (await fetch.run()).iterdir()} == {"a", "b"}


async def test_two_archives_that_do_not_fit_together_do_not_block_each_other(
    store: FaultStore, tmp_path: Path
) -> None:
    """Both grow until the disk is full; then one of them must get it all."""
    for name in ("a.tar.gz", "b.tar.gz"):
        store.objects[name] = gzip.compress(tarred({"w": bytes(6 * MB)}))
    a = fetch_of(store.env, tmp_path, "s3://bucket/a.tar.gz", max_disk=10 * MB)
    b = Fetch(ModelSpec("b", "s3://bucket/b.tar.gz"), tmp_path / "b", a.storage)
    budget = a.storage.budget
    budget.set_used(b.key, 5 * MB)  # b is half way
    with pytest.raises(StorageError, match="do not fit"):
        await a.run()
    assert budget.used == 5 * MB
    budget.set_used(a.key, 5 * MB)  # a is half way, too
    with pytest.raises(StorageError, match="do not fit"):
        await b.run()
    await a.run()


def test_pending_bytes_of_other_downloads_are_not_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=10 * MB))
    budget, got = DiskBudget(tmp_path), [0]
    budget.reserve("a/", 8 * MB, lambda: got[0])
    with pytest.raises(StorageError, match=r"4\.0 MiB more are needed and 2\.0 MiB are free"):
        budget.reserve("b/", 4 * MB, lambda: 0)
    got[0] = 5 * MB
    budget.reserve("b/", 4 * MB, lambda: 0)
    budget.set_used("a/", 5 * MB)
    budget.reserve("b/", 10 * MB, lambda: 0)


async def test_files_deleted_on_a_full_disk_are_reserved_again(
    store: FaultStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.objects["m/a"] = bytes(3 * MB)
    usage = shutil.disk_usage("/")
    free = [3 * MB]
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=free[0]))
    really, room = os.pwrite, [2 * MB]

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        room[0] -= len(data)
        if room[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return really(descriptor, data, offset)

    monkeypatch.setattr("os.pwrite", pwrite)
    one = fetch_of(store.env, tmp_path, "s3://bucket/m")
    with pytest.raises(StorageError, match="No space left"):
        await one.run()
    assert files_in(one.staging) == []
    free[0] = 2 * MB
    asked = store.gets["m/a"]
    with pytest.raises(StorageError, match=r"3\.0 MiB more are needed and 2\.0 MiB are free"):
        await one.run()
    assert store.gets["m/a"] == asked
