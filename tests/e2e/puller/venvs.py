"""Real servers from PyPI, each in a virtual environment of its own, built once and kept in the cache.

The environments lie in `$XDG_CACHE_HOME/ml-chassis/venvs/<name>-<hash of what is in them>`, outside the
tree; another version makes another directory.

    python -m tests.e2e.puller.venvs [NAME...]     build what is missing, print the paths
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = {
    "swift": ("swift==2.38.3", "pyeclib==1.8.0", "setuptools==65.5.0"),
    # MLServer 1.7 calls what uvloop 0.22 took away.
    "mlserver": ("mlserver==1.7.1", "mlserver-sklearn==1.7.1", "uvloop==0.21.0"),
}


def venv(name: str) -> Path:
    """The `bin` directory of the environment. Raises CalledProcessError when it cannot be built."""
    wanted = REQUIREMENTS[name]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256("\n".join((*wanted, version)).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ml-chassis" / "venvs"
    cache.mkdir(parents=True, exist_ok=True)
    place = cache / f"{name}-{digest}"
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", place], check=True)
            pip = [str(place / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, *wanted], check=True)
            (place / "complete").touch()
    return place / "bin"


if __name__ == "__main__":
    for each in sys.argv[1:] or REQUIREMENTS:
        print(each, venv(each))
