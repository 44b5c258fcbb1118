"""Build the files of a release from a commit; the same commit gives the same digests.

    python -m release [--out DIR] [--base IMAGE@DIGEST] [--no-images]

The wheel and the sdist, the chart, both images as OCI archives, an SBOM for each, the upgrade notes, and
SHA256SUMS. They contain the commit's files, not those of the working tree, and the time of the commit.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from release.version import ROOT, stamped, version

IMAGES: Final = {"ml-chassis": "webhook", "puller": "puller"}
"""The images and their stages in the Dockerfile."""
SBOM_IN_IMAGE: Final = "opt/chassis/sbom.cdx.json"
CHART: Final = Path("charts", "ml-chassis")


class ReleaseError(RuntimeError):
    """The release can't be built; the message is one sentence."""


@dataclass(frozen=True)
class Source:
    """An unpacked commit."""

    root: Path
    revision: str
    epoch: int
    """The time of the commit, in seconds."""

    @property
    def version(self) -> str:
        return version(self.root)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of builders, with the time."""
        return {**os.environ, "SOURCE_DATE_EPOCH": str(self.epoch)}


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """The output of a program; ReleaseError if it fails or is not installed."""
    try:
        done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ReleaseError(f"{command[0]} is not installed") from None
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, command))} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def checkout(scratch: Path, repository: Path = ROOT, commit: str = "HEAD") -> Source:
    """Unpack the files of a commit below `scratch`."""
    revision, epoch = run("git", "-C", repository, "log", "-1", "--format=%H %ct", commit).split()
    archive, root = scratch / "source.tar", scratch / "source"
    run("git", "-C", repository, "archive", "--format=tar", f"--output={archive}", revision)
    with tarfile.open(archive) as packed:
        packed.extractall(root, filter="data")
    archive.unlink()
    if different := stamped(root):
        names = ", ".join(str(path.relative_to(root)) for path in different)
        raise ReleaseError(f"{names}: another version than pyproject.toml; run make version and commit it")
    return Source(root, revision, int(epoch))


# --- Python ------------------------------------------------------------------------------------------------


def python(source: Source, out: Path) -> None:
    """Build the wheel and the sdist, and an SBOM of the locked dependencies."""
    built = source.root.parent / "python"
    # Without isolation the build uses hatchling of this environment, which pyproject.toml pins.
    flags = ("--quiet", "--no-cache", "--wheel", "--sdist", "--no-build-isolation", "--offline")
    target = ("--python", sys.executable, "--out-dir", built)
    run("uv", "build", *flags, *target, env=_with_tools(source), cwd=source.root)
    for path in sorted(built.glob("ml_chassis-*")):
        shutil.move(path, out / path.name)
    export = ("uv", "export", "--quiet", "--no-cache", "--frozen", "--no-dev", "--format", "cyclonedx1.5")
    bom = json.loads(run(*export, "--preview", env=_with_tools(source), cwd=source.root))
    _write_sbom(out / f"ml_chassis-{source.version}.cdx.json", _reproducible(bom))


def _with_tools(source: Source) -> dict[str, str]:
    """The environment with the uv next to this Python first on PATH, then the one of the variable UV."""
    environment = source.environment
    places = [Path(sys.executable).parent, *(Path(uv).parent for uv in [environment.get("UV")] if uv)]
    return {**environment, "PATH": os.pathsep.join([*map(str, places), environment.get("PATH", "")])}


def _reproducible(bom: dict[str, Any]) -> dict[str, Any]:
    """An SBOM without serial number and timestamp."""
    metadata = {key: value for key, value in bom.get("metadata", {}).items() if key != "timestamp"}
    return {key: value for key, value in bom.items() if key != "serialNumber"} | {"metadata": metadata}


def _write_sbom(path: Path, bom: dict[str, Any]) -> None:
    path.write_text(json.dumps(bom, indent=2, sort_keys=True) + "\n")


# --- the chart ---------------------------------------------------------------------------------------------


def chart(source: Source, out: Path) -> None:
    """Package the chart like `helm package`, but with the commit's time, and write an SBOM of its images."""
    directory = source.root / CHART
    ignored = set((directory / ".helmignore").read_text().split()) | {".helmignore"}
    files = [
        (f"ml-chassis/{path.relative_to(directory)}", path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in ignored
    ]
    packed = out / f"ml-chassis-{source.version}.tgz"
    packed.write_bytes(gzip.compress(_tar(files, source.epoch), mtime=0))
    values = yaml.safe_load((directory / "values.yaml").read_text())
    repository = values["image"]["repository"]
    images = (repository, repository.rpartition("/")[0] + "/puller")
    components = [
        {"type": "container", "name": name, "version": source.version, "purl": _purl(name, source.version)}
        for name in images
    ]
    main = {"type": "application", "name": "ml-chassis", "version": source.version, "bom-ref": "chart"}
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": main},
        "components": components,
    }
    _write_sbom(out / f"ml-chassis-{source.version}.tgz.cdx.json", bom)


def _purl(repository: str, tag: str) -> str:
    return f"pkg:oci/{repository.rpartition('/')[2]}?repository_url={repository}&tag={tag}"


