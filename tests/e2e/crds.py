"""Custom resources that components of ours are made of, from the Go modules of those who define them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.binaries import module_source
from tests.e2e.controlplane import ControlPlane
from tests.e2e.status import established


@dataclass(frozen=True)
class Definitions:
    """The CRDs of a module, at one version of it."""

    module: str
    version: str
    sum: str
    files: str
    """A glob below the module."""

    def found(self) -> list[Path]:
        """Their files."""
        files = sorted(module_source(self.module, self.version, self.sum).glob(self.files))
        assert files, self
        return files

    @contextmanager
    def installed(self, control_plane: ControlPlane) -> Iterator[None]:
        """The API server serves them; they are taken away afterwards."""
        arguments = [f"--filename={path}" for path in self.found()]
        # On the server: some are larger than the annotation of a client's apply may be.
        listed = control_plane.kubectl("apply", "--server-side", "-o", "name", *arguments).stdout.split()
        for name in listed:
            control_plane.api.wait("customresourcedefinitions", name.partition("/")[2], established)
        yield
        remove(control_plane, listed)


CERT_MANAGER = Definitions(
    "github.com/cert-manager/cert-manager",
    "v1.21.2",
    "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68=",
    "deploy/crds/*.yaml",
)
KARPENTER = Definitions(
    "sigs.k8s.io/karpenter",
    "v1.6.0",
    "h1:82SIWF3FIaTkD5WFx+2wjCqgkZK5m1CHY5p+uIu4ScI=",
    "pkg/apis/crds/karpenter.sh_nodepools.yaml",
)
PROMETHEUS_OPERATOR = Definitions(
    "github.com/prometheus-operator/prometheus-operator",
    "v0.93.0",
    "h1:AohlYJT+En8TmNpAcEUJ3GsaJTAqfEBwHmGTVpRm/Io=",
    "example/prometheus-operator-crd/*.yaml",
)
SPARK_OPERATOR = Definitions(
    "github.com/kubeflow/spark-operator/v2",
    "v2.3.0",
    "h1:cYN/331gwkdZ0S/ai72JQoUv7UK52O2OQOWFpl8XhPc=",
    "config/crd/bases/*.yaml",
)


def remove(control_plane: ControlPlane, definitions: Sequence[str]) -> None:
    """Delete CRDs, each `customresourcedefinition/NAME`, with their objects, and wait until all are gone.

    The API server's finalizer gives up if another of its controllers writes the CRD at the same time. It
    tries again when its informer resyncs, after up to 5 minutes, or when the CRD changes: an annotation
    changes it.
    """
    control_plane.kubectl("delete", "--ignore-not-found", "--wait=false", *definitions)
    for attempt in range(60):
        gone = control_plane.kubectl("wait", "--for=delete", "--timeout=5s", *definitions, check=False)
        if gone.returncode == 0:
            return
        control_plane.kubectl("annotate", "--overwrite", *definitions, f"attempt={attempt}", check=False)
    raise AssertionError(f"still there: {gone.stderr}")
