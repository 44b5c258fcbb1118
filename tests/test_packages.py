"""The docstring of each package has its purpose in one sentence and lists the packages that it imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from webhook.cli.main import COMMANDS

pytestmark = pytest.mark.lint

ROOT = Path(__file__).resolve().parent.parent
ROOTS = ("policies", "webhook", "puller")
LISTED = re.compile(r"^Imports: (.+?)\.$", re.MULTILINE | re.DOTALL)


def packages() -> list[Path]:
    return [file.parent for root in ROOTS for file in sorted((ROOT / root).rglob("__init__.py"))]


def docstring_of(package: Path) -> str:
    return ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).parts)


def subject_of(module: str) -> str:
    """`policies.probes` for `policies.probes.rules.tcp_probe`; a root for its own modules."""
    parts = module.split(".")[:2]
    return ".".join(parts) if (ROOT.joinpath(*parts) / "__init__.py").is_file() else parts[0]


@cache
def imported_by(file: Path) -> frozenset[str]:
    """The subjects of this repository that a module imports, anywhere in it."""
    return frozenset(_imported_by(file))


def _imported_by(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (subject_of(name) for name in names if name.split(".")[0] in ROOTS)


def imports_of(package: Path) -> set[str]:
    """The other subjects that the modules of a subject import; of a root, its own modules'."""
    subject = name_of(package)
    files = [file for file in package.rglob("*.py") if subject_of(name_of(file.with_suffix(""))) == subject]
    return {name for file in files for name in imported_by(file)} - {subject}


def listed_in(docstring: str) -> set[str]:
    found = LISTED.search(docstring)
    return set() if found is None else set(re.findall(r"`([\w.]+)`", found[1]))


@pytest.mark.parametrize("package", packages(), ids=name_of)
def test_the_first_line_is_one_sentence(package: Path) -> None:
    first = docstring_of(package).partition("\n\n")[0]
    assert first.endswith("."), "it has no docstring, or its first paragraph is no sentence"
    assert not re.search(r"\. [A-Z]", first), "one sentence is enough for the purpose"


@pytest.mark.parametrize(
    "package", [each for each in packages() if subject_of(name_of(each)) == name_of(each)], ids=name_of
)
def test_the_listed_imports_are_the_imports(package: Path) -> None:
    docstring = docstring_of(package)
    imports = imports_of(package)
    expected = ", ".join(f"`{name}`" for name in sorted(imports))
    assert LISTED.search(docstring), "it has no line `Imports: ...`"
    assert listed_in(docstring) == imports, f"write `Imports: {expected}.`"


def test_imports_are_found_in_functions_and_in_nested_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.test_packages.ROOT", tmp_path)
    for name in ("policies", "policies/probes", "policies/probes/rules", "policies/kube"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text('"""A package.\n\nImports: `policies.kube`.\n"""\n')
    rule = tmp_path / "policies" / "probes" / "rules" / "one.py"
    rule.write_text(
        "import yaml\ndef check():\n    from policies.kube import json\n    import policies.probes.x\n"
    )
    assert imports_of(tmp_path / "policies" / "probes") == {"policies.kube"}
    assert listed_in(docstring_of(tmp_path / "policies" / "probes")) == {"policies.kube"}


def answers_of(docstring: str) -> list[str]:
    """The second column of the table `question | module`."""
    rows = re.findall(r"^\| (.+) \| (.+) \|$", docstring, re.MULTILINE)
    return [answer for _, answer in rows[1:] if not answer.startswith("---")]


def named_in(answers: Iterable[str]) -> set[str]:
    return {name.rstrip("/") for answer in answers for name in re.findall(r"`([\w/.-]+)`", answer)}


def modules_of(package: Path) -> set[str]:
    """The modules that a reader of the package looks for; those of commands have the names of these."""
    modules = {file.stem for file in package.glob("*.py")} - {"__init__", "__main__"}
    folders = {each.parent.name for each in package.glob("*/__init__.py")} - {"rules"}
    commands = {name.replace("-", "_") for name in COMMANDS} if name_of(package) == "webhook.cli" else set()
    return (modules | folders) - commands


@pytest.mark.parametrize("package", packages(), ids=name_of)
def test_the_table_of_a_package_names_nothing_else(package: Path) -> None:
    present = {path.stem if path.suffix == ".py" else path.name for path in package.iterdir()}
    assert named_in(each.partition(":")[0] for each in answers_of(docstring_of(package))) <= present


@pytest.mark.parametrize("package", [each for each in packages() if each.name != "rules"], ids=name_of)
def test_the_table_of_a_package_names_all_its_modules(package: Path) -> None:
    assert modules_of(package) - named_in(answers_of(docstring_of(package))) == set()


def test_a_table_is_read() -> None:
    docstring = "| question | module |\n|---|---|\n| which | `a`, `b/`: from `c` |\n| how | `d` |\n"
    assert answers_of(docstring) == ["`a`, `b/`: from `c`", "`d`"]
    assert named_in(answers_of(docstring)) == {"a", "b", "c", "d"}
