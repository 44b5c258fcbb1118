"""Pages of docs/ in sections: each benchmark rewrites its own and no other."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Collection
from pathlib import Path

from tests.e2e.binaries import TABLE

PEERS = Path(__file__).with_name("peers")
DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "benchmarks.md"


def put(benchmark: str, text: str, path: Path = PAGE) -> None:
    """Make `text` the section of `benchmark` in a page: in its former place, or at the end."""
    begin, end = (
        f"<!-- {mark} of what `make bench ARGS={benchmark}` writes -->\n" for mark in ("begin", "end")
    )
    page = path.read_text()
    before, found, rest = page.partition(begin)
    after = rest.partition(end)[2] if found else ""
    separator = "" if found or before.endswith("\n\n") else "\n"
    path.write_text(f"{before}{separator}{begin}{text.rstrip()}\n{end}{after}")


def write(benchmark: str, path: Path = PAGE, **figures: object) -> None:
    """Make `peers/BENCHMARK.md`, with these figures, the section of the benchmark in a page; print it."""
    text = filled(benchmark, **figures)
    put(benchmark, text, path)
    print(text)


def filled(benchmark: str, **figures: object) -> str:
    """`peers/BENCHMARK.md` with these figures, the machine, its load, and kube-apiserver's version."""
    conditions: dict[str, object] = {
        "machine": machine(),
        "load": f"{os.getloadavg()[1]:.0f}",
        "version": TABLE["kube-apiserver"].version,
    }
    return (PEERS / f"{benchmark}.md").read_text().format(**conditions | figures)


def machine() -> str:
    return f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {platform.machine()}"


def spread(values: Collection[float], digits: int = 2) -> str:
    """The median of some rounds, the least and the greatest."""
    least, median, greatest = (
        f"{each:.{digits}f}" for each in (min(values), statistics.median(values), max(values))
    )
    return f"**{median}** ({least} to {greatest})"
