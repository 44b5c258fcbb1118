"""`chassis fix`: writes the possible remedies into a manifest.

Law: a file gets the fields that the policies would add to its objects, and the values that resolve a finding
without a decision; every other character stays as it is. The new text is read again before a file is
replaced: if its objects differ from the intended ones, the file is not changed, and neither is one that can't
be read.
"""

from __future__ import annotations

import argparse
import difflib
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from policies.core import registry
from policies.core.facts import Cluster
from policies.core.mode import Mode
from policies.kube.field_paths import steps_in
from policies.kube.json import Json, dig, replaced
from policies.kube.printable import printable
from webhook.admission.configuration import Config, Override
from webhook.admission.decision import Result
from webhook.admission.patch import diff, same
from webhook.cli.exit_status import BAD_INPUT, OK
from webhook.cli.named_policy import read_policy
from webhook.cli.output.review import Review
from webhook.cli.review import review_documents
from webhook.cli.text_edits import NotEditable, applied, edited
from webhook.config.load import rules
from webhook.config.location import WHERE
from webhook.errors import UserError
from webhook.kube.offline import Document, ManifestCluster, parse, read_what_can_be

ROUNDS: Final = 4
"""How often an object is decided again after a remedy: one remedy may call for another."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write into YAML manifests what the policies would add to their objects, and what mends a finding in "
        "one value. Comments, order and every other line stay. A file that can't be read, such as a template "
        "of Helm's, is named and not touched. Exit status: 0, all that can be mended is; 2, a file was left "
        "alone."
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="files or directories")
    parser.add_argument("--policy", metavar="WHERE", help=f"{WHERE} (default: built-in)")
    parser.add_argument(
        "--profile", choices=("observe", "standard", "strict"), help="instead of the policy's"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="ID", help="a policy or rule; may be repeated"
    )
    parser.add_argument("--diff", action="store_true", help="print a patch and write no file")
    parser.add_argument("--dry-run", action="store_true", help="name the files and fixes, and write no file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if "-" in args.paths:
        raise UserError("fix: give files or directories, not standard input")
    config = _only(_quiet(read_policy(args.policy, args.profile)), args.only)
    documents, problems = read_what_can_be(args.paths)
    cluster = ManifestCluster([document.obj for document in documents])
    roots = [Path(path).resolve() for path in args.paths]
    by_file: dict[str, list[Document]] = {}
    for document in documents:
        by_file.setdefault(document.source, []).append(document)
    # Of several links to one file, the first one counts.
    targets = {Path(file).resolve(): file for file in reversed(by_file)}
    for file, own in by_file.items():
        if targets[Path(file).resolve()] != file:
            continue
        try:
            fixed = _fixed(own, config, cluster, args.only)
            if fixed is not None:
                _deliver(Path(file), roots, fixed, args)
        except UserError as problem:
            problems.append(problem)
    for each in problems:
        print(printable(f"chassis fix: not touched: {each}"), file=sys.stderr)
    return BAD_INPUT if problems else OK


@dataclass(frozen=True, slots=True)
class _Fixed:
    """A file's text before and after, and what of it was mended."""

    before: str
    after: str
    mended: tuple[str, ...]


def _deliver(file: Path, roots: Sequence[Path], fixed: _Fixed, args: argparse.Namespace) -> None:
    target = file.resolve()
    if not any(target.is_relative_to(root) for root in roots):
        raise UserError(f"{file}: it is a link to {target}, outside of the paths that were given")
    if args.diff:
        before, after = (text.removesuffix("\n").split("\n") for text in (fixed.before, fixed.after))
        for line in difflib.unified_diff(before, after, f"a/{file}", f"b/{file}", lineterm=""):
            print(printable(line))
        return
    if not args.dry_run:
        try:
            _replace(target, fixed)
        except OSError as error:
            raise UserError(f"{file}: it can't be replaced: {error.strerror}") from None
    print(printable(f"{file}: {'would be ' if args.dry_run else ''}mended: {', '.join(fixed.mended)}"))


