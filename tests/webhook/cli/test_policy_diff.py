"""`chassis policy diff`: what another policy decides otherwise, over manifests and over a cluster.

And the places where a policy may be.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.webhook.cli.scanned import DEPLOYMENTS, RULE, SERVER, cluster, deployment
from tests.webhook.kube.apiserver import FakeApiServer
from webhook.cli import main as cli
from webhook.config.location import read_files
from webhook.errors import UserError

OBSERVE = {"rules.yaml": "profile: observe\n"}
Chassis = Callable[..., tuple[int, str, str]]


@pytest.fixture
def chassis(capsys: pytest.CaptureFixture[str]) -> Chassis:
    def run(*argv: str | Path) -> tuple[int, str, str]:
        status = cli.main([str(each) for each in argv])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def observe(tmp_path: Path) -> Path:
    return written(tmp_path / "observe", OBSERVE)


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    """One that is refused as standard, one that gets probes, one without findings."""
    file = tmp_path / "manifests.yaml"
    hazard, server = deployment("hazard"), deployment("server", SERVER)
    quiet = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "quiet", "namespace": "ml"}}
    kind = {"apiVersion": "apps/v1", "kind": "Deployment"}
    file.write_text(yaml.safe_dump_all([{**kind, **hazard}, {**kind, **server}, quiet]))
    return file


def written(directory: Path, files: dict[str, str]) -> Path:
    directory.mkdir()
    for name, text in files.items():
        (directory / name).write_text(text)
    return directory


def config_map(data: dict[str, str], name: str = "mlchassis-policy", labelled: bool = True) -> dict[str, Any]:
    labels = {"labels": {"mlchassis.dev/policy": "true"}} if labelled else {}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **labels}, "data": data}


# --- differences -----------------------------------------------------------------------------------------


def test_an_edit_that_refuses_more_lists_it_and_ends_with_1(
    chassis: Chassis, observe: Path, manifests: Path
) -> None:
    status, out, _ = chassis("policy", "diff", observe, "built-in", manifests)
    assert status == 1
    assert "  rules.yaml: profile: observe -> standard\n" in out
    assert f"Deployment ml/hazard ({manifests}:1): admitted -> REFUSED\n" in out
    assert f"  {RULE}: audited -> refused\n    at spec.template.spec.containers[0].livenessProbe" in out
    assert f"Deployment ml/server ({manifests}:" in out
    assert "  + spec.template.spec.containers[main].{" in out
    assert "quiet" not in out
    assert out.endswith("3 objects, 2 decided differently, 1 newly refused\n")


def test_the_same_edit_backwards_refuses_nothing(chassis: Chassis, observe: Path, manifests: Path) -> None:
    status, out, _ = chassis("policy", "diff", "built-in", observe, manifests)
    assert status == 0
    assert "REFUSED -> admitted\n" in out
    assert f"  {RULE}: refused -> audited\n" in out
    assert "  - spec.template.spec.containers[main].{" in out
    assert "no longer refused" in out


def test_two_spellings_of_one_policy_differ_in_nothing(
    chassis: Chassis, tmp_path: Path, manifests: Path
) -> None:
    spelled = written(tmp_path / "spelled", {"rules.yaml": "profile: standard\nmodes: {}\n"})
    status, out, _ = chassis("policy", "diff", "built-in", spelled, manifests)
    assert status == 0
    assert out.splitlines()[2:] == ["", "3 objects, 0 decided differently, 0 newly refused"]


def test_settings_inside_overrides_are_named(chassis: Chassis, tmp_path: Path, manifests: Path) -> None:
    override = "overrides: [{{namespaces: [ml], profile: {}}}]\n"
    one = written(tmp_path / "one", {"webhook.yaml": override.format("observe")})
    other = written(tmp_path / "other", {"webhook.yaml": override.format("strict")})
    _, out, _ = chassis("policy", "diff", one, other, manifests)
    assert "  webhook.yaml: overrides[0].profile: observe -> strict\n" in out
    _, out, _ = chassis("policy", "diff", "built-in", other, manifests)
    assert out.count("  webhook.yaml: ") == 2
    assert "  webhook.yaml: overrides[0].profile: not set -> strict\n" in out


def test_for_programs(chassis: Chassis, observe: Path, manifests: Path) -> None:
    _, out, _ = chassis("policy", "diff", observe, "built-in", manifests, "-o", "json")
    told = json.loads(out)
    assert told["old"]["profile"] == "observe"
    assert told["settings"] == [
        {"file": "rules.yaml", "path": "profile", "old": "observe", "new": "standard"}
    ]
    hazard, server = told["objects"]
    assert (hazard["name"], hazard["verdict"]) == ("hazard", {"old": "none", "new": "refused"})
    assert {"rule": RULE, "old": "audited", "new": "refused"}.items() <= hazard["findings"][0].items()
    assert list(server["fields"]) == ["add"]
    assert told["totals"]["newlyRefused"] == 1
    assert told["totals"]["namespaces"] == {
        "ml": {"newly refused": 1, "other fields": 1 + bool(hazard["fields"])}
    }
    assert told["totals"]["rules"][RULE] == {"newly refused": 1}


def test_running_objects_of_a_cluster(
    tmp_path: Path, observe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def diff() -> int:
        async with cluster() as fake:
            await fake.put(DEPLOYMENTS, deployment("hazard"))
            await fake.put(DEPLOYMENTS, deployment("sound", {"name": "main", "image": "busybox"}))
            arguments = ["policy", "diff", str(observe), "built-in", "-A", "-o", "json"]
            kubeconfig = str(fake.kubeconfig(tmp_path))
            return await asyncio.to_thread(cli.main, [*arguments, "--kubeconfig", kubeconfig])

    assert asyncio.run(diff()) == 1
    told = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in told["objects"]] == ["hazard"]
    assert told["totals"]["objects"] == 2


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["-", "-", "{manifests}"], "only one of the two policies can be on standard input"),
        (["{observe}", "built-in", "{manifests}", "-A"], "give manifests or a namespace, not both"),
        (["{observe}", "no/where", "{manifests}"], "no/where: No such file or directory"),
        (["{observe}", "configmap:one", "{manifests}"], "must be configmap:NAMESPACE/NAME"),
    ],
)
def test_what_cannot_be_compared(
    chassis: Chassis, observe: Path, manifests: Path, arguments: list[str], problem: str
) -> None:
    argv = [each.format(observe=observe, manifests=manifests) for each in arguments]
    status, out, err = chassis("policy", "diff", *argv)
    assert (status, out) == (2, "")
    assert problem in err


# --- places of a policy ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "documents",
    [
        [config_map(OBSERVE)],
        [config_map(OBSERVE, labelled=False)],
        [config_map({"a": "b"}, "other", labelled=False), config_map(OBSERVE)],
    ],
    ids=["labelled", "the only one", "the labelled one of two"],
)
def test_a_policy_among_manifests(tmp_path: Path, documents: list[Any]) -> None:
    file = tmp_path / "rendered.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    assert read_files(str(file)) == OBSERVE
    assert read_files("-", io.StringIO(file.read_text()).read) == OBSERVE


def test_one_key_of_a_policy(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(OBSERVE["rules.yaml"])
    assert read_files(str(file)) == OBSERVE


@pytest.mark.parametrize(
    ("documents", "problem"),
    [
        ([config_map(OBSERVE), config_map(OBSERVE, "second")], "it holds 2 ConfigMaps"),
        ([{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}], "it holds no ConfigMap"),
    ],
)
def test_a_file_in_which_no_policy_is_found(tmp_path: Path, documents: list[Any], problem: str) -> None:
    file = tmp_path / "rendered.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    with pytest.raises(UserError, match=problem):
        read_files(str(file))


async def served(fake: FakeApiServer, data: dict[str, str]) -> None:
    await fake.put("/api/v1/namespaces/mlchassis-system/configmaps", config_map(data))


@pytest.mark.parametrize(
    ("data", "status", "said"),
    [
        (OBSERVE, 0, "the policy is good (profile observe"),
        ({"rules.yaml": "profile: lenient\n"}, 2, "rules.yaml: profile: "),
        (None, 2, "there is no ConfigMap mlchassis-system/mlchassis-policy"),
    ],
)
async def test_the_policy_in_the_cluster_is_checked(
    fake: FakeApiServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    data: dict[str, str] | None,
    status: int,
    said: str,
) -> None:
    if data is not None:
        await served(fake, data)
    arguments = ["policy", "check", "configmap:mlchassis-system/mlchassis-policy"]
    kubeconfig = str(fake.kubeconfig(tmp_path))
    assert await asyncio.to_thread(cli.main, [*arguments, "--kubeconfig", kubeconfig]) == status
    assert said in "".join(capsys.readouterr())
