"""Archives: unpacked entries, and entries that are refused before they can do harm."""

from __future__ import annotations

import gzip
import io
import os
import stat
import struct
import subprocess
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, cast

import pytest
import zstandard

from puller.reasons import StatusReason
from puller.storage.archive import Unpacker
from puller.storage.base import MAX_DEPTH, Limits, StorageError
from tests.puller.errors import refused

LIMITS = Limits()


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


def tarred(*entries: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for info, content in entries:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def unpacker(
    into: Path, limits: Limits = LIMITS, files: tuple[str, ...] = (), consumed: int = 1 << 40
) -> Unpacker:
    into.mkdir(exist_ok=True)
    return Unpacker(into, files, limits, lambda: consumed, lambda size: None)


def untar(into: Path, data: bytes, kind: str = "tar", **more: object) -> dict[str, bytes]:
    unpacker(into, **more).tar(io.BytesIO(data), kind)  # type: ignore[arg-type]
    return tree(into)


def tree(into: Path) -> dict[str, bytes]:
    return {str(path.relative_to(into)): path.read_bytes() for path in into.rglob("*") if path.is_file()}


PLAIN = (
    (entry("./"), b""),
    (entry("sub", tarfile.DIRTYPE), b""),
    (entry("./sub/model.bin"), b"weights"),
    (entry("run.sh", mode=0o4755), b"#!"),
    (entry("SUCCESS.fake"), b"{}"),
    (entry(".loaded"), b""),
)
PLAIN[0][0].type = tarfile.DIRTYPE
CONTENT = {"sub/model.bin": b"weights", "run.sh": b"#!"}


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize(
    ("kind", "compress"),
    [("tar", bytes), ("tar.gz", gzip.compress), ("tar.zst", zstandard.ZstdCompressor().compress)],
)
def test_a_tree_is_unpacked_without_reserved_names(
    tmp_path: Path, form: int, kind: str, compress: Callable[[bytes], bytes]
) -> None:
    assert untar(tmp_path / "m", compress(tarred(*PLAIN, form=form)), kind) == CONTENT
    assert stat.S_IMODE((tmp_path / "m" / "run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "m" / "sub" / "model.bin").stat().st_mode) == 0o644


def test_gzip_members_and_zstd_frames_may_follow_each_other(tmp_path: Path) -> None:
    data = tarred(*PLAIN)
    compress = zstandard.ZstdCompressor().compress
    assert untar(tmp_path / "a", gzip.compress(data[:700]) + gzip.compress(data[700:]), "tar.gz") == CONTENT
    assert untar(tmp_path / "b", compress(data[:700]) + compress(data[700:]), "tar.zst") == CONTENT


def test_a_long_name_is_kept(tmp_path: Path) -> None:
    name = "/".join(["d" * 100] * 5) + "/f"
    for index, form in enumerate((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)):
        assert untar(tmp_path / str(index), tarred((entry(name), b"x"), form=form)) == {name: b"x"}


@pytest.mark.parametrize(
    "bad",
    [
        entry("/etc/passwd"),
        entry("../evil"),
        entry("a/../../evil"),
        entry("a\x01b"),
        entry("x" * 300),
        entry("evil", tarfile.SYMTYPE, "/etc/passwd"),
        entry("evil", tarfile.SYMTYPE, "../../evil"),
        entry("a/evil", tarfile.SYMTYPE, "../.."),
        entry("evil", tarfile.SYMTYPE, ""),
        entry("evil", tarfile.SYMTYPE, "evil"),
        entry("evil", tarfile.LNKTYPE, "/etc/passwd"),
        entry("evil", tarfile.LNKTYPE, "../outside"),
        entry("evil", tarfile.LNKTYPE, "not-there"),
        entry("evil", tarfile.CHRTYPE),
        entry("evil", tarfile.BLKTYPE),
        entry("evil", tarfile.FIFOTYPE),
    ],
    ids=lambda info: f"{info.name[:12]!r}-{info.type.decode()}-{info.linkname}",
)
def test_entries_that_lead_outside_or_are_devices_are_refused(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    (tmp_path / "outside").write_text("untouched")
    with pytest.raises(StorageError) as caught:
        untar(tmp_path / "m", tarred((entry("good"), b"x"), (bad, b"")))
    assert caught.value.reason in ("HostileArchive", "HostilePath")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "outside"]


@pytest.mark.parametrize(
    ("chain", "match"),
    [
        ([("door", "sub"), ("sub/x", None), ("door/evil", None)], "door"),
        ([("a", "."), ("a/b", "..")], "path of another entry"),
        ([("d/up", ".."), ("evil", "d/up/../outside")], "leads out"),
        # The tree is renamed later: this path would then lead into another model.
        ([("evil", "../m/x")], "leads out"),
    ],
)
def test_hostile_links_are_refused(tmp_path: Path, chain: list[tuple[str, str | None]], match: str) -> None:
    entries = [entry(name) if to is None else entry(name, tarfile.SYMTYPE, to) for name, to in chain]
    with refused("HostileArchive", match):
        untar(tmp_path / "m", tarred((entry("x"), b""), *((each, b"") for each in entries)))
    assert not (tmp_path / "m" / "sub" / "evil").exists()


def test_links_inside_the_tree_are_kept(tmp_path: Path) -> None:
    found = untar(
        tmp_path / "m",
        tarred(
            (entry("snapshots/model.bin", tarfile.SYMTYPE, "../blobs/1"), b""),
            (entry("blobs/1"), b"weights"),
            (entry("copy"), b"c"),
            (entry("hard", tarfile.LNKTYPE, "blobs/1"), b""),
        ),
    )
    assert found["snapshots/model.bin"] == found["hard"] == b"weights"
    assert (tmp_path / "m" / "snapshots" / "model.bin").is_symlink()


def test_the_label_of_an_archive_is_no_file(tmp_path: Path) -> None:
    assert untar(tmp_path / "m", tarred((entry("label", b"V"), b""), (entry("a"), b"1"))) == {"a": b"1"}


def test_no_byte_of_a_response_that_is_not_gzip_is_shown(tmp_path: Path) -> None:
    with refused("BadArchive", r"^the tar\.gz archive cannot be read: it is not gzip\.$"):
        untar(tmp_path / "m", b"secret", "tar.gz")


def test_globs_narrow_an_archive(tmp_path: Path) -> None:
    data = tarred((entry("a.json"), b"a"), (entry("w/b.bin"), b"b"), (entry("w/c.txt"), b"c"))
    assert untar(tmp_path / "m", data, files=("*.json", "w/*.bin")) == {"a.json": b"a", "w/b.bin": b"b"}


def test_a_later_entry_of_the_same_name_wins(tmp_path: Path) -> None:
    assert untar(tmp_path / "m", tarred((entry("a"), b"old"), (entry("a"), b"new"))) == {"a": b"new"}


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.zst"])
def test_a_broken_archive_is_refused(tmp_path: Path, kind: str) -> None:
    data = tarred((entry("a"), os.urandom(100_000)))
    compress = {"tar": bytes, "tar.gz": gzip.compress, "tar.zst": zstandard.ZstdCompressor().compress}[kind]
    for index, broken in enumerate((compress(data)[:50_000], os.urandom(5000), b"")):  # type: ignore[operator]
        with refused("BadArchive"):
            untar(tmp_path / str(index), broken, kind)


def test_an_archive_without_its_end_is_refused_unless_its_digest_is_compared(tmp_path: Path) -> None:
    """tarfile itself takes the end of the stream, and a damaged header, for the end of the archive."""
    whole = tarred((entry("a"), b"1" * 512), (entry("b"), b"2" * 512))
    for end in range(512, 2048, 256):
        with refused("BadArchive"):
            untar(tmp_path / str(end), whole[:end])
    damaged = whole[:1100] + b"\xff" + whole[1101:]
    with refused("BadArchive", "damaged"):
        untar(tmp_path / "damaged", damaged)
    into = tmp_path / "verified"
    unpacker(into).tar(io.BytesIO(whole[:2048]), "tar", verified=True)
    assert set(tree(into)) == {"a", "b"}
    with refused("BadArchive", "damaged"):
        unpacker(tmp_path / "cut").tar(io.BytesIO(whole[:1300]), "tar", verified=True)


def test_a_zstd_stream_that_ends_early_is_refused(tmp_path: Path) -> None:
    whole = tarred((entry("a"), os.urandom((128 << 10) - 512)), (entry("b"), b"2"))
    packed = zstandard.ZstdCompressor().compress(whole)
    for end in range(128 << 10, len(packed) - 4):
        with refused("BadArchive"):
            untar(tmp_path / str(end), packed[:end], "tar.zst")


@pytest.mark.parametrize("name", [".loaded/x", ".loading/x", "SUCCESS.1/x", "./.loaded/x/y"])
def test_no_entry_is_below_the_path_of_a_record(tmp_path: Path, name: str) -> None:
    untar(tmp_path / "m", tarred((entry(name), b"1"), (entry("a"), b"2")))
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["a"]


def test_a_bomb_is_stopped_by_its_ratio(tmp_path: Path) -> None:
    limits = replace(LIMITS, free_expansion=1 << 20)
    data = gzip.compress(tarred((entry("zeros"), bytes(8 << 20))))
    with refused("ArchiveBomb"):
        untar(tmp_path / "m", data, "tar.gz", limits=limits, consumed=len(data))
    assert sum(path.stat().st_size for path in (tmp_path / "m").iterdir()) <= 3 << 20


def test_a_small_archive_of_zeros_is_allowed(tmp_path: Path) -> None:
    data = gzip.compress(tarred((entry("zeros"), bytes(8 << 20))))
    assert untar(tmp_path / "m", data, "tar.gz", consumed=len(data)) == {"zeros": bytes(8 << 20)}


def test_too_many_entries_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="more than 10 entries"):
        untar(
            tmp_path / "m",
            tarred(*((entry(str(i)), b"") for i in range(11))),
            limits=replace(LIMITS, max_entries=10),
        )


def test_an_extended_header_cannot_fill_the_memory(tmp_path: Path) -> None:
    header = entry("x", tarfile.XHDTYPE)
    header.size = 4 << 30
    with pytest.raises(StorageError, match=r"over 1\.0 MiB of headers"):
        untar(tmp_path / "m", header.tobuf() + bytes(10_000))


def test_a_map_of_holes_cannot_fill_the_memory(tmp_path: Path) -> None:
    """A sparse entry may go on about its holes in as many blocks as it likes."""
    sparse = bytearray(entry("m", tarfile.GNUTYPE_SPARSE).tobuf(tarfile.GNU_FORMAT))
    sparse[482] = 1  # is extended
    sparse[148:156] = b" " * 8
    sparse[148:156] = b"%06o\0 " % sum(sparse)
    more = (b"%011o\0" % 1) * 42 + b"\1" + bytes(7)
    endless = cast(IO[bytes], io.BytesIO(bytes(sparse) + more * 5000))
    with pytest.raises(StorageError, match=r"over 1\.0 MiB of headers"):
        unpacker(tmp_path / "m").tar(endless, "tar")


def test_sparse_files_are_unpacked(tmp_path: Path) -> None:
    """As GNU tar packs one, in both of its formats."""
    with (tmp_path / "holes").open("wb") as file:
        for offset in (0, 1 << 20, 3 << 20, 5 << 20, 7 << 20, 9 << 20):
            file.seek(offset)
            file.write(b"x" * 4096)
        file.truncate(10 << 20)
    for form in ("gnu", "posix"):
        packed = tmp_path / f"{form}.tar"
        command = ["tar", "--sparse", f"--format={form}", "-C", str(tmp_path), "-cf", str(packed), "holes"]
        subprocess.run(command, check=True)
        assert packed.stat().st_size < 1 << 20
        with packed.open("rb") as stream:
            unpacker(tmp_path / form).tar(stream, "tar")
        assert (tmp_path / form / "holes").read_bytes() == (tmp_path / "holes").read_bytes()


def test_disk_space_is_reserved_as_an_archive_grows(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    claims: list[int] = []

    def claim(size: int) -> None:
        claims.append(size)
        if size > 100 << 20:
            raise StorageError(StatusReason.OVER_MAX_DISK, "no more")

    big = entry("big")
    big.size = 1 << 40
    endless = cast(IO[bytes], _Endless(big.tobuf()))
    with pytest.raises(StorageError, match="no more"):
        Unpacker(tmp_path / "m", (), LIMITS, lambda: 1 << 40, claim).tar(endless, "tar")
    assert claims[-1] == 101 << 20
    assert (tmp_path / "m" / "big").stat().st_size == 100 << 20


class _Endless(io.RawIOBase):
    """A header, then zeros for ever."""

    def __init__(self, head: bytes) -> None:
        self._head = head

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        block = (self._head + bytes(len(buffer)))[: len(buffer)]
        self._head = self._head[len(buffer) :]
        buffer[:] = block
        return len(buffer)


def zipped(path: Path, *entries: tuple[str, bytes, int]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, mode in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return path


def test_a_zip_is_unpacked(tmp_path: Path) -> None:
    path = zipped(
        tmp_path / "a.zip",
        ("sub/", b"", stat.S_IFDIR | 0o755),
        ("sub/model.bin", b"weights", stat.S_IFREG | 0o600),
        ("link", b"sub/model.bin", stat.S_IFLNK | 0o777),
        ("plain", b"p", 0),
    )
    unpacker(tmp_path / "m").zip(path)
    assert tree(tmp_path / "m") == {"sub/model.bin": b"weights", "link": b"weights", "plain": b"p"}


@pytest.mark.parametrize(
    ("name", "content", "mode"),
    [
        ("../evil", b"", 0),
        ("/evil", b"", 0),
        ("evil", b"/etc/passwd", stat.S_IFLNK | 0o777),
        ("evil", b"../..", stat.S_IFLNK | 0o777),
        ("evil", b"", stat.S_IFIFO),
    ],
)
def test_a_hostile_zip_is_refused(tmp_path: Path, name: str, content: bytes, mode: int) -> None:
    with pytest.raises(StorageError) as caught:
        unpacker(tmp_path / "m").zip(zipped(tmp_path / "a.zip", (name, content, mode)))
    assert caught.value.reason in ("HostileArchive", "HostilePath")


def test_a_zip_bomb_is_stopped_and_a_broken_zip_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", ("zeros", bytes(8 << 20), 0))
    limits = replace(LIMITS, free_expansion=1 << 20)
    with refused("ArchiveBomb"):
        unpacker(tmp_path / "m", limits, consumed=path.stat().st_size).zip(path)
    path.write_bytes(path.read_bytes()[:-30])
    with refused("BadArchive"):
        unpacker(tmp_path / "n").zip(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_zip_is_a_bad_archive_wherever_the_damage_is(tmp_path: Path, method: int) -> None:
    """Each library below reports damage in its own way, some as if the disk had failed."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("ü", b"weights" * 9)
    sound, reasons = path.read_bytes(), set()
    for at in range(len(sound)):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 0xFF]) + sound[at + 1 :])
        try:
            unpacker(tmp_path / str(at)).zip(path)
        except StorageError as error:
            reasons.add(error.reason)
    assert reasons == {"BadArchive", "HostileArchive"}  # the latter where it makes a file a device


# --- cost ------------------------------------------------------------------------------------------


def reason_of(work: Callable[[], object]) -> str:
    """The reason of the error. The work must also take little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(StorageError) as caught:
            work()
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()
    return caught.value.reason


@pytest.mark.parametrize("kind", [tarfile.DIRTYPE, tarfile.REGTYPE])
def test_nested_directories_are_refused_before_they_are_made(tmp_path: Path, kind: bytes) -> None:
    entries = [(entry("/".join(["d"] * depth), kind), b"") for depth in (MAX_DEPTH + 2, 1400)]
    for deep in entries:
        assert reason_of(lambda deep=deep: untar(tmp_path / "m", tarred(deep))) == "HostilePath"  # type: ignore[misc]
    assert list((tmp_path / "m").iterdir()) == []


def test_unlisted_directories_count_as_entries(tmp_path: Path) -> None:
    """200,000 files, each below 100 different directories, would be 20 million directories."""
    limits = replace(LIMITS, max_entries=60)
    files = [(entry("/".join([str(index), *"abcdefghi", "file"])), b"") for index in range(20)]
    assert reason_of(lambda: untar(tmp_path / "m", tarred(*files), limits=limits)) == "ArchiveBomb"
    assert len([path for path in (tmp_path / "m").rglob("*") if path.is_dir()]) == 61


def central_entries(count: int) -> bytes:
    """That many entries of a central directory, 47 bytes each."""
    one = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0)
    return (one + b"x") * count


def zip_file(path: Path, count: int, said: int) -> Path:
    """A zip archive of `count` entries that declares `said`."""
    entries = central_entries(count)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, said, said, len(entries), 0, 0)
    path.write_bytes(entries + end)
    return path


@pytest.mark.parametrize("said", [0xFFFF, 1], ids=["said", "not said"])
def test_a_zip_of_a_million_entries_is_refused_in_little_memory(tmp_path: Path, said: int) -> None:
    """zipfile takes 1.1 GiB for these before it hands out the first."""
    path = zip_file(tmp_path / "a.zip", 1_500_000, said)
    limits = replace(LIMITS, max_entries=0xFFFE if said > 1 else 1000)
    assert reason_of(lambda: unpacker(tmp_path / "m", limits).zip(path)) in ("ArchiveBomb", "BadArchive")
    assert list((tmp_path / "m").iterdir()) == []


def test_a_large_declared_count_is_refused_at_once(tmp_path: Path) -> None:
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1 << 40, 1 << 40, 0, 0)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, 0, 1)
    (tmp_path / "a.zip").write_bytes(end + locator + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0, 0, 0, 0, 0))
    assert reason_of(lambda: unpacker(tmp_path / "m").zip(tmp_path / "a.zip")) == "ArchiveBomb"


