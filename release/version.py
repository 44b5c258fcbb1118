"""The project's version in pyproject.toml, and the other files that contain it.

python -m release.version [--check]      write it there, or exit with 1 if a place differs
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
NUMBER: Final = r"\d+\.\d+\.\d+[\w.+-]*"
PLACES: Final = (
    ("charts/ml-chassis/Chart.yaml", rf"(?m)(?<=^version: ){NUMBER}$"),
    ("charts/ml-chassis/Chart.yaml", rf"(?m)(?<=^appVersion: ){NUMBER}$"),
    ("manifests/base/deployment.yaml", rf"(?<=ghcr\.io/ml-chassis/ml-chassis:){NUMBER}"),
    ("manifests/components/scan/cronjob.yaml", rf"(?<=ghcr\.io/ml-chassis/ml-chassis:){NUMBER}"),
    ("policies/models/model_puller_settings.py", rf"(?<=ghcr\.io/ml-chassis/puller:){NUMBER}"),
    ("Dockerfile", rf'(?<=org\.opencontainers\.image\.version="){NUMBER}'),
)
"""Files, and the pattern of the version in each."""


def version(root: Path = ROOT) -> str:
    """The version of the project."""
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


def stamped(root: Path = ROOT) -> dict[Path, str]:
    """The new content of each file with another version.

    Raises:
        ValueError: a file has no version.
    """
    number = version(root)
    texts: dict[Path, str] = {}
    for name, pattern in PLACES:
        path = root / name
        text = texts.get(path, path.read_text())
        if not re.search(pattern, text):
            raise ValueError(f"{name} has no version at {pattern}")
        texts[path] = re.sub(pattern, number, text)
    return {path: text for path, text in texts.items() if text != path.read_text()}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the version into the files; with `--check` only list those with another version."""
    parser = argparse.ArgumentParser(prog="python -m release.version", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if a file differs")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    different = stamped(args.root)
    for path, text in different.items():
        if args.check:
            print(f"{path} states another version than pyproject.toml: run make version", file=sys.stderr)
        else:
            path.write_text(text)
            print(path)
    return int(args.check and bool(different))


if __name__ == "__main__":
    sys.exit(main())
