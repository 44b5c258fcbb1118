"""What the sidecar imports before anybody needs it."""

from __future__ import annotations

import subprocess
import sys

LATER = {
    "obstore",
    "prometheus_client",
    "structlog",
    "rich",
    "pydantic",
    "zstandard",
    "tarfile",
    "ctypes",
}


def test_the_sidecar_starts_without_imports_that_only_some_pods_need() -> None:
    """Each costs every pod's start some of its CPU: clients come with the first URI that needs them."""
    code = f"import sys\nfrom puller import cli\nprint(sorted({LATER} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")
