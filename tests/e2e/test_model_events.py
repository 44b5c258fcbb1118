"""Models that fail, as `kubectl describe pod` shows them: a real puller, a real API server, shipped rights.

No kubelet runs, so the puller runs next to the control plane, and the leader's questions are led there.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from policies.core.facts import NoCluster
from tests.e2e.api import JSON
from tests.e2e.controlplane import HOST, ControlPlane
from tests.e2e.install import NAMESPACE, SERVICE_ACCOUNT, Chassis
from tests.e2e.processes import free_port
from tests.e2e.workloads import pod
from webhook.config.load import load
from webhook.kube import paths
from webhook.kube.api import ApiServer
from webhook.kube.reflector import Reflector
from webhook.observed import model_events
from webhook.observed.collector import Pending, PodSink
from webhook.observed.model_events import ModelEvents
from webhook.observed.pods import PodTracker
from webhook.observed.status_pages import GetStatus, Page, status_client

pytestmark = pytest.mark.e2e


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """What a puller sees: a config with a model that is there and one that is not."""
    for name in ("configs", "models", "good"):
        (tmp_path / name).mkdir()
    (tmp_path / "good" / "model.bin").write_text("M")
    configure(tmp_path, good="good", bad="missing")
    return tmp_path


def configure(directory: Path, **models: str) -> None:
    for name, path in models.items():
        spec = json.dumps({"storageUri": f"file://{directory / path}"})
        (directory / "configs" / f"{name}.json").write_text(spec)


@pytest.fixture
def port(directory: Path) -> Iterator[int]:
    """A running puller's status port."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "puller", "--server=none", f"--host={HOST}", f"--port={port}"),
        *(f"--config-dir={directory / 'configs'}", f"--model-dir={directory / 'models'}"),
        *("--backoff-max=1", "--schemes=file"),
    ]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=dict(os.environ))
    yield port
    process.terminate()
    assert process.wait(30) == 0


@asynccontextmanager
async def to_this_host(connections: int) -> AsyncIterator[GetStatus]:
    async with status_client(connections, lambda _: True) as real:

        async def get_status(_: str, port: int) -> Page:
            return await real(HOST, port)

        yield get_status


@pytest.fixture
def leader(control_plane: ControlPlane, chassis: Chassis, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The leader's work with the rights of the shipped ServiceAccount, at a quicker pace."""
    monkeypatch.setattr(model_events, "LOADING_SECONDS", 1.0)
    monkeypatch.setattr(model_events, "LOADED_SECONDS", 1.0)
    kubeconfig = control_plane.service_account(NAMESPACE, SERVICE_ACCOUNT)
    ended = threading.Event()

    async def lead() -> None:
        async with ApiServer.connect(kubeconfig) as api:
            models = ModelEvents(api, lambda: load({}), NoCluster(), client=to_this_host)
            sink = PodSink(PodTracker(lambda: load({}), NoCluster(), 0), Pending(), models)
            work = [models.run(), Reflector(api, paths.collection("v1", "pods"), sink).run()]
            tasks = [asyncio.create_task(each) for each in work]
            await asyncio.to_thread(ended.wait)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=asyncio.run, args=(lead(),))
    thread.start()
    yield
    ended.set()
    thread.join()


def test_describe_shows_the_models_that_fail_and_why(
    control_plane: ControlPlane, leader: None, namespace: str, directory: Path, port: int
) -> None:
    puller: JSON = {
        "name": "puller",
        "image": "puller",
        "command": ["chassis-puller"],
        "args": [f"--port={port}"],
    }
    control_plane.api.create(pod("llm", puller), namespace)

    def about(reason: str) -> list[JSON]:
        return control_plane.api.wait_for(
            "events",
            lambda events: any(event["reason"] == reason for event in events),
            namespace=namespace,
            timeout=90,
        )

    about("ModelsFailed")
    described = control_plane.kubectl("describe", "pod", "llm", "-n", namespace).stdout
    assert "1 of 2 models failed: bad: NotFound: " in described
    assert "Warning" in described

    configure(directory, bad="good")
    events = about("ModelsRecovered")
    mine = [event for event in events if event["source"].get("component") == "mlchassis"]
    assert sorted(event["reason"] for event in mine) == ["ModelsFailed", "ModelsRecovered"]
    assert control_plane.kubectl("describe", "pod", "llm", "-n", namespace).stdout.count("models failed") == 1
