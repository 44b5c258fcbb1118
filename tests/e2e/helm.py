"""Helm, the program, and our chart."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.e2e.api import JSON
from tests.e2e.binaries import TABLE, binary
from tests.e2e.install import NAMESPACE, REPOSITORY

CHART = REPOSITORY / "charts" / "ml-chassis"
RELEASE = "mlchassis"
FOR_CLUSTER = f"--kube-version={TABLE['kube-apiserver'].version}"
"""What a release build of Helm takes for granted without a cluster."""


class HelmError(RuntimeError):
    """helm ended with a status above 0; the message is what it printed."""


@dataclass(frozen=True)
class Helm:
    """One version of Helm, with its own directories.

    Args:
        name: "helm-3" or "helm-4".
        state: a directory for its caches.
        kubeconfig: which cluster; none where it only renders.
    """

    name: str
    state: Path
    kubeconfig: Path | None = None

    def run(self, *arguments: str, values: JSON | None = None, timeout: float = 300) -> str:
        """What it prints; `values` are given as a file.

        Raises:
            HelmError: its exit status is not 0.
        """
        command: list[str | Path] = [binary(self.name), *arguments]
        if values is not None:
            command += ["--values", "-"]
        if self.kubeconfig is not None:
            command += ["--kubeconfig", self.kubeconfig]
        homes = {f"HELM_{what}_HOME": str(self.state / what.lower()) for what in ("CACHE", "CONFIG", "DATA")}
        done = subprocess.run(
            command,
            input=yaml.safe_dump(values or {}),
            text=True,
            capture_output=True,
            env=os.environ | homes,
            timeout=timeout,
        )
        if done.returncode:
            raise HelmError(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def template(self, values: JSON | None = None, *arguments: str, namespace: str = NAMESPACE) -> list[JSON]:
        """The objects that the chart gives, hooks left out."""
        command = (
            "template",
            RELEASE,
            str(CHART),
            "--namespace",
            namespace,
            "--no-hooks",
            FOR_CLUSTER,
            *arguments,
        )
        return [item for item in yaml.safe_load_all(self.run(*command, values=values or {})) if item]


def of_kind(objects: Sequence[JSON], kind: str) -> list[JSON]:
    """The objects of a kind."""
    return [item for item in objects if item["kind"] == kind]
