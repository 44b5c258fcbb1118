"""`chassis scan --view servers`: what each serving workload runs and how its probes, drain and start behave.

Law: nothing is decided here. Each cell is read from the functions that the policies use; an empty cell means
unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

from policies.containers.programs import option
from policies.core import data
from policies.core.annotations import MODEL_CONFIG
from policies.core.facts import Facts
from policies.core.reasons import lasting
from policies.core.settings import Model
from policies.core.target import PodTemplate
from policies.disruption.drains import drain_of
from policies.kube.images import repository_and_tag
from policies.kube.json import Json, integer, mapping
from policies.kube.metadata import annotations_of
from policies.kube.pods import Container
from policies.kube.printable import printable
from policies.probes.endpoints import health_paths, server_port
from policies.probes.probe import LIVENESS, READINESS, STARTUP
from policies.probes.recognition import Server, version_of
from policies.probes.serving import recognised, serving_containers
from policies.probes.start import budget_of, models_of, named_size
from webhook.admission.bounds import allowance, bounded
from webhook.admission.context import Context
from webhook.cli.output import plain
from webhook.cli.output.html.timeline import Timeline, timelines
from webhook.cli.output.review import Review, Subject

MODEL_FLAGS: Final = ("--model", "--model-path", "--model-id", "--model_path", "--served-model-name")
ROUNDED_SECONDS: Final = 60
"""By so much a probe may take longer than its budget, since it counts whole periods."""
_POSITIONAL: Final = ("vllm", "serve")
_MODEL_VARIABLES: Final = ("MODEL_ID", "HF_MODEL_ID", "MODEL_NAME")
_COLUMNS: Final = ("workload", "server", "version", "port", "health", "models", "notices", "drain", "budget")


class Noticed(Model):
    """What one version of a server noticed, or what its source shows."""

    server: str
    how: str
    seen: dict[str, str]


@cache
def noticed() -> Mapping[str, Sequence[Noticed]]:
    """By preset, the table of docs/what-probes-notice.md. `make golden` writes the file."""
    from importlib.resources import files

    found = data.parsed(files("webhook.cli.output").joinpath("noticed.yaml").read_text("utf-8"))
    return {name: [Noticed.model_validate(each) for each in entries] for name, entries in found.items()}


@dataclass(frozen=True, slots=True)
class Serving:
    """One serving container of a workload."""

    kind: str
    namespace: str
    name: str
    container: str
    image: str
    server: str = ""
    """The name of its preset; empty if the server is not recognised."""
    version: str = ""
    """By the tag of the server's own image, or as the server answered."""
    verified: bool = False
    """Whether the server itself answered with that version."""
    port: int | None = None
    live: str = ""
    ready: str = ""
    models: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    """What was noticed, or not, in experiments with the server or by its source."""
    probes: Mapping[str, str] = field(default_factory=dict)
    """How long each of its probes takes to act, in words."""
    drain: int | None = None
    """Seconds for which it finishes requests after SIGTERM."""
    grace: int = 30
    """terminationGracePeriodSeconds."""
    budget: int | None = None
    """Seconds after its start until it is killed if it never answers."""
    budget_from: str = ""
    """Why, if the policy gives that budget."""
    selector: Mapping[str, Any] = field(default_factory=dict)

    @property
    def record(self) -> Json:
        """As in `-o json`."""
        return {
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "container": self.container,
            "image": self.image,
            "server": self.server or None,
            "version": self.version or None,
            "verified": self.verified,
            "port": self.port,
            "livePath": self.live or None,
            "readyPath": self.ready or None,
            "models": list(self.models),
            "notices": list(self.notices),
            "probes": dict(self.probes),
            "drainSeconds": self.drain,
            "graceSeconds": self.grace,
            "startBudgetSeconds": self.budget,
            "startBudgetFrom": self.budget_from or None,
        }

    @property
    def cells(self) -> dict[str, str]:
        """As in a table, by the name of the column."""
        shown = self.version + (" (verified)" if self.verified else "")
        drained = "unknown" if self.drain is None else lasting(self.drain)
        return {
            "workload": f"{self.namespace}/{self.name} ({self.kind}, {self.container})",
            "server": self.server or "not recognised",
            "version": shown or "unknown",
            "port": str(self.port or "unknown"),
            "health": " ".join(dict.fromkeys(filter(None, (self.live, self.ready)))) or "unknown",
            "models": ", ".join(self.models) or "unknown",
            "notices": "; ".join((*(f"{key} {value}" for key, value in self.probes.items()), *self.notices)),
            "drain": f"{drained} of {lasting(self.grace)}",
            "budget": "none" if self.budget is None else lasting(self.budget),
        }


