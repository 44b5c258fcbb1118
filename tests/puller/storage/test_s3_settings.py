"""The S3 settings: AWS's variables and files, and KServe's variables."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from puller.storage.s3_settings import S3Settings, settings

KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}


def test_default_settings() -> None:
    assert settings({}) == S3Settings()


def test_awss_own_variables() -> None:
    env = KEYS | {
        "AWS_SESSION_TOKEN": "t",
        "AWS_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL": "http://minio:9000/",
    }
    found = settings(env)
    assert found == S3Settings("http://minio:9000", "eu-west-1", "id", "secret", "t")
    assert settings(env | {"AWS_ENDPOINT_URL_S3": "https://s3"}).endpoint == "https://s3"
    assert settings({"AWS_DEFAULT_REGION": "us-west-2"}).region == "us-west-2"


@pytest.mark.parametrize(
    ("env", "endpoint"),
    [
        ({"S3_ENDPOINT": "minio:9000"}, "https://minio:9000"),
        ({"S3_ENDPOINT": "minio:9000", "S3_USE_HTTPS": "1"}, "https://minio:9000"),
        ({"S3_ENDPOINT": "minio:9000", "S3_USE_HTTPS": "0"}, "http://minio:9000"),
        ({"S3_ENDPOINT": "http://minio:9000"}, "http://minio:9000"),
        ({"S3_ENDPOINT": "minio", "AWS_ENDPOINT_URL": "http://other"}, "http://other"),
    ],
)
def test_kserves_endpoint(env: dict[str, str], endpoint: str) -> None:
    assert settings(env).endpoint == endpoint


def test_kserves_switches() -> None:
    assert not settings({"S3_VERIFY_SSL": "0"}).verify_tls
    assert settings({"S3_VERIFY_SSL": "1"}).verify_tls
    assert settings({"S3_USE_VIRTUAL_BUCKET": "true"}).virtual_host
    assert settings({"awsAnonymousCredential": "True"}).anonymous
    assert not settings({"awsAnonymousCredential": "false"}).anonymous


def test_the_shared_files_and_profiles(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = d\naws_secret_access_key = ds%\n"
        "[ml]\naws_access_key_id = m\naws_secret_access_key = ms\n"
    )
    (tmp_path / ".aws" / "config").write_text(
        "[default]\nregion = eu-north-1\n[profile ml]\nregion = ap-south-1\nendpoint_url = http://minio\n"
    )
    home = {"HOME": str(tmp_path)}
    assert settings(home) == S3Settings(region="eu-north-1", access_key="d", secret_key="ds%")
    assert settings(home | {"AWS_PROFILE": "ml"}) == S3Settings("http://minio", "ap-south-1", "m", "ms")
    assert settings(home | KEYS).access_key == "id", "variables win over files"


def test_a_delegated_identity_wins_over_a_file(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id = d\naws_secret_access_key = s\n")
    env = {"AWS_SHARED_CREDENTIALS_FILE": str(file)}
    assert settings(env).access_key == "d"
    assert settings(env | {"AWS_WEB_IDENTITY_TOKEN_FILE": "/t"}).access_key == ""


def test_an_inaccessible_home_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's, where a pod sets runAsUser."""

    def refused(*_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", refused)
    monkeypatch.setattr(Path, "stat", refused)
    assert settings({"AWS_ACCESS_KEY_ID": "a", "HOME": "/root"}) == S3Settings(access_key="a")


@pytest.mark.parametrize("text", ["no section", "[default]\n[default]\n", "\x00\xff"])
def test_broken_files_are_ignored(tmp_path: Path, text: str) -> None:
    file = tmp_path / "credentials"
    file.write_bytes(text.encode("latin-1"))
    assert settings({"AWS_SHARED_CREDENTIALS_FILE": str(file), "HOME": str(tmp_path)}) == S3Settings()
