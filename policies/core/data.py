"""Loading tables of facts: YAML files in the packages of the code that uses them.

A pydantic model checks each entry, as it checks a user's settings, and raises ValidationError. `package` is
the package that contains the file. Law: files are read at first use, never at import; a server reads all of
them before it forks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Any, Final, TypeVar

import yaml

from policies.core.settings import S, validated

try:
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # PyYAML built without libyaml is slower
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

T = TypeVar("T")

_ENDING: Final = ".yaml"
_TABLES: Final[list[Callable[[], object]]] = []


def table(load: Callable[[], T]) -> Callable[[], T]:
    """Makes a function that loads a table do so once, at its first call or by `load_tables`."""
    once = cache(load)
    _TABLES.append(once)
    return once


def load_tables() -> None:
    """Load the tables of all modules imported so far."""
    for each in _TABLES:
        each()


def load_one(model: type[S], package: str, name: str) -> S:
    """The entry of a file, such as `tcp-probe.yaml` in `policies.probes.rules`."""
    return validated(model, _read(files(package).joinpath(name)))


def load_list(model: type[S], package: str, name: str) -> tuple[S, ...]:
    """The entries of a file with a list."""
    return tuple(validated(model, each) for each in _read(files(package).joinpath(name)))


def load_map(model: type[S], package: str, name: str) -> Mapping[str, S]:
    """The entries of a file with a map, by name in the file's order."""
    found = _read(files(package).joinpath(name))
    return MappingProxyType({key: validated(model, each) for key, each in found.items()})


def load_folder(model: type[S], package: str, folder: str) -> Mapping[str, S]:
    """The entries of a folder with a file for each, by the file's name without its extension, sorted."""
    found = {
        file.name.removesuffix(_ENDING): file
        for file in files(package).joinpath(folder).iterdir()
        if file.name.endswith(_ENDING)
    }
    return MappingProxyType({name: validated(model, _read(found[name])) for name in sorted(found)})


def parsed(text: str) -> Any:
    """The plain content of a data file: lists, maps and scalars."""
    return yaml.load(text, Loader=_SafeLoader)


def _read(file: Traversable) -> Any:
    return parsed(file.read_text("utf-8"))
