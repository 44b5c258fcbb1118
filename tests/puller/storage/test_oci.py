"""oci://: artifacts of ModelPack and ORAS, images with /models, tokens, digests, broken transfers."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import tarfile
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from puller.reasons import StatusReason
from puller.storage.base import StorageError
from puller.storage.registry_auth import credentials
from tests.puller.errors import refused
from tests.puller.fakes import tarred
from tests.puller.storage.fetching import FILES, LIMITS, MB, fetch_of, fetched, files_of
from tests.puller.storage.registries import (
    IMAGE_CONFIG,
    IMAGE_LAYER,
    INDEX,
    MANIFEST,
    WEIGHT,
    FakeRegistry,
    digest_of,
)


@pytest.fixture
async def registry() -> AsyncIterator[FakeRegistry]:
    made = FakeRegistry()
    await made.start()
    yield made
    await made.stop()


def image(registry: FakeRegistry, *layers: bytes, kind: str = f"{IMAGE_LAYER}+gzip") -> bytes:
    described = [registry.blobs.add(gzip.compress(layer), kind) for layer in layers]
    return registry.blobs.manifest(described, IMAGE_CONFIG)


async def test_modelpack_with_raw_layers(registry: FakeRegistry, tmp_path: Path) -> None:
    layers = [registry.blobs.file(path, content) for path, content in FILES.items()]
    uri = registry.push("team/m:v1", registry.blobs.manifest(layers))
    assert await fetched({}, tmp_path, uri) == FILES
    assert await fetched({}, tmp_path, uri, files=("*.json",)) == {"sub/config.json": b"{}"}


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [("tar", bytes), ("tar+gzip", gzip.compress), ("tar+zstd", zstandard.ZstdCompressor().compress)],
)
async def test_modelpack_with_archives_and_files(
    registry: FakeRegistry, tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    layers = [
        registry.blobs.add(pack(tarred({name: content})), f"{WEIGHT}.{suffix}", org_cncf_model_filepath=name)
        for name, content in FILES.items()
    ]
    layers.append(registry.blobs.file("README.md", b"read me"))
    uri = registry.push("m:v1", registry.blobs.manifest(layers))
    assert await fetched({}, tmp_path, uri) == FILES | {"README.md": b"read me"}
    assert await fetched({}, tmp_path, uri, files=("sub/*",)) == {"sub/config.json": b"{}"}


async def test_files_and_directories_of_oras(registry: FakeRegistry, tmp_path: Path) -> None:
    """A file has an image layer's type and a title; a directory is marked."""
    blobs = registry.blobs
    layers = [
        blobs.add(b"weights", IMAGE_LAYER, org_opencontainers_image_title="w.bin"),
        blobs.add(
            gzip.compress(tarred({"d/x": b"X"})),
            f"{IMAGE_LAYER}+gzip",
            org_opencontainers_image_title="d",
            io_deis_oras_content_unpack="true",
        ),
        blobs.add(b"{}", "application/vnd.oci.empty.v1+json"),
    ]
    uri = registry.push("m:v1", blobs.manifest(layers, "application/vnd.oci.empty.v1+json"))
    assert await fetched({}, tmp_path, uri) == {"w.bin": b"weights", "d/x": b"X"}


async def test_the_directory_models_of_an_image_is_unpacked(registry: FakeRegistry, tmp_path: Path) -> None:
    base = tarred({"bin/sh": b"shell", "models2/no": b"no", "./models/a": b"1", "models/old/x": b"x"})
    top = tarred({"models/a": b"2", "/models/b/c": b"3", "models/.wh.old": b"", "etc/.wh.passwd": b""})
    uri = registry.push("car:1", image(registry, base, top))
    assert await fetched({}, tmp_path, uri) == {"a": b"2", "b/c": b"3"}
    assert await fetched({}, tmp_path, uri, files=("b/*",)) == {"b/c": b"3"}


