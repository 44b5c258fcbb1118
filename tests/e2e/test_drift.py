"""GitOps tools see no change of ours that they would undo."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.e2e.api import JSON
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.test_examples import NATIVE, REFUSED, documents

pytestmark = pytest.mark.e2e
TRIES = 5
SOUND = [path for path in NATIVE if path.name not in REFUSED]


def specs(control_plane: ControlPlane, text: str) -> list[JSON]:
    """The stored objects of a manifest, without the scheduler's fields."""
    answer = yaml.safe_load(control_plane.kubectl("get", "-f", "-", "-o", "yaml", stdin=text).stdout)
    items: list[JSON] = answer["items"] if answer["kind"] == "List" else [answer]
    return [
        {key: value for key, value in item.get("spec", {}).items() if key != "nodeName"} for item in items
    ]


@pytest.mark.parametrize(
    "flags", [[], ["--server-side", "--field-manager=gitops"]], ids=["client-side", "server-side"]
)
@pytest.mark.parametrize("path", SOUND, ids=lambda path: path.stem)
def test_a_second_apply_shows_no_difference(
    control_plane: ControlPlane, chassis: Chassis, namespace: str, path: Path, flags: list[str]
) -> None:
    """Argo CD compares as the one or the other, Flux and Helm 4 as the second, Helm 3 as the first."""
    items = [item | {"metadata": item["metadata"] | {"namespace": namespace}} for item in documents(path)]
    text = yaml.safe_dump_all(items)
    control_plane.kubectl("apply", *flags, "-f", "-", stdin=text)
    stored = specs(control_plane, text)
    # kubectl reads an object and then asks for the changed one: a controller may write its status in between.
    for _ in range(TRIES):
        again = control_plane.kubectl("diff", *flags, "-f", "-", stdin=text, check=False)
        if again.returncode == 0:
            break
    assert (again.returncode, again.stdout) == (0, ""), again.stderr
    control_plane.kubectl("apply", *flags, "-f", "-", stdin=text)
    assert specs(control_plane, text) == stored, "a second apply takes nothing away"
