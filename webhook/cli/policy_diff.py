"""`chassis policy diff`: what another policy would decide otherwise, before it is applied.

Law: this module decides nothing. `engine.decide` decides about each object twice, as if it were created now.
Objects are read as they come and released, and each difference is printed when it is found.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from policies.core.mode import Mode
from policies.kube.printable import printable_json
from webhook.admission.configuration import Config
from webhook.admission.decision import Change, Decision
from webhook.admission.messages import places
from webhook.admission.patch import diff
from webhook.cli import connection
from webhook.cli.cluster_reviews import Scan
from webhook.cli.connection import chosen_namespace, connected
from webhook.cli.exit_status import DENIED, OK
from webhook.cli.named_policy import BUILT_IN, read_policy
from webhook.cli.output.json import subject
from webhook.cli.output.plain import plural
from webhook.cli.output.review import Review
from webhook.cli.output.show import add_color, show_lines
from webhook.cli.output.text import Line
from webhook.cli.output.weight import Weight, verdict, weights
from webhook.cli.review import review_documents
from webhook.config.load import models
from webhook.config.location import WHERE
from webhook.errors import UserError
from webhook.kube.offline import ManifestCluster, read

Pair: TypeAlias = "tuple[Review, Review]"
"""One object's review under the old policy, and under the new one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Review manifests, or the objects of a cluster, under two policies, and show the differences: "
        "verdicts, findings and injected fields. No object is changed. Exit status: 0 no object would be "
        "newly refused, 1 one would, 2 bad input or the cluster can't be read."
    )
    parser.add_argument("old", metavar="OLD", help=f"{WHERE}, or {BUILT_IN}")
    parser.add_argument("new", metavar="NEW", help="the same")
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="manifests to review (default: the objects of a cluster)",
    )
    connection.add_namespaces(parser)
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="default: %(default)s"
    )
    add_color(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.old == args.new == "-":
        raise UserError("policy diff: only one of the two policies can be on standard input")
    if args.paths and (args.all_namespaces or args.namespace):
        raise UserError("policy diff: give manifests or a namespace, not both")
    old, new = (
        read_policy(None if each == BUILT_IN else each, None, args.kubeconfig, args.context)
        for each in (args.old, args.new)
    )
    totals = Totals()
    if args.paths:
        _show(old, new, _of_manifests(args.paths, old, new), totals, args.output)
    else:
        with connected(args.kubeconfig, args.context) as (api, wait):
            namespace = chosen_namespace(args, api)
            scan: Scan = wait(Scan.prepare(api, namespace, old, new))
            pairs = ((before, after) for before, after in scan.reviews(wait))
            _show(old, new, pairs, totals, args.output)
    return DENIED if totals.newly_refused else OK


def _of_manifests(paths: Iterable[str], old: Config, new: Config) -> Iterator[Pair]:
    documents = read(paths)
    cluster = ManifestCluster([document.obj for document in documents])
    before, after = (review_documents(documents, config, cluster) for config in (old, new))
    return zip(before, after, strict=True)


def _show(old: Config, new: Config, pairs: Iterable[Pair], totals: Totals, output: str) -> None:
    settings = list(changed_settings(old, new))
    differences = totals.counting(pairs)
    if output == "json":
        for piece in _pieces(old, new, settings, differences, totals):
            sys.stdout.write(printable_json(piece))
    else:
        show_lines(_lines(old, new, settings, differences, totals))


# --- differences ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting with two values; None where it is not set, and has no default."""

    file: str
    path: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class Moved:
    """A finding from which another thing comes than before."""

    rule: str
    path: str
    old: Weight
    new: Weight


@dataclass(frozen=True, slots=True)
class Difference:
    """One object about which two policies decide differently."""

    before: Review
    after: Review
    findings: Sequence[Moved]
    fields: Mapping[str, Sequence[str]]
    """Fields of the object, or of a workload's pods, by operation: `add`, `remove` and `replace`."""

    @property
    def verdicts(self) -> tuple[Weight, Weight]:
        return verdict(self.before.decision), verdict(self.after.decision)


def changed_settings(old: Config, new: Config) -> Iterator[Setting]:
    """The settings with other values, defaults included, in the order of the keys."""
    for file, model in sorted(models().items()):
        before, after = (
            dict(_flat(config.value(model).model_dump(mode="json", by_alias=True))) for config in (old, new)
        )
        for path in dict.fromkeys((*before, *after)):
            if before.get(path) != after.get(path):
                yield Setting(file, path, before.get(path), after.get(path))


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each value with its path; lists of maps are followed, other lists are values."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for number, item in enumerate(value):
            yield from _flat(item, f"{path}[{number}]")
    elif value != []:  # what it would be followed into is not there
        yield path, value


def difference(before: Review, after: Review) -> Difference | None:
    """The differences between two policies' decisions about one object; None if there are none."""
    findings, fields = list(_moved(before.decision, after.decision)), _fields(before, after)
    same = not findings and not fields and verdict(before.decision) is verdict(after.decision)
    return None if same else Difference(before, after, findings, fields)


def _moved(before: Decision, after: Decision) -> Iterator[Moved]:
    old, new = weights(before), weights(after)
    for key in dict.fromkeys((*old, *new)):
        one, other = old.get(key, Weight.NONE), new.get(key, Weight.NONE)
        if one is not other:
            yield Moved(*key, one, other)


def _fields(before: Review, after: Review) -> dict[str, list[str]]:
    operations = diff(before.final, after.final)
    found: dict[str, list[str]] = {}
    for kind in ("add", "remove", "replace"):
        some = [each for each in operations if each["op"] == kind]
        if some:
            found[kind] = places(Change("", Mode.ENFORCE, some, before.final))
    return found


@dataclass
class Totals:
    """How many objects are decided about differently, and where."""

    objects: int = 0
    different: int = 0
    namespaces: dict[str, Counter[str]] = field(default_factory=dict)
    rules: dict[str, Counter[str]] = field(default_factory=dict)
    """By rule, how many findings come to be refused, warned and so on that were not before."""

    @property
    def newly_refused(self) -> int:
        return sum(counter[NEWLY_REFUSED] for counter in self.namespaces.values())

    def counting(self, pairs: Iterable[Pair]) -> Iterator[Difference]:
        """The objects among these about which the two policies decide differently."""
        for pair in pairs:
            self.objects += 1
            found = difference(*pair)
            if found is not None:
                self.different += 1
                self._count(found)
                yield found

    def _count(self, found: Difference) -> None:
        namespace = self.namespaces.setdefault(found.after.document.namespace or NO_NAMESPACE, Counter())
        namespace.update(_became(*found.verdicts))
        namespace[OTHER_FIELDS] += bool(found.fields)
        for moved in found.findings:
            self.rules.setdefault(moved.rule, Counter()).update(_became(moved.old, moved.new))


NEWLY_REFUSED: Final = "newly refused"
NO_LONGER_REFUSED: Final = "no longer refused"
NEWLY_WARNED: Final = "newly warned of"
NO_LONGER_WARNED: Final = "no longer warned of"
OTHER_FIELDS: Final = "other fields"
COLUMNS: Final = (NEWLY_REFUSED, NO_LONGER_REFUSED, NEWLY_WARNED, NO_LONGER_WARNED, OTHER_FIELDS)
NO_NAMESPACE: Final = "(none)"


def _became(old: Weight, new: Weight) -> Iterator[str]:
    if old is new:
        return
    if new is Weight.REFUSED:
        yield NEWLY_REFUSED
    elif old is Weight.REFUSED:
        yield NO_LONGER_REFUSED
    if new is Weight.WARNED:
        yield NEWLY_WARNED
    elif old is Weight.WARNED:
        yield NO_LONGER_WARNED


# --- for a person --------------------------------------------------------------------------------------


def _lines(
    old: Config, new: Config, settings: Sequence[Setting], differences: Iterable[Difference], totals: Totals
) -> Iterator[Line]:
    yield f"--- {_named(old)}", "bold"
    yield f"+++ {_named(new)}", "bold"
    for each in settings:
        yield f"  {each.file}: {each.path}: {_short(each.old)} -> {_short(each.new)}", "cyan"
    yield "", ""
    for found in differences:
        before, after = found.verdicts
        style = "red" if after > before else "green" if after < before else ""
        verdicts = f"{_said(before)} -> {_said(after)}" if before is not after else _said(after)
        yield f"{found.after.title} ({found.after.place()}): {verdicts}", f"bold {style}".strip()
        for moved in found.findings:
            style = "red" if moved.new > moved.old else "green"
            yield f"  {moved.rule}: {moved.old} -> {moved.new}", style
            place = f" ({found.after.place(moved.path)})" if found.after.document.origin else ""
            yield f"    at {moved.path}{place}", ""
        for kind, paths in found.fields.items():
            for path in paths:
                yield f"  {_MARKS[kind]} {path}", _STYLES[kind]
        yield "", ""
    if totals.different:
        yield from _table("namespace", totals.namespaces)
        yield from _table("rule (findings)", totals.rules)
    yield (
        f"{plural(totals.objects, 'object')}, {totals.different} decided differently, "
        f"{totals.newly_refused} newly refused",
        "bold red" if totals.newly_refused else "bold green",
    )


_MARKS: Final = {"add": "+", "remove": "-", "replace": "~"}
_STYLES: Final = {"add": "green", "remove": "red", "replace": "yellow"}


def _named(config: Config) -> str:
    return f"profile {config.rules.profile}, digest {config.digest}"


def _said(weight: Weight) -> str:
    return {Weight.REFUSED: "REFUSED", Weight.WARNED: "admitted with warnings"}.get(weight, "admitted")


def _short(value: Any) -> str:
    text = "not set" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _table(title: str, counted: Mapping[str, Counter[str]]) -> Iterator[Line]:
    """Rows of counts, with the columns in which anything was counted."""
    columns = [name for name in COLUMNS if any(counter[name] for counter in counted.values())]
    rows = [(name, counter) for name, counter in sorted(counted.items()) if any(counter.values())]
    if not rows or not columns:
        return
    width = max(len(title), *(len(name) for name, _ in rows))
    yield "  ".join((title.ljust(width), *columns)), "bold"
    for name, counter in rows:
        cells = (str(counter[column] or "-").rjust(len(column)) for column in columns)
        yield "  ".join((name.ljust(width), *cells)), ""
    yield "", ""


# --- for a program -------------------------------------------------------------------------------------


def _pieces(
    old: Config, new: Config, settings: Sequence[Setting], differences: Iterable[Difference], totals: Totals
) -> Iterator[str]:
    """One JSON object, written while differences are found; its totals come last."""
    head = {
        "old": {"profile": str(old.rules.profile), "digest": old.digest},
        "new": {"profile": str(new.rules.profile), "digest": new.digest},
        "settings": [{"file": s.file, "path": s.path, "old": s.old, "new": s.new} for s in settings],
    }
    yield json.dumps(head)[:-1] + ', "objects": ['
    separator = "\n"
    for found in differences:
        yield separator + json.dumps(_record(found))
        separator = ",\n"
    tail = {
        "objects": totals.objects,
        "different": totals.different,
        "newlyRefused": totals.newly_refused,
        "namespaces": totals.namespaces,
        "rules": totals.rules,
    }
    yield f'], "totals": {json.dumps(tail)}}}\n'


def _record(found: Difference) -> dict[str, Any]:
    before, after = found.verdicts
    return {
        **subject(found.after.document),
        "verdict": {"old": str(before), "new": str(after)},
        "findings": [
            {"rule": m.rule, "path": m.path, "old": str(m.old), "new": str(m.new)} for m in found.findings
        ],
        "fields": found.fields,
    }
