"""`make cluster`: what it prints works, and it leaves nothing behind."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

from tests.e2e.controlplane import ControlPlane
from tests.e2e.processes import Process
from tests.e2e.workloads import PROBES, pod, probes

pytestmark = pytest.mark.e2e


def test_the_interactive_cluster_serves_until_it_is_stopped(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    cluster = Process("make cluster", [sys.executable, "-m", "tests.e2e.cluster"], tmp_path / "log")
    try:
        cluster.wait_until(lambda: "Ctrl-C" in cluster.log_tail(), 120)
        said = cluster.log_tail()
        kubeconfig = _value(r"export KUBECONFIG=(\S+)", said)
        kubectl = Path(_value(r"export PATH=([^:]+):", said), "kubectl")
        assert kubectl.is_file()
        shown = control_plane.kubectl(
            *("apply", "--dry-run=server", "-o", "yaml", "-f", "-"),
            stdin=yaml.safe_dump(pod("model")),
            kubeconfig=Path(kubeconfig),
        )
        assert probes(yaml.safe_load(shown.stdout)) == set(PROBES)
    finally:
        status = cluster.terminate(timeout=30)
    assert status == 0, cluster.log_tail()
    assert not Path(kubeconfig).exists()


def _value(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found is not None, f"{pattern} is not in:\n{text}"
    return found[1]
