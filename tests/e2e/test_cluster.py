"""`make cluster`: what it prints works, and it leaves nothing behind."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.e2e.processes import Process
from tests.e2e.workloads import PROBES, probes

pytestmark = pytest.mark.e2e


def test_the_interactive_cluster_serves_until_it_is_stopped(tmp_path: Path) -> None:
    cluster = Process("make cluster", [sys.executable, "-m", "tests.e2e.cluster"], tmp_path / "log")
    try:
        cluster.wait_until(lambda: "Ctrl-C" in cluster.log_tail())
        log = cluster.log_tail(60)
        kubeconfig = _value(r"export KUBECONFIG=(\S+)", log)
        assert Path(_value(r"export PATH=([^:]+):", log), "kubectl").is_file()
        refused = _as_printed(log, "apply --dry-run=server -f")
        assert "liveness-external-dependency" in refused.stderr
        shown = _as_printed(log, "apply --dry-run=server -o yaml")
        assert probes(yaml.safe_load(shown.stdout)) == set(PROBES), shown.stderr
        stored = _as_printed(log, "apply -f")
        assert stored.returncode == 0, stored.stderr
        assert _as_printed(log, r"apply -f \S+ray-cluster.yaml").returncode == 0
        cluster.wait_until(lambda: len(_workers(log)) == 8)
        named = re.compile(r"pod/feature-batch-cpu-worker-[a-z0-9]{5}-\d+")
        assert all(map(named.fullmatch, _workers(log)))
        assert _as_printed(log, "-n features patch").returncode == 0
        cluster.wait_until(lambda: len(_workers(log)) == 12)
    finally:
        status = cluster.terminate(timeout=30)
    assert status == 0, cluster.log_tail()
    assert not Path(kubeconfig).exists()


def _as_printed(log: str, command: str) -> subprocess.CompletedProcess[str]:
    """The output of the first printed line that runs `kubectl <command>`, in the printed environment."""
    exports = re.findall(r"^ +(export .*)$", log, re.MULTILINE)
    return _run([*exports, _value(rf"^ +(kubectl {command}.*)$", log)])


def _workers(log: str) -> list[str]:
    exports = re.findall(r"^ +(export .*)$", log, re.MULTILINE)
    selected = "kubectl -n features get pods -l ray.io/node-type=worker -o name"
    return _run([*exports, selected]).stdout.split()


def _run(lines: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def _value(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    assert found is not None, f"{pattern} is not in:\n{text}"
    return found[1]
