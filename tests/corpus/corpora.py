"""Other projects' manifests, and the decision of admission about them as if somebody applied them.

The files of one folder are the facts of one cluster, as they are to `chassis review FOLDER`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from policies.core.facts import Facts
from policies.core.pod_templates import pod_templates
from policies.core.target import PodTemplate
from policies.kube.json import Json, dig, text
from policies.kube.objects.pods import Probe
from policies.kube.objects.reading import read as read_as
from policies.kube.pods import Container
from policies.probes.endpoints import preset_health
from policies.probes.health import annotated_health, handler_of
from policies.probes.liveness_program import is_program
from policies.probes.serving import recognised
from policies.probes.standard_probes_settings import StandardProbes
from policies.probes.startup_budget import start_of
from tests.e2e.binaries import module_source
from webhook.admission.configuration import Config
from webhook.admission.engine import decide
from webhook.admission.review import Context, Review
from webhook.cli import reviewed
from webhook.config.load import load
from webhook.errors import UserError
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import SUFFIXES, Document, read

PROBES = {"startupProbe": "startup", "readinessProbe": "readiness", "livenessProbe": "liveness"}


@dataclass(frozen=True)
class Corpus:
    """One project's manifests at one version, as `corpora.yaml` names them."""

    name: str
    module: str
    version: str
    sum: str
    directories: tuple[str, ...]
    workloads: int
    """The least number of objects with pods in them."""

    @property
    def root(self) -> Path:
        """The module's source (read-only), downloaded at the first use. Raises BinaryError."""
        return module_source(self.module, self.version, self.sum)

    def folders(self) -> Iterator[list[Document]]:
        """The objects of each folder's files; files that are no YAML, such as Helm's templates, have none."""
        documents: defaultdict[Path, list[Document]] = defaultdict(list)
        for directory in self.directories:
            for file in sorted((self.root / directory).rglob("*")):
                if file.suffix in SUFFIXES and file.is_file():
                    try:
                        documents[file.parent] += read([str(file)], lenient=True)
                    except UserError:
                        continue
        yield from documents.values()


def corpora() -> list[Corpus]:
    """All that there are."""
    table = yaml.safe_load(Path(__file__).with_name("corpora.yaml").read_text())
    return [Corpus(name, **{**row, "directories": tuple(row["directories"])}) for name, row in table.items()]


@dataclass(frozen=True)
class Reviewed:
    """A workload of a corpus with its decision under the standard profile."""

    corpus: Corpus
    config: Config
    cluster: ManifestCluster
    review: reviewed.Reviewed

    @property
    def file(self) -> str:
        return str(Path(self.review.document.source).relative_to(self.corpus.root))

    @property
    def name(self) -> str:
        return f"{text(self.review.document.obj, 'kind')}/{self.review.document.name}"

    @property
    def denied(self) -> list[str]:
        """The rules that refuse it."""
        return sorted({result.rule for result in self.review.refusals})

    @property
    def warned(self) -> list[str]:
        """The rule of each warning."""
        return [result.rule for result in self.review.warnings]

    def injected(self) -> Iterator[str]:
        """A line for each container that gets probes: which, what they ask, for how long, and why."""
        workloads = self.config.workloads
        before = pod_templates(self.review.document.obj, workloads)
        after = pod_templates(self.review.final, workloads)
        for template, changed in zip(before, after, strict=True):
            facts = Context.of(template.pod, self.namespace, self.config, self.cluster).facts
            specs = {container.name: container.spec for container in changed.containers()}
            for container in template.containers():
                new = specs[container.name]
                added = [probe for probe in PROBES if probe in new and probe not in container.spec]
                if added:
                    asked = ", ".join(f"{PROBES[probe]} {_told(new[probe])}" for probe in added)
                    why = _reason(template.pod, container, new, added, facts)
                    yield f"{self.file}  {self.name}  {container.name}: {asked} -- {why}"

    @property
    def namespace(self) -> str:
        return self.review.document.namespace or "default"


def review(corpus: Corpus) -> Iterator[Reviewed]:
    """Every object of the corpus that has pods, reviewed. AssertionError if a policy or rule crashed."""
    config = load({})
    for documents in corpus.folders():
        cluster = ManifestCluster([document.obj for document in documents])
        for document in documents:
            templates = pod_templates(document.obj, config.workloads)
            if not templates or any(map(_is_part_of_a_patch, templates)):
                continue
            request = document.request()
            decision = decide(Review(request, config, cluster))
            assert decision.crashes == (), document.place
            yield Reviewed(corpus, config, cluster, reviewed.Reviewed(document, decision, request))


def _is_part_of_a_patch(template: PodTemplate) -> bool:
    """Whether it names containers and no images: a patch for Kustomize, which is not applied by itself."""
    known = not template.container_path  # a serving runtime completes the fields missing in its container
    return known and any(not container.image for container in template.containers())


def _told(probe: Json) -> str:
    """What a probe asks and how long it waits: `GET :8080/health 1800 s`."""
    http, grpc = dig(probe, "httpGet"), dig(probe, "grpc")
    if http is not None:
        scheme = "HTTPS GET" if http.get("scheme") == "HTTPS" else "GET"
        asked = f"{scheme} :{http['port']}{http.get('path', '/')}"
    elif grpc is not None:
        asked = f"gRPC :{grpc['port']} {grpc.get('service', '')}".rstrip()
    else:
        asked = f"TCP :{dig(probe, 'tcpSocket', 'port')}"
    if is_program(probe):
        asked = "progress"
    return f"{asked} {read_as(probe, Probe).startup_deadline} s"


def _reason(pod: Json, container: Container, new: Json, added: list[str], facts: Facts) -> str:
    """The source of the server's endpoint, and of its start time."""
    settings = facts.settings(StandardProbes)
    server = recognised(container, facts)
    known = [annotated_health(facts.view(pod), container, facts), preset_health(container, settings)]
    sources = [
        str(health.live_source)
        for health in known
        for probe in added
        if health is not None and handler_of(new[probe]) in (health.live, health.ready)
    ]
    if added == ["startupProbe"]:
        where = "its own livenessProbe, which would end the start"
    elif sources:
        where = sources[0]
    else:
        where = "its own readinessProbe"
    if added != ["startupProbe"] and server is not None and where.startswith("its own"):
        where += f" of {server.name}"
    start = start_of(facts.view(pod), container, facts)
    if "startupProbe" not in added:
        return where
    return f"{where}; start: {f'{start.seconds} s, {start.reason}' if start else 'not known'}"
