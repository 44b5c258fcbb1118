"""`make cluster`: a control plane with KubeRay and the webhook installed, to play with until Ctrl-C."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

from tests.e2e.binaries import TABLE, BinaryError, binary
from tests.e2e.controlplane import ControlPlane, KubectlError
from tests.e2e.install import REPOSITORY, Chassis
from tests.e2e.kuberay import NAMESPACE, SERVICE_ACCOUNT, Operator, prepare
from tests.e2e.processes import ProcessFailedError
from webhook.manifests.files import read

EXAMPLES = REPOSITORY / "examples"
KUBERAY = "kuberay-1.6"
GPU_LABELS = {
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
    "nvidia.com/gpu.memory": "81920",
    "nvidia.com/gpu.count": "8",
}
SCALED = '[{"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": 12}]'
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
GREETING = """
A Kubernetes {version} control plane with ML Chassis is running; its nodes are fake, no container runs.

  export KUBECONFIG={kubeconfig}
  export PATH={programs}:$PATH   # the kubectl that fits it

Try this in another terminal:

  kubectl apply --dry-run=server -f {examples}/torchserve.yaml         # refused, with the reason
  kubectl apply --dry-run=server -o yaml -f {examples}/bare-pod.yaml   # the probes that it gets
  kubectl apply -f {examples}/triton.yaml
  kubectl -n vision get pods -o yaml
  kubectl -n mlchassis-system edit configmap mlchassis-policy
  curl -k {url}/metrics

KubeRay {kuberay} is running too; heads and workers get their names at admission:

  kubectl apply -f {examples}/ray-cluster.yaml
  kubectl -n features get pods
  kubectl -n features patch raycluster feature-batch --type=json -p '{scaled}'

Logs are in {logs}. Ctrl-C stops it and removes everything."""


def main() -> int:
    """Run until SIGINT or SIGTERM, or until a component ends by itself."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="ml-chassis-") as directory,
            ControlPlane(Path(directory, "cluster")) as control_plane,
        ):
            chassis = Chassis(control_plane)
            try:
                _set_up(control_plane, chassis)
                kubeconfig = control_plane.service_account(NAMESPACE, SERVICE_ACCOUNT)
                with Operator(control_plane, KUBERAY, kubeconfig, namespace="") as operator:
                    print(_greeting(control_plane, chassis), flush=True)
                    control_plane.watch_over(chassis.process, operator.process)
            finally:
                chassis.stop()
    except KeyboardInterrupt:
        print("\nStopped.")
        return 0
    except (BinaryError, KubectlError, ProcessFailedError) as error:
        print(error, file=sys.stderr)
        return 1


def _set_up(control_plane: ControlPlane, chassis: Chassis) -> None:
    """Nodes with and without accelerators, the namespaces of the examples, KubeRay's CRDs, the webhook."""
    control_plane.add_node("cpu-0")
    for name in ("gpu-0", "gpu-1"):
        control_plane.add_node(name, GPU_LABELS, [GPU_TAINT], {"nvidia.com/gpu": "8"})
    for namespace in sorted({document.namespace for document in read([str(EXAMPLES)])} - {""}):
        control_plane.create_namespace(namespace)
    prepare(control_plane, KUBERAY)
    chassis.install()
    chassis.start()


def _greeting(control_plane: ControlPlane, chassis: Chassis) -> str:
    programs = control_plane.state / "bin"
    programs.mkdir()
    (programs / "kubectl").symlink_to(binary("kubectl"))
    return GREETING.format(
        version=TABLE["kube-apiserver"].version,
        kuberay=TABLE[KUBERAY].version,
        kubeconfig=control_plane.kubeconfig,
        programs=programs,
        examples=EXAMPLES,
        scaled=SCALED,
        url=chassis.url,
        logs=control_plane.logs,
    )


if __name__ == "__main__":
    sys.exit(main())
