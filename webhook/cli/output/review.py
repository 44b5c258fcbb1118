"""The input of all outputs: one document with its decision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from policies.core.coverage import Coverage, left_alone
from policies.core.facts import Cluster, Facts
from policies.core.mode import Mode
from policies.core.reasons import Reason
from policies.core.target import PodTemplate
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json, text
from webhook.admission.bounds import allowance, bounded
from webhook.admission.configuration import Config
from webhook.admission.context import Context
from webhook.admission.decision import Change, Decision, Result
from webhook.admission.envelope import Request
from webhook.kube.offline import Document
from webhook.kube.positions import Lines


@dataclass(frozen=True, slots=True)
class Subject:
    """What reviews are about, all of them: where the objects are from, and what they are judged by."""

    source: str
    """The cluster, or the paths that were given."""
    policy: str
    """Where the policy is from, such as `the built-in one`."""
    config: Config
    cluster: Cluster
    now: float
    """Seconds since the epoch, by the cluster's clock where there is one."""
    not_read: Sequence[str] = ()
    """Files and kinds that could not be read, in one sentence each."""

    def pods(self, review: Review) -> list[tuple[PodTemplate, Facts]]:
        """The pods of an object as they will be made, each with the facts for it."""
        namespace = review.request.namespace
        return [
            (template, Context.of(template.pod, namespace, self.config, self.cluster).facts)
            for template in bounded(review.final, self.config.workloads, allowance()).templates
        ]


@dataclass(frozen=True, slots=True)
class Review:
    """One document with its decision."""

    document: Document
    decision: Decision
    request: Request
    """The verdict, for the output."""
    quiet: bool = False
    """Whether an unknown kind is counted only, and not named."""

    @property
    def final(self) -> Json:
        """The object as stored; a workload with its pods as they will be made."""
        projected = self.decision.projected
        return self.decision.object if projected is None else projected

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
        """Where the document, or a field of it, is written, such as `deploy/api.yaml:12`; the cluster of what
        runs."""
        lines = self.lines(path)
        return f"{self.document.source}:{lines.first}" if lines else self.document.source

    @property
    def warnings(self) -> list[Result]:
        return [v for v in self.decision.results if v.mode is Mode.WARN and v.exempted is None]

    @property
    def refusals(self) -> list[Result]:
        return [v for v in self.decision.results if v.denies]

    @property
    def coverage(self) -> Coverage:
        """What of the object was read."""
        return self.decision.coverage or left_alone(kind_of(self.document.obj), "it was not decided")

    @property
    def unread(self) -> str:
        """The unread parts of the object, in one sentence; empty if there are none to report."""
        return "" if self.quiet and self.coverage.unknown else self.coverage.sentence

    @property
    def mutations(self) -> list[str]:
        """Ids of the policies that changed the object or its pods, in order, each once."""
        return list(dict.fromkeys(c.policy for c in self.decision.changes if c.mode is Mode.ENFORCE))

    @property
    def changes(self) -> list[Change]:
        """What the policies change or would change; of a running object what it has to do without.

        The pods of a running workload already have the enforced fields, so these are no news.
        """
        if not self.document.runs:
            return list(self.decision.changes)
        return [
            change if change.mode is not Mode.ENFORCE else replace(change, mode=Mode.WARN)
            for change in self.decision.changes
            if change.mode is not Mode.ENFORCE or not change.template
        ]

    @property
    def reasons(self) -> list[tuple[Mode, Reason]]:
        """Why each field is added or would be, in the order in which it is done, with the policy's mode."""
        return [(change.mode, reason) for change in self.changes for reason in change.why]


@dataclass
class Tally:
    """Whether anything was denied, warned of, or of an unknown kind."""

    denied: bool = False
    warned: bool = False
    unknown: bool = False

    def seeing(self, reviews: Iterable[Review]) -> Iterator[Review]:
        for review in reviews:
            self.denied |= not review.decision.allowed
            self.unknown |= review.coverage.unknown
            self.warned |= bool(review.warnings or review.decision.crashes)
            yield review
