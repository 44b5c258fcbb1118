"""Models on a volume that pods share: one downloads, the others copy, whoever dies when."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import zipfile
from pathlib import Path

import pytest

from puller.model_config import ModelSpec
from puller.plan import ModelState
from puller.storage import cache as cache_module
from puller.storage import fetch as fetch_module
from puller.storage.base import FetchProgress, StorageError
from puller.storage.cache import STALE, SharedCache
from puller.storage.fetch import Fetch
from tests.puller.conftest import World
from tests.puller.fakes import until
from tests.puller.storage.fetching import fetch_of

SPEC = ModelSpec("m", "s3://bucket/m")
WAITS = "another puller downloads it into the shared cache"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def going() -> bool:
    return False


def tree(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def take(
    cache: SharedCache, into: Path, spec: ModelSpec = SPEC, progress: FetchProgress | None = None
) -> bool:
    return cache.take(spec, into, progress or FetchProgress(), going, lambda size: None)


def content(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_one_puller_fills_the_cache_for_another(tmp_path: Path) -> None:
    made = tree(tmp_path / "made", a="A", sub__b="B")
    assert not take(SharedCache(tmp_path / "cache"), tmp_path / "none")
    assert SharedCache(tmp_path / "cache").put(SPEC, made, going)
    progress = FetchProgress()
    assert take(SharedCache(tmp_path / "cache"), tmp_path / "got", progress=progress)
    assert content(tmp_path / "got") == {"a": "A", "sub/b": "B"}
    assert progress.done == progress.total == 2
    other = ModelSpec("m", "s3://bucket/m", version="2")
    assert not take(SharedCache(tmp_path / "cache"), tmp_path / "other", other)


@pytest.mark.parametrize("damage", ["marker", "size", "missing", "no-marker", "more"])
def test_a_damaged_entry_is_ignored_and_replaced(tmp_path: Path, damage: str) -> None:
    cache = SharedCache(tmp_path / "cache")
    made = tree(tmp_path / "made", a="A", b="B")
    cache.put(SPEC, made, going)
    entry = tmp_path / "cache" / SPEC.digest
    for path in (entry / "entry.json", entry / "files" / "a", entry / "files" / "b"):
        path.chmod(0o644)
    match damage:
        case "marker":
            (entry / "entry.json").write_text("[")
        case "size":
            (entry / "files" / "a").unlink()
            (entry / "files" / "a").write_text("too long")
        case "missing":
            (entry / "files" / "a").unlink()
        case "no-marker":
            (entry / "entry.json").unlink()
        case "more":
            (entry / "files" / "c").touch()
    assert not take(cache, tmp_path / "got")
    assert cache.put(SPEC, made, going)
    assert take(cache, tmp_path / "again")
    assert content(tmp_path / "again") == {"a": "A", "b": "B"}


def test_one_at_a_time_holds_the_lock(tmp_path: Path) -> None:
    one, two = SharedCache(tmp_path), SharedCache(tmp_path)
    lock = one.lock(SPEC)
    assert lock is not None
    assert lock.path.parent == tmp_path, "NFS clients then read the entries again"
    assert two.lock(SPEC) is None
    assert two._waiting
    lock.release()
    assert two.lock(SPEC) is not None
    assert not two._waiting
    lock.release()
    assert one.lock(SPEC) is None, "only its holder releases a lock"


def test_the_lock_of_a_dead_holder_is_taken_over(tmp_path: Path) -> None:
    clock = Clock()
    dead, waiting, third = (
        SharedCache(tmp_path),
        SharedCache(tmp_path, clock=clock),
        SharedCache(tmp_path, clock=clock),
    )
    held = dead.lock(SPEC)
    assert held is not None
    assert waiting.lock(SPEC) is None
    assert third.lock(SPEC) is None
    clock.now += STALE / 2
    os.utime(held.path, (1, 1))  # it is renewed, by a clock that is far off
    assert waiting.lock(SPEC) is None
    clock.now += STALE * 0.9
    assert waiting.lock(SPEC) is None, "a renewed lock is not stale"
    clock.now += STALE * 0.2
    assert waiting.lock(SPEC) is not None
    assert third.lock(SPEC) is None, "the new holder's lock is another one"
    held.renew()
    held.release()
    assert third.lock(SPEC) is None


def test_of_two_waiters_one_takes_a_dead_holders_lock_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both saw the dead holder's lock; the slower one finds the other's in its place."""
    clock = Clock()
    quick, slow = SharedCache(tmp_path, clock=clock), SharedCache(tmp_path, clock=clock)
    assert SharedCache(tmp_path).lock(SPEC) is not None
    assert quick.lock(SPEC) is slow.lock(SPEC) is None
    clock.now += STALE * 2
    rename, taken = Path.rename, []

    def late(path: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        taken.append(quick.lock(SPEC))
        return path.rename(target)

    monkeypatch.setattr(Path, "rename", late)
    assert slow.lock(SPEC) is None
    assert taken[0] is not None
    assert taken[0]._owned()
    taken[0].release()
    assert slow.lock(SPEC) is not None


def test_a_lock_is_held_if_the_response_of_nfs_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS client asks again, and the server refuses to make the link that it has made."""
    link = os.link

    def twice(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "link", twice)
    assert SharedCache(tmp_path).lock(SPEC) is not None


def test_a_complete_entry_is_not_replaced(tmp_path: Path) -> None:
    """Others may be copying from it."""
    cache = SharedCache(tmp_path / "cache")
    made = tree(tmp_path / "made", a="A")
    assert cache.put(SPEC, made, going)
    before = (tmp_path / "cache" / SPEC.digest).stat().st_ino
    assert cache.put(SPEC, made, going)
    assert (tmp_path / "cache" / SPEC.digest).stat().st_ino == before


def test_a_rename_may_fail_without_a_specific_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SFTP has one error for a name that is taken and all else."""
    cache, rename = SharedCache(tmp_path / "cache"), Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if target.exists():
            raise PermissionError(1, "Operation not permitted")
        return rename(path, target)

    made = tree(tmp_path / "made", a="A")
    cache.put(SPEC, made, going)
    (tmp_path / "cache" / SPEC.digest / "entry.json").unlink()
    monkeypatch.setattr(Path, "rename", refuse)
    assert cache.put(SPEC, made, going)
    assert take(cache, tmp_path / "got")


def test_the_copy_of_a_dead_holder_is_removed(tmp_path: Path) -> None:
    cache = SharedCache(tmp_path / "cache")
    left = tree(tmp_path / "cache" / ".work" / f"{SPEC.digest}.0123" / "files", a="x" * 1000)
    others = tree(tmp_path / "cache" / ".work" / f"{'0' * 64}.0123" / "files", a="x" * 1000)
    assert cache.put(SPEC, tree(tmp_path / "made", a="A"), going)
    assert not left.exists()
    assert others.exists(), "it may still be written"


def test_only_entries_make_room(tmp_path: Path) -> None:
    """The volume may hold other things, and a link is not followed."""
    data = tree(tmp_path / "cache" / "datasets", a="x" * 1000)
    outside = tree(tmp_path / "outside", a="x" * 1000)
    (tmp_path / "cache" / ("f" * 64)).symlink_to(outside)
    cache = SharedCache(tmp_path / "cache", limit=350)
    made = tree(tmp_path / "made", a="x" * 100)
    for n in range(4):
        assert cache.put(ModelSpec("m", f"s3://bucket/{n}"), made, going)
    assert (data / "a").exists()
    assert (outside / "a").exists()


def test_irremovable_entries_make_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = SharedCache(tmp_path / "cache", limit=350)
    made = tree(tmp_path / "made", a="x" * 100)
    assert cache.put(ModelSpec("m", "s3://bucket/0"), made, going)

    def refuse(self: SharedCache, entry: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(SharedCache, "_remove", refuse)
    assert cache.put(ModelSpec("m", "s3://bucket/1"), made, going)
    assert not cache.put(ModelSpec("m", "s3://bucket/2"), made, going)


def test_the_least_used_entries_make_room(tmp_path: Path) -> None:
    cache = SharedCache(tmp_path / "cache", limit=350)
    made = tree(tmp_path / "made", a="x" * 100)
    specs = [ModelSpec("m", f"s3://bucket/{n}") for n in range(3)]
    for n, spec in enumerate(specs[:2]):
        assert cache.put(spec, made, going)
        os.utime(tmp_path / "cache" / spec.digest, (n + 1, n + 1))
    assert cache.put(specs[2], made, going)
    assert [take(cache, tmp_path / f"got{n}", spec) for n, spec in enumerate(specs)] == [
        False,
        True,
        True,
    ]
    large = tree(tmp_path / "large", a="x" * 600)
    assert not cache.put(SPEC, large, going), "it would not fit at all"


def pull(world: World, where: Path, cache: SharedCache) -> Fetch:
    return fetch_of(world.store.env, where, "s3://bucket/m", cache=cache)


async def test_two_pods_download_once(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "_CACHE_POLL", 0.02)
    world.put("m", b"x" * 3_000_000)
    world.store.gate = asyncio.Event()
    fetches = [pull(world, tmp_path / f"pod{n}", SharedCache(tmp_path / "cache")) for n in range(3)]
    running = [asyncio.create_task(fetch.run()) for fetch in fetches]
    await until(lambda: sum(fetch.progress.message == WAITS for fetch in fetches) == 2)
    world.store.gate.set()
    trees = await asyncio.gather(*running)
    assert all((tree / "model.bin").read_bytes() == b"x" * 3_000_000 for tree in trees)
    assert world.store.bytes_sent == 3_000_000


async def test_a_cancelled_holder_releases_the_lock(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "_CACHE_POLL", 0.02)
    world.put("m", b"content")
    world.store.gate = asyncio.Event()
    first = asyncio.create_task(pull(world, tmp_path / "one", SharedCache(tmp_path / "cache")).run())
    await until(lambda: world.store.waiting > 0)
    second = asyncio.create_task(pull(world, tmp_path / "two", SharedCache(tmp_path / "cache")).run())
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    world.store.gate.set()
    assert ((await second) / "model.bin").read_bytes() == b"content"


@pytest.mark.parametrize("garbage", ["bytes", "pipe", "directory", "link"])
@pytest.mark.parametrize("place", ["lock", "marker"])
async def test_models_are_downloaded_in_spite_of_garbage_in_the_cache(
    world: World, tmp_path: Path, place: str, garbage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "_CACHE_POLL", 0.02)
    monkeypatch.setattr(cache_module, "STALE", 0.0)
    world.put("m", b"content")
    root = tmp_path / "cache"
    fetch = pull(world, tmp_path / "pod", SharedCache(root))
    digest = fetch.spec.digest
    path = root / f".{digest}.lock" if place == "lock" else root / digest / "entry.json"
    path.parent.mkdir(parents=True)
    match garbage:
        case "bytes":
            path.write_bytes(b"\xff\xfe[" * 1000)
        case "pipe":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "link":
            path.symlink_to("/dev/zero")
    assert ((await fetch.run()) / "model.bin").read_bytes() == b"content"


def test_an_entry_with_a_link_is_not_used(tmp_path: Path) -> None:
    cache = SharedCache(tmp_path / "cache")
    cache.put(SPEC, tree(tmp_path / "made", a="A"), going)
    files = tmp_path / "cache" / SPEC.digest / "files"
    files.rename(tmp_path / "secrets")
    files.symlink_to(tmp_path / "secrets")
    assert not take(cache, tmp_path / "got")


@pytest.mark.parametrize("trouble", ["file", "read-only", "full"])
async def test_models_are_downloaded_if_the_cache_is_unusable(
    world: World, tmp_path: Path, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put("m", b"content")
    root = tmp_path / "cache"
    if trouble == "file":
        root.touch()
    else:
        root.mkdir()

    def refuse(path: Path, text: bytes, scratch: Path) -> bool:
        raise OSError(30, "Read-only file system")

    if trouble == "read-only":
        monkeypatch.setattr(cache_module, "_create", refuse)
    tree = await pull(world, tmp_path / "pod", SharedCache(root, limit=1 if trouble == "full" else 0)).run()
    assert (tree / "model.bin").read_bytes() == b"content"


DIGEST = hashlib.sha256(b"content").hexdigest()


async def test_an_entry_with_another_content_is_not_used_for_a_pinned_model(
    world: World, tmp_path: Path
) -> None:
    world.put("m", b"content")
    uri = "s3://bucket/m"
    cache = SharedCache(tmp_path / "cache")

    def pinned(where: str) -> Fetch:
        return fetch_of(world.store.env, tmp_path / where, uri, cache=cache, sha256=DIGEST)

    spec = pinned("pod").spec
    cache.put(spec, tree(tmp_path / "forged", **{"model.bin": "forgery"}), going)
    got = await pinned("one").run()
    assert (got / "model.bin").read_bytes() == b"content"
    sent = world.store.bytes_sent
    got = await pinned("two").run()
    assert (got / "model.bin").read_bytes() == b"content"
    assert world.store.bytes_sent == sent, "the entry was replaced"


async def test_a_pinned_archive_is_not_taken_from_the_cache(world: World, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("model.bin", "content")
    world.store.objects["m.zip"] = packed.getvalue()
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    cache = SharedCache(tmp_path / "cache")
    fetch = fetch_of(world.store.env, tmp_path / "pod", "s3://bucket/m.zip", cache=cache, sha256=digest)
    cache.put(fetch.spec, tree(tmp_path / "forged", **{"model.bin": "forgery"}), going)
    got = await fetch.run()
    assert (got / "model.bin").read_bytes() == b"content"


async def test_a_holder_that_never_ends_is_not_waited_for_without_limit(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "_CACHE_POLL", 0.01)
    monkeypatch.setattr(fetch_module, "LONGEST_WAIT", 0.1)
    world.put("m", b"content")
    cache = SharedCache(tmp_path / "cache")
    fetch = pull(world, tmp_path / "pod", cache)
    lock = SharedCache(tmp_path / "cache").lock(fetch.spec)
    assert lock is not None
    got = await fetch.run()
    assert (got / "model.bin").read_bytes() == b"content"


async def test_a_copy_that_does_not_fit_is_refused(world: World, tmp_path: Path) -> None:
    world.put("m", b"x" * 1000)
    await pull(world, tmp_path / "one", SharedCache(tmp_path / "cache")).run()
    fetch = pull(world, tmp_path / "two", SharedCache(tmp_path / "cache"))
    fetch.storage.budget.limit = 500
    with pytest.raises(StorageError, match="do not fit"):
        await fetch.run()


@pytest.mark.parametrize("then", ["given back", "removed"])
async def test_a_model_that_waits_for_another_puller_takes_no_slot(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    monkeypatch.setattr(fetch_module, "_CACHE_POLL", 0.02)
    world.set(cache_dir=tmp_path / "cache", num_workers=1)
    wanted = {"a": world.put("a", "A"), "b": world.put("b", "B")}
    lock = SharedCache(tmp_path / "cache").lock(ModelSpec("a", wanted["a"], "sklearn"))
    assert lock is not None
    world.config.write(wanted)
    world.start()
    await until(lambda: world.server.serving == {"b": b"B"})
    assert (world.states()["a"], world.entry("a")["message"]) == (ModelState.DOWNLOADING, WAITS)
    if then == "removed":
        world.config.write({"b": wanted["b"]})
        await world.serves({"b": "B"})
    lock.release()
    wanted["c"] = world.put("c", "C")
    world.config.write(wanted)
    await world.serves({"a": "A", "b": "B", "c": "C"})
    assert world.puller is not None
    assert world.puller._queue._free["downloads"] == 1


async def test_the_whole_puller_with_a_cache(world: World, tmp_path: Path) -> None:
    world.set(cache_dir=tmp_path / "cache")
    world.config.write({"a": world.put("a", "A"), "b": world.put("b", "B")})
    world.start()
    await world.serves({"a": "A", "b": "B"})
    await world.stop()
    gets = sum(world.store.gets.values())
    world.set(model_dir=tmp_path / "other")
    world.server.model_dir = tmp_path / "other"
    world.server.serving.clear()
    world.start()
    await world.serves({"a": "A", "b": "B"})
    assert sum(world.store.gets.values()) == gets
    assert set(world.states().values()) == {ModelState.LOADED}


def test_a_link_in_place_of_unfinished_entries_is_not_followed(tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.mkdir()
    (others / f"{SPEC.digest}.old").touch()
    cache = SharedCache(tmp_path / "cache")
    cache.root.mkdir()
    (cache.root / ".work").symlink_to(others)
    assert not cache.put(SPEC, tree(tmp_path / "tree", f="1"), going)
    assert [path.name for path in others.iterdir()] == [f"{SPEC.digest}.old"]
