"""Pages of docs/ in sections: each benchmark rewrites its own and no other."""

from __future__ import annotations

from pathlib import Path

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
