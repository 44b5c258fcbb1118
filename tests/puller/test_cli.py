"""The command line and the process: flags, KServe's own, ports, signals, the status over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from puller import endpoints
from puller.cli import main, options_of, parser, server_of
from puller.options import PullerOptions
from puller.servers.base import ModelServer
from puller.servers.tfserving import TfServing
from puller.servers.v2 import TritonServer, V2Server
from tests.puller.conftest import World
from tests.puller.fakes import ConfigVolume, FaultStore
from tests.tables import table


def options(*arguments: str, **env: str) -> PullerOptions:
    return options_of(parser(env).parse_args(arguments))


def test_defaults() -> None:
    assert options() == PullerOptions()
    assert (PullerOptions.config_dir, PullerOptions.model_dir) == (Path("/mnt/configs"), Path("/mnt/models"))
    assert (PullerOptions.server, PullerOptions.server_url, PullerOptions.port) == (
        "v2",
        "http://127.0.0.1:8080",
        9081,
    )


@table(
    ("arguments", "field", "expected"),
    [
        ("--max-disk 1.5Gi", "max_disk", 3 << 29),
        ("--max-memory 7516192768", "max_memory", 7 << 30),
        ("--ready-when first", "ready_when", "first"),
        ("--resync 30s", "resync", 30.0),
        ("--load-workers 2", "load_workers", 2),
        ("--grace 5", "grace", 5.0),
        ("--pvc-dir /x", "pvc_dir", Path("/x")),
        ("--server-model-dir /y", "server_model_dir", Path("/y")),
        ("--server-url http://127.0.0.1:1", "server_url", "http://127.0.0.1:1"),
        ("--probe-timeout=1", "timeouts.probe", 1),
        ("--load-timeout=2", "timeouts.load", 2),
        ("--unload-timeout=3", "timeouts.unload", 3),
        ("--connections=4", "limits.connections", 4),
        ("--connect-timeout=5", "limits.connect_timeout", 5),
        ("--stall-timeout=6", "limits.stall_timeout", 6),
        ("--max-archive-entries=7", "limits.max_entries", 7),
        ("--max-archive-expansion=8", "limits.max_expansion", 8),
        # KServe's agent
        ("--enable-puller --config-dir /c", "config_dir", Path("/c")),
        ("--model-dir=/m --enable-puller=true", "model_dir", Path("/m")),
        ("--workers 7", "num_workers", 7),
        ("--component-port=8085", "server_url", "http://127.0.0.1:8085"),
        # the environment, below
        ("", "max_disk", 2 << 30),
        ("", "server", "none"),
        ("--num-workers 3", "num_workers", 3),
    ],
)
def test_each_flag_sets_its_option(arguments: str, field: str, expected: Any) -> None:
    env = {"MAX_DISK": "2Gi", "SERVER": "none", "NUM_WORKERS": "9"}
    variables = {f"CHASSIS_PULLER_{name}": value for name, value in env.items()}
    assert attrgetter(field)(options(*arguments.split(), **variables)) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        ("--server", "other"),
        ("--num-workers", "0"),
        ("--resync", "0"),
        ("--max-disk", "-1"),
        ("--max-disk", "x"),
        ("--port", "70000"),
        ("--component-port", "-1"),
        ("--no",),
    ],
)
def test_invalid_flags_exit_with_status_2(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "chassis-puller: error:" in capsys.readouterr().err


@pytest.mark.parametrize("variable", ["SERVER", "READY_WHEN", "NUM_WORKERS"])
def test_invalid_variables_are_refused(variable: str) -> None:
    with pytest.raises(SystemExit):
        options(**{f"CHASSIS_PULLER_{variable}": "nonsense"})


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("v2", V2Server),
        ("kserve", V2Server),
        ("triton", TritonServer),
        ("tfserving", TfServing),
        ("none", ModelServer),
    ],
)
async def test_each_server_has_its_protocol(name: str, kind: type) -> None:
    assert type(server_of(options("--server", name))) is kind


class Running:
    """The puller as a process."""

    def __init__(self, process: asyncio.subprocess.Process, lines: list[dict[str, Any]], port: int) -> None:
        self.process, self.lines, self.port = process, lines, port

    async def get(self, path: str) -> tuple[int, str]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.port}{path}") as answer,
        ):
            return answer.status, await answer.text()

    async def line(self, **wanted: Any) -> dict[str, Any]:
        """The next log line with all these words."""
        assert self.process.stderr is not None
        async with asyncio.timeout(60):
            async for text in self.process.stderr:
                self.lines.append(json.loads(text))
                if wanted.items() <= self.lines[-1].items():
                    return self.lines[-1]
        raise AssertionError(f"never said {wanted}: {self.lines}")


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[tuple[Running, ConfigVolume, FaultStore]]:
    store = FaultStore()
    await store.start()
    store.objects["m/model.bin"] = b"weights"
    volume = ConfigVolume(tmp_path / "configs")
    volume.write({"m": "s3://bucket/m", "bad": "ftp://nowhere/x"})
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "puller", "--config-dir", volume.path, "--model-dir", tmp_path / "models",
        "--server=none", "--host=127.0.0.1", "--port=0",
        env=os.environ | store.env, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    found = Running(process, [], 0)
    found.port = (await found.line(event="listening"))["address"][1]
    yield found, volume, store
    if process.returncode is None:
        process.kill()
        await process.wait()
    await store.stop()


async def test_the_whole_process(running: tuple[Running, ConfigVolume, FaultStore], tmp_path: Path) -> None:
    """Started, configured, ready, asked about everything, stopped."""
    puller, _, _ = running
    await puller.line(event="model", model="m", state="Loaded")
    await puller.line(event="ready")
    states = [line["state"] for line in puller.lines if line.get("model") == "m"]
    assert states == sorted(states, key=["Pending", "Downloading", "Downloaded", "Loading", "Loaded"].index)
    refused = next(line for line in puller.lines if line["event"] == "config entry refused")
    assert refused["where"] == "models.json[1].modelSpec.storageUri"

    assert (await puller.get("/healthz"))[0] == 200
    assert await puller.get("/readyz") == (200, "ok\n")
    status, text = await puller.get("/v1/models")
    document = json.loads(text)
    fields = {"name", "state", "reason", "message", "since", "attempts", "version"}
    fields |= {"bytes", "bytesDone", "bytesTotal"}
    assert status == 200
    assert all(set(entry) == fields for entry in document["models"])
    assert {entry["name"]: entry["state"] for entry in document["models"]} == {"m": "Loaded", "bad": "Failed"}
    assert document["counts"] == {"Failed": 1, "Loaded": 1}
    _, metrics = await puller.get("/metrics")
    assert 'chassis_puller_models{state="Loaded"} 1.0' in metrics
    assert 'chassis_puller_model_failed{model="bad",reason="InvalidSpec"} 1.0' in metrics
    assert "chassis_puller_disk_bytes 7.0" in metrics
    assert "chassis_puller_ready 1.0" in metrics
    assert 'chassis_puller_steps_total{result="done",step="download"} 1.0' in metrics
    assert (await puller.get("/nothing"))[0] == 404

    puller.process.terminate()
    assert await asyncio.wait_for(puller.process.wait(), 60) == 0
    written = json.loads((tmp_path / "models" / ".status.json").read_text())
    assert {entry["name"]: entry["state"] for entry in written["models"]} == {"m": "Loaded", "bad": "Failed"}


async def test_a_stop_in_the_middle_of_a_download(
    running: tuple[Running, ConfigVolume, FaultStore], tmp_path: Path
) -> None:
    puller, volume, store = running
    await puller.line(event="model", model="m", state="Loaded")
    store.gate = asyncio.Event()
    store.objects["n/model.bin"] = b"n"
    volume.write({"m": "s3://bucket/m", "n": "s3://bucket/n"})
    await puller.line(event="model", model="n", state="Downloading")
    puller.process.terminate()
    assert await asyncio.wait_for(puller.process.wait(), 60) == 0
    store.gate.set()
    assert list((tmp_path / "models" / ".puller" / "new").iterdir()) == []
    assert not (tmp_path / "models" / "n").exists()


def test_a_stop_while_it_is_still_being_imported() -> None:
    program = """
import os, runpy, signal, sys

class Stop:
    def find_spec(self, name, *_):
        if name == "puller.cli":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Stop())
runpy.run_module("puller", run_name="__main__")
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=30, check=False).returncode == 0


async def test_without_a_host_every_address_answers(world: World) -> None:
    """In a cluster with only IPv6, the kubelet comes from an IPv6 address."""
    world.config.write({})
    listening = await endpoints.listen(world.start(), "", 0)
    port = listening.address[1]
    hosts = ["127.0.0.1", "[::1]"] if socket.has_dualstack_ipv6() else ["127.0.0.1"]
    async with aiohttp.ClientSession() as session:
        for host in hosts:
            async with session.get(f"http://{host}:{port}/healthz") as answer:
                assert answer.status == 200
    await listening.close()


def test_a_port_in_use_is_reported_with_status_1(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "puller", "--host=127.0.0.1", f"--port={port}", f"--model-dir={tmp_path}"],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert json.loads(done.stderr.splitlines()[-1])["event"] == "port not available"
