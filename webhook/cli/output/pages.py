"""HTML pages of the command line, made from the Jinja templates of this package.

Law: Jinja escapes every text, after `printable` took its effects away; the scripts make only text nodes of
the data that they read. A page loads no other file, and its Content-Security-Policy allows only its own
script and style.
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


def pieces(template: str, **view: object) -> Iterator[str]:
    """A page in pieces, as the iterators of its view are read. `template`: its path in this package."""
    return _environment().get_template(template).generate(**view)


def whole(template: str, **view: object) -> str:
    """A page, or a part of one, at once."""
    return _environment().get_template(template).render(**view)


def counted(number: int, noun: str) -> str:
    """A number with its noun, such as `1,024 objects`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@cache
def _environment() -> Environment:
    made = Environment(
        autoescape=True,
        auto_reload=False,
        finalize=_visible,
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
    """The text of a script or style."""
    return Path(__file__).parent.joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """How a Content-Security-Policy identifies a script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _number(number: int) -> str:
    return f"{number:,}"


def _visible(value: Any) -> Any:
    """What a template writes for a value: its text on one line, without effects."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _shown(value: Any) -> Any:
    """JSON whose texts have no effects where the page shows them."""
    if isinstance(value, dict):
        return {key: _shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    return printable_lines(value) if isinstance(value, str) else value


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
