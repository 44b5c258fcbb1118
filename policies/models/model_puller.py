"""The mutator model-puller, which model-puller.md documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Final

from msgspec import to_builtins

from policies.containers.programs import option
from policies.containers.sidecars import PULLER, is_puller
from policies.core.annotations import MODEL_CONFIG, MODEL_DIR, MODEL_SERVER
from policies.core.contracts import Mutator
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.groups import GROUP_FACTOR, Waits, in_leader_worker_set, leads
from policies.core.reasons import NO_REASONS, Reasons
from policies.core.resources import Resource
from policies.kube.group_kinds import POD
from policies.kube.json import Json, appended, dig, mapping, maps, replaced, strings, text
from policies.kube.metadata import annotations_of, has_room
from policies.kube.names import plural
from policies.kube.objects.limits import LimitRange, LimitRangeItem
from policies.kube.pods import Container, containers, port_number, probe_every, timed
from policies.kube.quantities import parse_quantity
from policies.models.model_puller_settings import ModelPuller, ReadyWhen, Scheme, Sidecar
from policies.models.pulling import SERVERS, ModelPull, PullError, claims_of, pull_of
from policies.models.volumes import (
    CACHE_DIR,
    CLAIMS_DIR,
    check_models_path,
    free_name,
    mount_at,
    mounted_models,
    with_cache,
    with_claims,
    with_config_volume,
    with_model_mounts,
    with_models_volume,
)
from policies.probes.declared_models import models_of
from policies.probes.recognition import Server
from policies.probes.server_facts import PullerOption
from policies.probes.serving import istio_refuses_probes, recognised
from puller.model_config import ModelSpec

_KSERVE: Final = "internal.serving.kserve.io"
_FIRST_NATIVE: Final = (1, 29)
_STORAGE: Final = "ephemeral-storage"
_SHARES: Final = {"cpu": "1", "memory": "1Gi", _STORAGE: "1Gi"}
"""Limits for a sidecar that needs limits."""
_UID: Final = 65532
"""The user and group of the image, for pods whose other containers run as root."""


def mutate(pod: Json, settings: ModelPuller, facts: Facts, reasons: Reasons = NO_REASONS) -> Json:
    """Add the sidecar, its volumes and the mounts of the models to a pod that requests models."""
    try:
        annotated = _with_annotations(pod, settings, facts)
        changed = _with_puller(annotated, settings, facts, reasons)
    except PullError:
        return pod
    if annotated is not pod:
        source = "KServe's annotations" if settings.kserve_agent else "its labels"
        for key in sorted(annotations_of(annotated).keys() - annotations_of(pod).keys()):
            reasons.give(
                f"metadata.annotations[{key}]", f"the pod requests models by {source}", setting="byLabel"
            )
    return changed


def _with_puller(pod: Json, settings: ModelPuller, facts: Facts, reasons: Reasons = NO_REASONS) -> Json:
    pull = pull_of(pod, facts, settings.model_dir)
    if pull is None or not pull.targets:
        return pod
    present = running_puller(pod, pull.config)
    if present is not None:
        mount = models_mount(present)
        if mount is None:
            return pod
        return with_model_mounts(_with_istio_startup(pod, present, settings, reasons), pull, mount, reasons)
    _check_system(facts.view(pod).typed.spec.operating_system)
    _check_paths(pull, settings)
    native = _is_native(settings, facts)
    if not native and facts.view(pod).completes:
        raise PullError(
            f"metadata.annotations[{MODEL_CONFIG}]",
            "An ordinary sidecar would keep this pod from completing, and the cluster doesn't support "
            "native ones.",
            "Use nodes with Kubernetes 1.29 or later, or fetch the models in an init container.",
        )
    check_models_path(pod, pull)
    models = models_of(facts, pull.config)
    place = ("spec", "initContainers" if native else "containers")
    # Both Ray autoscalers expect Ray's container to be the first by name, so an ordinary sidecar is the last.
    name = f"zz-{settings.name}" if facts.view(pod).is_ray and not native else settings.name
    name = free_name(name, {container.name for container in containers(pod)})
    reasons.give(
        f"spec.{place[1]}[{name}]",
        lambda: _purpose(pull, models),
        setting="image",
        annotation="" if f"{_KSERVE}/agent" in annotations_of(pod) else f"{MODEL_CONFIG}={pull.config}",
    )
    pod, mount, size = with_models_volume(pod, pull, _volume_size(pull, settings, facts), reasons)
    pod, config_volume = with_config_volume(pod, pull, reasons)
    pod, cache_mounts = with_cache(pod, pull.cache, reasons)
    pod, claim_mounts = with_claims(pod, claims_of(models), reasons)
    mounts = [
        mount,
        {"name": config_volume, "mountPath": settings.config_dir, "readOnly": True},
        *cache_mounts,
        *claim_mounts,
    ]
    puller = {"name": name, **_puller(pod, pull, settings, facts, native=native, size=size)}
    return appended(with_model_mounts(pod, pull, mount, reasons), place, puller | {"volumeMounts": mounts})


def _purpose(pull: ModelPull, models: Mapping[str, ModelSpec] | None) -> str:
    count = "the models" if models is None else plural(len(models), "model")
    loads = (
        "" if pull.server == "none" else f" and loads them over the {pull.server} protocol, port {pull.port}"
    )
    return f"fetches {count} of ConfigMap {pull.config}{loads}"


# --- the pod -------------------------------------------------------------------------------------


def _with_annotations(pod: Json, settings: ModelPuller, facts: Facts) -> Json:
    """The pod with this project's annotations, if its labels or KServe's annotations request models. Raises
    PullError."""
    metadata = facts.view(pod).typed.metadata
    annotations, labels = metadata.annotations, metadata.labels
    if MODEL_CONFIG in annotations:
        return pod
    added: dict[str, str] = {}
    if settings.kserve_agent and f"{_KSERVE}/agent" in annotations and not _has_container(pod, "agent"):
        added[MODEL_CONFIG] = annotations.get(f"{_KSERVE}/configVolumeName", "")
        directory = annotations.get(f"{_KSERVE}/modelDir", "")
        if directory and MODEL_DIR not in annotations:
            added[MODEL_DIR] = directory.rstrip("/")
    for entry in settings.by_label:
        if not added and entry.match_labels.items() <= labels.items():
            added[MODEL_CONFIG] = entry.model_config_map
    if added and not has_room(annotations, added):
        raise PullError(
            "metadata.annotations",
            "The pod requests models by labels, but its annotations leave no room for the puller's.",
            "Shorten them: the API server allows 256 KiB.",
        )
    return replaced(pod, ("metadata", "annotations"), {**annotations, **added}) if added else pod


def _volume_size(pull: ModelPull, settings: ModelPuller, facts: Facts) -> int:
    """Bytes. The old version of a model stays until the new one is complete."""
    models = models_of(facts, pull.config) or {}
    return max(settings.volume_size, 3 * sum(model.memory for model in models.values()))


def _has_container(pod: Json, name: str) -> bool:
    return any(container.name == name for container in containers(pod))


def _check_system(system: str) -> None:
    """Raise PullError on Windows, where the API server refuses the sidecar's securityContext."""
    if system not in ("", "linux"):
        raise PullError(
            f"metadata.annotations[{MODEL_CONFIG}]",
            f"The puller runs only on Linux, but this pod is for {system}.",
            "Download the models in your own container.",
        )


