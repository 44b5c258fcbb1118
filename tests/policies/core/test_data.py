"""The data files next to the code: whole, read as strictly as a user's policy, read late, in the wheel."""

import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
from hatchling.builders.wheel import WheelBuilder
from msgspec import ValidationError

from policies.accelerators.vendors import Vendor, known_vendors
from policies.containers.sidecars import SidecarProgram, known_sidecars
from policies.core import data
from policies.core.pydantic_models import validated
from policies.core.settings import S
from policies.core.workloads import Workload, known_workloads
from policies.kube.group_kinds import KUBEFLOW_JOBS
from policies.kube.yaml_text import load_policy
from policies.probes.preset import Preset, known_presets
from webhook.config.load import rules

ROOT = Path(__file__).parents[3]
OPENED = (
    "import sys\n"
    "opened = []\n"
    "sys.addaudithook(lambda event, args: event == 'open' and opened.append(str(args[0])))\n"
    "sys.dont_write_bytecode = True\n"
    "from policies.core import data\n"
    "data.cache_from_source = lambda file: '/nowhere' + file\n"
)
"""The start of a program that parses each file, as nothing is kept of it, and notes what is opened."""
DATA = sorted(path for room in ("policies", "webhook") for path in (ROOT / room).rglob("*.yaml"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_a_file_means_the_same_to_the_strict_reader() -> None:
    """No key twice, no date, no `yes` that is a boolean to one reader and text to the other."""
    texts = {path: path.read_text() for path in DATA}
    assert [name(path) for path, text in texts.items() if load_policy(text) != data.parsed(text)] == []


def test_every_file_is_somebodys() -> None:
    presets = {f"policies/servers/{preset}.yaml" for preset in known_presets()}
    tables = {
        "policies/accelerators/sharing.yaml",
        "policies/accelerators/gpu_images.yaml",
        "policies/accelerators/image_vendors.yaml",
        "policies/accelerators/rank_launchers.yaml",
        "policies/accelerators/products.yaml",
        "policies/accelerators/vendors.yaml",
        "policies/autoscaling/metrics.yaml",
        "policies/autoscaling/owners.yaml",
        "policies/autoscaling/queues.yaml",
        "policies/commands/clients.yaml",
        "policies/containers/sidecars.yaml",
        "policies/core/data_directories.yaml",
        "policies/core/disks.yaml",
        "policies/core/lifecycles.yaml",
        "policies/core/volumes.yaml",
        "policies/core/resources.yaml",
        "policies/core/retired_rules.yaml",
        "policies/core/workloads.yaml",
        "policies/disruption/inits.yaml",
        "policies/disruption/launchers.yaml",
        "policies/disruption/quorums.yaml",
        "policies/disruption/single_state.yaml",
        "policies/core/network_policies.yaml",
        "policies/core/spot_nodes.yaml",
        "policies/jobs/backup_programs.yaml",
        "policies/jobs/hangs.yaml",
        "policies/jobs/log_stores.yaml",
        "policies/jobs/misplaced_settings.yaml",
        "policies/jobs/rendezvous.yaml",
        "policies/jobs/shared_memory.yaml",
        "policies/jobs/training_programs.yaml",
        "policies/network/gateways.yaml",
        "policies/quotas/pod_security.yaml",
        "policies/relations/secret_writers.yaml",
        "policies/relations/references.yaml",
        "policies/relations/withdrawn_images.yaml",
        "policies/containers/entrypoints.yaml",
        "policies/disruption/task_workers.yaml",
        "policies/jobs/orchestrated_programs.yaml",
        "policies/network/bodies.yaml",
        "policies/quotas/heaps.yaml",
        "policies/network/meshes.yaml",
        "policies/network/skipped_namespaces.yaml",
        "policies/jobs/uploading_programs.yaml",
        "policies/network/named_by_operators.yaml",
        "policies/probes/preparing_programs.yaml",
        "policies/probes/first_party.yaml",
        "policies/probes/gated_models.yaml",
        "policies/probes/heavy_commands.yaml",
        "policies/probes/published.yaml",
        "policies/probes/slow_programs.yaml",
        "policies/core/builtin_kinds.yaml",
        "policies/core/serving_runtimes.yaml",
        "policies/relations/group_joins.yaml",
        "policies/relations/migrations.yaml",
        "policies/relations/rights.yaml",
        "policies/startup/daemons.yaml",
        "policies/startup/images.yaml",
        "policies/startup/removed_programs.yaml",
        "policies/webhooks/critical.yaml",
        "policies/probes/noticed.yaml",
    }
    assert {name(path) for path in DATA if path.stem not in rules()} == presets | tables


def test_each_document_of_a_rule_is_next_to_a_module_with_the_rule() -> None:
    documents = {path.stem: path for path in DATA if path.stem in rules()}
    assert documents.keys() == rules().keys()
    assert {path.parent for path in documents.values()} == {
        *(path.parent for path in (ROOT / "policies").glob("*/rules/*.py")),
        ROOT / "webhook" / "config",
    }


def test_the_tables_are_of_their_models() -> None:
    assert {type(each) for each in known_presets().values()} == {Preset}
    assert {type(each) for each in known_vendors().values()} == {Vendor}
    assert list(known_vendors()) == ["nvidia", "amd", "gaudi", "tpu", "neuron", "intel", "dri"]
    assert {type(each) for each in known_workloads()} == {Workload}
    assert {type(each) for each in known_sidecars()} == {SidecarProgram}
    groups = {
        each.group_kind for each in known_workloads() if each.api_group == "kubeflow.org" and each.group
    }
    assert set(KUBEFLOW_JOBS) == groups


def test_a_table_is_read_once() -> None:
    assert known_presets() is known_presets()


def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "server.yaml").write_text("livePath: /health\nport: high\n")
    (tmp_path / "odd" / "note.txt").write_text("no table")
    monkeypatch.setattr(data, "_folder", lambda _: tmp_path)
    with pytest.raises(ValidationError, match="port"):
        data.load_folder(Preset, "policies.probes", "odd")


def _read_twice(model: type[S], entry: object) -> S:
    """msgspec's result, which must be pydantic's."""
    read = msgspec.convert(entry, model)
    assert validated(model, entry) == read
    return read


def test_a_table_would_be_accepted_from_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """msgspec checks the types of a table. pydantic checks patterns and limits, too."""
    monkeypatch.setattr(data, "_typed", _read_twice)
    for load in data._TABLES:
        load.__wrapped__()  # type: ignore[attr-defined]


def test_the_document_of_a_rule_would_be_accepted_from_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_typed", _read_twice)
    for rule in rules().values():
        assert rule.load() == rule.document, rule.id


def test_the_command_line_starts_without_reading_them() -> None:
    program = (
        OPENED + "from webhook.cli.main import main\n"
        "try:\n"
        "    main(sys.argv[1:])\n"
        "except SystemExit:\n"
        "    pass\n"
        "print([path for path in opened if path.endswith('.yaml') and 'policies' in path])\n"
    )

    def read_by(*arguments: str) -> str:
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout

    assert read_by("--version").splitlines()[-1] == "[]"
    reviewed = read_by("review", str(ROOT / "tests/policies/probes/standard-probes/vllm/input.yaml"))
    assert "servers/vllm.yaml" in reviewed, "the hook sees what is opened"


def test_a_server_reads_every_table_before_it_forks() -> None:
    program = (
        OPENED + "from webhook.config.load import load\n"
        "from webhook.server import worker\n"
        "load({})\n"
        "data.load_tables()\n"
        "print(*opened, sep='\\n')\n"
    )
    read = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    tables = {
        str(path) for path in DATA if path.stem not in rules() and path.is_relative_to(ROOT / "policies")
    }
    by_another_reader = {str(ROOT / "policies" / "commands" / "clients.yaml")}
    assert tables - by_another_reader <= set(read.stdout.splitlines())


def test_the_wheel_holds_them() -> None:
    builder = WheelBuilder(str(ROOT))
    shipped = {file.distribution_path for file in builder.recurse_included_files()}
    assert {name(path) for path in DATA} <= shipped
    assert {name(path) for path in (ROOT / "policies").rglob("*.md")} <= shipped
    assert str(files("policies").joinpath("servers")).endswith("policies/servers")


def test_a_parsed_file_is_kept_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "kept"))
    parses = Mock(side_effect=data.parsed)
    monkeypatch.setattr(data, "parsed", parses)
    file = tmp_path / "table.yaml"
    file.write_text("a: 1")

    assert [data._read(file), data._read(file)] == [{"a": 1}, {"a": 1}]
    assert parses.call_count == 1

    file.write_text("a: 12")
    assert data._read(file) == {"a": 12}
    os.utime(file, (1, 1))
    assert data._read(file) == {"a": 12}
    assert parses.call_count == 3, "a new size and a new time"

    (kept,) = (path for path in (tmp_path / "kept").rglob("*") if path.is_file())
    kept.write_bytes(kept.read_bytes()[:-1])
    assert data._read(file) == {"a": 12}, "half a file"


@pytest.mark.parametrize("reason", ["a file is in the way", "PYTHONDONTWRITEBYTECODE"])
def test_a_file_is_read_where_nothing_can_be_kept(
    reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", reason == "PYTHONDONTWRITEBYTECODE")
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "kept"))
    if reason == "a file is in the way":
        (tmp_path / "kept").write_text("")
    file = tmp_path / "table.yaml"
    file.write_text("a: 1")
    assert [data._read(file), data._read(file)] == [{"a": 1}, {"a": 1}]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file() and path != tmp_path / "kept"] == [
        "table.yaml"
    ]


def test_an_option_is_refused_from_one_version_on_or_up_to_one() -> None:
    options = [each for preset in known_presets().values() for each in preset.refused_options]
    assert options
    assert [each.flags for each in options if bool(each.since) is bool(each.newer_than)] == []
