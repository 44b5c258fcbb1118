"""One document with its decision: what every output format prints."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from policies.core.facts import Cluster, Facts
from policies.core.finding import Mode
from policies.core.reasons import Reason
from policies.core.target import PodTemplate
from policies.kube.field_paths import value_at
from policies.kube.group_kinds import CLAIM, kind_of
from policies.kube.json import Json, text
from webhook.admission.bounds import allowance, bounded
from webhook.admission.configuration import Config
from webhook.admission.coverage import Coverage, Reading, is_fragment, not_reviewed
from webhook.admission.decision import Change, Decision, Result
from webhook.admission.engine import decide
from webhook.admission.envelope import Request
from webhook.admission.review import Context, Review
from webhook.manifests.api_fields import field_problems
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import Document
from webhook.manifests.positions import Lines

MAX_FIELD_PROBLEMS: Final = 5
"""Unknown and mistyped fields of an object that are named."""


class Outcome(IntEnum):
    """The consequence of a finding, or of the worst finding of an object; greater is worse."""

    NONE = 0
    AUDITED = 1
    EXEMPTED = 2
    WARNED = 3
    REFUSED = 4

    def __str__(self) -> str:
        return self.name.lower()


_OF_MODE: Final = {Mode.ENFORCE: Outcome.REFUSED, Mode.WARN: Outcome.WARNED, Mode.AUDIT: Outcome.AUDITED}


def outcome_of(result: Result) -> Outcome:
    """The consequence of one finding."""
    return Outcome.EXEMPTED if result.exempted is not None else _OF_MODE.get(result.mode, Outcome.NONE)


_NAMED: Final = re.compile(
    r"\b([Cc]laim|[A-Z][A-Za-z]{2,62}) ([a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?)(?![-\w/])"
)
"""A kind and a name. Many sentences have such words by chance: only objects that exist count."""


def named_in(message: str) -> Iterator[tuple[str, str]]:
    """The kind and name of everything in a sentence that may be an object, in order, each once."""
    found = dict.fromkeys(_NAMED.findall(message))
    return ((CLAIM.kind if kind.lower() == "claim" else kind, name) for kind, name in found)


class NamedObjects:
    """The objects of an input by kind and name."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._documents: dict[tuple[str, str], list[Document]] = {}
        for document in documents:
            key = document.identity[0].kind, document.name
            self._documents.setdefault(key, []).append(document)

    def others(self, document: Document, message: str) -> list[Document]:
        """The other objects that a finding about a document names. Of several with the same name in a
        namespace, as for several environments, the one in the same file; none if there is no such one."""
        return [
            other
            for key in named_in(message)
            if (other := self._one(document, key)) is not None and other.obj is not document.obj
        ]

    def _one(self, document: Document, key: tuple[str, str]) -> Document | None:
        found = self._documents.get(key, [])
        if document.namespace:
            found = [each for each in found if each.namespace in ("", document.namespace)]
        near = [each for each in found if each.source == document.source]
        candidates = near or found
        return candidates[0] if len(candidates) == 1 else None


class Subject(Struct, frozen=True):
    """The common context of reviews: the source of the objects, the policy and the facts."""

    source: str
    """The cluster, or the paths that were given."""
    policy: str
    """The source of the policy, such as `the built-in one`."""
    config: Config
    cluster: Cluster
    now: float
    """Seconds since the epoch, by the cluster's clock if there is a cluster."""
    not_read: Sequence[str] = ()
    """Files and kinds that could not be read, in one sentence each."""

    def pods(self, review: Reviewed) -> list[tuple[PodTemplate, Facts]]:
        """The pod templates of an object after mutation, each with the facts for it."""
        namespace = review.request.namespace
        return [
            (template, Context.of(template.pod, namespace, self.config, self.cluster).facts)
            for template in bounded(review.final, self.config.workloads, allowance()).templates
        ]


