"""`--against CONTEXT`: manifests judged next to the objects of the cluster that they go into."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from policies.kube.json import Json
from tests.webhook.cli.scanned import DEPLOYMENTS, SERVER, Answer, cluster, deployment
from tests.webhook.kube.apiserver import FakeApiServer
from webhook.cli import main as cli

SERVICES = "/api/v1/namespaces/ml/services"
CYCLE = "startup-wait-cycle"

Run = Callable[..., Awaitable[Answer]]


@pytest.fixture
async def fake() -> AsyncIterator[FakeApiServer]:
    """A cluster in which Deployment a waits for Service b, which nobody is behind."""
    async with cluster() as server:
        for name in ("a", "b"):
            await server.put(SERVICES, service(name))
        await server.put(DEPLOYMENTS, waiting("a", "b"))
        yield server


@pytest.fixture
def run(fake: FakeApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command on manifests against the cluster; in a thread, for the server needs this one's loop."""
    kubeconfig = fake.kubeconfig(tmp_path)

    async def command(name: str, objects: list[Json], *argv: str) -> Answer:
        file = tmp_path / "set.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        arguments = [name, str(file), "--against", "-", "--kubeconfig", str(kubeconfig), *argv]
        status = await asyncio.to_thread(cli.main, arguments)
        return Answer(status, *capsys.readouterr())

    return command


def service(name: str, **spec: object) -> Json:
    metadata = {"name": name, "namespace": "ml"}
    return {"metadata": metadata, "spec": {"selector": {"app": name}, "clusterIP": "", **spec}}


def waiting(name: str, host: str = "", **status: int) -> Json:
    """A Deployment whose init container waits for a host, if one is named."""
    obj = deployment(name, SERVER)
    if host:
        wait = {"name": "wait", "image": "busybox", "command": ["sh", "-c", WAIT.format(host)]}
        obj["spec"]["template"]["spec"]["initContainers"] = [wait]
    return {**obj, "status": status}


WAIT = "until nc -z {} 80; do sleep 2; done"


def manifest(obj: Json, kind: str = "Deployment", api_version: str = "apps/v1") -> Json:
    """An object as a file has it: with its kind, and without a namespace or a status."""
    metadata = {key: obj["metadata"][key] for key in ("name", "labels") if key in obj["metadata"]}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": obj["spec"]}


def rules_of(answer: Answer) -> dict[str, list[str]]:
    """The ids of findings by the name of their object."""
    return {each["name"]: [f["rule"] for f in each["findings"]] for each in json.loads(answer.out)}


async def test_a_cycle_through_the_cluster_is_refused_at_the_manifest_that_closes_it(run: Run) -> None:
    answer = await run("review", [manifest(waiting("b", "a"))], "-n", "ml", "-o", "json")
    assert rules_of(answer)["b"].count(CYCLE) == 1
    assert answer.status == 1
    sound = await run("review", [manifest(waiting("b"))], "-n", "ml", "-o", "json")
    assert CYCLE not in rules_of(sound)["b"]
    assert sound.status == 0


async def test_manifests_take_the_place_of_the_cluster_s_objects(run: Run) -> None:
    objects = [manifest(waiting("b", "a")), manifest(waiting("a"))]
    answer = await run("review", objects, "-n", "ml", "-o", "json")
    assert answer.status == 0, "Deployment a no longer waits once the set is applied"


async def test_a_manifest_that_is_in_the_cluster_already_keeps_its_finding(
    run: Run, fake: FakeApiServer
) -> None:
    """Of a cycle the last member by name is named, where it is the only one that the set can change."""
    await fake.put(DEPLOYMENTS, waiting("b", "a"))
    answer = await run("review", [manifest(waiting("b", "a"))], "-n", "ml", "-o", "json")
    assert rules_of(answer)["b"].count(CYCLE) == 1


async def test_running_members_make_a_cycle_a_warning(run: Run, fake: FakeApiServer) -> None:
    await fake.put(DEPLOYMENTS, waiting("b", "a", readyReplicas=1))
    answer = await run("review", [manifest(waiting("b", "a"))], "-n", "ml", "-o", "json")
    assert rules_of(answer)["b"].count(CYCLE) == 1
    assert answer.status == 0
    assert "Deployment b runs now" in answer.out