async def test_an_opaque_directory_hides_lower_layers_only(registry: FakeRegistry, tmp_path: Path) -> None:
    base = tarred({"models/d/old": b"1", "models/d/sub/old": b"1", "models/e": b"e"})
    top = tarred({"models/d/new": b"2", "models/d/.wh..wh..opq": b""})
    assert await fetched({}, tmp_path, registry.push("car:1", image(registry, base, top))) == {
        "d/new": b"2",
        "e": b"e",
    }
    whole = tarred({"models/new": b"2", ".wh..wh..opq": b""})
    assert await fetched({}, tmp_path, registry.push("car:2", image(registry, base, whole))) == {"new": b"2"}
    gone = tarred({".wh.models": b"", "models/new": b"2"})
    assert await fetched({}, tmp_path, registry.push("car:3", image(registry, base, gone))) == {"new": b"2"}


def linked(*links: tuple[str, str], **files: bytes) -> bytes:
    out = io.BytesIO(tarred({f"models/{name}": content for name, content in files.items()}))
    with tarfile.open(fileobj=out, mode="a") as archive:
        for name, target in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return out.getvalue()


async def test_links_of_an_image_stay_inside(registry: FakeRegistry, tmp_path: Path) -> None:
    inside = linked(("models/s/link", "/models/a"), ("models/near", "a"), ("bin/x", "/etc/passwd"), a=b"A")
    assert await fetched({}, tmp_path, registry.push("car:1", image(registry, inside))) == {
        "a": b"A",
        "s/link": b"A",
        "near": b"A",
    }
    for n, target in enumerate(("/etc/passwd", "../etc/passwd", "/models/../etc/passwd")):
        uri = registry.push(f"bad:{n}", image(registry, linked(("models/link", target))))
        with refused(StatusReason.HOSTILE_ARCHIVE):
            await fetched({}, tmp_path, uri)
    # A link of one layer, and a file below it in the next.
    uri = registry.push("bad:9", image(registry, linked(("models/d", "/tmp")), tarred({"models/d/x": b""})))
    with refused(StatusReason.HOSTILE_ARCHIVE):
        await fetched({}, tmp_path, uri)


async def test_an_image_without_models_is_not_found(registry: FakeRegistry, tmp_path: Path) -> None:
    uri = registry.push("car:1", image(registry, tarred({"bin/sh": b"shell"})))
    with refused(StatusReason.NOT_FOUND):
        await fetched({}, tmp_path, uri)


async def test_an_index_is_resolved_to_a_manifest(registry: FakeRegistry, tmp_path: Path) -> None:
    manifest = registry.blobs.manifest([registry.blobs.file("a", b"A")])
    registry.push("m:part", manifest)
    entries = [
        {"digest": digest_of(b"attestation"), "platform": {"os": "unknown", "architecture": "unknown"}},
        {"digest": digest_of(manifest), "platform": {"os": "linux", "architecture": "riscv64"}},
    ]
    uri = registry.push("m:v1", json.dumps({"mediaType": INDEX, "manifests": entries}).encode())
    assert await fetched({}, tmp_path, uri) == {"a": b"A"}


# --- digests ---------------------------------------------------------------------------------------


async def test_a_reference_by_digest_and_the_configs_sha256(registry: FakeRegistry, tmp_path: Path) -> None:
    manifest = registry.blobs.manifest([registry.blobs.file("a", b"A")])
    uri = registry.push("m:v1", manifest)
    digest = digest_of(manifest)
    assert await fetched({}, tmp_path, uri.replace(":v1", f"@{digest}")) == {"a": b"A"}
    assert await fetched({}, tmp_path, uri, sha256=digest.removeprefix("sha256:")) == {"a": b"A"}
    with refused(StatusReason.DIGEST_MISMATCH):
        await fetched({}, tmp_path, uri, sha256="0" * 64)
    registry.manifests[f"m@{digest}"] = registry.blobs.manifest([registry.blobs.file("a", b"B")])
    with refused(StatusReason.DIGEST_MISMATCH):
        await fetched({}, tmp_path, uri.replace(":v1", f"@{digest}"))


