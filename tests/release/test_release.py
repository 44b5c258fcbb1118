"""What users download: complete, of one version, and the same for the same commit."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from release import __main__ as release
from release.version import PLACES, ROOT, main, stamped, version
from tests.e2e.node.release_check import differences


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit of this tree, because the tests also run without a history."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    directory = tmp_path / "repository"
    git = f"git --git-dir={directory} --work-tree={ROOT} -c user.name=t -c user.email=t@t.test"
    commit = "commit --quiet --no-verify --no-gpg-sign --message=tree"
    for command in ("init --quiet", "add --all", commit):
        subprocess.run([*git.split(), *command.split()], check=True, cwd=ROOT)
    return directory


def test_every_place_states_the_version() -> None:
    assert stamped() == {}
    assert main(["--check"]) == 0


def test_a_new_version_is_written_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in {"pyproject.toml", *(name for name, _ in PLACES)}:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((ROOT / name).read_text())
    project = tmp_path / "pyproject.toml"
    project.write_text(project.read_text().replace(f'version = "{version()}"', 'version = "12.3.4-rc.1"', 1))
    assert main(["--root", str(tmp_path), "--check"]) == 1
    assert main(["--root", str(tmp_path)]) == 0
    assert main(["--root", str(tmp_path), "--check"]) == 0
    for name, _ in PLACES:
        assert "12.3.4-rc.1" in (tmp_path / name).read_text()
    (tmp_path / "Dockerfile").write_text("FROM scratch")
    with pytest.raises(ValueError, match="Dockerfile has no version"):
        stamped(tmp_path)


def test_the_chart_and_the_notes_follow_from_the_commit(tmp_path: Path) -> None:
    """The Python packages take seconds to build: `make e2e` builds everything twice."""
    found = []
    for name in ("first", "second"):
        out = tmp_path / name
        out.mkdir()
        source = release.Source(ROOT, "0" * 40, 7)
        release.chart(source, out)
        release.notes(source, out)
        release.sums(out)
        found.append((out / "SHA256SUMS").read_text())
    assert found[0] == found[1]
    number = version()
    assert [line.split("  ")[1] for line in found[0].splitlines()] == [
        f"UPGRADE-{number}.md",
        f"ml-chassis-{number}.tgz",
        f"ml-chassis-{number}.tgz.cdx.json",
    ]
    with tarfile.open(tmp_path / "first" / f"ml-chassis-{number}.tgz") as chart:
        assert {entry.mtime for entry in chart} == {7}
    assert f"Commit {'0' * 40}." in (tmp_path / "first" / f"UPGRADE-{number}.md").read_text()


@pytest.mark.e2e
def test_the_same_commit_gives_the_same_digests(tmp_path: Path, repository: Path) -> None:
    found = []
    for name in ("first", "second"):
        arguments = ["--no-images", "--repository", str(repository), "--out", str(tmp_path / name)]
        assert release.main(arguments) == 0
        found.append((tmp_path / name / "SHA256SUMS").read_text())
    assert found[0] == found[1]
    listed = {name: digest for digest, name in (line.split("  ") for line in found[0].splitlines())}
    number = version()
    packages = {f"ml_chassis-{number}{end}" for end in ("-py3-none-any.whl", ".tar.gz", ".cdx.json")}
    chart_files = {f"ml-chassis-{number}{end}" for end in (".tgz", ".tgz.cdx.json")}
    assert set(listed) == {*packages, *chart_files, f"UPGRADE-{number}.md"}
    for name, digest in listed.items():
        assert hashlib.sha256((tmp_path / "first" / name).read_bytes()).hexdigest() == digest
    with tarfile.open(tmp_path / "first" / f"ml-chassis-{number}.tgz") as chart:
        assert {"ml-chassis/Chart.yaml", "ml-chassis/templates/_defaults.tpl"} <= set(chart.getnames())
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "manifests").rglob("*.yaml")}
    with tarfile.open(tmp_path / "first" / f"ml_chassis-{number}.tar.gz") as sources:
        assert files <= {name.partition("/")[2] for name in sources.getnames()}, "what install.md applies"
    with zipfile.ZipFile(tmp_path / "first" / f"ml_chassis-{number}-py3-none-any.whl") as wheel:
        installed = {name.partition("/share/ml-chassis/")[2] for name in wheel.namelist()}
        assert files <= installed, "what `chassis manifests` prints"
        output = (ROOT / "webhook" / "cli" / "output").rglob("*")
        pages = {str(each.relative_to(ROOT)) for each in output if each.suffix in (".html", ".css")}
        assert pages
        assert pages <= set(wheel.namelist()), "what `-o html` reads"
    bom = json.loads((tmp_path / "first" / f"ml_chassis-{number}.cdx.json").read_text())
    assert {"aiohttp", "pydantic"} <= {component["name"] for component in bom["components"]}


def layout(directory: Path, layers: list[dict[str, str]]) -> None:
    """An OCI layout of an image whose layers hold these files."""
    blobs = directory / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return f"sha256:{digest}"

    described = []
    for files in layers:
        written = io.BytesIO()
        with tarfile.open(fileobj=written, mode="w:gz") as layer:
            for name, text in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(text)
                layer.addfile(entry, io.BytesIO(text.encode()))
        described.append({"digest": blob(written.getvalue())})
    manifest = blob(json.dumps({"layers": described, "config": {"digest": blob(b"{}")}}).encode())
    (directory / "index.json").write_text(json.dumps({"manifests": [{"digest": manifest}]}))


def test_an_image_is_packed_with_its_sbom_next_to_it(tmp_path: Path) -> None:
    bom = {"serialNumber": "random", "metadata": {"timestamp": "now"}, "components": [{"name": "aiohttp"}]}
    layout(tmp_path / "layout", [{"etc/os": "debian"}, {release.SBOM_IN_IMAGE: json.dumps(bom)}, {"a": "b"}])
    archives = [tmp_path / "one.oci.tar", tmp_path / "two.oci.tar"]
    digests = {release.packed_image(tmp_path / "layout", archive, 7) for archive in archives}
    assert len(digests) == 1
    assert archives[0].read_bytes() == archives[1].read_bytes()
    written = json.loads((tmp_path / "one.oci.tar.cdx.json").read_text())
    assert written == {"components": [{"name": "aiohttp"}], "metadata": {}}


def test_an_image_without_an_sbom_is_no_release(tmp_path: Path) -> None:
    layout(tmp_path / "layout", [{"a": "b"}])
    with pytest.raises(release.ReleaseError, match=r"the image has no opt/chassis/sbom\.cdx\.json"):
        release.packed_image(tmp_path / "layout", tmp_path / "one.oci.tar", 7)


def test_a_program_that_is_missing_or_fails_ends_the_build_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(release.ReleaseError, match="no-such-program is not installed"):
        release.run("no-such-program")
    assert release.main(["--no-images", "--commit", "no-such-commit", "--out", str(tmp_path / "out")]) == 1
    assert "no-such-commit" in capsys.readouterr().err


def test_a_file_of_an_image_that_differs_is_named(tmp_path: Path) -> None:
    """`make release-check` compares two builds down to the files of their layers."""
    for build, text in (("first", "same"), ("second", "other")):
        (tmp_path / build).mkdir()
        (tmp_path / build / "SHA256SUMS").write_text("equal")
        files = {"opt/a.pyc": text, "opt/b.py": "b", release.SBOM_IN_IMAGE: "{}"}
        layout(tmp_path / f"layout-{build}", [files])
        release.packed_image(tmp_path / f"layout-{build}", tmp_path / build / "image.oci.tar", 7)
    (tmp_path / "second" / "more.txt").touch()
    found = differences(tmp_path / "first", tmp_path / "second")
    places = ["image.oci.tar", "  layer 0", "  layer 0", "more.txt"]
    assert [line.split(": ")[0] for line in found] == places
    assert any(line.startswith("  layer 0: opt/a.pyc: ") for line in found)
    assert differences(tmp_path / "first", tmp_path / "first") == []
