"""mesh-init-without-proxy, mesh-job-never-ends, mesh-probe-not-rewritten, sidecar-not-injected: pods with the
proxy of a mesh, or another sidecar that a webhook adds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from policies.commands import DOWNLOADERS, Reach, is_python
from policies.containers.commands import container_command
from policies.core import data
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.core.lifecycles import known_lifecycles
from policies.core.runs import runs_in, succeeds_without
from policies.core.settings import Field, Model
from policies.core.volumes import volume_of
from policies.kube.group_kinds import DAEMON_SET, JOB, POD, SELDON_DEPLOYMENT, SERVING, GroupKind
from policies.kube.json import Json, indexed_maps, mapping, maps, text, texts
from policies.kube.metadata import controller
from policies.kube.objects.metadata import Object, ObjectMeta
from policies.kube.objects.storage import PersistentVolumeClaim
from policies.kube.pods import Container, Role
from policies.probes.probe import LIVENESS, READINESS, STARTUP, probes


class Mesh(Model):
    """An entry of `meshes.yaml`. Entries of lists are `key=value`, or `key` for any value."""

    name: str
    labels: tuple[str, ...] = Field(description="labels of a pod that gets its proxy")
    annotations: tuple[str, ...] = Field(description="annotations of such a pod")
    namespace_labels: tuple[str, ...] = Field(description="labels of a namespace whose pods get its proxy")
    namespace_annotations: tuple[str, ...] = Field((), description="annotations of such a namespace")
    unless: tuple[str, ...] = Field(description="labels or annotations of pods that get none")
    also: tuple[str, ...] = Field((), description="labels of pods that may get it, by the mesh's revision")
    native: tuple[str, ...] = Field(description="annotations with which the proxy is a native sidecar")
    bypass: tuple[str, ...] = Field(description="annotations with which some connections avoid the proxy")
    no_rewrite: str = Field("", description="annotation that leaves HTTP probes as they are")
    stop: str = Field("", description="what a program may do at its end to stop it, after `Let it `")
    bypass_in: tuple[str, ...] = Field(
        (), description="annotations with which connections to some ports avoid the proxy"
    )
    proxy_user: int = Field(0, description="the user whose connections avoid the proxy; 0: none")
    sidecar: str = Field("proxy", description="what it adds, if not a proxy that the pod's connections use")
    driver: str = Field("", description="the CSI driver whose volumes need the sidecar")
    source: str = Field(description="the documentation that shows it")


class Skipped(Model):
    """An entry of `skipped_namespaces.yaml`: pods that a webhook leaves alone because of their namespace."""

    kind: str = Field(description="the kind whose pods it completes, such as `Kind.group`")
    label: str = Field(description="the label of namespaces that it leaves alone")
    fields: tuple[str, ...] = Field(description="fields of the kind's spec for which it is needed")
    unless_annotation: str = Field("", description="`key=value` with which it is not needed")
    webhook: str
    without: str = Field(description="what the pods lack, at the end of a sentence")
    source: str


def mesh_of(template: PodTemplate, facts: Facts) -> Mesh | None:
    """The mesh that adds a proxy to a pod which is no native sidecar; None if none does, or if it is
    unknown."""
    added = added_to(template, facts)
    return added if added is not None and added.sidecar == "proxy" else None


def added_to(template: PodTemplate, facts: Facts) -> Mesh | None:
    """The same, also for sidecars that no connection uses."""
    return facts.pod_caches[template.view].once(_mesh_of, template, facts)


def _is_asked_for(pods: ObjectMeta, mesh: Mesh) -> bool:
    """Whether the pods themselves, and not their namespace, say that they get the proxy."""
    return _has(pods.labels, mesh.labels) or _has(pods.annotations, mesh.annotations)


def _mesh_of(template: PodTemplate, facts: Facts) -> Mesh | None:
    return _mesh_for(template.typed.metadata, facts)


def _mesh_for(pods: ObjectMeta, facts: Facts) -> Mesh | None:
    """The mesh that adds a sidecar to pods with these labels and annotations."""
    both = {**pods.labels, **pods.annotations}
    for mesh in _meshes():
        if _has(both, (*mesh.unless, *mesh.native)):
            continue
        if _is_asked_for(pods, mesh) or _has(facts.namespace_labels() or {}, mesh.namespace_labels):
            return mesh
        if _has(facts.namespace_annotations(), mesh.namespace_annotations):
            return mesh
    return None


def bypasses(template: PodTemplate, mesh: Mesh) -> bool:
    """Whether an annotation lets connections avoid the proxy."""
    return _has(template.typed.metadata.annotations, mesh.bypass)


def _has(given: Mapping[str, str], wanted: Iterable[str]) -> bool:
    return any(
        key in given and (not value or given[key] == value)
        for key, _, value in (each.partition("=") for each in wanted)
    )


_meshes = data.entries(Mesh, "policies.network", "meshes.yaml")


# --- mesh-init-without-proxy ---------------------------------------------------------------------

_LIBRARIES: Final = re.compile(
    r"snapshot_download|hf_hub_download|huggingface_hub|boto3|urllib|requests\.get|gcsfs|s3fs"
)
"""Names in a Python program that downloads."""
_CLIENTS: Final = DOWNLOADERS | {"gcloud", "git", "rclone"}


_LOCAL: Final = ("pvc://", "file://", "/")
"""The beginnings of URIs that Seldon's initializer reads without the network."""


