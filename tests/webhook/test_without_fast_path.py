"""The fast path can be deleted: the server's tests pass on a copy of the tree that does not have it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).parents[2]
COPIED = ("webhook", "policies", "puller", "benchmarks", "manifests", "pyproject.toml", "tests")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "e2e", "realnode", "corpus", "fuzz", "peers")
TESTS = ("admission_server", "connections", "log", "shared_memory", "worker")
SPAWNED = "(served or hangs or log_level or connections_wait or supervisor or signal or replaced)"
CHOSEN = f"not test_worker or ((counted or logged or answer or flag) and not {SPAWNED})"
"""Of the whole process what needs no process."""
COSTLY = "(no_body_within or 1100 or any_change_but)"
"""Tests of code in which the fast path has no part."""


def test_the_servers_tests_pass_without_the_fast_path(tmp_path: Path) -> None:
    for name in COPIED:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=LEFT_OUT)
        else:
            shutil.copy(source, tmp_path / name)
    shutil.rmtree(tmp_path / "webhook" / "fast_path")
    shutil.rmtree(tmp_path / "tests" / "webhook" / "fast_path")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTEST_ADDOPTS": ""}
    environment.pop("PYTEST_XDIST_WORKER", None)
    server = tmp_path / "tests" / "webhook" / "server"
    said = _run("-m", "webhook.cli", "--version", "-v", where=tmp_path, environment=environment)
    assert "fast path: not in this build" in said
    tests = [str(server / f"test_{name}.py") for name in TESTS]
    options = ("-q", "-p", "no:cacheprovider", "-k", f"({CHOSEN}) and not {COSTLY}")
    said = _run("-m", "pytest", *options, *tests, where=tmp_path, environment=environment)
    passed = int(said.rpartition(" passed")[0].split()[-1])
    assert passed > 200, said


def _run(*arguments: str, where: Path, environment: dict[str, str]) -> str:
    ran = subprocess.run(
        [sys.executable, *arguments], cwd=where, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
