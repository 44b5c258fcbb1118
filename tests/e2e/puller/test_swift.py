"""Pulling from a real S3 API: OpenStack Swift's, which checks signatures and serves ranges."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from tests.e2e.puller.sidecar import Sidecar
from tests.e2e.puller.swift import SECRET_KEY, Swift
from tests.puller.fakes import tarred

pytestmark = pytest.mark.e2e

LARGE = os.urandom(70 << 20)


@pytest.fixture(scope="module")
def swift(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swift]:
    with Swift(tmp_path_factory.mktemp("swift")) as running:
        yield running


@pytest.fixture(scope="module")
def bucket(swift: Swift) -> S3Store:
    store = swift.make_bucket("models")
    for key, content in {
        "m1/model.bin": LARGE,
        "m1/sub/config.json": b"{}",
        "m10/other.bin": b"a sibling",
        "solo.joblib": b"solo",
        "empty.bin": b"",
        "packed.tar.gz": gzip.compress(tarred({"a.bin": b"A", "b/c.bin": b"C"})),
        "odd/a b+c%20d#e~ü.bin": b"odd",
    }.items():
        obstore.put(store, key, content, use_multipart=False)
    return store


@pytest.fixture
def sidecar(tmp_path: Path, swift: Swift) -> Iterator[Sidecar]:
    made = Sidecar(tmp_path, swift.env, server="none")
    yield made
    made.kill()


def loaded(sidecar: Sidecar, *names: str) -> bool:
    return sidecar.states() == dict.fromkeys(names, "Loaded")


def test_prefixes_objects_and_archives(sidecar: Sidecar, bucket: S3Store) -> None:
    sidecar.config.write(
        {
            "m1": "s3://models/m1",
            "solo": "s3://models/solo.joblib",
            "empty": "s3://models/empty.bin",
            "packed": "s3://models/packed.tar.gz",
            "odd": "s3://models/odd",
        }
    )
    sidecar.start()
    sidecar.wait(lambda: loaded(sidecar, "empty", "m1", "odd", "packed", "solo"), 60)
    assert (sidecar.model_dir / "m1" / "model.bin").read_bytes() == LARGE
    assert sidecar.on_disk()["m1"] == LARGE + b"{}"
    assert sidecar.on_disk()["solo"] == b"solo"
    assert (sidecar.model_dir / "empty" / "empty.bin").read_bytes() == b""
    assert sidecar.on_disk()["packed"] == b"AC"
    assert (sidecar.model_dir / "odd" / "a b+c%20d#e~ü.bin").read_bytes() == b"odd"
    assert sidecar.get("/readyz")[0] == 200
    assert sidecar.stop() == 0


def test_kserves_variables_name_the_store_too(sidecar: Sidecar, swift: Swift, bucket: S3Store) -> None:
    sidecar.config.write({"solo": "s3://models/solo.joblib"})
    kserve = {"AWS_ENDPOINT_URL": "", "S3_ENDPOINT": f"127.0.0.1:{swift.port}", "S3_USE_HTTPS": "0"}
    sidecar.start(kserve)
    sidecar.wait(lambda: loaded(sidecar, "solo"), 30)


def test_a_credentials_file_is_read_again_when_it_changes(
    sidecar: Sidecar, swift: Swift, bucket: S3Store, tmp_path: Path
) -> None:
    """A wrong secret is refused and reported; the rotated one is picked up with no restart."""
    file = tmp_path / ".aws" / "credentials"
    file.parent.mkdir()
    text = "[default]\naws_access_key_id = test:tester\naws_secret_access_key = {}\n"
    file.write_text(text.format("wrong"))
    sidecar.config.write({"m1": "s3://models/m1", "solo": "s3://models/solo.joblib"})
    sidecar.start({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""})
    sidecar.wait(lambda: sidecar.states() == {"m1": "Failed", "solo": "Failed"}, 30)
    assert {entry["reason"] for entry in sidecar.models().values()} == {"AccessDenied"}
    assert sidecar.get("/readyz")[0] == 503
    assert sidecar.on_disk() == {}
    file.write_text(text.format(SECRET_KEY))
    sidecar.wait(lambda: loaded(sidecar, "m1", "solo"), 60)