@pytest.mark.parametrize("before", [b"", b"#!/bin/sh\n" * 9], ids=["", "something before it"])
def test_a_zip_of_many_entries_is_unpacked_by_slices(tmp_path: Path, before: bytes) -> None:
    path = zipped(
        tmp_path / "a.zip", *((f"d{index % 7}/f{index}", b"%d" % index, 0) for index in range(2500))
    )
    path.write_bytes(before + path.read_bytes())
    unpacker(tmp_path / "m").zip(path)
    found = tree(tmp_path / "m")
    assert len(found) == 2500
    assert found["d1/f2493"] == b"2493"


def test_a_large_lzma_dictionary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x", b"weights" * 9)
    data = bytearray(path.read_bytes())
    at = 30 + len("x") + 4 + 1
    data[at : at + 4] = struct.pack("<L", 1 << 31)
    path.write_bytes(data)
    assert reason_of(lambda: unpacker(tmp_path / "m").zip(path)) == "HostileArchive"


@pytest.mark.parametrize("form", ["zip", "tar", "tar, passed over"])
def test_unpacking_ends_on_request(tmp_path: Path, form: str) -> None:
    """Entries without content take no write after which to look whether anybody waits for them."""
    asked = 0

    def stopped() -> bool:
        nonlocal asked
        asked += 1
        return asked > 50

    (tmp_path / "m").mkdir()
    files = ("nothing-of-it",) if "passed over" in form else ()
    work = Unpacker(tmp_path / "m", files, LIMITS, lambda: 1 << 40, lambda size: None, stopped)
    path = zipped(tmp_path / "a.zip", *((f"f{index}", b"", 0) for index in range(300)))
    data = io.BytesIO(tarred(*((entry(f"f{index}"), b"") for index in range(300))))
    with refused("Cancelled"):
        work.zip(path) if form == "zip" else work.tar(data, "tar")
    assert asked == 51


