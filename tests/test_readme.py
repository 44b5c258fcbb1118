"""What the README shows is what the commands print."""

import re
import shlex
from pathlib import Path

import pytest

from webhook.cli import main as cli

ROOT = Path(__file__).parent.parent
SHOWN = re.findall(
    r"```console\n\$ chassis (review examples/[^\n]*)\n(.*?)```", (ROOT / "README.md").read_text(), re.S
)


def test_the_readme_shows_output() -> None:
    assert len(SHOWN) >= 2


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[command for command, _ in SHOWN])
def test_the_output_is_real(
    command: str, output: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    cli.main(shlex.split(command))
    assert capsys.readouterr().out.rstrip() == output.rstrip()
