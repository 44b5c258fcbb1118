"""`chassis policy diff`: the differences between the decisions of two policies.

`engine.decide` decides about each object twice, as if it were created now. Objects are read and released one
by one, and each difference is printed when it is found.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import Struct, field

from policies.core.annotations import CHANGED
from policies.core.finding import Mode
from policies.core.settings import fields_as_json
from policies.kube.json import Json
from policies.kube.metadata import annotations_of
from policies.kube.names import plural, shortened
from webhook.admission.configuration import Config
from webhook.admission.decision import Change
from webhook.admission.json_patch import diff
from webhook.admission.messages import places
from webhook.admission.printable import printable_json
from webhook.cli import flags
from webhook.cli.cluster_reviews import Scan
from webhook.cli.connection import connected, selected_namespace
from webhook.cli.flags import DENIED, OK
from webhook.cli.named_policy import BUILT_IN, read_policy
from webhook.cli.output.json import identity
from webhook.cli.reviewed import Outcome, Reviewed, review_documents
from webhook.cli.terminal import Line, print_lines
from webhook.config.load import models
from webhook.config.location import WHERE
from webhook.errors import UserError
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import read

Pair: TypeAlias = "tuple[Reviewed, Reviewed]"
"""The reviews of one object under the old and the new policy."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Review manifests, or the objects of a cluster, under two policies, and show the differences: "
        "verdicts, findings and injected fields. No object is changed. Exit status: 0 no object would be "
        "newly refused, 1 at least one would, 2 bad input or the cluster can't be read."
    )
    parser.add_argument("old", metavar="OLD", help=f"{WHERE}, or {BUILT_IN}")
    parser.add_argument("new", metavar="NEW", help="like OLD")
    parser.add_argument(
        "paths", nargs="*", default=[], metavar="PATH", help="manifests (default: the cluster)"
    )
    flags.add_namespaces(parser)
    flags.add_output(parser, "text", "json")
    flags.add_color(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.old == args.new == "-":
        raise UserError("policy diff: only one of the two policies can be on standard input")
    if args.paths and (args.all_namespaces or args.namespace):
        raise UserError("policy diff: specify manifests or a namespace, not both")
    old, new = (
        read_policy(None if each == BUILT_IN else each, None, args.kubeconfig, args.context)
        for each in (args.old, args.new)
    )
    comparison = Comparison(old, new)
    if args.paths:
        comparison.show(_of_manifests(args.paths, old, new), args.output)
    else:
        with connected(args.kubeconfig, args.context) as (api, wait):
            namespace = selected_namespace(args, api)
            scan: Scan = wait(Scan.prepare(api, namespace, old, new))
            comparison.show(((before, after) for before, after in scan.reviews(wait)), args.output)
    return DENIED if comparison.newly_refused else OK


def _of_manifests(paths: Iterable[str], old: Config, new: Config) -> Iterator[Pair]:
    documents = read(paths)
    cluster = ManifestCluster([document.obj for document in documents])
    before, after = (review_documents(documents, config, cluster) for config in (old, new))
    return zip(before, after, strict=True)


# --- differences ---------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """A setting with two values; None if it is not set and has no default."""

    file: str
    path: str
    old: Any
    new: Any


class FindingChange(NamedTuple):
    """A finding with two outcomes."""

    rule: str
    path: str
    old: Outcome
    new: Outcome


class PolicyDifference(NamedTuple):
    """The differences between two policies' decisions about one object."""

    before: Reviewed
    after: Reviewed
    findings: Sequence[FindingChange]
    fields: Mapping[str, Sequence[str]]
    """Fields of the object, or of a workload's pods, by operation: `add`, `remove` and `replace`."""


def changed_settings(old: Config, new: Config) -> Iterator[Setting]:
    """The settings with different values, defaults included, in the order of the keys."""
    for file, model in sorted(models().items()):
        before, after = (dict(_flat(fields_as_json(config.value(model)))) for config in (old, new))
        for path in dict.fromkeys((*before, *after)):
            if before.get(path) != after.get(path):
                yield Setting(file, path, before.get(path), after.get(path))


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each value with its path. The maps in a list have a path each; any other list is one value."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for number, item in enumerate(value):
            yield from _flat(item, f"{path}[{number}]")
    elif value != []:  # may be a list of maps without any
        yield path, value


def difference(before: Reviewed, after: Reviewed) -> PolicyDifference | None:
    """The difference between two reviews of one object; None if there is none."""
    findings, fields = list(_changed_findings(before, after)), _changed_fields(before, after)
    same = not findings and not fields and before.verdict is after.verdict
    return None if same else PolicyDifference(before, after, findings, fields)


def _changed_findings(before: Reviewed, after: Reviewed) -> Iterator[FindingChange]:
    old, new = before.outcomes, after.outcomes
    for key in dict.fromkeys((*old, *new)):
        one, other = old.get(key, Outcome.NONE), new.get(key, Outcome.NONE)
        if one is not other:
            yield FindingChange(*key, one, other)


def _changed_fields(before: Reviewed, after: Reviewed) -> dict[str, list[str]]:
    operations = diff(_without_reasons(before.final), _without_reasons(after.final))
    found: dict[str, list[str]] = {}
    for kind in ("add", "remove", "replace"):
        some = [each for each in operations if each["op"] == kind]
        if some:
            found[kind] = places(Change("", Mode.ENFORCE, some, before.final))
    return found


def _without_reasons(obj: Json) -> Json:
    """The object without our annotation, whose digest differs between any two policies."""
    if CHANGED not in annotations_of(obj):
        return obj
    kept = {key: value for key, value in annotations_of(obj).items() if key != CHANGED}
    return {**obj, "metadata": {**obj["metadata"], "annotations": kept}}


NEWLY_REFUSED: Final = "newly refused"
NO_LONGER_REFUSED: Final = "no longer refused"
NEWLY_WARNED: Final = "newly warned about"
NO_LONGER_WARNED: Final = "no longer warned about"
OTHER_FIELDS: Final = "other fields"
COLUMNS: Final = (NEWLY_REFUSED, NO_LONGER_REFUSED, NEWLY_WARNED, NO_LONGER_WARNED, OTHER_FIELDS)
NO_NAMESPACE: Final = "(none)"


def _transitions(old: Outcome, new: Outcome) -> Iterator[str]:
    if old is new:
        return
    if new is Outcome.REFUSED:
        yield NEWLY_REFUSED
    elif old is Outcome.REFUSED:
        yield NO_LONGER_REFUSED
    if new is Outcome.WARNED:
        yield NEWLY_WARNED
    elif old is Outcome.WARNED:
        yield NO_LONGER_WARNED


# --- output --------------------------------------------------------------------------------------------


class Comparison(Struct):
    """The output about two policies, and the numbers of differences that were found so far."""

    old: Config
    new: Config
    objects: int = 0
    different: int = 0
    namespaces: dict[str, Counter[str]] = field(default_factory=dict)
    """The numbers of objects by namespace and column."""
    rules: dict[str, Counter[str]] = field(default_factory=dict)
    """The numbers of findings by rule and column."""

    @property
    def newly_refused(self) -> int:
        return sum(counter[NEWLY_REFUSED] for counter in self.namespaces.values())

    def show(self, pairs: Iterable[Pair], output: str) -> None:
        """Print the differences among these pairs as text or JSON while they are found."""
        if output == "json":
            for piece in self._json(pairs):
                sys.stdout.write(printable_json(piece))
        else:
            print_lines(self._lines(pairs))

    def _differences(self, pairs: Iterable[Pair]) -> Iterator[PolicyDifference]:
        for pair in pairs:
            self.objects += 1
            found = difference(*pair)
            if found is not None:
                self._count(found)
                yield found

    def _count(self, found: PolicyDifference) -> None:
        self.different += 1
        namespace = self.namespaces.setdefault(found.after.document.namespace or NO_NAMESPACE, Counter())
        namespace.update(_transitions(found.before.verdict, found.after.verdict))
        namespace[OTHER_FIELDS] += bool(found.fields)
        for finding in found.findings:
            self.rules.setdefault(finding.rule, Counter()).update(_transitions(finding.old, finding.new))

    def _lines(self, pairs: Iterable[Pair]) -> Iterator[Line]:
        for sign, config in (("---", self.old), ("+++", self.new)):
            yield f"{sign} profile {config.rules.profile}, digest {config.digest}", "bold"
        for each in changed_settings(self.old, self.new):
            yield f"  {each.file}: {each.path}: {_short(each.old)} -> {_short(each.new)}", "cyan"
        yield "", ""
        for found in self._differences(pairs):
            yield from _difference_lines(found)
        if self.different:
            yield from _table("namespace", self.namespaces)
            yield from _table("rule (findings)", self.rules)
        yield (
            f"{plural(self.objects, 'object')}, {self.different} decided differently, "
            f"{self.newly_refused} newly refused",
            "bold red" if self.newly_refused else "bold green",
        )

    def _json(self, pairs: Iterable[Pair]) -> Iterator[str]:
        """One JSON object, with the totals at the end."""
        policies = {
            name: {"profile": str(config.rules.profile), "digest": config.digest}
            for name, config in (("old", self.old), ("new", self.new))
        }
        settings = [each._asdict() for each in changed_settings(self.old, self.new)]
        yield json.dumps({**policies, "settings": settings})[:-1] + ', "objects": ['
        separator = "\n"
        for found in self._differences(pairs):
            yield separator + json.dumps(_record(found))
            separator = ",\n"
        totals = {
            "objects": self.objects,
            "different": self.different,
            "newlyRefused": self.newly_refused,
            "namespaces": self.namespaces,
            "rules": self.rules,
        }
        yield f'], "totals": {json.dumps(totals)}}}\n'


def _difference_lines(found: PolicyDifference) -> Iterator[Line]:
    before, after = found.before.verdict, found.after.verdict
    style = "red" if after > before else "green" if after < before else ""
    verdicts = " -> ".join(dict.fromkeys((_verdict(before), _verdict(after))))
    yield f"{found.after.title} ({found.after.place()}): {verdicts}", f"bold {style}".strip()
    for finding in found.findings:
        style = "red" if finding.new > finding.old else "green"
        yield f"  {finding.rule}: {finding.old} -> {finding.new}", style
        place = f" ({found.after.place(finding.path)})" if found.after.document.origin else ""
        yield f"    at {finding.path}{place}", ""
    for kind, paths in found.fields.items():
        for path in paths:
            sign, style = _SIGNS[kind]
            yield f"  {sign} {path}", style
    yield "", ""


_SIGNS: Final = {"add": ("+", "green"), "remove": ("-", "red"), "replace": ("~", "yellow")}


def _verdict(outcome: Outcome) -> str:
    return {Outcome.REFUSED: "REFUSED", Outcome.WARNED: "admitted with warnings"}.get(outcome, "admitted")


def _short(value: Any) -> str:
    text = "not set" if value is None else value if isinstance(value, str) else json.dumps(value)
    return shortened(text, 60)


def _table(title: str, counted: Mapping[str, Counter[str]]) -> Iterator[Line]:
    """Rows of counts; columns without a count are left out."""
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


def _record(found: PolicyDifference) -> dict[str, Any]:
    return {
        **identity(found.after.document),
        "verdict": {"old": str(found.before.verdict), "new": str(found.after.verdict)},
        "findings": [
            {**each._asdict(), "old": str(each.old), "new": str(each.new)} for each in found.findings
        ],
        "fields": found.fields,
    }