def init_without_proxy(target: Target, facts: Facts) -> Findings:
    if target.kind == SELDON_DEPLOYMENT:
        yield from _seldons(target, facts)
    for template in target.templates:
        mesh = mesh_of(template, facts)
        if mesh is None or bypasses(template, mesh):
            continue
        for container in template.containers(Role.INIT):
            user = container.typed.security_context.run_as_user
            if user != mesh.proxy_user and _needs_network(template, container):
                yield Finding(
                    template.at(container),
                    f"Init container {container.name} needs the network, but {mesh.name}'s proxy starts "
                    "only after all init containers. With the mesh's CNI plugin, or for hosts that require "
                    "mutual TLS, its connections fail.",
                    f"Run {mesh.name}'s proxy as a native sidecar ({mesh.native[0].replace('=', ': ')}), "
                    f"exclude the port, or run the container as user {mesh.proxy_user}.",
                )


def _seldons(target: Target, facts: Facts) -> Findings:
    """Findings about the init containers that Seldon adds to its prepackaged servers
    (`InjectModelInitializer` in operator/controllers/model_initializer_injector.go of Seldon Core 1.18)."""
    for n, predictor in enumerate(maps(target.obj, "spec", "predictors")):
        specs = maps(predictor, "componentSpecs")
        if any(maps(each, "spec", "initContainers") for each in specs):
            continue  # the user may have replaced it, and such containers are judged themselves
        sources = (target.obj["spec"], predictor, *(mapping(each, "metadata") for each in specs))
        pods = ObjectMeta(
            labels={key: value for each in sources[1:] for key, value in texts(each, "labels").items()},
            annotations={key: value for each in sources for key, value in texts(each, "annotations").items()},
        )
        mesh = _mesh_for(pods, facts)
        if mesh is None or mesh.sidecar != "proxy" or _has(pods.annotations, mesh.bypass):
            continue
        for path, unit in _units(predictor):
            uri = text(unit, "modelUri")
            if uri and text(unit, "implementation") and not uri.startswith(_LOCAL):
                yield Finding(
                    f"spec.predictors[{n}].{path}.modelUri",
                    f"Seldon downloads the model of {text(unit, 'name')} in an init container, but "
                    f"{mesh.name}'s proxy starts only after all init containers. With the mesh's CNI plugin, "
                    "or for hosts that require mutual TLS, its connections fail.",
                    f"Run {mesh.name}'s proxy as a native sidecar ({mesh.native[0].replace('=', ': ')}) by "
                    f"an annotation of the predictor, or exclude the port by {mesh.bypass[0]}.",
                )


def _units(predictor: Json) -> Iterator[tuple[str, Json]]:
    """The first units of a predictor's graph, with their paths: the root and its children."""
    graph = mapping(predictor, "graph")
    yield "graph", graph
    for n, child in indexed_maps(graph, "children"):
        yield f"graph.children[{n}]", child


def _needs_network(template: PodTemplate, container: Container) -> bool:
    summary = container_command(template, container)
    return any(host.reach is Reach.EXTERNAL and not host.name_lookup for host in summary.hosts) or any(
        command.name in _CLIENTS or (is_python(command.name) and any(map(_LIBRARIES.search, command.argv)))
        for command in summary.commands
    )


# --- mesh-job-never-ends -------------------------------------------------------------------------