def test_skipped_entries_count_as_expansion(tmp_path: Path) -> None:
    """Globs leave the entry out; its zeros would still be decompressed, terabytes if need be."""
    big = entry("zeros")
    big.size = 1 << 40
    read = 0

    class Zeros(_Endless):
        def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
            nonlocal read
            read += len(buffer)
            return super().readinto(buffer)

    (tmp_path / "m").mkdir()
    limits = replace(LIMITS, free_expansion=8 << 20)
    work = Unpacker(tmp_path / "m", ("*.json",), limits, lambda: 1000, lambda size: None)
    with refused("ArchiveBomb"):
        work.tar(cast(IO[bytes], Zeros(big.tobuf())), "tar")
    assert read < 10 << 20


def test_hostile_extended_headers_take_linear_time(tmp_path: Path) -> None:
    """tarfile's own expressions take a step for each pair of digits: hours for a megabyte."""
    info = entry("x")
    info.pax_headers = {"comment": "1" * 900_000}
    assert untar(tmp_path / "m", tarred((info, b"x"))) == {"x": b"x"}


def test_global_headers_are_not_kept(tmp_path: Path) -> None:
    out = io.BytesIO()
    for index in range(40):
        headers = {f"k{index}": "v" * 900_000}
        out.write(tarfile.TarInfo.create_pax_global_header(headers))
        out.write(entry(f"f{index}").tobuf())
    archive = io.BytesIO(out.getvalue() + bytes(1024))
    tracemalloc.start()
    try:
        unpacker(tmp_path / "m").tar(archive, "tar")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert len(tree(tmp_path / "m")) == 40


