"""What the Python client of Kubernetes knows of its API: the kinds, by the methods that create them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes.client


@cache
def created() -> tuple[tuple[str, str], ...]:
    """The path and the name of the returned type, for each method that creates an object."""
    apis: list[Any] = [getattr(kubernetes.client, name) for name in dir(kubernetes.client)]
    return tuple(_created(apis))


def _created(apis: list[Any]) -> Iterator[tuple[str, str]]:
    for api in apis:
        if getattr(api, "__name__", "").endswith("Api"):
            paths: dict[str, str] = {}
            types: dict[str, str] = {}
            for method in Path(inspect.getfile(api)).read_text().split("\n    def "):
                _note(
                    paths, re.match(r"_(create_\w+)_serialize\(.*?resource_path='([^']+)'", method, re.DOTALL)
                )
                returned = r"(create_\w+)_with_http_info\(.*?_response_types_map.*?'20\d': \"(\w+)\""
                _note(types, re.match(returned, method, re.DOTALL))
            yield from ((paths[name], kind) for name, kind in types.items())


def _note(found: dict[str, str], match: re.Match[str] | None) -> None:
    if match:
        found[match[1]] = match[2]