_STOPS: Final = re.compile(r"quitquitquit|linkerd-await|/shutdown|pilot-agent|istio-proxy|linkerd-proxy")
_EXITS: Final = "EXIT_ON_ZERO_ACTIVE_CONNECTIONS"


def jobs_without_end(target: Target, facts: Facts) -> Findings:
    if target.kind == POD and controller(target.obj) is not None:
        return  # its controller's object is reported
    stops = {run.life.kind for run in runs_in(target.obj) if run.life.stops_sidecars}
    for template in target.templates:
        if stops or not template.completes:
            continue
        mesh = added_to(template, facts)
        if mesh is not None and succeeds_without(target, template):
            continue
        if mesh is None or any(_EXITS in text for text in template.typed.metadata.annotations.values()):
            continue
        words = [word for each in template.containers(Role.MAIN) for word in each.typed.argv]
        if any(_STOPS.search(word) for word in words):
            continue
        if not words and (_is_asked_for(template.typed.metadata, mesh) or not template.is_exact):
            continue  # its author knows of it and the image may stop it, or the controller writes the command
        unless = "the program stops it" if mesh.stop else f"the {mesh.sidecar} is a native sidecar"
        which = "this pod" if target.kind == POD else f"the pods of this {target.kind.kind}"
        yield Finding(
            template.spec_path,
            f"{mesh.name} adds {_article(mesh.sidecar)} to {which}, and no "
            f"{'command' if words else 'setting in the manifest'} stops it when the work is done. "
            f"Unless {unless}, the pod never completes.",
            _other_sidecar(mesh),
            Certainty.CERTAIN if words else Certainty.UNDECIDED,
        )


def _article(sidecar: str) -> str:
    return f"{'an' if sidecar[0] in 'aeiou' else 'a'} {sidecar}"


def _other_sidecar(mesh: Mesh) -> str:
    off = mesh.unless[0].replace("=", ": ")
    if mesh.stop:
        return f"Let the program {mesh.stop} at its end, or turn it off for these pods ({off})."
    if not mesh.native:
        return f"Set the annotation {off} on these pods, with which no {mesh.sidecar} keeps running."
    native = f"Run {mesh.name}'s {mesh.sidecar} as a native sidecar ({mesh.native[0].replace('=', ': ')})"
    return f"{native}, or turn it off for these pods ({off})."


# --- mesh-probe-not-rewritten --------------------------------------------------------------------


def probes_not_rewritten(target: Target, facts: Facts) -> Findings:
    reported: set[str] = set()
    for probe in probes(target, LIVENESS, READINESS, STARTUP):
        template = probe.template
        mesh = mesh_of(template, facts)
        key, _, value = ("" if mesh is None else mesh.no_rewrite).partition("=")
        annotations = template.typed.metadata.annotations
        if mesh is None or not key or annotations.get(key) != value or _has(annotations, mesh.bypass_in):
            continue
        if template.spec_path in reported or probe.typed.http_get is None or not probe.is_user_written:
            continue
        reported.add(template.spec_path)
        yield Finding(
            probe.at("httpGet"),
            f"The annotation {key} keeps {mesh.name} from rewriting the {probe.name}. With strict mutual "
            "TLS, the proxy refuses the kubelet, which has no certificate, and the probe always fails.",
            "Remove the annotation, or use an exec probe.",
        )


# --- sidecar-not-injected ------------------------------------------------------------------------

_COPIES_NOTHING: Final = (*SERVING, DAEMON_SET, JOB)
"""Kinds whose pods get only the labels and annotations of their template."""


