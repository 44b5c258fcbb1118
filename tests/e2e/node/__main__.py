"""`python -m tests.e2e.node [COMMAND...]`: run a command inside the namespaces of a node.

Without a command, the cluster of `make node`. Programs are built before, outside of them.
"""

from __future__ import annotations

import sys

from tests.e2e.binaries import CONTROL_PLANE, HELM, KUBERAY, NODE, BinaryError, binary, module_directory
from tests.e2e.node import images, sandbox

OPERATOR = KUBERAY[0]
"""The release of KubeRay that the experiments start."""


def main(command: list[str]) -> int:
    """Build missing programs, then run the command inside; its exit status."""
    if reason := sandbox.why_not():
        print(f"Nothing was run on a real node: for that, {reason}")
        return 0
    try:
        for name in (*CONTROL_PLANE, *NODE, *HELM, OPERATOR):
            binary(name)
        for name in ("kwok", OPERATOR):
            module_directory(name)  # while there is a network
        store = images.store(images.everything())
    except BinaryError as error:
        print(error, file=sys.stderr)
        return 1
    return sandbox.run(command or [sys.executable, "-m", "tests.e2e.node.play"], store)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
