"""Where the control plane's programs come from: given, cached, or a sentence about the missing ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e import binaries
from tests.e2e.binaries import (
    BENCHMARKS,
    CERT_MANAGER,
    COMPATIBILITY,
    CONTROL_PLANE,
    FURTHER_OPERATORS,
    HELM,
    KUBERAY,
    NODE,
    OPERATORS,
    PROMETHEUS,
    REGISTRY,
    TABLE,
    BinaryError,
    binary,
)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, and no programs given."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return tmp_path


@pytest.mark.parametrize("name", TABLE)
def test_every_program_is_pinned_to_a_release(name: str) -> None:
    tool = TABLE[name]
    assert re.fullmatch(r"v\d+\.\d+\.\d+", tool.version)
    assert f"tool {tool.package}\n" in _as_lines((tool.root / "go.mod").read_text())


def test_the_table_names_them_all() -> None:
    assert set(TABLE) == {
        *CONTROL_PLANE,
        *NODE,
        *HELM,
        *PROMETHEUS,
        *CERT_MANAGER,
        *KUBERAY,
        *REGISTRY,
        *OPERATORS,
        *FURTHER_OPERATORS,
        *BENCHMARKS,
        *COMPATIBILITY,
    }


def test_kubebuilder_assets_win(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    (tmp_path / "etcd").touch()
    assert binary("etcd") == tmp_path / "etcd"


def test_a_cached_program_is_not_built_again(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(tool: binaries.Tool, built: Path) -> None:
        builds.append(tool.name)
        built.touch()

    builds: list[str] = []
    monkeypatch.setattr(binaries, "_build", build)
    first, second = binary("kubectl"), binary("kubectl")
    assert first == second
    assert first.is_relative_to(own_cache / "ml-chassis" / "bin")
    assert builds == ["kubectl"]


def test_another_pin_is_another_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = TABLE["etcd"].key
    for name in ("go.mod", "go.sum"):
        (tmp_path / name).write_text((binaries.TOOLS / name).read_text() + "\n")
    monkeypatch.setattr(binaries, "TOOLS", tmp_path)
    assert TABLE["etcd"].key != before


def test_a_missing_go_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(BinaryError, match=r"Go 1\.26 or newer, and `go` is not on PATH"):
        binary("etcd")
    assert not list(tmp_path.glob("**/etcd-*"))


def _as_lines(go_mod: str) -> str:
    """`tool ( a b )` blocks written out as one `tool` line each."""
    block = re.search(r"^tool \((.*?)^\)", go_mod, re.MULTILINE | re.DOTALL)
    listed = block[1].split() if block else []
    return go_mod + "".join(f"tool {package}\n" for package in listed)
