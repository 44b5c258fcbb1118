"""Fixtures of the end-to-end tests: one control plane for each process of pytest, one namespace a test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.e2e.api import Api
from tests.e2e.controlplane import LEFT_ALONE, ControlPlane
from tests.e2e.crds import CERT_MANAGER, PROMETHEUS_OPERATOR
from tests.e2e.install import Chassis, running_chassis


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The real control plane with one large fake node; the same one for the whole session."""
    state = tmp_path_factory.mktemp("control-plane")
    with ControlPlane(state) as running:
        running.add_node("node-0")
        yield running
    shutil.rmtree(state / "etcd", ignore_errors=True)  # pytest keeps the logs of the last three runs


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A fresh namespace."""
    with control_plane.temporary_namespace() as name:
        yield name


@pytest.fixture
def bare(control_plane: ControlPlane) -> Iterator[str]:
    """A fresh namespace that the webhook does not see."""
    with control_plane.temporary_namespace(LEFT_ALONE) as name:
        yield name


@pytest.fixture
def api(control_plane: ControlPlane, namespace: str) -> Api:
    """The API server, asked about the test's namespace."""
    return control_plane.api.within(namespace)


@pytest.fixture(scope="module")
def definitions(control_plane: ControlPlane) -> Iterator[None]:
    """The API server knows the custom resources that components bring along."""
    with CERT_MANAGER.installed(control_plane), PROMETHEUS_OPERATOR.installed(control_plane):
        yield


@pytest.fixture(scope="session")
def chassis(control_plane: ControlPlane) -> Iterator[Chassis]:
    """The webhook, installed from the shipped manifests and running; the same one for the session."""
    with running_chassis(control_plane) as running:
        yield running