@pytest.mark.parametrize("packed", [False, True])
async def test_other_bytes_than_the_manifest_lists_are_refused(
    registry: FakeRegistry, tmp_path: Path, packed: bool
) -> None:
    content = tarred({"a": b"A"})
    layer = (
        registry.blobs.add(content, f"{WEIGHT}.tar") if packed else registry.blobs.file("model.bin", content)
    )
    uri = registry.push("m:v1", registry.blobs.manifest([layer]))
    registry.blobs.content[layer["digest"]] = tarred({"a": b"B"})
    with refused(StatusReason.DIGEST_MISMATCH):
        await fetched({}, tmp_path, uri)


# --- broken transfers ------------------------------------------------------------------------------


@pytest.mark.parametrize("ranges", [True, False])
async def test_a_broken_transfer_resumes(registry: FakeRegistry, tmp_path: Path, ranges: bool) -> None:
    registry.ranges = ranges
    layer = registry.blobs.file("model.bin", FILES["model.bin"])
    uri = registry.push("m:v1", registry.blobs.manifest([layer]))
    registry.cuts, registry.cut_after = 2 if ranges else 0, 300_000
    assert await fetched({}, tmp_path, uri) == {"model.bin": FILES["model.bin"]}


async def test_an_archive_resumes(registry: FakeRegistry, tmp_path: Path) -> None:
    layer = registry.blobs.add(tarred(FILES), f"{WEIGHT}.tar")
    uri = registry.push("m:v1", registry.blobs.manifest([layer]))
    registry.cuts, registry.cut_after = 3, 300_000
    assert await fetched({}, tmp_path, uri) == FILES


async def test_archives_are_not_fetched_again_for_a_file(registry: FakeRegistry, tmp_path: Path) -> None:
    archive = registry.blobs.add(tarred({"a": b"A"}), f"{WEIGHT}.tar")
    file = registry.blobs.file("model.bin", FILES["model.bin"])
    uri = registry.push("m:v1", registry.blobs.manifest([archive, file]))
    held = registry.blobs.content.pop(file["digest"])
    fetch = fetch_of({}, tmp_path, uri, limits=replace(LIMITS, chunk_size=8 * MB, part_size=8 * MB))
    with pytest.raises(StorageError):
        await files_of(fetch)
    registry.blobs.content[file["digest"]] = held
    assert await files_of(fetch) == {"a": b"A", "model.bin": held}
    assert registry.asked[f"/v2/m/blobs/{archive['digest']}"] == 1


