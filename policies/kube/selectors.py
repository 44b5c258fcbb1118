"""Label selectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from policies.kube.json import Json, mapping, maps, strings, text


def matches(selector: Any, of: Mapping[str, str]) -> bool:
    """Whether a LabelSelector (`matchLabels`, `matchExpressions`) matches labels. An empty selector matches
    all; None and unknown operators match none."""
    if not isinstance(selector, dict):
        return False
    if any(of.get(key) != value for key, value in mapping(selector, "matchLabels").items()):
        return False
    return all(requirement_matches(term, of) for term in maps(selector, "matchExpressions"))


def requirement_matches(term: Json, of: Mapping[str, str]) -> bool:
    """Whether labels satisfy one requirement; an unknown operator matches none."""
    key, values = text(term, "key"), strings(term, "values")
    match term.get("operator"):
        case "In":
            return of.get(key) in values
        case "NotIn":
            return of.get(key) not in values
        case "Exists":
            return key in of
        case "DoesNotExist":
            return key not in of
    return False
