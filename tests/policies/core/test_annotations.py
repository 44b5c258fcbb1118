"""Every key of mlchassis.dev is in one module: the code reads and the documents name no others."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from policies.core import annotations

ROOT = Path(__file__).parents[3]
NAMED = {name: value for name, value in vars(annotations).items() if name.isupper()}
KEYS = {
    value
    for value in NAMED.values()
    if isinstance(value, str) and value.startswith(annotations.PREFIX) and value != annotations.PREFIX
}
KEY = re.compile(rf"{re.escape(annotations.DOMAIN)}/[a-z](?:[a-z-]*[a-z])?")
DOCUMENTS = [
    path
    for place in ("README.md", "docs", "examples", "manifests", "policies", "webhook")
    for path in ([ROOT / place] if (ROOT / place).is_file() else sorted((ROOT / place).rglob("*")))
    if path.suffix in (".md", ".py", ".yaml")
]


def literals(path: Path) -> Iterator[str]:
    """The texts of a module that are only a key, or a label selector."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)) if f"{annotations.DOMAIN}/" in source else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = KEY.match(node.value)
            if found and node.value[found.end() :] in ("", "=true"):
                yield f"{path.relative_to(ROOT)}: {node.value}"


def test_no_other_module_spells_a_key_out() -> None:
    sources = [*(ROOT / "policies").rglob("*.py"), *(ROOT / "webhook").rglob("*.py")]
    assert [found for path in sources for found in literals(path)] == []


def test_the_documents_name_no_unused_key() -> None:
    named = {key: path for path in DOCUMENTS for key in KEY.findall(path.read_text())}
    assert {key: str(path) for key, path in named.items() if key not in KEYS} == {}
    assert named.keys() >= KEYS - {annotations.WORKER_NAMES}, "a key that no document tells"
