"""What the README and the documents show of the examples is what the commands print."""

import re
import shlex
from pathlib import Path

import pytest

from webhook.cli import main as cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = [
    pytest.param(command, output, id=f"{page.name}: {command}")
    for page in PAGES
    for command, output in re.findall(
        r"```console\n\$ chassis ((?:review|policy test|why -f) examples[^\n]*)\n(.*?)```",
        page.read_text(),
        re.S,
    )
]


def test_output_is_shown() -> None:
    assert sum("README" in str(each.id) for each in SHOWN) >= 2
    assert any("pipeline" in str(each.id) for each in SHOWN)


@pytest.mark.parametrize(("command", "output"), SHOWN)
def test_the_output_is_real(
    command: str, output: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    cli.main(shlex.split(command))
    assert capsys.readouterr().out.rstrip() == output.rstrip()
