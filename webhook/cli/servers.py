"""`chassis scan --view servers`: the server, probes, drain and start budget of each serving workload.

Each cell comes from the functions that the mutators and rules use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import asdict, replace
from pydantic.alias_generators import to_camel

from policies.containers.programs import option
from policies.core.annotations import MODEL_CONFIG
from policies.core.facts import Facts
from policies.core.reasons import in_words
from policies.core.target import PodTemplate
from policies.disruption.drains import drain_of
from policies.kube.images import image_matches, repository_and_tag
from policies.kube.json import Json
from policies.kube.metadata import annotations_of
from policies.kube.names import plural
from policies.kube.pods import Container
from policies.probes.declared_models import models_of, named_models, size_by_name
from policies.probes.endpoints import health_paths, server_port
from policies.probes.probe import LIVENESS, READINESS, STARTUP
from policies.probes.recognition import Server, version_in
from policies.probes.serving import recognised, serving_containers
from policies.probes.startup_budget import budget_of
from webhook.admission.printable import printable
from webhook.cli.output.html.timeline import Timeline, timelines
from webhook.cli.reviewed import Reviewed, Subject
from webhook.cli.terminal import as_json, table
from webhook.observed.hangs import Hang, hang_of, notices_of

ROUNDED_SECONDS: Final = 60
"""The most that a probe takes longer than its budget, because it counts whole periods."""
_COLUMNS: Final = ("workload", "server", "version", "port", "health", "models", "drain", "budget")
_EFFECTS: Final = {STARTUP: "a restart", READINESS: "no traffic", LIVENESS: "a restart"}
"""The effect of a probe that has failed for long enough."""


_UNKNOWN: Final = Hang(None, "its server is not recognised")


class Serving(Struct, frozen=True):
    kind: str
    namespace: str
    name: str
    container: str
    image: str
    server: str | None = None
    """The name of its preset; None if the server is not recognised."""
    version: str | None = None
    """From the tag of the server's own image."""
    port: int | None = None
    live_path: str | None = None
    ready_path: str | None = None
    models: tuple[str, ...] = ()
    hang: Hang = _UNKNOWN
    """Whether the kubelet restarts it if it hangs."""
    notices: tuple[str, ...] = ()
    """Which failures its probes notice, from experiments or the server's source."""
    probes: Mapping[str, str] = field(default_factory=dict)
    """The time until each probe takes effect, in words."""
    drain_seconds: int | None = None
    """How long the server finishes requests after SIGTERM."""
    grace_seconds: int = 30
    """terminationGracePeriodSeconds."""
    start_budget_seconds: int | None = None
    """From its start until the kubelet kills it if it never answers."""
    start_budget_from: str | None = None
    """The reason for the budget, if the policy set it."""

    @property
    def record(self) -> Json:
        """The element of `-o json`."""
        found = {to_camel(name): value for name, value in asdict(self).items()}
        found["hang"] = self.hang._asdict()
        return found

    @property
    def cells(self) -> dict[str, str]:
        drained = "unknown" if self.drain_seconds is None else in_words(self.drain_seconds)
        return {
            "workload": f"{self.namespace}/{self.name} ({self.kind}, {self.container})",
            "server": self.server or "not recognised",
            "version": self.version or "unknown",
            "port": str(self.port or "unknown"),
            "health": " ".join(dict.fromkeys(filter(None, (self.live_path, self.ready_path)))) or "unknown",
            "models": ", ".join(self.models) or "unknown",
            "drain": f"{drained} (grace {in_words(self.grace_seconds)})",
            "budget": in_words(self.start_budget_seconds)
            if self.start_budget_seconds is not None
            else "none",
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """A note for each probe, then one for each notice."""
        probes = (f"{name}: {_EFFECTS[name]} {when}" for name, when in self.probes.items())
        return (*probes, f"hang: {self.hang}", *self.notices)


def _version_of_tag(server: Server, image: str) -> str | None:
    """The version in the tag of an image that is known to have the server's version there."""
    if not server.own_image and not image_matches(image, server.preset.version_images):
        return None
    return version_in(repository_and_tag(image)[1]) or None


def servings(reviews: Iterable[Reviewed], subject: Subject) -> Iterator[Serving]:
    for review in reviews:
        for template, facts in subject.pods(review):
            for container in serving_containers(template.view, facts):
                yield _serving(review, template, container, facts)


def _serving(review: Reviewed, template: PodTemplate, container: Container, facts: Facts) -> Serving:
    server = recognised(container, facts)
    drain = drain_of(container, facts)
    lines = timelines([(template, facts)])
    timeline = next((each for each in lines if each.container == container.name), None)
    until = timeline.startup if timeline else None
    budget = budget_of(template.view, container, facts)
    ours = until is not None and 0 <= until - budget.seconds < ROUNDED_SECONDS
    found = Serving(
        kind=review.kind,
        namespace=review.document.namespace,
        name=review.document.name,
        container=container.name,
        image=container.image,
        models=_models(template.pod, container, server, facts),
        probes=_probes(timeline),
        hang=hang_of(template, container, facts),
        drain_seconds=drain.seconds if drain else None,
        grace_seconds=template.typed.spec.grace,
        start_budget_seconds=until,
        start_budget_from=(budget.why() or None) if ours else None,
    )
    if server is None:
        return found
    live, ready = health_paths(server)
    return replace(
        found,
        server=server.name,
        version=_version_of_tag(server, container.image),
        port=server_port(container, server),
        live_path=None if server.preset.live_socket else live or None,
        ready_path=ready or None,
        notices=notices_of(template, container, facts),
    )


def _models(pod: Json, container: Container, server: Server | None, facts: Facts) -> tuple[str, ...]:
    config = annotations_of(pod).get(MODEL_CONFIG)
    listed = models_of(facts, config) if config else None
    if listed:
        return tuple(listed)
    if server is None:
        return ()
    served = option(server.argv, *server.preset.served_name_flags)
    name = next(filter(None, named_models(server)), served)
    if not name or name.startswith("/"):  # a folder, whose claim, bucket or image may have a name
        name = size_by_name(facts.view(pod).typed, container, server)[1] or name
    return (name,) if name else ()


def _probes(timeline: Timeline | None) -> dict[str, str]:
    if timeline is None:
        return {}
    seconds = {STARTUP: timeline.startup, READINESS: timeline.readiness, LIVENESS: timeline.liveness}
    return {name: f"after {in_words(value)}" for name, value in seconds.items() if value is not None}


# --- output ----------------------------------------------------------------------------------------


def written(found: Iterable[Serving], output: str) -> Iterator[str]:
    """The output in one of the formats text and json."""
    if output == "json":
        return iter([as_json([each.record for each in found])])
    return _table(list(found))


def _table(rows: Sequence[Serving]) -> Iterator[str]:
    """A line for each container, with a line for each note below it."""
    lines = table(_COLUMNS, ([each.cells[name] for name in _COLUMNS] for each in rows))
    for line, notes in zip(lines, [(), *(each.notes for each in rows)], strict=True):
        yield line
        for note in notes:
            yield printable(f"    {note}") + "\n"
    noticed = sum(each.hang.noticed is True for each in rows)
    yield f"\n{plural(len(rows), 'serving container')}; a hang would be noticed in {noticed}\n"