class Reviewed(Struct, frozen=True):
    """A document and the decision about it."""

    document: Document
    decision: Decision
    request: Request
    among: NamedObjects | None = None
    """All objects of the input, if they are known before the review."""

    @property
    def final(self) -> Json:
        """The object after mutation, of a workload with its pods projected."""
        projected = self.decision.projected
        return self.decision.object if projected is None else projected

    @property
    def unreadable(self) -> bool:
        """Whether a manifest was not read because of its content, such as a text in place of a number."""
        if self.document.runs or self.coverage.reading is not Reading.NOT:
            return False
        return any(note in self.unread for note in self.decision.notes)

    @property
    def kind(self) -> str:
        return text(self.document.obj, "kind")

    @property
    def title(self) -> str:
        place = f"{self.document.namespace}/" if self.document.namespace else ""
        return f"{self.kind} {place}{self.document.name}"

    def lines(self, path: str) -> Lines | None:
        """The lines of a finding's field in the text that the document was read from."""
        return self.document.lines(path, self.final)

    def place(self, path: str = "") -> str:
        """The place of the document or a field, such as `deploy/api.yaml:12`; the cluster of a running
        object."""
        lines = self.lines(path)
        return f"{self.document.source}:{lines.first}" if lines else self.document.source

    def others(self, result: Result) -> list[Document]:
        """The other objects of the input that a finding names."""
        return [] if self.among is None else self.among.others(self.document, result.finding.message)

    @property
    def warnings(self) -> list[Result]:
        return self.decision.warnings

    @property
    def refusals(self) -> list[Result]:
        return self.decision.refusals

    @property
    def outcomes(self) -> dict[tuple[str, str], Outcome]:
        """The worst outcome of the findings, by rule and path."""
        found: dict[tuple[str, str], Outcome] = {}
        for result in self.decision.results:
            key = result.rule, result.finding.path
            found[key] = max(found.get(key, Outcome.NONE), outcome_of(result))
        return found

    @property
    def verdict(self) -> Outcome:
        """REFUSED, WARNED or NONE."""
        if not self.decision.allowed:
            return Outcome.REFUSED
        return Outcome.WARNED if self.warnings else Outcome.NONE

    @property
    def coverage(self) -> Coverage:
        """How much of the object was read."""
        return self.decision.coverage or not_reviewed(kind_of(self.document.obj), "it was not decided")

    @property
    def unread(self) -> str:
        """The unread parts of the object, in one sentence; empty if there are none to report."""
        return self.coverage.sentence

    @property
    def mutations(self) -> list[str]:
        """Ids of the policies that changed the object or its pods, in order, each once."""
        return list(dict.fromkeys(c.mutator for c in self.decision.changes if c.mode is Mode.ENFORCE))

    @property
    def changes(self) -> list[Change]:
        """The changes of the policies, in all modes; of a running object the changes that it lacks.

        The pods of a running workload already have the enforced fields, so these are left out.
        """
        if not self.document.runs:
            return list(self.decision.changes)
        return [
            change if change.mode is not Mode.ENFORCE else dataclasses.replace(change, mode=Mode.WARN)
            for change in self.decision.changes
            if change.mode is not Mode.ENFORCE or not change.template
        ]

    @property
    def reasons(self) -> list[tuple[Mode, Reason]]:
        """Why each field is or would be added, in order, with the policy's mode."""
        return [(change.mode, reason) for change in self.changes for reason in change.reasons]


def review_documents(
    documents: Iterable[Document],
    config: Config,
    cluster: Cluster,
    operation: str = "CREATE",
    old: Iterable[Document] = (),
    *,
    among: NamedObjects | None = None,
) -> Iterator[Reviewed]:
    """The decision about each document, one by one. `among`: the objects that findings may name."""
    before = {document.identity: document.obj for document in old}
    for document in documents:
        earlier = before.get(document.identity) if operation == "UPDATE" else None
        # An object without an earlier version is created, even if others are updated.
        request = document.request("UPDATE" if earlier is not None else "CREATE", earlier)
        facts = cluster.near(document.source) if isinstance(cluster, ManifestCluster) else cluster
        decision = decide(Review(request, config, facts))
        if is_fragment(document.obj, config.workloads):
            decision = replace(decision, results=tuple(_about_fields(document, decision)))
        if notes := list(_notes(document, config)):
            decision = replace(decision, notes=(*notes, *decision.notes))
        yield Reviewed(document, decision, request, among)


def _about_fields(document: Document, decision: Decision) -> Iterator[Result]:
    """The findings about fields that a fragment has: another file may set those that it lacks."""
    for result in decision.results:
        if value_at(document.obj, result.finding.path) is not None:
            yield result


def _notes(document: Document, config: Config) -> Iterator[str]:
    if document.duplicate_keys:
        others = len(document.duplicate_keys) - 1
        more = f" ({others} more {'keys' if others > 1 else 'key'} likewise)" if others else ""
        yield f"{document.duplicate_keys[0]}; the last value is used, as in Helm and kubectl{more}."
    problems = [] if document.runs else field_problems(document.obj, config.workloads)
    for each in problems[:MAX_FIELD_PROBLEMS]:
        lines = document.lines(each.path)
        end = "" if each.problem.endswith("?") else "."
        yield f"{each.path}{f' (line {lines.first})' if lines else ''}: {each.problem}{end}"
    if len(problems) > MAX_FIELD_PROBLEMS:
        yield f"More than {MAX_FIELD_PROBLEMS} fields are unknown or have the wrong type."
    workload = config.workloads.get(kind_of(document.obj))
    if workload is not None and workload.merged:
        yield (
            "The operator merges other objects into these pods, so what the webhook will add to them is not "
            "shown."
        )
    if is_fragment(document.obj, config.workloads):
        yield (
            "Partly reviewed: a fragment without an image or a selector, which kustomize or Helm "
            "completes. Review the rendered result."
        )