async def test_fields_that_a_manifest_leaves_out_stay(run: Run, fake: FakeApiServer) -> None:
    """A Service keeps its address: a wait for it leads to the workload behind it."""
    await fake.put(SERVICES, service("a", clusterIP="10.0.0.7"))
    plain = manifest(service("a"), "Service", "v1")
    del plain["spec"]["clusterIP"]
    answer = await run("review", [manifest(waiting("b", "10.0.0.7")), plain], "-n", "ml", "-o", "json")
    assert CYCLE in rules_of(answer)["b"]


async def test_the_graph_has_the_cluster_and_the_set(run: Run) -> None:
    answer = await run("graph", [manifest(waiting("b", "a"))], "-n", "ml", "-o", "json")
    graph = json.loads(answer.out)
    assert {"ml/Deployment/a", "ml/Deployment/b"} <= {node["id"] for node in graph["nodes"]}
    assert len(graph["cycles"]) == 1
    assert answer.status == 1
    broken = await run("graph", [manifest(waiting("a")), manifest(waiting("b", "a"))], "-n", "ml")
    assert broken.status == 0


MISSING = "dependency-missing"


def reading(kind: str, name: str) -> Json:
    """A Deployment that needs a ConfigMap or Secret."""
    return manifest(deployment("b", {**SERVER, "envFrom": [{f"{kind}Ref": {"name": name}}]}))


async def test_what_exists_nowhere_is_named(run: Run, fake: FakeApiServer) -> None:
    for kind in ("configMap", "secret"):
        await fake.put(f"/api/v1/namespaces/ml/{kind.lower()}s", service("there"))
        there = await run("review", [reading(kind, "there")], "-n", "ml", "-o", "json")
        gone = await run("review", [reading(kind, "gone")], "-n", "ml", "-o", "json")
        assert MISSING not in rules_of(there)["b"]
        assert MISSING in rules_of(gone)["b"]
    waits = await run("review", [manifest(waiting("b", "nobody"))], "-n", "ml", "-o", "json")
    assert MISSING in rules_of(waits)["b"]
    made = manifest(service("nobody"), "Service", "v1")
    both = await run("review", [manifest(waiting("b", "nobody")), made], "-n", "ml", "-o", "json")
    assert MISSING not in rules_of(both)["b"]
    elsewhere = manifest(waiting("b", "db.other.svc"))
    assert MISSING not in rules_of(await run("review", [elsewhere], "-n", "ml", "-o", "json"))["b"]


async def test_an_operator_of_the_set_may_make_what_is_missing(run: Run) -> None:
    operated = {"apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "metadata": {"name": "nobody"}}
    objects = [manifest(waiting("b", "nobody")), operated]
    assert MISSING not in rules_of(await run("review", objects, "-n", "ml", "-o", "json"))["b"]


async def test_secrets_that_may_not_be_listed_are_not_called_missing(run: Run, fake: FakeApiServer) -> None:
    await fake.forbid("/api/v1/namespaces/ml/secrets")
    answer = await run("review", [reading("secret", "gone")], "-n", "ml", "-o", "json")
    assert MISSING not in rules_of(answer)["b"]
    assert "a missing Secret is not reported" in answer.err


@pytest.mark.parametrize("beside", ["", "kustomization.yaml", "Chart.yaml"])
def test_a_directory_is_whole_if_it_makes_the_namespace_and_all_of_it_is_read(
    beside: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}}
    api = reading("configMap", "gone")
    api["metadata"]["namespace"] = "ml"
    file = tmp_path / "set.json"
    near = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gon", "namespace": "ml"}}
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [space, api, near]}))
    if beside:
        (tmp_path / beside).write_text("resources: [set.json]")

    def found(path: Path) -> bool:
        cli.main(["review", str(path), "-o", "json"])
        return MISSING in capsys.readouterr().out

    assert found(tmp_path) is not bool(beside)
    assert not found(file), "a pipeline may review changed files only"


async def test_what_may_not_be_read_is_named_and_no_reason_to_refuse(run: Run, fake: FakeApiServer) -> None:
    await fake.forbid("/api/v1/services", SERVICES)
    answer = await run("review", [manifest(waiting("b", "a"))], "-n", "ml", "-o", "json")
    assert answer.status == 0
    assert "Service" in answer.err


@pytest.mark.parametrize(
    "argv",
    [
        ["review", "x.yaml", "--kubeconfig", "k"],
        ["review", "x.yaml", "-n", "ml"],
        ["graph", "--against", "c"],
    ],
)
def test_flags_that_do_not_go_together(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    assert "--against" in capsys.readouterr().err
