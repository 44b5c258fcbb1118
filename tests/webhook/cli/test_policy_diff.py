"""`chassis policy diff` over manifests and a cluster, and the places of a policy."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.manifests import manifest
from tests.webhook.cli.scanned import DEPLOYMENTS, MUTATOR, RULE, SERVER, Chassis, InCluster, deployment
from tests.webhook.kube.apiserver import FakeApiServer
from webhook.config.location import read_files
from webhook.errors import UserError

OBSERVE = {"rules.yaml": "profile: observe\n"}


def written(directory: Path, files: dict[str, str]) -> Path:
    directory.mkdir()
    for name, text in files.items():
        (directory / name).write_text(text)
    return directory


@pytest.fixture
def observe(tmp_path: Path) -> Path:
    return written(tmp_path / "observe", OBSERVE)


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    """One that is refused under standard, one that gets probes, one without findings."""
    file = tmp_path / "manifests.yaml"
    kind = {"apiVersion": "apps/v1", "kind": "Deployment"}
    quiet = manifest("ConfigMap", "quiet", namespace="ml")
    objects = [{**kind, **deployment("hazard")}, {**kind, **deployment("server", SERVER)}, quiet]
    file.write_text(yaml.safe_dump_all(objects))
    return file


# --- differences -----------------------------------------------------------------------------------------


def test_an_edit_that_refuses_more_ends_with_1(chassis: Chassis, observe: Path, manifests: Path) -> None:
    status, out, _ = chassis("policy", "diff", observe, "built-in", manifests)
    assert status == 1
    assert "  rules.yaml: profile: observe -> standard\n" in out
    assert f"Deployment ml/hazard ({manifests}:1): admitted -> REFUSED\n" in out
    assert f"  {RULE}: audited -> refused\n    at spec.template.spec.containers[0].livenessProbe" in out
    assert f"Deployment ml/server ({manifests}:" in out
    assert "  + spec.template.spec.containers[main].{" in out
    assert "quiet" not in out
    assert out.endswith("3 objects, 2 decided differently, 1 newly refused\n")


def test_the_reverse_edit_refuses_no_object(chassis: Chassis, observe: Path, manifests: Path) -> None:
    status, out, _ = chassis("policy", "diff", "built-in", observe, manifests)
    assert status == 0
    assert "REFUSED -> admitted\n" in out
    assert f"  {RULE}: refused -> audited\n" in out
    assert "  - spec.template.spec.containers[main].{" in out
    assert "no longer refused" in out


def test_equal_policies_have_no_differences(chassis: Chassis, tmp_path: Path, manifests: Path) -> None:
    equal = written(tmp_path / "equal", {"rules.yaml": "profile: standard\nmodes: {}\n"})
    status, out, _ = chassis("policy", "diff", "built-in", equal, manifests)
    assert status == 0
    assert out.splitlines()[2:] == ["", "3 objects, 0 decided differently, 0 newly refused"]


def test_the_digest_in_our_annotation_is_no_difference(chassis: Chassis, tmp_path: Path) -> None:
    """Any edit of the policy changes the digest, also one that changes no decision about the pod."""
    edited = written(tmp_path / "edited", {"rules.yaml": "modes: {quota-exceeded: audit}\n"})
    probed = written(tmp_path / "probed", {"standard-probes.yaml": "startupFactor: 2\n"})
    pod = tmp_path / "pod.yaml"
    pod.write_text(yaml.safe_dump(manifest("Pod", "llm", {"containers": [SERVER]}, namespace="ml")))
    status, out, _ = chassis("policy", "diff", "built-in", edited, pod)
    assert (status, out.splitlines()[-1]) == (0, "1 object, 0 decided differently, 0 newly refused")
    out = chassis("policy", "diff", "built-in", probed, pod).out
    assert "1 object, 1 decided differently" in out
    assert "mlchassis.dev/changed" not in out


def test_settings_inside_overrides_are_named(chassis: Chassis, tmp_path: Path, manifests: Path) -> None:
    override = "overrides: [{{namespaces: [ml], profile: {}}}]\n"
    one = written(tmp_path / "one", {"webhook.yaml": override.format("observe")})
    other = written(tmp_path / "other", {"webhook.yaml": override.format("strict")})
    out = chassis("policy", "diff", one, other, manifests).out
    assert "  webhook.yaml: overrides[0].profile: observe -> strict\n" in out
    out = chassis("policy", "diff", "built-in", other, manifests).out
    assert out.count("  webhook.yaml: ") == 2
    assert "  webhook.yaml: overrides[0].profile: not set -> strict\n" in out


def test_json(chassis: Chassis, observe: Path, manifests: Path) -> None:
    found = chassis("policy", "diff", observe, "built-in", manifests, "-o", "json").json
    assert found["old"]["profile"] == "observe"
    assert found["settings"] == [
        {"file": "rules.yaml", "path": "profile", "old": "observe", "new": "standard"}
    ]
    hazard, server = found["objects"]
    assert (hazard["name"], hazard["verdict"]) == ("hazard", {"old": "none", "new": "refused"})
    assert {"rule": RULE, "old": "audited", "new": "refused"}.items() <= hazard["findings"][0].items()
    assert list(server["fields"]) == ["add"]
    totals = found["totals"]
    assert totals["newlyRefused"] == 1
    assert totals["namespaces"] == {"ml": {"newly refused": 1, "other fields": 1 + bool(hazard["fields"])}}
    assert totals["rules"][RULE] == {"newly refused": 1}


async def test_the_objects_of_a_cluster(fake: FakeApiServer, in_cluster: InCluster, observe: Path) -> None:
    await fake.put(DEPLOYMENTS, deployment("hazard"))
    await fake.put(DEPLOYMENTS, deployment("sound", {"name": "main", "image": "busybox"}))
    answer = await in_cluster("policy", "diff", observe, "built-in", "-A", "-o", "json")
    assert answer.status == 1
    assert [each["name"] for each in answer.json["objects"]] == ["hazard"]
    assert answer.json["totals"]["objects"] == 2


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("- - {manifests}", "only one of the two policies can be on standard input"),
        ("{observe} built-in {manifests} -A", "specify manifests or a namespace, not both"),
        ("{observe} no/where {manifests}", "no/where: No such file or directory"),
        ("{observe} configmap:one {manifests}", "must be configmap:NAMESPACE/NAME"),
    ],
)
def test_bad_input(chassis: Chassis, observe: Path, manifests: Path, arguments: str, problem: str) -> None:
    argv = arguments.format(observe=observe, manifests=manifests).split()
    status, out, err = chassis("policy", "diff", *argv)
    assert (status, out) == (2, "")
    assert problem in err


# --- places of a policy ----------------------------------------------------------------------------------


def config_map(data: dict[str, str], name: str = "mlchassis-policy", labelled: bool = True) -> dict[str, Any]:
    labels: dict[str, Any] = {"labels": {"mlchassis.dev/policy": "true"}} if labelled else {}
    return manifest("ConfigMap", name, data=data, **labels)


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


def test_one_key_of_a_policy(observe: Path) -> None:
    assert read_files(str(observe / "rules.yaml")) == OBSERVE


@pytest.mark.parametrize(
    ("documents", "problem"),
    [
        ([config_map(OBSERVE), config_map(OBSERVE, "second")], "it contains 2 ConfigMaps"),
        ([manifest("Secret", "s", version="v1")], "it contains no ConfigMap"),
    ],
)
def test_a_file_without_a_single_policy(tmp_path: Path, documents: list[Any], problem: str) -> None:
    file = tmp_path / "rendered.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    with pytest.raises(UserError, match=problem):
        read_files(str(file))


@pytest.mark.parametrize(
    ("data", "status", "line"),
    [
        (OBSERVE, 0, "the policy is valid (profile observe"),
        ({"rules.yaml": "profile: lenient\n"}, 2, "rules.yaml: profile: "),
        (None, 2, "there is no ConfigMap mlchassis-system/mlchassis-policy"),
    ],
)
async def test_the_policy_in_the_cluster_is_checked(
    fake: FakeApiServer, in_cluster: InCluster, data: dict[str, str] | None, status: int, line: str
) -> None:
    if data is not None:
        await fake.put(MUTATOR, config_map(data))
    answer = await in_cluster("policy", "check", "configmap:mlchassis-system/mlchassis-policy")
    assert answer.status == status
    assert line in answer.out + answer.err
