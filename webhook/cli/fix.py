"""`chassis fix`: write missing fields and simple fixes into manifests.

A file gets the fields that the policies would add to its objects, and the values that fix a finding without a
decision. All other characters stay. The new text is parsed before the file is replaced: if its objects differ
from the intended ones, the file is not changed. A file that can't be read is not changed either.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import jsonpatch
from msgspec import Struct
from msgspec.structs import replace

from policies.core import registry
from policies.core.facts import Cluster
from policies.core.finding import Mode
from policies.jobs.termination_messages import FIELD
from policies.kube.field_paths import field_path, named, steps_in
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json, dig, replaced, text
from policies.kube.names import did_you_mean
from webhook.admission.configuration import Config, Override
from webhook.admission.json_patch import diff, same, steps_of
from webhook.admission.printable import printable
from webhook.cli import flags
from webhook.cli.flags import BAD_INPUT, OK
from webhook.cli.named_policy import read_policy
from webhook.cli.reviewed import Reviewed, review_documents
from webhook.cli.text_edits import NotEditable, applied, edited
from webhook.config.load import rules
from webhook.errors import UserError
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import Document, parse, read_all
from webhook.manifests.rendered import CHART, patched, sources

_Fix: TypeAlias = tuple[str, str, int]
"""A finding to fix: its rule, the path of its field by the names of containers, and the value."""
FIXES: Final = frozenset({"exec-probe-default-timeout", "liveness-single-failure"})
"""The rules whose findings have a value."""
ROUNDS: Final = 4
"""How often an object is reviewed again after a fix: one fix may need another."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write the fields that the policies would add into YAML manifests, and the fixes of findings that "
        "need one value. Comments, order and all other lines stay as they are. Files that can't be read, "
        "such as Helm templates, are named and not changed. Exit status: 0 all possible fixes are made, 2 "
        "a file was not changed."
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="files or directories")
    flags.add_policy(parser, "the built-in one")
    flags.add_profile(parser)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="ID",
        help="apply only this policy or rule; may be repeated",
    )
    parser.add_argument("--diff", action="store_true", help="print a patch instead of writing files")
    parser.add_argument(
        "--dry-run", action="store_true", help="list the files and fixes without writing files"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if "-" in args.paths:
        raise UserError("fix: specify files or directories, not standard input")
    config = _with_only(_without_annotation(read_policy(args.policy, args.profile)), args.only)
    documents, problems = read_all(args.paths)
    cluster = ManifestCluster([document.obj for document in documents])
    roots = [Path(path).resolve() for path in args.paths]
    by_file: dict[str, list[Document]] = {}
    for document in documents:
        by_file.setdefault(document.source, []).append(document)
    directories = [Path(path) for path in args.paths if Path(path).is_dir()]
    patches = {place: by for path in directories for place, by in patched(path).items()}
    problems += [
        UserError(
            f"{each.file.parent}: templates are not YAML. Fix them by hand: chassis review shows the result"
        )
        for path in directories
        for each in sources(path)
        if each.file.name == CHART
    ]
    # A file with several links is fixed once.
    targets = {Path(file).resolve(): file for file in reversed(by_file)}
    for file, own in by_file.items():
        if targets[Path(file).resolve()] != file:
            continue
        try:
            _refuse_patched(own, patches)
            fixed = _fixed(own, config, cluster, args.only)
            if fixed is not None:
                _write_or_print(Path(file), roots, fixed, args)
        except UserError as problem:
            problems.append(problem)
    for each in problems:
        print(printable(f"chassis fix: not changed: {each}"), file=sys.stderr)
    return BAD_INPUT if problems else OK


def _refuse_patched(documents: Sequence[Document], patches: Mapping[tuple[str, str], Path]) -> None:
    """Raises UserError if a patch of kustomize changes the containers of an object."""
    for document in documents:
        kind, name = text(document.obj, "kind"), text(document.obj, "metadata", "name")
        by = next((patches[key] for key in ((kind, name), (kind, ""), ("", name)) if key in patches), None)
        if by is not None:
            raise UserError(
                f"{document.place}: a patch in {by} changes the containers of {kind} {name}. Fix it by hand: "
                "chassis review shows the result of the kustomization"
            )


class _Fixed(Struct, frozen=True):
    """A file's text before and after, and the policies and rules of the fixes."""

    before: str
    after: str
    by: tuple[str, ...]


def _write_or_print(file: Path, roots: Sequence[Path], fixed: _Fixed, args: argparse.Namespace) -> None:
    target = file.resolve()
    if not any(target.is_relative_to(root) for root in roots):
        raise UserError(f"{file}: it is a link to {target}, which is outside of the given paths")
    if args.diff:
        before, after = (text.removesuffix("\n").split("\n") for text in (fixed.before, fixed.after))
        for line in difflib.unified_diff(before, after, *_sides(file), lineterm=""):
            print(printable(line))
        return
    if not args.dry_run:
        try:
            _replace(target, fixed)
        except OSError as error:
            raise UserError(f"{file}: it can't be replaced: {error.strerror}") from None
    print(printable(f"{file}: {'would be ' if args.dry_run else ''}fixed: {', '.join(fixed.by)}"))


def _sides(file: Path) -> tuple[str, str]:
    """The file's names in a patch, as git writes them."""
    name = str(file).lstrip("/")
    return f"a/{name}", f"b/{name}"


def _replace(target: Path, fixed: _Fixed) -> None:
    """Replace the text of a file as a whole or not at all; line ends, mode and owner stay."""
    before, text = target.read_bytes(), fixed.after
    if before.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n") != fixed.before:
        raise UserError(f"{target}: another program changed it in the meantime")
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
            os.fchmod(descriptor, stat.S_IMODE(old.st_mode))  # after fchown, which clears bits
            os.fsync(descriptor)
        Path(scratch).replace(target)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


# --- the fixes ---------------------------------------------------------------------------------------


def _without_annotation(config: Config) -> Config:
    """The same policy without the annotation about added fields, which describes an admission."""
    changes = replace(config.webhook.changes, annotation=False)
    return dataclasses.replace(config, webhook=replace(config.webhook, changes=changes))


def _with_only(config: Config, names: Sequence[str]) -> Config:
    """The same policy with only the named mutators, or all of them if none is named."""
    for name in names:
        if name not in registry.mutators() and name not in FIXES:
            known = (*registry.mutators(), *rules())
            problem = f"isn't a policy or rule{did_you_mean(name, known)}"
            if name in rules():
                problem = "has no automatic fix"
            raise UserError(f"fix: {name} {problem}")
    if not names:
        return config
    off = Override(modes={name: Mode.OFF for name in registry.mutators() if name not in names})
    overrides = (*config.webhook.overrides, off)
    return dataclasses.replace(
        config,
        webhook=replace(config.webhook, overrides=overrides),
        overridden=(*config.overridden, {}),
    )


def _fixed(
    documents: Sequence[Document], config: Config, cluster: Cluster, only: Sequence[str]
) -> _Fixed | None:
    """The text of a file with its objects fixed; None if there is nothing to fix.

    Raises:
        UserError: the fixes can't be written into the text.
    """
    edits = []
    applied_by: dict[str, None] = {}
    intended = []
    first = documents[0]
    if first.origin is None or first.source.endswith(".json"):
        return None
    before = first.origin.text
    for review in review_documents(documents, config, cluster):
        document = review.document
        after, by = fixed_object(review, config, cluster, only)
        intended.append(after)
        operations = diff(document.obj, after)
        if operations and document.origin:
            try:
                edits += edited(document.origin, document.obj, after, operations)
            except (NotEditable, LookupError) as error:
                raise UserError(f"{document.place}: {error}") from None
            applied_by |= dict.fromkeys(by)
    if not edits:
        return None
    try:
        text = applied(before, edits)
    except NotEditable as error:
        raise UserError(f"{first.source}: {error}") from None
    if not _parses_to(text, intended):
        raise UserError(
            f"{first.source}: the new text would have a different meaning; the file may use anchors"
        )
    return _Fixed(before, text, tuple(applied_by))


def _parses_to(text: str, objects: Sequence[Json]) -> bool:
    try:
        return same([document.obj for document in parse("", text)], objects)
    except UserError:
        return False


def fixed_object(
    review: Reviewed, config: Config, cluster: Cluster, only: Sequence[str]
) -> tuple[Json, list[str]]:
    """The reviewed object with all fixes that add no other finding, and the ids of their policies and rules.

    The fields are added after the fixes: some depend on a value that a fix changes, such as a readinessProbe
    that gives up before the livenessProbe does. Next to them, another fix may add no finding any more.
    """
    applied: dict[str, None] = {}
    for _ in range(ROUNDS):
        before = review.document.obj
        for rule, path, value in _to_fix(review, only):
            fixed = _fixed_cleanly(review, path, value, config, cluster)
            if fixed is not None:
                review = fixed
                applied[rule] = None
        document = review.document
        final = _accepted(document.obj, review.final, config)
        if final != document.obj:
            applied |= dict.fromkeys(review.mutations)
        if final == before:
            break
        (review,) = review_documents([replace(document, obj=final)], config, cluster)
    return final, list(applied)


def _to_fix(review: Reviewed, only: Sequence[str]) -> list[_Fix]:
    return [
        (result.rule, field_path(named(review.final, result.finding.path)), value)
        for result in review.decision.results
        if (value := result.finding.value) is not None
        and result.exempted is None
        and (not only or result.rule in only)
    ]


_GRACE: Final = "terminationGracePeriodSeconds"
_DEFAULTED: Final = frozenset({FIELD, _GRACE})
"""Fields whose default the API server writes into each pod. The webhook can't tell it from the author's
value, but in a file, it is the author's."""


def _accepted(obj: Json, final: Json, config: Config) -> Json:
    """The object with the added fields that the API of its kind accepts in it; the pods get the others."""
    workload = config.workloads.get(kind_of(obj))
    refused: frozenset[str] = frozenset()
    if workload is not None and workload.refuses and not workload.accepts_all(obj):
        refused = frozenset(workload.refuses)
    operations = diff(obj, final)
    decided = [[*steps_of(each["path"])] for each in operations if _is_decided(each)]
    # Without a longer grace period, a longer preStop hook takes its time from the last requests.
    short = [steps[:-1] for steps in decided if steps[-1] == _GRACE]
    accepted = [
        each
        for each in operations
        if not (_is_decided(each) or refused.intersection(steps_of(each["path"])))
        and not any(_is_hook([*steps_of(each["path"])], spec) for spec in short)
    ]
    if len(accepted) == len(operations):
        return final
    patched: Json = jsonpatch.apply_patch(obj, accepted)
    return patched


def _is_hook(steps: list[str], spec: list[str]) -> bool:
    return steps[: len(spec)] == spec and "lifecycle" in steps[len(spec) :]


def _is_decided(operation: Json) -> bool:
    return operation["op"] == "replace" and [*steps_of(operation["path"])][-1] in _DEFAULTED


def _fixed_cleanly(
    review: Reviewed, path: str, value: int, config: Config, cluster: Cluster
) -> Reviewed | None:
    """The review of the object with a fix; None if the fix changes nothing or adds a finding."""
    document = review.document
    *probe, field = steps_in(document.obj, path)
    if not dig(document.obj, *probe):
        return None
    obj = replaced(document.obj, (*probe, field), value)
    if obj == document.obj:
        return None
    (after,) = review_documents([replace(document, obj=obj)], config, cluster)
    left = _places(after)
    written = [_place(obj, steps_of(each["path"])) for each in diff(document.obj, obj)]
    if any(place[: len(field)] == field for _, place in left for field in written):
        return None  # the value would be another rule's finding
    return after if left <= _places(review) else None


def _place(obj: Json, steps: Sequence[str]) -> tuple[str, ...]:
    return named(obj, field_path(int(step) if step.isdecimal() else step for step in steps))


def _places(review: Reviewed) -> set[tuple[str, tuple[str, ...]]]:
    """The rule and place of each finding."""
    return {(result.rule, named(review.final, result.finding.path)) for result in review.decision.results}
