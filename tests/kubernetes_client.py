"""What the Python client of Kubernetes knows of its API: the kinds, by the methods that create them.

The sources are read, not imported: a class of its 65 APIs takes 3 CPU seconds to load.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import kubernetes.client


@cache
def created() -> tuple[tuple[str, str], ...]:
    """The path and the name of the returned type, for each method that creates an object."""
    return tuple(_created())


def _created() -> Iterator[tuple[str, str]]:
    for api in sorted(Path(kubernetes.client.__file__).with_name("api").glob("*_api.py")):
        paths: dict[str, str] = {}
        types: dict[str, str] = {}
        for method in api.read_text().split("\n    def "):
            _note(paths, re.match(r"_(create_\w+)_serialize\(.*?resource_path='([^']+)'", method, re.DOTALL))
            returned = r"(create_\w+)_with_http_info\(.*?_response_types_map.*?'20\d': \"(\w+)\""
            _note(types, re.match(returned, method, re.DOTALL))
        yield from ((paths[name], kind) for name, kind in types.items())


def _note(found: dict[str, str], match: re.Match[str] | None) -> None:
    if match:
        found[match[1]] = match[2]
