"""Write generated files if they are stale, or only list them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path


def update(files: Mapping[Path, str], target: str, *, check: bool, leftovers: Iterable[Path] = ()) -> int:
    """Write files whose content differs and delete leftovers; the exit status.

    With `check`, list these files instead and return 1 if there are any. `target`: the make target that
    writes them.
    """
    stale = {path: content for path, content in files.items() if text_of(path) != content}
    gone = sorted(set(leftovers))
    for path in (*stale, *gone):
        if check:
            print(f"{path} is stale: run make {target}", file=sys.stderr)
        elif path in stale:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(stale[path], encoding="utf-8")
            print(path)
        else:
            path.unlink()
            print(f"{path} removed")
    return int(check and bool(stale or gone))


def text_of(path: Path) -> str | None:
    """The content of a file; None if there is none."""
    return path.read_text(encoding="utf-8") if path.is_file() else None
