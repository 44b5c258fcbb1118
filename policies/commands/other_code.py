"""Hosts in code of languages that are not parsed: only URLs in its string literals are read."""

from __future__ import annotations

import re

from policies.commands.budget import Budget
from policies.commands.hosts import is_url, url_hosts
from policies.commands.model import Host, Reach
from policies.commands.reach import Context

_STRING = re.compile(r"'([^'\n]*)'|\"([^\"\n]*)\"|`([^`\n]*)`")
_NETWORK_CODE = re.compile(
    r"\b(?:http|https|net|fetch|axios|socket|Socket|TCPSocket|LWP|curl|redis|pg|mysql)\b"
)


def hosts_of_code(text: str, name: str, context: Context, budget: Budget) -> list[Host]:
    """The hosts that code names; `name`: the program that runs it. None of them is certain."""
    budget.spend(len(text) // 8)
    found: list[Host] = []
    for literal in _STRING.finditer(text):
        budget.spend(2)
        inside = literal[1] or literal[2] or literal[3] or ""
        if is_url(inside):
            budget.spend(8)
            found.extend(url_hosts(inside, name, context.local_names))
        elif inside in ("localhost", "127.0.0.1", "::1"):
            found.append(Host(inside, Reach.LOCAL, name))
    if not found and _NETWORK_CODE.search(text):
        found.append(Host("", Reach.UNDECIDABLE, name))
    return [each.doubted() for each in found]
