"""Incidents are caught, and their repairs are not, however somebody writes the same manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.incidents.forms import FORMS
from tests.incidents.incidents import Incident, answers, incidents
from webhook.manifests.files import read

OTHERWISE: Final = {
    (incident, "as Rollouts with a sidecar")
    for incident in (
        "training/volcano-rolling-update-waits-for-its-group",  # Volcano knows no Rollouts
        "servers/onyx-autoscaler-names-no-deployment",  # a Deployment is no Rollout
        # The sidecar may listen on the port.
        "servers/endpoint-picker-drops-a-remapped-port",
        "servers/llama-server-of-kubeswap-listens-on-loopback",
        "servers/llm-d-prefill-on-another-port",
        "servers/pool-lists-the-ports-of-its-decode-pods",
        "servers/service-of-a-router-selects-its-dashboard",
        "servers/sglang-listens-on-loopback",
        "training/tensorboard-serves-its-own-container-only",
    )
} | {
    (incident, "written otherwise")
    for incident in (
        # The script of a shell may be a whole line, and begin with anything.
        "servers/quick-start-of-llm-d-writes-its-command-as-one-word",
        "training/trial-of-katib-runs-its-first-option",
        # The image has no shell for the script.
        "training/nominatim-updates-with-a-shell-that-kubectl-lacks",
        "servers/tensor-parallel-size-is-a-dollar-sign",  # in a script, its quotes decide
    )
}
"""Incidents that a form does change."""
CASES: Final = [
    pytest.param(incident, form, id=f"{incident.name}, {form}")
    for incident in incidents()
    for form in FORMS
    if incident.report.missed is None and (incident.name, form) not in OTHERWISE
]


class _Dumper(yaml.CSafeDumper):
    """Without anchors: objects of a form share values."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


@pytest.mark.parametrize(("incident", "form"), CASES)
def test_the_answers_are_the_same(incident: Incident, form: str, tmp_path: Path) -> None:
    for name, is_expected in (("reported", True), ("repaired", False)):
        objects = [each.obj for each in read([str(incident.folder / f"{name}.yaml")])]
        for change in FORMS[form]:
            change(objects)
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False))
        expected = [each for each in answers(file) if any(map(each.is_expected, incident.report.expect))]
        assert bool(expected) == is_expected, f"{name}: {expected}"