def servings(reviews: Iterable[Review], subject: Subject) -> Iterator[Serving]:
    """The serving containers of a stream of reviews."""
    for review in reviews:
        templates = bounded(review.final, subject.config.workloads, allowance()).templates
        for template in templates:
            facts = Context.of(template.pod, review.request.namespace, subject.config, subject.cluster).facts
            for container in serving_containers(template.pod, facts):
                yield _serving(review, template, container, facts, subject)


def _serving(
    review: Review, template: PodTemplate, container: Container, facts: Facts, subject: Subject
) -> Serving:
    server = recognised(container, facts)
    drain = drain_of(container, facts)
    timeline = _timeline(review, template, container, subject)
    until = timeline.startup if timeline else None
    budget = budget_of(template.pod, container, facts)
    ours = until is not None and 0 <= until - budget.seconds < ROUNDED_SECONDS
    found = Serving(
        kind=review.kind,
        namespace=review.document.namespace,
        name=review.document.name,
        container=container.name,
        image=container.image,
        models=_models(template.pod, container, server, facts),
        probes=_probes(timeline),
        drain=drain.seconds if drain else None,
        grace=integer(template.pod, "spec", "terminationGracePeriodSeconds", default=30),
        budget=until,
        budget_from=budget.why() if ours else "",
        selector=mapping(review.document.obj, "spec", "selector"),
    )
    if server is None:
        return found
    live, ready = health_paths(server)
    version = version_of(repository_and_tag(container.image)[1]) if server.own_image else ()
    return replace(
        found,
        server=server.name,
        version=".".join(map(str, version)),
        port=server_port(container, server),
        live="" if server.preset.live_socket else live or "",
        ready=ready or "",
        notices=tuple(
            f"{what}: {outcome} ({each.server}, {each.how})"
            for each in noticed().get(server.name, ())
            for what, outcome in each.seen.items()
        ),
    )


def _models(pod: Json, container: Container, server: Server | None, facts: Facts) -> tuple[str, ...]:
    config = annotations_of(pod).get(MODEL_CONFIG)
    listed = models_of(facts, config) if config else None
    if listed:
        return tuple(listed)
    if server is None:
        return ()
    told = option(server.words, *MODEL_FLAGS)
    if not told and server.words[:2] == _POSITIONAL and len(server.words) > 2:
        told = server.words[2] if not server.words[2].startswith("-") else None
    told = told or next(filter(None, (server.variables.get(name) for name in _MODEL_VARIABLES)), None)
    told = told or named_size(pod, container, server)[1]
    return (told,) if told else ()


def _timeline(
    review: Review, template: PodTemplate, container: Container, subject: Subject
) -> Timeline | None:
    found = timelines(review, [template], subject)
    return next((each for each in found if each.container == container.name), None)


def _probes(timeline: Timeline | None) -> dict[str, str]:
    if timeline is None:
        return {}
    seconds = {STARTUP: timeline.startup, READINESS: timeline.readiness, LIVENESS: timeline.liveness}
    return {name: f"after {lasting(value)}" for name, value in seconds.items() if value is not None}


# --- what is printed -------------------------------------------------------------------------------


def text(found: Iterable[Serving]) -> Iterator[str]:
    """A table: a line for each container, and what its probes notice below it."""
    rows = [each.cells for each in found]
    columns = [name for name in _COLUMNS if name != "notices"]
    lines = plain.table(columns, ([row[name] for name in columns] for row in rows))
    for line, notices in zip(lines, ["", *(row["notices"] for row in rows)], strict=True):
        yield line
        for notice in notices.split("; "):
            if notice:
                yield printable(f"    {notice}") + "\n"
    yield f"\n{plain.plural(len(rows), 'serving container')}\n"


def json(found: Iterable[Serving]) -> Iterator[str]:
    """An array with an element for each container."""
    yield plain.as_json([each.record for each in found])


def html(found: Iterable[Serving], subject: Subject) -> Iterator[str]:
    """One page with the table, without any script."""
    from webhook.cli.output import pages

    rows = (each.cells for each in found)
    return pages.pieces("servers.html", subject=subject, columns=_COLUMNS, rows=rows)
