"""Incidents that people reported in public, each as a folder `{servers,training}/NAME` with three files.

| file | content |
|---|---|
| `incident.yaml` | the fields of `Incident` |
| `reported.yaml` | the manifests of the report, reduced to the objects that matter |
| `repaired.yaml` | the same objects after the repair that the thread found |

The files of a folder are reviewed as `chassis review FILE` does, with the built-in policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

from policies.core import data
from policies.core.pydantic_models import validated
from policies.core.settings import Field, Model
from webhook.admission.engine import decide
from webhook.admission.review import Review
from webhook.cli.reviewed import Reviewed
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import read

ROOT: Final = Path(__file__).parent
AREAS: Final = {"servers": "Model servers", "training": "Training and batch jobs"}
"""The folders, with their headings in docs/incidents.md."""


class Report(Model):
    """The content of `incident.yaml`."""

    title: str = Field(min_length=1, description="what went wrong, in a few words")
    source: str = Field(pattern=r"^https://", description="the public thread")
    year: int = Field(ge=2015, le=2030)
    cause: str = Field(pattern=r"\.$", description="the mechanism, in one or two sentences")
    expect: tuple[str, ...] = Field(
        min_length=1,
        description="one of these must catch it: the id of a rule or a policy; behind the id of a policy the "
        "end of the field that it must add: `standard-probes startupProbe`",
    )
    missed: str | None = Field(None, pattern=r"\.$", description="why ML Chassis does not catch it")
    first_run: Literal["caught", "missed"] | None = Field(
        None,
        description="for an incident of a held-out round: the result before anything was changed for it",
    )
    round: int = Field(1, ge=1, description="the round that `first_run` is of")


@dataclass(frozen=True)
class Answer:
    """One sentence of ML Chassis about one field of a manifest."""

    effect: str
    """`refusal`, `warning` or `repair`."""
    by: str
    """The id of the rule or the policy."""
    path: str
    text: str

    def is_expected(self, expectation: str) -> bool:
        by, _, field = expectation.partition(" ")
        return self.by == by and self.path.endswith(field) and (bool(field) or self.effect != "repair")


@dataclass(frozen=True)
class Incident:
    """A folder."""

    folder: Path

    @property
    def name(self) -> str:
        return f"{self.folder.parent.name}/{self.folder.name}"

    @cached_property
    def report(self) -> Report:
        return validated(Report, data.parsed((self.folder / "incident.yaml").read_text("utf-8")))

    @cached_property
    def answers(self) -> tuple[Answer, ...]:
        """The answers to the reported manifests that were expected; empty if it is not caught."""
        return self._expected("reported.yaml")

    @cached_property
    def answers_to_repaired(self) -> tuple[Answer, ...]:
        """The same for the repaired manifests; there should be none."""
        return self._expected("repaired.yaml")

    def _expected(self, file: str) -> tuple[Answer, ...]:
        every = answers(self.folder / file)
        return tuple(each for each in every if any(map(each.is_expected, self.report.expect)))


def answers(file: Path) -> list[Answer]:
    """Every warning, refusal and repair of the objects in a file, refusals first."""
    documents = list(read([str(file)]))
    config = load({})
    cluster = ManifestCluster([document.obj for document in documents], whole=True)
    found: list[Answer] = []
    for document in documents:
        request = document.request()
        decision = decide(Review(request, config, cluster))
        assert decision.crashes == (), f"{file}: {document.name}"
        review = Reviewed(document, decision, request)
        for effect, results in (("refusal", review.refusals), ("warning", review.warnings)):
            found += [Answer(effect, it.rule, it.finding.path, it.finding.message) for it in results]
        found += [Answer("repair", it.policy, it.path, it.why) for _, it in review.reasons]
    return sorted(found, key=lambda each: ("refusal", "warning", "repair").index(each.effect))


def incidents() -> list[Incident]:
    """Every folder, sorted."""
    return sorted(
        (Incident(file.parent) for area in AREAS for file in (ROOT / area).glob("*/incident.yaml")),
        key=lambda each: each.name,
    )
