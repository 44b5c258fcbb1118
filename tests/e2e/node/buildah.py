"""`python -m tests.e2e.node.buildah COMMAND...`: buildah without a runtime or a registry.

`make release-check` builds with it. Its images are in the cache of the tests of the real node, among them the
stand-in for the base image.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.e2e.binaries import BinaryError
from tests.e2e.node import images

STORAGE = "CHASSIS_BUILDAH_STORAGE"
"""The environment variable that names the storage, which the caller has locked."""


def main(command: list[str]) -> int:
    """Run one command of buildah; its output goes to ours."""
    name, *arguments = command
    given = [*images.IN_CHROOT, *arguments] if name == "build" else arguments
    try:
        print(images.buildah(Path(os.environ[STORAGE]), name, *given), end="")
    except BinaryError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
