"""Pulling oci:// models from the registry of the distribution project, with and without credentials."""

from __future__ import annotations

import gzip
import json
import os
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.puller.registry import PASSWORD, USER, Registry, TokenServer
from tests.e2e.puller.sidecar import Sidecar
from tests.puller.fakes import tarred
from tests.puller.storage.registries import IMAGE_CONFIG, IMAGE_LAYER, WEIGHT, Blobs, digest_of

pytestmark = pytest.mark.e2e

LARGE = os.urandom(70 << 20)
BLOBS = Blobs()
PACK = BLOBS.manifest(
    [
        BLOBS.file("model.safetensors", LARGE),
        BLOBS.add(gzip.compress(tarred({"sub/config.json": b"{}"})), f"{WEIGHT}.config.v1.tar+gzip"),
    ]
)
CAR = BLOBS.manifest(
    [
        BLOBS.add(gzip.compress(tarred({"bin/sh": b"sh", "models/a": b"1"})), f"{IMAGE_LAYER}+gzip"),
        BLOBS.add(gzip.compress(tarred({"models/a": b"2", "models/b": b"3"})), f"{IMAGE_LAYER}+gzip"),
    ],
    IMAGE_CONFIG,
)
SERVED = {"pack": b"".join([LARGE, b"{}"]), "car": b"23", "pinned": b"23"}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    made = Registry(tmp_path_factory.mktemp("registry"))
    with made.running():
        made.push(BLOBS, {"team/pack:v1": PACK, "team/car:v1": CAR})
    return made


@pytest.fixture
def sidecar(tmp_path: Path, registry: Registry) -> Iterator[Sidecar]:
    credentials = b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    (tmp_path / ".docker").mkdir()
    config = {"auths": {registry.name: {"auth": credentials}}}
    (tmp_path / ".docker" / "config.json").write_text(json.dumps(config))
    made = Sidecar(tmp_path, {}, server="none")
    made.config.write(
        {
            "pack": f"oci://{registry.name}/team/pack:v1",
            "car": f"oci://{registry.name}/team/car:v1",
            "pinned": f"oci://{registry.name}/team/car@{digest_of(CAR)}",
        }
    )
    yield made
    made.kill()


def pulled(sidecar: Sidecar) -> bool:
    return sidecar.states() == dict.fromkeys(SERVED, "Loaded")


def test_an_open_registry(sidecar: Sidecar, registry: Registry) -> None:
    with registry.running():
        sidecar.start()
        sidecar.wait(lambda: pulled(sidecar), 60)
        assert sidecar.on_disk() == SERVED


def test_a_registry_behind_a_password(sidecar: Sidecar, registry: Registry) -> None:
    with registry.running(registry.password_file):
        sidecar.start()
        sidecar.wait(lambda: pulled(sidecar), 60)
        assert sidecar.on_disk() == SERVED


def test_a_registry_behind_tokens(sidecar: Sidecar, registry: Registry, tmp_path: Path) -> None:
    tokens = TokenServer(tmp_path)
    try:
        with registry.running(tokens.auth):
            sidecar.start()
            sidecar.wait(lambda: pulled(sidecar), 60)
            assert sidecar.on_disk() == SERVED
            assert tokens.asked == len(SERVED), "one token for each model"
    finally:
        tokens.close()


def test_refused_credentials_heal(sidecar: Sidecar, registry: Registry, tmp_path: Path) -> None:
    path = tmp_path / ".docker" / "config.json"
    good = path.read_text()
    path.write_text("{}")
    with registry.running(registry.password_file):
        sidecar.start()
        refused = dict.fromkeys(SERVED, "AccessDenied")
        sidecar.wait(lambda: {n: e["reason"] for n, e in sidecar.models().items()} == refused, 60)
        path.write_text(good)
        sidecar.wait(lambda: pulled(sidecar), 60)


def test_a_registry_that_is_gone_for_a_while(sidecar: Sidecar, registry: Registry) -> None:
    sidecar.start()
    gone = dict.fromkeys(SERVED, "StorageUnavailable")
    sidecar.wait(lambda: {n: e["reason"] for n, e in sidecar.models().items()} == gone, 60)
    with registry.running():
        sidecar.wait(lambda: pulled(sidecar), 60)
        assert sidecar.on_disk() == SERVED
