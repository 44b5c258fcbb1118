"""Each source in the tables about servers and kinds leads to a text that does not change."""

import re
from collections.abc import Iterator

import pytest

from policies.core.lifecycles import Lifecycle, known_lifecycles
from policies.core.settings import Model
from policies.probes.preset import known_presets
from tests.tables import table

PERMALINK = re.compile(
    r"https://github\.com/[\w.-]+/[\w.-]+/(?:(?:blob|tree)/(?P<version>[\w.-]+)/.+|(?:pull|issues)/\d+(?:#.+)?)"
)
VERSION = re.compile(r"[0-9a-f]{40}|(?:[A-Za-z-]+-)?v?\d+(?:\.\d+)+[\w.-]*")
"""A commit, or a tag with a number. Branches move."""
PAGE = re.compile(r"https://(?!github\.com/|raw\.githubusercontent\.com/)[\w.-]+/.+")
MODULE = re.compile(r"[\w.-]+\.\w+/[\w./-]+ (v\d+\.\d+\.\d+|[0-9a-f]{12}): \S.*", re.DOTALL)


LIVES = [life for each in known_lifecycles().values() for life in each]


def is_lasting(source: str) -> bool:
    found = PERMALINK.fullmatch(source)
    if found:
        return found["version"] is None or VERSION.fullmatch(found["version"]) is not None
    return PAGE.fullmatch(source) is not None


def sources(entry: object, at: str) -> Iterator[tuple[str, str]]:
    """The addresses below an entry, and where they are."""
    if isinstance(entry, Model):
        for name in entry.__struct_fields__:
            value = getattr(entry, name)
            if name.split("_")[-1] == "source" and isinstance(value, str):
                yield f"{at}.{name}", value
            else:
                yield from sources(value, f"{at}.{name}")
    elif isinstance(entry, tuple):
        for index, value in enumerate(entry):
            yield from sources(value, f"{at}[{index}]")


@table("name", sorted(known_presets()))
def test_the_sources_of_a_server_last(name: str) -> None:
    found = list(sources(known_presets()[name], name))
    assert found
    assert [each for each in found if not is_lasting(each[1])] == []


def test_most_facts_are_found() -> None:
    """A walk that finds no nested entry would hold nothing."""
    names = {at.split(".")[-2] for name, preset in known_presets().items() for at, _ in sources(preset, name)}
    assert {"drain", "cache", "needs", "progress", "load_metrics", "link_variables[0]"} <= names


@table("life", [life for each in known_lifecycles().values() for life in each])
def test_the_source_of_a_kind_has_a_version(life: Lifecycle) -> None:
    assert MODULE.fullmatch(life.source)


@pytest.mark.parametrize(
    ("source", "lasting"),
    [
        ("https://github.com/acme/served/blob/v1.2.3/server.py", True),
        ("https://github.com/acme/served/blob/served-2.0.0/server.py#L10", True),
        (f"https://github.com/acme/served/blob/{'0a' * 20}/server.py", True),
        ("https://github.com/acme/served/pull/12", True),
        ("https://docs.acme.example/latest/health.html", True),
        ("https://github.com/acme/served/blob/main/server.py", False),
        ("https://github.com/acme/served", False),
        ("https://github.com/acme/served#readme", False),
        ("https://docs.acme.example", False),
        ("the code", False),
    ],
)
def test_only_some_addresses_last(source: str, lasting: bool) -> None:
    assert is_lasting(source) is lasting
