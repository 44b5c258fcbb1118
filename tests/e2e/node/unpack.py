"""`python -m tests.e2e.node.unpack LAYOUT SCRATCH`: containerd's root for the images of an OCI layout.

Run in a new mount namespace, it lets a separate containerd import and unpack them into
`SCRATCH/containerd`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.node import images, packages
from tests.e2e.processes import Process

START_TIMEOUT = 60


def main(layout: Path, scratch: Path) -> None:
    """Import everything that the layout names."""
    state = scratch / "state"
    config = scratch / "containerd.toml"
    config.write_text(images.containerd_config(scratch / "containerd", state, serves_kubelet=False))
    command: list[str | Path] = ["containerd", "--config", config]
    containerd = Process("containerd", command, scratch / "containerd.log", packages.environment())
    containerd.wait_until(lambda: images.ctr(state, "version").returncode == 0, START_TIMEOUT)
    with subprocess.Popen(["tar", "-C", layout, "-cf", "-", "."], stdout=subprocess.PIPE) as archive:
        subprocess.run(
            images.ctr_command(state, "images", "import", "-"),
            stdin=archive.stdout,
            env=packages.environment(),
            check=True,
        )
    containerd.terminate(timeout=60)  # its databases are written out


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
