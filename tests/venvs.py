"""Virtual environments and Go programs for real servers, built once and kept in the cache.

They lie in `$XDG_CACHE_HOME/ml-chassis/<where>/<name>-<hash of what is in them>`, outside the tree; another
version makes another directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def built(
    where: str,
    name: str,
    requires: Sequence[str],
    newest: str | None = None,
    *,
    overrides: Sequence[str] = (),
    finish: Callable[[Path], None] | None = None,
) -> Path:
    """The `bin` directory of an environment with these requirements, built where it is missing.

    With `newest`, a day such as `2026-11-20`, no package published later is taken: packages that are not
    pinned by name are the same in every run. `overrides` replace what packages require. `finish` gets the
    environment once it is installed and completes it. Raises CalledProcessError when it cannot be built.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    wanted = "\n".join((*requires, version, *([newest] if newest else ()), *overrides))
    digest = hashlib.sha256(wanted.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ml-chassis" / where
    cache.mkdir(parents=True, exist_ok=True)
    place = cache / f"{name}-{digest}"
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            uv = str(Path(sys.executable).with_name("uv"))
            subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, place], check=True)
            install = [uv, "pip", "install", "--quiet", "--python", str(place / "bin" / "python")]
            install += ["--exclude-newer", newest] if newest else []
            if overrides:
                (place / "overrides.txt").write_text("\n".join(overrides))
                install += ["--override", str(place / "overrides.txt")]
            subprocess.run([*install, *requires], check=True)
            if finish:
                finish(place)
            (place / "complete").touch()
    return place / "bin"


def installed(module: str, name: str) -> Path:
    """The directory with a Go program, such as `example.org/server/cmd/serve@v1.2.3`, under the name given.

    Raises CalledProcessError when it cannot be built.
    """
    digest = hashlib.sha256(module.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ml-chassis" / "servers"
    place = cache / f"{name}-{digest}" / "bin"
    place.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / name).exists():
            env = {**os.environ, "GOBIN": str(place), "GOFLAGS": "-mod=mod"}
            subprocess.run(["go", "install", module], env=env, check=True)
            (place / module.partition("@")[0].rpartition("/")[2]).replace(place / name)
    return place