async def test_an_artifact_that_does_not_fit_is_refused(registry: FakeRegistry, tmp_path: Path) -> None:
    layers = [
        registry.blobs.add(tarred({"a": b"A" * MB}), f"{WEIGHT}.tar"),
        registry.blobs.file("b", b"B" * MB),
    ]
    uri = registry.push("m:v1", registry.blobs.manifest(layers))
    with refused(StatusReason.OVER_MAX_DISK):
        await fetched({}, tmp_path, uri, max_disk=MB + MB // 2)
    assert registry.asked[f"/v2/m/blobs/{layers[1]['digest']}"] <= 1


# --- credentials -----------------------------------------------------------------------------------


def config_of(host: str, password: str = "secret") -> str:
    return json.dumps({"auths": {host: {"auth": b64encode(f"user:{password}".encode()).decode()}}})


@pytest.mark.parametrize("basic", [True, False])
@pytest.mark.parametrize(
    "where", ["DOCKER_AUTH_CONFIG", ".dockerconfigjson", "file", "secret", "home", "auth"]
)
async def test_credentials_are_read_from_the_usual_files(
    registry: FakeRegistry, tmp_path: Path, where: str, basic: bool
) -> None:
    registry.password, registry.basic = "secret", basic
    uri = registry.push("m:v1", registry.blobs.manifest([registry.blobs.file("a", b"A")]))
    text = config_of(registry.name)
    home = tmp_path / "home"
    (home / ".docker").mkdir(parents=True)
    env = {where: text, "HOME": "/nowhere"}
    if where in ("file", "home"):
        (home / ".docker" / "config.json").write_text(text)
        env = {"HOME": str(home)} if where == "home" else {"DOCKER_CONFIG": str(home / ".docker")}
    if where == "secret":
        (home / ".dockerconfigjson").write_text(text)
        env = {"DOCKER_CONFIG": str(home)}
    if where == "auth":
        (home / "auth.json").write_text(text)
        env = {"REGISTRY_AUTH_FILE": str(home / "auth.json")}
    assert await fetched(env, tmp_path, uri) == {"a": b"A"}


async def test_an_expired_token_is_renewed(registry: FakeRegistry, tmp_path: Path) -> None:
    registry.password, registry.uses = "secret", 3
    layers = [registry.blobs.file(path, content) for path, content in FILES.items() if content]
    uri = registry.push("m:v1", registry.blobs.manifest(layers))
    env = {"DOCKER_AUTH_CONFIG": config_of(registry.name)}
    limits = replace(LIMITS, connections=1)
    assert await fetched(env, tmp_path, uri, limits=limits) == {
        path: text for path, text in FILES.items() if text
    }
    assert registry.asked["/token"] > 1


@pytest.mark.parametrize("basic", [True, False])
@pytest.mark.parametrize("password", ["", "wrong"])
async def test_refused_credentials_are_reported(
    registry: FakeRegistry, tmp_path: Path, basic: bool, password: str
) -> None:
    registry.password, registry.basic = "secret", basic
    uri = registry.push("m:v1", registry.blobs.manifest([registry.blobs.file("a", b"A")]))
    env = {"DOCKER_AUTH_CONFIG": config_of(registry.name, password)} if password else {}
    with refused(StatusReason.ACCESS_DENIED) as raised:
        await fetched(env, tmp_path, uri)
    assert "wrong" not in str(raised.value)


async def test_a_slow_registry_is_a_storage_timeout(registry: FakeRegistry, tmp_path: Path) -> None:
    """Not the model directory's fault: asyncio's TimeoutError is an OSError."""
    registry.gate = asyncio.Event()
    limits = replace(LIMITS, stall_timeout=0.05)
    with refused(StatusReason.STORAGE_TIMEOUT):
        await fetched({}, tmp_path, f"oci://{registry.name}/m:v1", limits=limits)
    registry.gate.set()


@pytest.mark.parametrize("realm", ["http://[", "https://:x/", "https:///t", "ftp://h/t", "/token"])
async def test_a_token_server_with_an_invalid_url(registry: FakeRegistry, tmp_path: Path, realm: str) -> None:
    registry.challenge = f'Bearer realm="{realm}"'
    with refused(StatusReason.STORAGE_UNAVAILABLE, "token server"):
        await fetched({}, tmp_path, f"oci://{registry.name}/m:v1")


@pytest.mark.parametrize("listed", [5, "sha256", {}, None, [5, {"platform": 5}, {"digest": 5}]])
async def test_an_invalid_index_is_refused(registry: FakeRegistry, tmp_path: Path, listed: Any) -> None:
    uri = registry.push("m:v1", json.dumps({"mediaType": INDEX, "manifests": listed}).encode())
    with refused(StatusReason.BAD_MANIFEST):
        await fetched({}, tmp_path, uri)


async def test_a_registry_that_refuses_ranges(registry: FakeRegistry, tmp_path: Path) -> None:
    registry.ranges_status = 416
    uri = registry.push("m:v1", registry.blobs.manifest([registry.blobs.file("a", b"x" * (1 << 17))]))
    assert await fetched({}, tmp_path, uri) == {"a": b"x" * (1 << 17)}


@pytest.mark.parametrize(
    ("key", "host", "repository", "matches"),
    [
        ("https://index.docker.io/v1/", "docker.io", "library/m", True),
        ("r.example.com", "r.example.com", "m", True),
        ("r.example.com:5000", "r.example.com", "m", False),
        ("r.example.com", "evil.example.com", "m", False),
        ("*.example.com", "r.example.com", "m", True),
        ("*.example.com", "example.com", "m", False),
        ("*.example.com", "a.b.example.com", "m", False),
        ("r.example.com/team", "r.example.com", "team/m", True),
        ("r.example.com/team", "r.example.com", "teams/m", False),
        ("https://r.example.com/v2/", "r.example.com", "m", True),
    ],
)
def test_credentials_go_to_their_registry_only(key: str, host: str, repository: str, matches: bool) -> None:
    found = credentials(host, repository, {"DOCKER_AUTH_CONFIG": config_of(key)})
    assert (found is not None) is matches


def test_the_longest_path_wins() -> None:
    auths = {key: {"username": key, "password": "p"} for key in ("r.io/a", "r.io", "r.io/a/b")}
    found = credentials("r.io", "a/b/c", {"DOCKER_AUTH_CONFIG": json.dumps({"auths": auths})})
    assert found is not None
    assert found.user == "r.io/a/b"


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"auths": 1}', '{"auths": {"r.io": {"auth": "?"}}}', '{"auths": {"r.io": 1}}']
)
def test_invalid_credential_files_are_ignored(text: str) -> None:
    assert credentials("r.io", "m", {"DOCKER_AUTH_CONFIG": text}) is None


