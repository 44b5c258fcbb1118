"""`--against CONTEXT`: manifests reviewed together with the objects of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from policies.kube.json import Json
from tests.webhook.cli.scanned import (
    DEPLOYMENTS,
    SERVER,
    Answer,
    Chassis,
    InCluster,
    cluster,
    deployment,
    serialized,
)
from tests.webhook.kube.apiserver import FakeApiServer

SERVICES = "/api/v1/namespaces/ml/services"
CYCLE = "startup-wait-cycle"
MISSING = "dependency-missing"
WAIT = "until nc -z {} 80; do sleep 2; done"

Run = Callable[..., Awaitable[Answer]]
Rules = Callable[..., Awaitable[list[str]]]


@pytest.fixture
async def fake() -> AsyncIterator[FakeApiServer]:
    """A cluster in which Deployment a waits for Service b, which has no pods."""
    async with cluster() as server:
        for name in ("a", "b"):
            await server.put(SERVICES, service(name))
        await server.put(DEPLOYMENTS, waiting("a", "b"))
        yield server


@pytest.fixture
def run(in_cluster: InCluster, tmp_path: Path) -> Run:
    """Runs a command on manifests against the cluster."""

    async def command(name: str, *objects: Json) -> Answer:
        file = tmp_path / "set.json"
        file.write_text(serialized(*objects))
        output = ("-o", "json")
        return await in_cluster(name, file, "--against", "-", "-n", "ml", *output)

    return command


@pytest.fixture
def rules(run: Run) -> Rules:
    """Reviews manifests; the rules of the findings of Deployment b."""

    async def review(*objects: Json) -> list[str]:
        answer = await run("review", *objects)
        return [each["rule"] for obj in answer.json if obj["name"] == "b" for each in obj["findings"]]

    return review


def service(name: str, **spec: object) -> Json:
    metadata = {"name": name, "namespace": "ml"}
    return {"metadata": metadata, "spec": {"selector": {"app": name}, "clusterIP": "", **spec}}


def waiting(name: str, host: str = "", **status: int) -> Json:
    """A Deployment; with a host, its init container waits for it."""
    obj = deployment(name, SERVER)
    if host:
        wait = {"name": "wait", "image": "busybox", "command": ["sh", "-c", WAIT.format(host)]}
        obj["spec"]["template"]["spec"]["initContainers"] = [wait]
    return {**obj, "status": status}


def manifest(obj: Json, kind: str = "Deployment", api_version: str = "apps/v1") -> Json:
    """The object as in a file: with its kind, without namespace and status."""
    metadata = {key: obj["metadata"][key] for key in ("name", "labels") if key in obj["metadata"]}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": obj["spec"]}


def reading(kind: str, name: str) -> Json:
    """A Deployment that needs a ConfigMap or Secret."""
    return manifest(deployment("b", {**SERVER, "envFrom": [{f"{kind}Ref": {"name": name}}]}))


async def test_a_cycle_through_the_cluster_is_refused_at_the_manifest_that_closes_it(
    run: Run, rules: Rules
) -> None:
    assert (await rules(manifest(waiting("b", "a")))).count(CYCLE) == 1
    assert (await run("review", manifest(waiting("b", "a")))).status == 1
    assert CYCLE not in await rules(manifest(waiting("b")))
    assert (await run("review", manifest(waiting("b")))).status == 0


async def test_manifests_replace_the_cluster_s_objects(run: Run) -> None:
    answer = await run("review", manifest(waiting("b", "a")), manifest(waiting("a")))
    assert answer.status == 0, "Deployment a no longer waits once the set is applied"


@pytest.mark.parametrize(("ready", "status"), [({}, 1), ({"readyReplicas": 1}, 0)], ids=["stuck", "running"])
async def test_an_applied_member_of_a_cycle_keeps_its_finding_as_a_warning_if_it_runs(
    run: Run, rules: Rules, fake: FakeApiServer, ready: dict[str, int], status: int
) -> None:
    await fake.put(DEPLOYMENTS, waiting("b", "a", **ready))
    assert (await rules(manifest(waiting("b", "a")))).count(CYCLE) == 1
    answer = await run("review", manifest(waiting("b", "a")))
    assert answer.status == status
    assert ("Deployment b runs now" in answer.out) is (status == 0)


async def test_omitted_fields_of_a_manifest_stay(rules: Rules, fake: FakeApiServer) -> None:
    """A Service keeps its address: a wait for it leads to the workload behind it."""
    await fake.put(SERVICES, service("a", clusterIP="10.0.0.7"))
    plain = manifest(service("a"), "Service", "v1")
    del plain["spec"]["clusterIP"]
    assert CYCLE in await rules(manifest(waiting("b", "10.0.0.7")), plain)


async def test_the_graph_has_the_cluster_and_the_set(run: Run) -> None:
    answer = await run("graph", manifest(waiting("b", "a")))
    assert {"ml/Deployment/a", "ml/Deployment/b"} <= {node["id"] for node in answer.json["nodes"]}
    assert (len(answer.json["cycles"]), answer.status) == (1, 1)
    assert (await run("graph", manifest(waiting("a")), manifest(waiting("b", "a")))).status == 0


async def test_missing_dependencies_are_named(rules: Rules, fake: FakeApiServer) -> None:
    for kind in ("configMap", "secret"):
        await fake.put(f"/api/v1/namespaces/ml/{kind.lower()}s", service("there"))
        assert MISSING not in await rules(reading(kind, "there"))
        assert MISSING in await rules(reading(kind, "gone"))
    waits = manifest(waiting("b", "nobody"))
    assert MISSING in await rules(waits)
    assert MISSING not in await rules(waits, manifest(service("nobody"), "Service", "v1"))
    operated = {"apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "metadata": {"name": "nobody"}}
    assert MISSING not in await rules(waits, operated), "an operator may create the Service"
    assert MISSING not in await rules(manifest(waiting("b", "db.other.svc")))


async def test_secrets_that_may_not_be_listed_are_not_called_missing(
    run: Run, rules: Rules, fake: FakeApiServer
) -> None:
    await fake.forbid("/api/v1/namespaces/ml/secrets")
    assert MISSING not in await rules(reading("secret", "gone"))
    assert "missing Secrets aren't reported" in (await run("review", reading("secret", "gone"))).err


@pytest.mark.parametrize("generator", ["", "kustomization.yaml", "Chart.yaml"])
def test_a_directory_is_complete_if_it_has_the_namespace_and_no_generator(
    generator: str, tmp_path: Path, chassis: Chassis
) -> None:
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}}
    api = reading("configMap", "gone")
    api["metadata"]["namespace"] = "ml"
    file = tmp_path / "set.json"
    near = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gon", "namespace": "ml"}}
    file.write_text(serialized(space, api, near))
    if generator:
        (tmp_path / generator).write_text("resources: [set.json]")
    assert (MISSING in chassis("review", tmp_path, "-o", "json").out) is not bool(generator)
    assert MISSING not in chassis("review", file, "-o", "json").out, (
        "a pipeline may review only changed files"
    )


async def test_kinds_that_may_not_be_read_are_named_and_do_not_refuse(run: Run, fake: FakeApiServer) -> None:
    await fake.forbid("/api/v1/services", SERVICES)
    answer = await run("review", manifest(waiting("b", "a")))
    assert answer.status == 0
    assert "Service" in answer.err


@pytest.mark.parametrize("argv", ["review x.yaml --kubeconfig k", "review x.yaml -n ml", "graph --against c"])
def test_flags_that_do_not_go_together(argv: str, chassis: Chassis) -> None:
    answer = chassis(*argv.split())
    assert answer.status == 2
    assert "--against" in answer.err
