"""`make release-check`: build the whole release twice, images included, and name every file that differs.

Nothing is shared between the two builds but the base image: no layers, no caches of pip or uv.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path

from release import __main__ as release
from tests.e2e.node import buildah, images, sandbox

PROGRAM = (sys.executable, "-m", "tests.e2e.node.buildah")


def contents(archive: Path) -> dict[str, str]:
    """What each file of an OCI archive's image is, by its layer and path, and the image's configuration."""
    with tarfile.open(archive) as packed:
        files = {member.name: packed.extractfile(member) for member in packed if member.isfile()}
        blobs = {name: file.read() for name, file in files.items() if file is not None}

    def blob(digest: str) -> bytes:
        return blobs["blobs/" + digest.replace(":", "/")]

    (described,) = json.loads(blobs["index.json"])["manifests"]
    manifest = json.loads(blob(described["digest"]))
    configuration = json.loads(blob(manifest["config"]["digest"]))
    found = {f"configuration {key}": json.dumps(value) for key, value in configuration.items()}
    for number, layer in enumerate(manifest["layers"]):
        compressed = blob(layer["digest"])
        found[f"layer {number}"] = layer["digest"]
        plain = gzip.decompress(compressed) if compressed.startswith(b"\x1f\x8b") else compressed
        with tarfile.open(fileobj=io.BytesIO(plain)) as unpacked:
            for position, member in enumerate(unpacked):
                file = unpacked.extractfile(member) if member.isfile() else None
                digest = hashlib.sha256(file.read()).hexdigest() if file else member.linkname
                facts = (member.type, member.mode, member.uid, member.gid, member.mtime, position, digest)
                found[f"layer {number}: {member.name}"] = repr((*facts, sorted(member.pax_headers.items())))
    return found


def differences(first: Path, second: Path) -> list[str]:
    """One line for each file that two releases do not have in common, down to the files of images."""
    lines = []
    for name in sorted({path.name for directory in (first, second) for path in directory.iterdir()}):
        one, other = first / name, second / name
        if not (one.exists() and other.exists()):
            lines.append(f"{name}: only in {'the first' if one.exists() else 'the second'} build")
        elif one.read_bytes() != other.read_bytes():
            lines.append(name)
            if name.endswith(".oci.tar"):
                ours, theirs = contents(one), contents(other)
                lines += [
                    f"  {key}: {ours.get(key)} != {theirs.get(key)}"
                    for key in sorted(ours.keys() | theirs.keys())
                    if ours.get(key) != theirs.get(key)
                ]
    return lines


def start(storage: Path, archive: Path, command: str) -> str:
    """Load an OCI archive, as a registry would take it, and run a command in it; what that prints."""
    image = images.buildah(storage, "pull", "--quiet", f"oci-archive:{archive}").strip()
    container = images.buildah(storage, "from", "--pull=never", image).strip()
    try:
        return images.buildah(storage, "run", "--isolation=chroot", container, "--", command, "--help")
    finally:
        images.buildah(storage, "rm", container)
        images.buildah(storage, "rmi", "--force", image)


def main(argv: list[str]) -> int:
    """Build twice and compare; 0 if both builds are the same, byte for byte, and the images start."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.node.release_check", description=__doc__)
    parser.add_argument("--commit", default="HEAD", help="what to build (default: %(default)s)")
    parser.add_argument("--keep", type=Path, help="a directory for the second build's files")
    args = parser.parse_args(argv)
    if reason := sandbox.why_not():
        print(f"No image was built: for that, {reason}")
        return 0
    with tempfile.TemporaryDirectory() as scratch, images.buildah_storage() as storage:
        os.environ[buildah.STORAGE] = str(storage)
        first, second = Path(scratch, "first"), args.keep or Path(scratch, "second")
        for out in (first, second):
            release.build(out, base=images.base_tag(), buildah=PROGRAM, commit=args.commit)
        found = differences(first, second)
        for name, command in (("ml-chassis", "chassis"), ("puller", "chassis-puller")):
            (archive,) = second.glob(f"{name}-*.oci.tar")
            assert command in start(storage, archive, command)
        print((second / "SHA256SUMS").read_text(), end="")
    if found:
        print("The two builds differ:", *found, sep="\n")
        return 1
    print("Both builds are the same.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
