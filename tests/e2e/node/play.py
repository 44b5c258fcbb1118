"""`make node`: the webhook in a cluster whose node is real, to play with until Ctrl-C."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tests.e2e.binaries import TABLE, BinaryError, binary
from tests.e2e.controlplane import LEFT_ALONE, KubectlError
from tests.e2e.install import REPOSITORY
from tests.e2e.node import sandbox
from tests.e2e.node.cluster import RealNode
from tests.e2e.node.webhook import Webhook
from tests.e2e.processes import ProcessFailedError

SERVED = Path(__file__).with_name("served.yaml")
GREETING = """
A Kubernetes {version} cluster is running: one real node, ML Chassis as two replicas behind its Service.

  export PATH={programs}:$PATH   # kubectl for this cluster; on-node runs a command on the node

Try this in another terminal, as root:

  kubectl get pods -A -o wide
  kubectl apply -n with -f {served}      # a model API in a namespace where the webhook is at work,
  kubectl apply -n without -f {served}   # and in one where it is not
  kubectl get pods -n with -o yaml | grep -A8 Probe:
  on-node curl -s -m 2 http://$(kubectl get service api -n with -o 'jsonpath={{.spec.clusterIP}}')/health
  on-node pkill --signal STOP --full server.py     # every server hangs: which are restarted?
  kubectl get pods -A -w
  kubectl rollout restart -n mlchassis-system deployment/mlchassis
  kubectl edit configmap -n mlchassis-system mlchassis-policy
  kubectl apply --dry-run=server -f {examples}/torchserve.yaml   # refused, with the reason

Logs are in {logs}. Ctrl-C stops it and removes everything."""


def main() -> int:
    """Run until SIGINT or SIGTERM, or until a component ends by itself."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    directory = sandbox.inside()
    if directory is None:
        print("This runs inside the namespaces of a node: say `make node`.", file=sys.stderr)
        return 2
    try:
        with RealNode(directory / "cluster", directory) as node:
            for name, labels in {"with": {}, "without": LEFT_ALONE, "nlp": {}}.items():
                node.create_namespace(name, labels)
            Webhook(node).install()
            print(_greeting(node, directory), flush=True)
            node.watch_over()
    except KeyboardInterrupt:
        print("\nStopped.")
        return 0
    except (BinaryError, KubectlError, ProcessFailedError) as error:
        print(error, file=sys.stderr)
        return 1


def _greeting(node: RealNode, directory: Path) -> str:
    programs = directory / "bin"
    programs.mkdir()
    entered = " ".join(sandbox.enter(directory))
    _script(programs / "on-node", f'exec {entered} "$@"')
    # Only in the node's network, so that the files which it is given are those of the terminal.
    network = f"nsenter -t {(directory / 'init.pid').read_text()} -n --"
    _script(programs / "kubectl", f'exec {network} {binary("kubectl")} --kubeconfig {node.kubeconfig} "$@"')
    return GREETING.format(
        version=TABLE["kubelet"].version,
        programs=programs,
        served=SERVED,
        examples=REPOSITORY / "examples",
        logs=node.logs,
    )


def _script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main())