def _tar(files: Sequence[tuple[str, bytes]], epoch: int) -> bytes:
    """A reproducible archive of names and contents."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), epoch, 0o644
            archive.addfile(entry, io.BytesIO(content))
    return written.getvalue()


# --- images ------------------------------------------------------------------------------------------------


def image(source: Source, name: str, out: Path, base: str, buildah: Sequence[str]) -> str:
    """Build an OCI archive of an image and its SBOM, and return the image's digest."""
    tag = f"localhost/{name}:{source.version}"
    arguments = {"BASE": base, "SOURCE_DATE_EPOCH": str(source.epoch), "REVISION": source.revision}
    given = [f"--build-arg={key}={value}" for key, value in arguments.items()]
    flags = (f"--timestamp={source.epoch}", "--format=oci", f"--target={IMAGES[name]}")
    run(*buildah, "build", *flags, *given, f"--tag={tag}", source.root, env=source.environment)
    layout = source.root.parent / f"layout-{name}"
    run(*buildah, "push", "--format=oci", tag, f"oci:{layout}:{source.version}", env=source.environment)
    return packed_image(layout, out / f"{name}-{source.version}.oci.tar", source.epoch)


def packed_image(layout: Path, archive: Path, epoch: int) -> str:
    """Pack an OCI layout with one image, write its SBOM next to it, and return the image's digest."""
    files = [
        (str(path.relative_to(layout)), path.read_bytes())
        for path in sorted(layout.rglob("*"))
        if path.is_file()
    ]
    archive.write_bytes(_tar(files, epoch))
    index = json.loads((layout / "index.json").read_text())
    (described,) = index["manifests"]
    for content in _layers(layout, described["digest"]):
        with tarfile.open(fileobj=io.BytesIO(content)) as layer:
            if SBOM_IN_IMAGE in layer.getnames():
                found = layer.extractfile(SBOM_IN_IMAGE)
                assert found is not None
                _write_sbom(archive.with_name(archive.name + ".cdx.json"), _reproducible(json.load(found)))
                return str(described["digest"])
    raise ReleaseError(f"{archive.name}: the image has no {SBOM_IN_IMAGE}")


def _layers(layout: Path, digest: str) -> Iterator[bytes]:
    """The layers of an image, the last one first."""

    def blob(name: str) -> bytes:
        return (layout / "blobs" / name.replace(":", "/")).read_bytes()

    for layer in reversed(json.loads(blob(digest))["layers"]):
        yield blob(layer["digest"])


# --- notes and sums ----------------------------------------------------------------------------------------


def notes(source: Source, out: Path) -> None:
    """Write the upgrade notes: the changelog's section of this version, or the unreleased one."""
    text = (source.root / "CHANGELOG.md").read_text()
    sections = re.split(r"(?m)^## ", text)[1:]
    by_name = {
        section.split("\n", 1)[0].strip("[] "): section.split("\n", 1)[1].strip() for section in sections
    }
    found = next((body for name, body in by_name.items() if name.startswith(source.version)), None)
    body = found or by_name.get("Unreleased")
    if not body:
        raise ReleaseError("CHANGELOG.md has neither a section of this version nor an unreleased one")
    upgrading = (
        f"# ML Chassis {source.version}\n\nCommit {source.revision}.\n\n"
        "Install the new version over the old one: docs/upgrade.md. Upgrades from the "
        f"two previous releases, and rollbacks to them, refuse no request.\n\n{body}\n"
    )
    (out / f"UPGRADE-{source.version}.md").write_text(upgrading)


def sums(out: Path) -> None:
    """Write SHA256SUMS of all other files in the directory, in the format of `sha256sum --check`."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(out.iterdir())
        if path.name != "SHA256SUMS"
    ]
    (out / "SHA256SUMS").write_text("".join(lines))


def build(
    out: Path, *, base: str | None, buildah: Sequence[str], repository: Path = ROOT, commit: str = "HEAD"
) -> None:
    """Build all files into `out`, which is emptied first; without a base no images."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        source = checkout(Path(scratch), repository, commit)
        python(source, out)
        chart(source, out)
        if base:
            digests = [f"{image(source, name, out, base, buildah)}  {name}\n" for name in IMAGES]
            (out / f"image-digests-{source.version}.txt").write_text("".join(digests))
        notes(source, out)
    sums(out)


def main(argv: Sequence[str] | None = None) -> int:
    """Build a release and print its SHA256SUMS."""
    parser = argparse.ArgumentParser(prog="python -m release", description="Build the files of a release.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="emptied first (default: dist/)")
    parser.add_argument(
        "--repository", type=Path, default=ROOT, help="a clone with the commit (default: this one)"
    )
    parser.add_argument("--commit", default="HEAD", help="the commit to build (default: %(default)s)")
    parser.add_argument("--buildah", default="buildah", help="the program and its global flags")
    images = parser.add_mutually_exclusive_group(required=True)
    images.add_argument("--base", help="the images' base by its digest, python:3.11-slim-bookworm@sha256:…")
    images.add_argument("--no-images", action="store_true", help="leave the images out")
    args = parser.parse_args(argv)
    try:
        build(
            args.out,
            base=args.base,
            buildah=args.buildah.split(),
            repository=args.repository,
            commit=args.commit,
        )
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    print((args.out / "SHA256SUMS").read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
