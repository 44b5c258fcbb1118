"""`chassis certs`: the certificates that it writes can be served, and its output is correct."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.webhook.cli.scanned import Chassis
from webhook.server import pki, tls_reload


async def test_an_issued_certificate_can_be_served_and_its_key_is_private(
    tmp_path: Path, chassis: Chassis
) -> None:
    directory = tmp_path / "new" / "tls"
    for force in ([], ["--force"]):
        assert chassis("certs", "issue", directory, "--host", "10.0.0.1", *force).status == 0
    source = tls_reload.MountedFiles(directory / "tls.crt", directory / "tls.key", directory / "ca.crt")
    bundle = await source.read()
    assert tls_reload.ServingCertificate().install(bundle)
    assert pki.hosts_of(bundle)[0] == "mlchassis.mlchassis-system.svc"
    assert "10.0.0.1" in pki.hosts_of(bundle)
    assert (directory / "tls.key").stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in directory.iterdir()) == ["ca.crt", "tls.crt", "tls.key"]


@pytest.mark.parametrize("name", ["ca.crt", "tls.crt", "tls.key"])
def test_no_file_is_overwritten_without_force(tmp_path: Path, chassis: Chassis, name: str) -> None:
    (tmp_path / name).write_text("precious")
    answer = chassis("certs", "issue", tmp_path)
    assert answer.status == 2
    assert f"{tmp_path}: {name} would be overwritten" in answer.err
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "precious"}


@pytest.mark.parametrize(
    ("age", "state", "status"),
    [
        (timedelta(), "fine", 0),
        (pki.SERVING_LIFETIME - pki.SERVING_RENEW_BEFORE + timedelta(days=1), "due for renewal", 1),
        (pki.SERVING_LIFETIME + timedelta(days=1), "ended", 1),
    ],
)
def test_it_shows_the_hosts_and_the_state_of_a_certificate(
    tmp_path: Path, chassis: Chassis, age: timedelta, state: str, status: int
) -> None:
    bundle = pki.issue(["a.svc", "::1"], datetime.now(UTC) - age)
    (tmp_path / "tls.crt").write_bytes(bundle.certificate)
    answer = chassis("certs", "show", tmp_path / "tls.crt")
    assert answer.status == status
    assert "hosts:  a.svc, ::1\n" in answer.out
    assert f"({state})" in answer.out


@pytest.mark.parametrize("content", [None, b"rubbish"])
def test_a_file_without_a_certificate_ends_with_2(
    tmp_path: Path, chassis: Chassis, content: bytes | None
) -> None:
    file = tmp_path / "tls.crt"
    if content is not None:
        file.write_bytes(content)
    answer = chassis("certs", "show", file)
    assert answer.status == 2
    assert str(file) in answer.err
