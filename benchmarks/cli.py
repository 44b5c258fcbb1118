"""CPU seconds of a command from its start to its end.

With bytecode at hand, as in the image and after `pip install`. The figure is the least of several runs,
next to an interpreter that exits at once, in the same run.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import orjson
import yaml

from benchmarks._reviews import Workloads

ROUNDS = 5
DOCUMENTS = 1000


def seconds(*argv: str) -> float:
    """CPU seconds, in user mode and in the kernel, of a process that runs the interpreter so."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *argv], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def manifests(directory: Path) -> None:
    """Deployments of 2 to 3 KB, one per file."""
    for number, body in enumerate(Workloads(0).deployments(DOCUMENTS, 0).measured):
        obj = orjson.loads(body)["request"]["object"]
        metadata = {key: obj["metadata"][key] for key in ("name", "namespace", "labels")}
        (container,) = obj["spec"]["template"]["spec"]["containers"]
        container["env"] = container["env"][:20]
        (directory / f"{number}.yaml").write_text(yaml.safe_dump({**obj, "metadata": metadata}))


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        manifests(directory)
        chassis = ("-m", "webhook.cli")
        commands = {
            "python -c pass": ("-c", "pass"),
            "chassis --version": (*chassis, "--version"),
            "chassis --help": (*chassis, "--help"),
            "chassis review one.yaml": (*chassis, "review", str(directory / "0.yaml")),
            f"chassis review, {DOCUMENTS:,} files": (*chassis, "review", name),
        }
        print(f"CPU seconds, the least of {ROUNDS} runs")
        for title, argv in commands.items():
            least = min(seconds(*argv) for _ in range(ROUNDS))
            print(f"  {title:<32} {least:>6.3f}")


if __name__ == "__main__":
    main()
