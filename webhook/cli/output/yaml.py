"""Objects as YAML, after mutation; denied objects are commented out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

import yaml

from policies.kube.json import Json
from policies.kube.yaml_text import NUMBERS
from webhook.admission.printable import printable, printable_lines
from webhook.cli.reviewed import Reviewed, Subject


def pieces(reviews: Iterable[Reviewed], _: Subject) -> Iterator[str]:
    for number, review in enumerate(reviews):
        yield f"---\n{_commented(review)}" if number else _commented(review)


def _commented(review: Reviewed) -> str:
    why = "".join(
        f"# {printable(f'{reason.policy}: {reason.path}: {reason.why}')}\n" for _, reason in review.reasons
    )
    rendered = why + dump(review.final)
    if review.decision.allowed:
        return rendered
    refused = ", ".join(result.rule for result in review.refusals)
    return f"# denied: {refused}\n" + "".join(f"# {line}\n" for line in rendered.split("\n")[:-1])


try:
    from yaml import CSafeDumper as _SafeDumper
except ImportError:  # PyYAML built without libyaml: slower, same values
    from yaml import SafeDumper as _SafeDumper  # type: ignore[assignment]


def _may_be_folded_before_command(value: str) -> bool:
    """Whether a line of the folded text could begin with a workflow command of GitHub, `::name::`."""
    return value.count("::") > 1 and any(word.startswith("::") for word in value.split())


class _Dumper(_SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, value: str) -> yaml.Node:
    """Several lines in block style. Text with control characters is quoted, so that `_rendered` escapes
    it."""
    style = "|" if "\n" in value else None
    if not (value.isascii() and value.isalnum()) and (
        printable_lines(value) != value or _may_be_folded_before_command(value)
    ):
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
for _tag, _pattern, _starts in NUMBERS:
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, _starts)


def dump(obj: Json) -> str:
    """An object as YAML, with the keys in their order. Text that kubectl would read as a number, such as the
    commit `12e4567`, is quoted."""
    return _rendered(obj, width=120)


MAX_ADDED_TEXT: Final = 100
"""Characters of an added text that people read whole; an injected program has thousands."""


def for_reading(after: Json, before: Json) -> Json:
    """The object `after` a review, with its long texts cut that `before` does not have."""
    known = {each for each in _texts(before) if len(each) > MAX_ADDED_TEXT}
    cut: Json = _cut(after, known)
    return cut


def _texts(value: Any) -> Iterator[str]:
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            todo += each.values()
        elif isinstance(each, list):
            todo += each


def _cut(value: Any, known: Collection[str]) -> Any:
    """The depth is that of an object that was read, which is bounded."""
    if isinstance(value, dict):
        return {key: _cut(each, known) for key, each in value.items()}
    if isinstance(value, list):
        return [_cut(each, known) for each in value]
    if not isinstance(value, str) or len(value) <= MAX_ADDED_TEXT or value in known:
        return value
    length = f"about {round(len(value), -3):,}" if len(value) > 1000 else str(len(value))
    return f"{' '.join(value[:40].split())} … ({length} characters)"


def dump_flow(value: Any) -> str:
    """A value on one line."""
    rendered = _rendered(value, width=2**31 - 1, default_flow_style=True)
    return rendered.removesuffix("...\n").removesuffix("\n")


def _rendered(value: Any, **form: Any) -> str:
    """YAML without control characters. The dumper leaves some of them in double quotes, where an escape
    has the same value."""
    rendered: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, **form)
    return printable_lines(rendered)
