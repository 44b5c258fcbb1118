"""Fixtures of the tests on a real node: one cluster for each process of pytest, one namespace a test."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.controlplane import LEFT_ALONE
from tests.e2e.node import sandbox
from tests.e2e.node.cluster import RealNode
from tests.e2e.node.init import NODE
from tests.e2e.node.webhook import Webhook
from tests.realnode import evidence


def pytest_xdist_setupnodes() -> None:
    """Runs no test where no process can have the namespaces of a node, and prints the reason."""
    if reason := sandbox.why_not():
        pytest.exit(f"Nothing was run on a real node: for that, {reason}", returncode=0)


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    """The cluster with its real node; the same one for the whole session."""
    directory = sandbox.inside()
    if directory is None:
        pytest.fail("These tests run inside the namespaces of a node: make realnode ARGS=…", pytrace=False)
    state = tmp_path_factory.mktemp("node")
    began, before = time.monotonic(), _cpu()
    with RealNode(state, directory) as running:
        yield running
        idle, whole = (now - then for now, then in zip(_cpu(), before, strict=True))
        info = running.api.get("nodes", NODE)["status"]["nodeInfo"]
    evidence.keep(
        "conditions",
        {
            "cpus": os.cpu_count(),
            "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "kubelet": info["kubeletVersion"],
            "runtime": info["containerRuntimeVersion"].replace("://", " "),
            "seconds": time.monotonic() - began,
            "busy": 1 - idle / whole,
        },
    )
    shutil.rmtree(state / "etcd", ignore_errors=True)  # pytest keeps the logs of the last three runs


def _cpu() -> tuple[int, int]:
    """Ticks of all CPUs since the machine began: those with nothing to do, and all."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


@pytest.fixture(scope="session")
def webhook(node: RealNode) -> Webhook:
    """The webhook, from the shipped manifests and the image of the Dockerfile."""
    installed = Webhook(node)
    installed.install()
    return installed


@pytest.fixture
def namespace(node: RealNode) -> Iterator[str]:
    """A fresh namespace."""
    with node.temporary_namespace() as name:
        yield name


@pytest.fixture
def bare(node: RealNode) -> Iterator[str]:
    """A fresh namespace that the webhook does not see: the control of the experiment."""
    with node.temporary_namespace(LEFT_ALONE) as name:
        yield name
