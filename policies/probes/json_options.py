"""Numbers in the JSON that an option's value contains, as in `--kv-transfer-config={"kv_connector": …}`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from policies.kube.json import Json, dig
from policies.probes.recognition import Server


def number_in(server: Server, flags: tuple[str, ...], key: tuple[str, ...]) -> int:
    """The greatest whole number at a path of keys, which may begin at any depth; 0 if there is none."""
    found = None
    with suppress(ValueError, RecursionError):
        found = json.loads(server.options.value(flags) or "")
    numbers = (dig(each, *key) for each in _maps(found))
    return max((each for each in numbers if type(each) is int), default=0)


def _maps(value: Any) -> Iterator[Json]:
    """Every map in a value that is nested no deeper than the JSON decoder allows."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
