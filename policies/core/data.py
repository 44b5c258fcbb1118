"""Loading tables of facts: YAML files in the packages of the code that uses them.

Each entry is converted to its model, and what has another type or an unknown key raises msgspec's
ValidationError. A test also checks them as a user's settings are checked. `package` is the package that
contains the file. Law: files are read at first use, never at import; a server reads all of
them before it forks.

Parsing all tables would take a fifth of the CPU time of `chassis review` for one file. The results are kept
as JSON in `__pycache__`, under Python's rules for compiled modules: valid for the file's time and size, and
not written with PYTHONDONTWRITEBYTECODE or in a directory that is read-only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import cache_from_source
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec
import orjson
import yaml

from policies.core.settings import Field, Model, S

try:
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # PyYAML built without libyaml is slower
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

T = TypeVar("T")

_TABLES: Final[list[Callable[[], object]]] = []


def table(load: Callable[[], T]) -> Callable[[], T]:
    """Makes a function that loads a table do so once, at its first call or by `load_tables`."""
    once = cache(load)
    _TABLES.append(once)
    return once


def entries(model: type[S], package: str, name: str) -> Callable[[], tuple[S, ...]]:
    """A table of the entries of a file with a list."""
    return table(lambda: load_list(model, package, name))


def entry(model: type[S], package: str, name: str) -> Callable[[], S]:
    """A table that is one entry, the whole file."""
    return table(lambda: load_one(model, package, name))


class _Names(Model):
    """An entry of a file that has only names, several with one source."""

    names: tuple[str, ...] = Field(min_length=1)
    source: str = Field(pattern=r"^https://")


def names(package: str, name: str) -> Callable[[], tuple[str, ...]]:
    """A table of all names of a file that has only these, in its order."""
    return table(lambda: tuple(each for entry in load_list(_Names, package, name) for each in entry.names))


def load_tables() -> None:
    """Load the tables of all modules imported so far."""
    for each in _TABLES:
        each()


def load_one(model: type[S], package: str, name: str) -> S:
    """The entry of a file, such as `tcp-probe.yaml` in `policies.probes.rules`."""
    return _typed(model, _read(_folder(package) / name))


def load_list(model: type[S], package: str, name: str) -> tuple[S, ...]:
    """The entries of a file with a list."""
    return tuple(_typed(model, each) for each in _read(_folder(package) / name))


def load_map(model: type[S], package: str, name: str) -> Mapping[str, S]:
    """The entries of a file with a map, by name in the file's order."""
    found = _read(_folder(package) / name)
    return MappingProxyType({key: _typed(model, each) for key, each in found.items()})


def load_folder(model: type[S], package: str, folder: str) -> Mapping[str, S]:
    """The entries of a folder with a file for each, by the file's name without its extension, sorted."""
    found = {file.stem: file for file in (_folder(package) / folder).glob("*.yaml")}
    return MappingProxyType({name: _typed(model, _read(found[name])) for name in sorted(found)})


def parsed(text: str) -> Any:
    """The plain content of a data file: lists, maps and scalars."""
    return yaml.load(text, Loader=_SafeLoader)


def _typed(model: type[S], entry: Any) -> S:
    return msgspec.convert(entry, model)


def _folder(package: str) -> Path:
    return Path(import_module(package).__path__[0])


def _read(file: Path) -> Any:
    status = file.stat()
    kept = Path(cache_from_source(f"{file}.py")).with_suffix(".json")
    header = f"{status.st_mtime_ns} {status.st_size}\n".encode()
    with suppress(OSError, orjson.JSONDecodeError):
        if (content := kept.read_bytes()).startswith(header):
            return orjson.loads(content.removeprefix(header))
    content = orjson.dumps(parsed(file.read_text("utf-8")))
    if not sys.dont_write_bytecode:
        with suppress(OSError):
            _write(kept, header + content)
    return orjson.loads(content)


def _write(file: Path, content: bytes) -> None:
    """Write a whole file, also if other processes do so at the same time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    written = file.with_suffix(f".{os.getpid()}")
    try:
        written.write_bytes(content)
        written.replace(file)
    except OSError:
        written.unlink(missing_ok=True)
        raise
