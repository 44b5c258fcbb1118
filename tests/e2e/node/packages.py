"""Programs from Debian's archive, unpacked into the cache and not installed: the machine stays as it is."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tests.e2e.binaries import BinaryError, cache_directory, locked, say

PACKAGES = (
    "buildah",
    "containerd",
    "containernetworking-plugins",
    "iproute2",
    "mmdebstrap",
    "nftables",
    "runc",
)


@cache
def root(names: tuple[str, ...] = PACKAGES) -> Path:
    """The directory under which packages lie, unpacked now if they never were (10 s, once).

    Raises:
        BinaryError: a package cannot be had.
    """
    release = Path("/etc/os-release").read_text()
    digest = hashlib.sha256("\0".join((*names, release)).encode()).hexdigest()[:12]
    unpacked = cache_directory() / "debian" / digest
    if not unpacked.exists():
        with locked(unpacked):
            if not unpacked.exists():
                _unpack(names, unpacked)
    return unpacked


def environment(names: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """The variables with which the unpacked programs find each other, on top of the caller's own."""
    base = root(names)
    libraries = [str(each) for part in ("usr/lib", "lib") for each in base.glob(f"{part}/*-linux-gnu")]
    return os.environ | {
        "PATH": f"{base}/usr/sbin:{base}/usr/bin:{os.environ['PATH']}:/usr/sbin:/sbin",
        "LD_LIBRARY_PATH": ":".join(libraries),
        "PERL5LIB": f"{base}/usr/share/perl5",
    }


def _unpack(names: tuple[str, ...], unpacked: Path) -> None:
    """Download the packages and their missing dependencies, and unpack them."""
    say(f"unpacking {', '.join(names)} from Debian's archive, once …")
    with tempfile.TemporaryDirectory(dir=unpacked.parent, prefix=".unpacking-") as scratch:
        downloads, tree = Path(scratch, "downloads"), Path(scratch, "tree")
        (downloads / "lists" / "partial").mkdir(parents=True)
        apt = [
            "apt-get", "--quiet=2",
            # Separate lists and locks: it neither changes the machine's nor waits for another apt-get.
            "-o", f"Dir::State::Lists={downloads}/lists",
            "-o", f"Dir::Cache={downloads}",
            "-o", "Debug::NoLocking=1",
            "-o", f"Dir::Log={downloads}",
            "-o", "APT::Sandbox::User=root",
        ]  # fmt: skip
        _run([*apt, "update"], downloads)
        # Without --quiet=2, which would hide the list that is asked for.
        plan = _run([apt[0], *apt[2:], "install", "--simulate", "--no-install-recommends", *names], downloads)
        wanted = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
        if wanted:
            _run([*apt, "download", *wanted], downloads)
        tree.mkdir()
        for package in downloads.glob("*.deb"):
            _run(["dpkg-deb", "-x", str(package), str(tree)], downloads)
        (tree / "usr" / "bin").mkdir(parents=True, exist_ok=True)
        tree.replace(unpacked)


def _run(command: list[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, text=True, capture_output=True)
    if done.returncode:
        raise BinaryError(f"`{' '.join(command)}` failed:\n{done.stderr.strip()}")
    return done.stdout
