"""The FIPS provider of OpenSSL 3.0.8, the version that was validated, built once from its source.

The source is that of a crate: crates.io is reached where other hosts are not. It needs gcc, make and perl.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.e2e.binaries import cache_directory

CRATE: Final = "openssl-src-300.0.12+3.0.8"
SHA256: Final = "4d974055736373bab35bdb25e578fd477e1e195611744c42373294ac8897068d"
CONFIGURATION: Final = """\
openssl_conf = init
.include {module}
[init]
providers = providers
alg_section = algorithms
[providers]
fips = fips_sect
base = base
[base]
activate = 1
[algorithms]
default_properties = fips=yes
"""
"""Whatever OpenSSL is asked for comes from the provider, or not at all."""


def environment() -> Mapping[str, str]:
    """The variables with which OpenSSL 3 uses the provider only. CalledProcessError if it can't be built."""
    place = cache_directory() / "fips" / CRATE
    place.mkdir(parents=True, exist_ok=True)
    configuration = place / "openssl.cnf"
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not configuration.exists():
            _build(place)
            configuration.write_text(CONFIGURATION.format(module=place / "fipsmodule.cnf"))
    return {"OPENSSL_CONF": str(configuration), "OPENSSL_MODULES": str(place)}


def _build(place: Path) -> None:
    """Build `fips.so`, and test it as its users must: `fipsinstall` runs its self-tests."""
    archive = place / "source.tar.gz"
    urllib.request.urlretrieve(f"https://static.crates.io/crates/openssl-src/{CRATE}.crate", archive)
    if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
        raise RuntimeError(f"{CRATE} is not what it was")
    with tarfile.open(archive) as source:
        source.extractall(place, filter="data")
    tree = place / CRATE / "openssl"
    for command in (
        ["./Configure", "enable-fips", "no-tests"],
        ["make", "-s", f"-j{os.cpu_count()}", "build_sw"],
    ):
        subprocess.run(command, cwd=tree, check=True, stdout=subprocess.DEVNULL)
    shutil.copy(tree / "providers" / "fips.so", place)
    install = ["apps/openssl", "fipsinstall", "-quiet", "-provider_name", "fips"]
    install += ["-module", str(place / "fips.so"), "-out", str(place / "fipsmodule.cnf")]
    subprocess.run(install, cwd=tree, check=True, env={**os.environ, "LD_LIBRARY_PATH": str(tree)})
    shutil.rmtree(place / CRATE)
    archive.unlink()
