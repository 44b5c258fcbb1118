"""HTML pages of the command line, from the Jinja templates of this package.

Jinja escapes every text, after `printable` has replaced its control characters. The scripts put data only
into text nodes. A page loads no other file, and its Content-Security-Policy allows only its own script and
style.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from policies.kube.printable import printable, printable_lines
from webhook.version import version


def stream(template: str, **view: object) -> Iterator[str]:
    """A page in pieces, while the iterators of its view are consumed. `template`: a path in this package."""
    return _environment().get_template(template).generate(**view)


def render(template: str, **view: object) -> str:
    return _environment().get_template(template).render(**view)


def counted(number: int, noun: str) -> str:
    """A number with its noun, such as `1,024 objects`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@cache
def _environment() -> Environment:
    made = Environment(
        autoescape=True,
        auto_reload=False,
        finalize=_printable,
        loader=FileSystemLoader(Path(__file__).parent),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    made.globals.update(asset=_asset, version=version())
    made.filters.update(counted=counted, digest=_digest, number=_number, lines=printable_lines, shown=_shown)
    made.policies.update({"json.dumps_function": _json, "json.dumps_kwargs": {}})
    return made


@cache
def _asset(name: str) -> str:
    return Path(__file__).parent.joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """How a Content-Security-Policy identifies a script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _number(number: int) -> str:
    return f"{number:,}"


def _printable(value: Any) -> Any:
    """A value of a template: text on one line, without control characters."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _shown(value: Any) -> Any:
    """JSON without control characters in its texts."""
    if isinstance(value, dict):
        return {key: _shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    return printable_lines(value) if isinstance(value, str) else value


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
