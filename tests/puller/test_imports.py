"""What the sidecar imports before anybody needs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

LATER = (
    "obstore",
    "prometheus_client",
    "structlog",
    "rich",
    "pydantic",
    "zstandard",
    "tarfile",
    "ctypes",
)


@pytest.mark.parametrize("name", LATER)
def test_the_sidecar_starts_without_importing(name: str) -> None:
    """Each costs every pod's start some of its CPU: clients come with the first URI that needs them."""
    code = f"import sys\nfrom puller import cli\nassert {name!r} not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