def not_injected(target: Target, facts: Facts) -> Findings:
    metadata = target.read(Object).metadata
    if (skipped := _skipped().get(target.kind)) is not None:
        yield from _left_alone(skipped, target, facts)
        return  # a runtime may add what the pods lack
    own = {**metadata.labels, **metadata.annotations} if target.kind in _COPIES_NOTHING else {}
    if own.keys().isdisjoint(_keys_of_sidecars()) and not any(map(_mounts_by_driver, target.templates)):
        return
    given = []
    for template in target.templates:
        of_pods = template.typed.metadata
        given.append((template, {**of_pods.labels, **of_pods.annotations}))
    for mesh in _meshes():
        for template, pods in given:
            asked = (*mesh.labels, *mesh.annotations, *mesh.unless) if own else ()
            key, _, value = next((e for e in asked if _has(own, (e,))), "").partition("=")
            wrong = value in ("false", "disabled")
            named = not (mesh.namespace_labels or mesh.namespace_annotations)
            known = named or facts.namespace_labels() is not None  # a namespace may add it, too
            if not key or key in pods or not known or _has(pods, mesh.also):
                key = ""
            if key and wrong is (added_to(template, facts) is mesh):
                yield Finding(
                    f"metadata.{'annotations' if key in metadata.annotations else 'labels'}[{key}]",
                    f"The webhook of {mesh.name} reads {key} from pods. It is on the {target.kind.kind} but "
                    f"not on its pods, so they get {'its' if wrong else 'no'} {mesh.sidecar}.",
                    f"Move it to {template.metadata_path}.",
                    Certainty.CERTAIN if named or wrong else Certainty.LIKELY,
                )
            volume = _volume_of(mesh.driver, template, facts) if mesh.driver else None
            if volume is not None and not _has(pods, mesh.annotations):
                key, _, value = mesh.annotations[0].partition("=")
                yield Finding(
                    f"{template.spec_path}.volumes[{volume}]",
                    f"A volume of {mesh.name} needs a sidecar, which only pods with the annotation {key} "
                    "get. Without it the volume is never mounted and the pod never starts.",
                    f'Set {key}: "{value}" in {template.metadata_path}.annotations.',
                    Certainty.CERTAIN if template.is_exact else Certainty.LIKELY,
                )


@data.table
def _keys_of_sidecars() -> frozenset[str]:
    """The labels and annotations that decide about a sidecar."""
    every = (each for mesh in _meshes() for each in (*mesh.labels, *mesh.annotations, *mesh.unless))
    return frozenset(each.partition("=")[0] for each in every)


def _mounts_by_driver(template: PodTemplate) -> bool:
    """Whether a driver may mount a volume of the pod."""
    volumes = template.typed.spec.volumes
    return any(each.csi is not None or each.persistent_volume_claim is not None for each in volumes)


def _left_alone(skipped: Skipped, target: Target, facts: Facts) -> Findings:
    needless = _has(target.read(Object).metadata.annotations, (skipped.unless_annotation,))
    if needless or skipped.label not in (facts.namespace_labels() or {}):
        return
    if any(field in part for part in _parts(mapping(target.obj, "spec")) for field in skipped.fields):
        yield Finding(
            "metadata.namespace",
            f"The webhook of {skipped.webhook} leaves namespace {facts.namespace} alone, which has the label "
            f"{skipped.label}. The pods do not get {skipped.without}, so they fail.",
            f"Use a namespace without the label {skipped.label}.",
            Certainty.LIKELY,
        )


def _parts(spec: Json) -> Iterator[Json]:
    """The components of a spec, and the models in them."""
    for component in spec.values():
        if isinstance(component, dict):
            yield component
            yield from (each for each in component.values() if isinstance(each, dict))


@data.table
def _skipped() -> Mapping[GroupKind, Skipped]:
    entries = data.load_list(Skipped, "policies.network", "skipped_namespaces.yaml")
    return {GroupKind.parse(each.kind): each for each in entries}


def _volume_of(driver: str, template: PodTemplate, facts: Facts) -> int | None:
    """The index of the first volume of a CSI driver; None without one, and with a sidecar of the user's."""
    if any(driver.partition(".")[0] in container.image for container in template.containers()):
        return None
    for index, volume in enumerate(template.typed.spec.volumes):
        name = volume.csi.driver if volume.csi is not None else ""
        if volume.persistent_volume_claim is not None and (claims := facts.objects(PersistentVolumeClaim)):
            claim = claims.named(volume.persistent_volume_claim.claim_name)
            bound = None if claim is None else volume_of(claim, facts)
            name = bound.spec.csi.driver if bound is not None and bound.spec.csi is not None else ""
        if name == driver:
            return index
    return None


RULES = (
    rule(
        __name__,
        init_without_proxy,
        requires=(PodFeature.INIT,),
        name="mesh-init-without-proxy",
        also=(SELDON_DEPLOYMENT,),
    ),
    rule(
        __name__,
        jobs_without_end,
        (*known_lifecycles(), POD),
        requires=(PodFeature.COMPLETES,),
        name="mesh-job-never-ends",
    ),
    rule(__name__, probes_not_rewritten, requires=(PodFeature.HTTP,), name="mesh-probe-not-rewritten"),
    rule(
        __name__,
        not_injected,
        (*SERVING, DAEMON_SET, *known_lifecycles(), *_skipped()),
        unowned=True,
        name="sidecar-not-injected",
    ),
)
