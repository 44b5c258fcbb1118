"""Liveness of trainings by the file that they write."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from policies.core.facts import Facts
from policies.core.settings import default_settings
from policies.kube.json import Json, dig
from policies.probes import standard_probes
from policies.probes.advice import advise
from policies.probes.standard_probes_settings import StandardProbes
from policies.probes.training_progress import parse_progress
from tests.manifests import manifest

SETTINGS = default_settings(StandardProbes)
KEY = "mlchassis.dev/progress"


def pod(annotations: dict[str, str], *containers: Json) -> Json:
    main = {"name": "train", "image": "registry.example/train:1", "command": ["python3", "train.py"]}
    spec = {"restartPolicy": "Never", "containers": list(containers) or [main]}
    return manifest("Pod", "train", spec, annotations=annotations)


def probe(given: Json, index: int = 0) -> Json | None:
    after = standard_probes.mutate(given, SETTINGS, Facts())
    assert standard_probes.mutate(after, SETTINGS, Facts()) is after
    found: Json | None = dig(after, "spec", "containers", index, "livenessProbe")
    return found


def test_a_training_gets_a_liveness_probe_by_its_annotation_only() -> None:
    assert probe(pod({})) is None
    found = probe(pod({KEY: "file /out 45m"}))
    assert found is not None
    assert found["initialDelaySeconds"] == 45 * 60
    assert "-mmin -45" in found["exec"]["command"][2]


def test_a_start_that_takes_longer_than_the_silence_is_not_ended() -> None:
    found = probe(pod({KEY: "file /out 45m", "mlchassis.dev/model-size": "200Gi"}))
    assert found is not None
    assert found["initialDelaySeconds"] == 60 + 200 * 1024 // 64


def test_a_written_probe_stays() -> None:
    own = {"tcpSocket": {"port": 1}}
    given = pod({KEY: "file /out 45m"}, {"name": "a", "image": "b", "livenessProbe": own})
    assert probe(given) == own


def test_the_annotation_of_a_container_is_for_that_one() -> None:
    two = [{"name": name, "image": "registry.example/a:1"} for name in ("log", "train")]
    given = pod({f"{KEY}.train": "file /out 10m"}, *two)
    assert probe(given) is None
    assert probe(given, 1) is not None
    assert probe(pod({KEY: "file /out 10m"}, *two), 1) is None


@pytest.mark.parametrize(
    "value",
    ["log 10m", "file out 10m", "file / 10m", "file /out", "file /out soon", "file /out 10s", "file /out 9d"],
)
def test_other_values_have_no_effect_and_a_warning(value: str) -> None:
    given = pod({KEY: value})
    assert probe(given) is None
    [finding] = advise(given, SETTINGS, Facts())
    assert finding.path == f"metadata.annotations[{KEY}]"


def test_a_name_of_no_container_is_reported() -> None:
    [finding] = advise(pod({f"{KEY}.trian": "file /out 10m"}), SETTINGS, Facts())
    assert "none of the pod's main containers" in finding.message


def run(path: Path) -> int:
    """The exit status of the probe, run as the kubelet does."""
    command = parse_progress(f"file {path} 10m").probe(0)["exec"]["command"]
    return subprocess.run(command, check=False).returncode


def test_the_command_passes_while_something_is_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(out) == 1
    step = out / "checkpoint-1" / "state.pt"
    step.parent.mkdir(parents=True)
    step.write_text("1")
    assert run(out) == 0
    old = time.time() - 3600
    for each in (step, step.parent, out):
        os.utime(each, (old, old))
    assert run(out) == 1
    os.utime(step)
    assert run(out) == 0
