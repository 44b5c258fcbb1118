"""docs/puller.md names every flag with its default, and every reason a person may be shown."""

from __future__ import annotations

from pathlib import Path

from puller.cli import parser
from puller.reasons import StatusReason
from tests.tables import table

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "puller.md").read_text()


@table("reason", StatusReason)
def test_every_reason_is_explained(reason: StatusReason) -> None:
    assert f"`{reason}`" in DOCS


@table("action", [a for a in parser({})._actions if a.dest != "help"])
def test_every_flag_is_explained_with_its_default(action: object) -> None:
    names = action.option_strings  # type: ignore[attr-defined]
    table = DOCS.partition("## Flags")[2].splitlines()
    row = next((line for line in table if line.startswith("| `--") and f"`{names[0]}`" in line), "")
    assert row, names
    assert all(f"`{name}`" in row for name in names)
    default = action.default  # type: ignore[attr-defined]
    if default not in (None, ""):
        shown = f"{default:g}" if isinstance(default, float) else str(default)
        assert f"`{shown}`" in row, (names, default)
