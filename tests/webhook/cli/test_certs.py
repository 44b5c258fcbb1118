"""`chassis certs`: the written certificates can be served, and its output is true."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from webhook.cli import main as cli
from webhook.server import certificates as certs
from webhook.server import pki


async def test_an_issued_certificate_can_be_served_and_only_we_can_read_the_key(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "tls"
    for force in ([], ["--force"]):
        assert cli.main(["certs", "issue", str(directory), "--host", "10.0.0.1", *force]) == 0
    source = certs.MountedFiles(directory / "tls.crt", directory / "tls.key", directory / "ca.crt")
    bundle = await source.read()
    assert certs.ServingCertificate().install(bundle)
    assert pki.hosts_of(bundle)[0] == "mlchassis.mlchassis-system.svc"
    assert "10.0.0.1" in pki.hosts_of(bundle)
    assert (directory / "tls.key").stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in directory.iterdir()) == ["ca.crt", "tls.crt", "tls.key"]


@pytest.mark.parametrize("name", ["ca.crt", "tls.crt", "tls.key"])
def test_nothing_that_is_there_is_overwritten_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / name).write_text("precious")
    assert cli.main(["certs", "issue", str(tmp_path)]) == 2
    assert f"{tmp_path}: {name} would be overwritten" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "precious"


@pytest.mark.parametrize(
    ("age", "state", "status"),
    [
        (timedelta(), "fine", 0),
        (pki.SERVING_LIFETIME - pki.SERVING_RENEW_BEFORE + timedelta(days=1), "due for renewal", 1),
        (pki.SERVING_LIFETIME + timedelta(days=1), "ended", 1),
    ],
)
def test_it_shows_the_names_and_the_state_of_a_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], age: timedelta, state: str, status: int
) -> None:
    bundle = pki.issue(["a.svc", "::1"], datetime.now(UTC) - age)
    (tmp_path / "tls.crt").write_bytes(bundle.certificate)
    assert cli.main(["certs", "show", str(tmp_path / "tls.crt")]) == status
    out = capsys.readouterr().out
    assert "hosts:  a.svc, ::1\n" in out
    assert f"({state})" in out


@pytest.mark.parametrize("content", [None, b"rubbish"])
def test_a_file_without_a_certificate_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "tls.crt").write_bytes(content)
    assert cli.main(["certs", "show", str(tmp_path / "tls.crt")]) == 2
    assert str(tmp_path / "tls.crt") in capsys.readouterr().err