def _check_paths(pull: ModelPull, settings: ModelPuller) -> None:
    """Raise PullError if the models and the sidecar's own mounts would overlap."""
    for path in (settings.config_dir, CLAIMS_DIR, *([CACHE_DIR] if pull.cache else [])):
        if f"{pull.model_dir}/".startswith(f"{path}/") or f"{path}/".startswith(f"{pull.model_dir}/"):
            raise PullError(
                f"metadata.annotations[{MODEL_DIR}]",
                f"The models can't be mounted at {pull.model_dir}, because the puller has its own files at "
                f"{path}.",
                f"Choose another path in {MODEL_DIR}, such as /mnt/models.",
            )


def _is_native(settings: ModelPuller, facts: Facts) -> bool:
    if settings.sidecar is not Sidecar.AUTO:
        return settings.sidecar is Sidecar.NATIVE
    oldest = facts.oldest_kubelet()
    return oldest is None or oldest >= _FIRST_NATIVE


# --- the sidecar -------------------------------------------------------------------------------


def _puller(
    pod: Json, pull: ModelPull, settings: ModelPuller, facts: Facts, *, native: bool, size: int | None
) -> Json:
    """The sidecar's container without its name and mounts."""
    container: Json = {
        "image": settings.image,
        "command": [PULLER],
        "args": [*_arguments(pull, settings, size), *settings.args],
    }
    if native:
        container["restartPolicy"] = "Always"
    container["env"] = list(_variables(settings, pull))
    if pull.credentials:
        container["envFrom"] = [{"secretRef": {"name": pull.credentials}}]
    if dig(pod, "spec", "hostNetwork") is not True:
        container["ports"] = [{"name": "puller", "containerPort": settings.port}]
    if not istio_refuses_probes(facts.view(pod)):
        container |= _probes(pod, pull, settings, facts, native=native)
    container["resources"] = _resources(pod, settings, facts, size)
    user, group = (dig(pod, "spec", "securityContext", name) for name in ("runAsUser", "runAsGroup"))
    container["securityContext"] = {
        **({"runAsUser": _UID} if user == 0 else {}),
        **({"runAsGroup": _UID} if group is None or user == 0 == group else {}),
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return container


def _resources(pod: Json, settings: ModelPuller, facts: Facts, size: int | None) -> Json:
    """The sidecar's resources. `size`: the limit of an emptyDir for the models.

    A quota refuses a pod if one container lacks a resource that it counts, so the sidecar has each resource
    that all other containers have. A LimitRange refuses a pod if one container is out of its bounds, so the
    sidecar keeps to them. It has none of the pod-level resources, which the sum of the containers
    must not exceed.
    """
    resources: Json = to_builtins(settings.resources)
    requests, limits = resources["requests"], resources["limits"]
    others = [mapping(container.spec, "resources") for container in containers(pod)]
    for name, share in _SHARES.items():
        limited = [dig(other, "limits", name) for other in others]
        if name not in limits and None not in limited:
            # A LimitRange may bound each container, so use no more than the largest limit.
            largest = max(map(str, limited), key=_amount)
            limits[name] = max(min(share, largest, key=_amount), requests.setdefault(name, "0"), key=_amount)
        elif name not in limits and all(_requests(other, name) for other in others):
            requests.setdefault(name, "0")  # an autoscaler by utilization requires it of every container
    if size is not None and any(dig(other, "limits", _STORAGE) is not None for other in others):
        # The kubelet evicts a pod that uses more than its containers' limits, including emptyDirs.
        requests.setdefault(_STORAGE, "0")
        limits[_STORAGE] = max(limits.get(_STORAGE, "0"), f"{-(-size >> 30)}Gi", key=_amount)
    ranges = list(facts.objects(LimitRange) or ())
    for item in (item for each in ranges for item in each.items_of("Container")):
        _keep_within(item, requests, limits)
    for item in (item for each in ranges for item in each.items_of("Pod")):
        _keep_out(item, others, requests, limits)
    whole = {**mapping(pod, "spec", "resources", "requests"), **mapping(pod, "spec", "resources", "limits")}
    return {
        kind: {name: amount for name, amount in amounts.items() if name not in whole}
        for kind, amounts in resources.items()
    }


def _keep_within(item: LimitRangeItem, requests: dict[str, str], limits: dict[str, str]) -> None:
    """Change amounts that a LimitRange refuses: below its minimum, above its maximum, above the limit that it
    gives to containers without one, or too far apart.

    Source: `plugin/pkg/admission/limitranger/admission.go` of Kubernetes 1.37.
    """
    for name, least in item.min.items():
        for amounts in (requests, limits):
            if name in amounts:
                amounts[name] = max(amounts[name], str(least), key=_amount)
    default = {**item.max, **item.default}
    for name in requests.keys() & default.keys() - limits.keys():
        if _amount(requests[name]) > _amount(str(default[name])):
            limits[name] = requests[name]
    for name, most in item.max.items():
        for amounts in (requests, limits):
            if name in amounts:
                amounts[name] = min(amounts[name], str(most), key=_amount)
    for name, ratio in item.max_limit_request_ratio.items():
        if name in requests and name in limits:
            least_request = _amount(limits[name]) / max(_amount(str(ratio)), Decimal(1))
            if _amount(requests[name]) < least_request:
                requests[name] = limits[name]


def _keep_out(
    item: LimitRangeItem, others: list[Json], requests: dict[str, str], limits: dict[str, str]
) -> None:
    """Take out of a pod's sums what a LimitRange refuses in them: an amount for which the other containers
    leave no room, or that makes the limits too large next to the requests."""
    for name in (requests.keys() | limits.keys()) & (item.max.keys() | item.max_limit_request_ratio.keys()):
        most, ratio = item.max.get(name), item.max_limit_request_ratio.get(name)
        limited = _sum([*(dig(other, "limits", name) for other in others), limits.get(name)])
        asked = _sum(
            [
                *(dig(other, "requests", name) or dig(other, "limits", name) for other in others),
                requests.get(name) or limits.get(name),
            ]
        )
        too_much = most is not None and max(limited, asked) > _amount(str(most))
        too_far = ratio is not None and 0 < asked < limited and limited / asked > _amount(str(ratio))
        if too_much or too_far:
            limits.pop(name, None)
            requests[name] = "0"


def _sum(values: Iterable[object]) -> Decimal:
    return sum((_amount(str(value)) for value in values if value is not None), Decimal(0))


def _requests(resources: Json, name: str) -> bool:
    """Whether a container requests a resource; the API server copies a limit to a missing request."""
    return any(dig(resources, kind, name) is not None for kind in ("requests", "limits"))


def _amount(value: str) -> Decimal:
    try:
        return parse_quantity(value)
    except ValueError:
        return Decimal("Infinity")  # an unknown unit, such as nanocores


def _arguments(pull: ModelPull, settings: ModelPuller, size: int | None) -> Iterator[str]:
    yield "--enable-puller"
    yield f"--config-dir={settings.config_dir}"
    yield f"--model-dir={pull.model_dir}"
    yield f"--workers={settings.workers}"
    yield f"--component-port={pull.port}"
    yield f"--port={settings.port}"
    yield f"--server={pull.server}"
    yield f"--ready-when={settings.ready_when}"
    if size is not None:  # refuse a download before the kubelet evicts the pod
        yield f"--max-disk={size * 9 // 10 >> 20}Mi"


def _variables(settings: ModelPuller, pull: ModelPull) -> Iterator[Json]:
    """Options that older images do not know: they refuse unknown flags and ignore variables."""
    first = [scheme for scheme in settings.schemes if scheme not in _NEWER_SCHEMES]
    newer = [scheme for scheme in settings.schemes if scheme in _NEWER_SCHEMES]
    yield {"name": "CHASSIS_PULLER_SCHEMES", "value": ",".join(first or newer)}
    if first and newer:
        yield {"name": "CHASSIS_PULLER_FURTHER_SCHEMES", "value": ",".join(newer)}
    if pull.cache:
        yield {"name": "CHASSIS_PULLER_CACHE_DIR", "value": CACHE_DIR}
    yield {"name": "CHASSIS_PULLER_SUPERVISE", "value": "true"}
    yield {"name": "CHASSIS_PULLER_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}


_NEWER_SCHEMES: Final = (Scheme.OCI,)
"""Schemes with which pullers of the first release do not start."""


def _probes(pod: Json, pull: ModelPull, settings: ModelPuller, facts: Facts, *, native: bool) -> Json:
    """Liveness checks the puller's loop; readiness, or a Job's startupProbe, checks the models."""
    live = {"httpGet": {"path": "/healthz", "port": settings.port}}
    ready = {"httpGet": {"path": "/readyz", "port": settings.port}}
    view = facts.view(pod)
    grouped = in_leader_worker_set(view.typed.metadata)
    factor = GROUP_FACTOR if grouped else 1  # a restart recreates the whole group
    probes: Json = {"livenessProbe": timed(live, probe_every(20, 5, 6 * factor))}
    if pull.server != "none" and leads(view, facts) in (Waits.YES, Waits.UNKNOWN):
        return probes  # the server loads nothing before its workers exist, and they wait for this pod
    if not view.completes:
        # With `first`, a ready sidecar stays ready: a hung puller is restarted before the pod gets unready.
        failures = 36 * factor if settings.ready_when is ReadyWhen.FIRST else 3
        probes["readinessProbe"] = timed(ready, probe_every(5, 5, failures))
    elif native and settings.jobs_wait and pull.server == "none":
        # The containers after a native sidecar wait for its startupProbe. A server among them could never
        # load the models, so the probe is added only without a server.
        probes["startupProbe"] = timed(ready, probe_every(5, 5, _A_DAY // 5))
    return probes


_A_DAY: Final = 24 * 3600
"""Seconds. Longer than any download; after it, the sidecar restarts and continues."""


def _with_istio_startup(pod: Json, puller: Container, settings: ModelPuller, reasons: Reasons) -> Json:
    """The pod with a command as the sidecar's startupProbe, if Istio's agent would answer the probe too late.

    Istio's injector redirects the HTTP probes of all containers and native sidecars to its agent. If its
    proxy is an ordinary container, the agent starts after the init containers, which wait for the probe.
    Source: `patchRewriteProbe` and `reorderPod` of istio/istio, pkg/kube/inject.
    """
    probe = mapping(puller.spec, "startupProbe")
    rewritten = text(probe, "httpGet", "path") == f"/app-health/{puller.name}/startupz"
    ordinary = any(text(each, "name") == _ISTIO_PROXY for each in maps(pod, "spec", "containers"))
    ours = f"--port={settings.port}" in strings(puller.spec, "args")
    if not (rewritten and ordinary and ours and puller.list == "initContainers") or "exec" in probe:
        return pod
    command = ["python", "-c", _ASK_READY.format(port=settings.port)]
    kept = {key: value for key, value in probe.items() if key != "httpGet"}
    reasons.give(
        f"{puller.path}.startupProbe", "a command instead of a request, since Istio's agent starts too late"
    )
    return replaced(
        pod, ("spec", puller.list, puller.index, "startupProbe"), {"exec": {"command": command}, **kept}
    )


_ISTIO_PROXY: Final = "istio-proxy"
_ASK_READY: Final = (
    "import http.client as h; c = h.HTTPConnection('127.0.0.1', {port}, timeout=4); "
    "c.request('GET', '/readyz'); raise SystemExit(c.getresponse().status != 200)"
)


# --- warnings -----------------------------------------------------------------------------------


def advise(pod: Json, settings: ModelPuller, facts: Facts) -> Iterator[Finding]:
    """Report why a pod gets no sidecar, and what prevents its server from loading the models."""
    try:
        annotated = _with_annotations(pod, settings, facts)
        pull = pull_of(annotated, facts, settings.model_dir)
        if pull is None:
            return
        _with_puller(annotated, settings, facts)
    except PullError as error:
        yield error.finding
        return
    path = f"metadata.annotations[{MODEL_CONFIG}]"
    if facts.listing(Resource.MODEL_CONFIGS) is not None and facts.model_config(pull.config) is None:
        yield Finding(
            path,
            f"ConfigMap {pull.config} with the label {MODEL_CONFIG} isn't in namespace {facts.namespace} "
            "yet. The pod waits until it is.",
            f'Create it with the label {MODEL_CONFIG}: "true".',
        )
    if pull.server == "none" and MODEL_SERVER not in annotations_of(pod) and not facts.view(pod).completes:
        yield Finding(
            path,
            "The model server isn't recognised. The puller downloads the models, but no server loads them.",
            f"Set the server's protocol: {MODEL_SERVER}: {', '.join(SERVERS[:-1])} or {SERVERS[-1]}.",
        )
    yield from _volume_advice(annotated, pull)
    for container in pull.targets:
        yield from _server_advice(container, pull, facts)


def _volume_advice(pod: Json, pull: ModelPull) -> Iterator[Finding]:
    """Report that the puller deletes unknown directories in a volume that may contain other data."""
    container, volume = next(mounted_models(pod, pull), (None, {}))
    requested = pull.claim and text(volume, "persistentVolumeClaim", "claimName") == pull.claim
    if container is None or {"emptyDir", "ephemeral"} & volume.keys() or requested:
        return
    yield Finding(
        f"spec.containers[{container.index}].volumeMounts",
        f"The puller owns volume {text(volume, 'name')} and deletes directories at {pull.model_dir} that "
        "it didn't create.",
        f"Keep other data elsewhere, or choose another path in {MODEL_DIR}.",
    )


def _server_advice(container: Container, pull: ModelPull, facts: Facts) -> Iterator[Finding]:
    """Report missing options without which a server ignores the puller."""
    server = recognised(container, facts)
    if server is None:
        return
    for each in server.preset.puller_options:
        if each.server == pull.server and not _has(server, each):
            yield Finding(
                f"spec.containers[{container.index}].args",
                f"The server in container {container.name} ({server.name}) {each.without}.",
                f"{each.add.format(models=pull.model_dir)}.",
            )


def _has(server: Server, needed: PullerOption) -> bool:
    """Whether a server may have an option."""
    if needed.variable is None:
        return server.has_option(*needed.flags) or server.may_have_option(*needed.flags)
    value = server.variables.get(needed.variable, None if server.has_env_from else "")
    return value is None or value.strip().lower() in ("1", "true")


MUTATOR: Final = Mutator("model-puller", ModelPuller, mutate=mutate, advise=advise, kinds=(POD,))


_STATUS_PORT: Final = 9081


def status_port(pod: Json) -> int | None:
    """The port of the puller's status; None if the pod has no puller."""
    for container in containers(pod):
        if is_puller(container):
            return port_number(container.typed, option(container.typed.argv, "--port")) or _STATUS_PORT
    return None


def running_puller(pod: Json, config: str) -> Container | None:
    """The container that mounts this ConfigMap at its `--config-dir`."""
    volumes = {
        text(volume, "name")
        for volume in maps(pod, "spec", "volumes")
        if text(volume, "configMap", "name") == config
    }
    for container in containers(pod):
        directory = option(container.typed.argv, "--config-dir")
        mount = None if directory is None else mount_at(container.spec, directory.rstrip("/"))
        if mount is not None and text(mount, "name") in volumes:
            return container
    return None


def models_mount(puller: Container) -> Json | None:
    """The volume mount of a puller's `--model-dir`."""
    directory = option(puller.typed.argv, "--model-dir") or "/mnt/models"
    return mount_at(puller.spec, directory.rstrip("/"))
