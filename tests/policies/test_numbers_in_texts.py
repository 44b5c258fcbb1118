"""No text of a user ends a review because it has digits that are no number for Python.

`int` refuses more than 4,300 digits, and `str.isdigit` takes the superscript two for a digit. A quantity may
have 60, of which `Decimal` keeps 28 in a remainder, or refuses it.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from policies.kube.json import Json
from webhook.admission.engine import decide
from webhook.admission.review import Review
from webhook.config.load import load
from webhook.manifests import files
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import Document

KEPT: Final = frozenset({"apiVersion", "kind", "image", "name", "namespace"})
"""Fields by which an object and its server are recognised."""


def _with_digits(value: Any, digits: str, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _with_digits(each, digits, name) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_digits(each, digits, key) for each in value]
    if isinstance(value, str) and key not in KEPT:
        return re.sub(r"\d+", digits, value)
    return value


@cache
def _cases() -> list[Path]:
    return [path for name in ("bad-*.yaml", "input.yaml") for path in Path(__file__).parent.rglob(name)]


@cache
def _objects(path: Path) -> list[Json]:
    return [document.obj for document in files.read([str(path)])]


@pytest.mark.parametrize(
    "digits", ["7" * 5000, "9" * 60, "²", "٣"], ids=["many", "most", "superscript", "arabic"]
)
def test_digits_of_any_kind_end_no_rule(digits: str) -> None:
    config = load({}).with_profile("strict")
    judged = 0
    for path in _cases():
        objects = [_with_digits(obj, digits) for obj in _objects(path)]
        if objects == _objects(path):
            continue  # it has no digits
        request = Document("case", 0, objects[0]).request()
        decision = decide(Review(request, config, ManifestCluster(objects)))
        assert [(crash.id, crash.error) for crash in decision.crashes] == [], path
        judged += 1
    assert judged > 1000