# --- hostile manifests -----------------------------------------------------------------------------

_LAYER = {"mediaType": f"{WEIGHT}.raw", "digest": digest_of(b""), "size": 0}


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (b"", StatusReason.BAD_MANIFEST),
        (b"[]", StatusReason.BAD_MANIFEST),
        (b"{}", StatusReason.BAD_MANIFEST),
        ({"layers": [1]}, StatusReason.BAD_MANIFEST),
        ({"layers": [_LAYER]}, StatusReason.BAD_MANIFEST),
        ({"layers": [_LAYER | {"digest": "sha512:00"}]}, StatusReason.BAD_MANIFEST),
        ({"layers": [_LAYER | {"digest": "../../etc"}]}, StatusReason.BAD_MANIFEST),
        ({"layers": [_LAYER | {"size": -1}]}, StatusReason.BAD_MANIFEST),
        (
            {"layers": [_LAYER | {"annotations": {"org.cncf.model.filepath": "../x"}}]},
            StatusReason.HOSTILE_PATH,
        ),
        (
            {"layers": [_LAYER | {"annotations": {"org.cncf.model.filepath": "/x"}}]},
            StatusReason.HOSTILE_PATH,
        ),
        (
            {"layers": [_LAYER | {"annotations": {"org.cncf.model.filepath": "x"}}] * 2},
            StatusReason.HOSTILE_PATH,
        ),
        ({"mediaType": INDEX, "manifests": []}, StatusReason.BAD_MANIFEST),
        ({"mediaType": INDEX, "manifests": [{"digest": "x"}]}, StatusReason.BAD_MANIFEST),
        ({"layers": []}, StatusReason.NOT_FOUND),
    ],
)
async def test_a_hostile_manifest_is_refused(
    registry: FakeRegistry, tmp_path: Path, manifest: bytes | dict[str, Any], reason: StatusReason
) -> None:
    body = (
        manifest if isinstance(manifest, bytes) else json.dumps({"mediaType": MANIFEST} | manifest).encode()
    )
    with refused(reason):
        await fetched({}, tmp_path, registry.push("m:v1", body))


async def test_a_missing_tag(registry: FakeRegistry, tmp_path: Path) -> None:
    with refused(StatusReason.NOT_FOUND):
        await fetched({}, tmp_path, f"oci://{registry.name}/team/m:none")


async def test_other_registries_are_called_over_https(tmp_path: Path) -> None:
    """On this host only, and where the flag says so, over http."""
    uri = "oci://127.1:1/m"  # the same host in a spelling that is not taken for it
    with pytest.raises(StorageError):
        await fetched({}, tmp_path, uri)
    with refused(StatusReason.ADDRESS_BLOCKED):
        await fetched({}, tmp_path, "oci://169.254.169.254/m")