def _replace(target: Path, fixed: _Fixed) -> None:
    """Put a text in the place of a file's, whole or not at all; its line ends, mode and owner stay."""
    before, text = target.read_bytes(), fixed.after
    if before.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n") != fixed.before:
        raise UserError(f"{target}: it was changed meanwhile")
    if b"\r\n" in before:
        text = text.replace("\n", "\r\n")
    descriptor, scratch = tempfile.mkstemp(
        prefix=f".{target.name[:200]}.", suffix=".chassis", dir=target.parent
    )
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123  (a descriptor, not a path)
            file.write(text.encode())
            file.flush()
            old, new = target.stat(), os.fstat(descriptor)
            if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
                os.fchown(descriptor, old.st_uid, old.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(old.st_mode))  # after the owner, whose change clears bits
            os.fsync(descriptor)
        Path(scratch).replace(target)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


# --- what there is to mend ---------------------------------------------------------------------------


def _quiet(config: Config) -> Config:
    """The same policy without the annotation that a pod carries: it is about what admission did."""
    said = config.webhook.changes.model_copy(update={"annotation": False})
    return replace(config, webhook=config.webhook.model_copy(update={"changes": said}))


def _only(config: Config, wanted: Sequence[str]) -> Config:
    """The same policy with no other mutating policies than those; all of them where none is named."""
    for name in wanted:
        if name not in registry.mutators() and name not in REMEDIES:
            what = "has no remedy that can be written" if name in rules() else "is no policy or rule"
            raise UserError(f"fix: {name} {what}")
    if not wanted:
        return config
    off = Override(modes={name: Mode.OFF for name in registry.mutators() if name not in wanted})
    overrides = (*config.webhook.overrides, off)
    return replace(
        config,
        webhook=config.webhook.model_copy(update={"overrides": overrides}),
        overridden=(*config.overridden, {}),
    )


def _fixed(
    documents: Sequence[Document], config: Config, cluster: Cluster, only: Sequence[str]
) -> _Fixed | None:
    """The text of a file with its objects mended; None where there is nothing to mend. UserError where it
    can't be written."""
    edits = []
    mended: dict[str, None] = {}
    wanted = []
    first = documents[0]
    if first.origin is None or first.source.endswith(".json"):
        return None
    before = first.origin.text
    for document in documents:
        after, by = _mended(document, config, cluster, only)
        wanted.append(after)
        operations = diff(document.obj, after)
        if operations and document.origin:
            try:
                edits += edited(document.origin, document.obj, after, operations)
            except (NotEditable, LookupError) as error:
                raise UserError(f"{document.place}: {error}") from None
            mended |= dict.fromkeys(by)
    if not edits:
        return None
    try:
        text = applied(before, edits)
    except NotEditable as error:
        raise UserError(f"{first.source}: {error}") from None
    if not _says(text, wanted):
        raise UserError(f"{first.source}: the new text would have another meaning; it may use anchors")
    return _Fixed(before, text, tuple(mended))


def _says(text: str, wanted: Iterable[Json]) -> bool:
    """Whether a text is read as exactly those objects."""
    try:
        found = [document.obj for document in parse("", text)]
    except UserError:
        return False
    return same(found, list(wanted))


def _mended(
    document: Document, config: Config, cluster: Cluster, only: Sequence[str]
) -> tuple[Json, list[str]]:
    """The object with what the policies would add, without the findings that have a remedy; what did it."""
    by: dict[str, None] = {}
    for _ in range(ROUNDS):
        (review,) = review_documents([document], config, cluster)
        by |= dict.fromkeys(review.mutations)
        mended = review.final
        for result in _remediable(review, only):
            mended = REMEDIES[result.rule](mended, result)
            by[result.rule] = None
        if mended is review.final:
            return mended, list(by)
        document = replace(document, obj=mended)
    return document.obj, list(by)


def _remediable(review: Review, only: Sequence[str]) -> Iterator[Result]:
    for result in review.decision.results:
        if result.rule in REMEDIES and result.exempted is None and (not only or result.rule in only):
            yield result


def _set(value: int) -> Callable[[Json, Result], Json]:
    """A remedy that gives a finding's field a value."""

    def remedy(obj: Json, result: Result) -> Json:
        return replaced(obj, steps_in(obj, result.finding.path), value)

    return remedy


def _period_as_timeout(obj: Json, result: Result) -> Json:
    *probe, timeout = steps_in(obj, result.finding.path)
    return replaced(obj, (*probe, "periodSeconds"), dig(obj, *probe, timeout))


REMEDIES: Final[Mapping[str, Callable[[Json, Result], Json]]] = {
    "exec-probe-default-timeout": _set(5),
    "liveness-single-failure": _set(6),
    "probe-timeout-exceeds-period": _period_as_timeout,
}
"""The findings that one value mends, the one that the rule's own hint names."""