@pytest.mark.parametrize(
    "records", [b"5 a\n", b"99 path=x\n", b"x path=y\n", b"0 path=y\n", b"999999999 a=b\n"]
)
def test_a_broken_extended_header_is_refused(tmp_path: Path, records: bytes) -> None:
    head = entry("@", tarfile.XHDTYPE)
    head.size = len(records)
    data = head.tobuf() + records.ljust(512, b"\0") + tarred((entry("x"), b"x"))
    assert reason_of(lambda: untar(tmp_path / "m", data)) == "BadArchive"


def links(*pairs: tuple[str, str]) -> bytes:
    return tarred(*((entry(name, tarfile.SYMTYPE, target), b"") for name, target in pairs))


def test_a_chain_of_links_is_followed_as_far_as_the_kernel_would(tmp_path: Path) -> None:
    def chain(length: int) -> bytes:
        return links(*((f"l{index}", f"l{index + 1}") for index in range(length)))

    untar(tmp_path / "a", chain(40))
    assert reason_of(lambda: untar(tmp_path / "b", chain(41))) == "HostileArchive"


def test_links_that_take_exponential_time_are_refused(tmp_path: Path) -> None:
    """Each leads twice through the one before: 2^n steps."""
    doubling = [("l0", "d"), *((f"l{index}", f"l{index - 1}/../l{index - 1}") for index in range(1, 39))]
    assert reason_of(lambda: untar(tmp_path / "m", links(*doubling))) == "HostileArchive"
    many = [("a", "b/" + "./" * 2000), *((f"l{index}", "./" * 2000) for index in range(100))]
    limits = replace(LIMITS, max_entries=102)
    assert reason_of(lambda: untar(tmp_path / "n", links(*many), limits=limits)) == "ArchiveBomb"
