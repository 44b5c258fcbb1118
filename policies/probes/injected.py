"""Whether a written probe is the one that `standard-probes` would add."""

from __future__ import annotations

from typing import Final

from policies.core.facts import Facts
from policies.core.pod_view import PodView
from policies.kube.json import Json, mapping, replaced
from policies.kube.pods import Container
from policies.probes.probe import LIVENESS, STARTUP
from policies.probes.standard_probes import added_fields
from policies.probes.standard_probes_settings import StandardProbes

_FEW: Final = 32
"""Containers. In a larger pod each is looked at without the others, since the cost would be quadratic."""


def looks_injected(pod: PodView, container: Container, field: str, facts: Facts) -> bool:
    """Whether standard-probes adds the same probe at `field` to the pod without it.

    Injected probes in a Pod, and in a file that `chassis fix` has written, look like the user's. They are
    what the webhook recommends, so rules do not report them.
    """
    if container.spec.get(field) is None:
        return False
    return facts.pod_caches[pod].once_for((container, field), _looks_injected, pod, container, field, facts)


def _looks_injected(pod: PodView, container: Container, field: str, facts: Facts) -> bool:
    # A startupProbe follows from liveness, which may be injected with it.
    missing = ((field,), (STARTUP, LIVENESS)) if field == STARTUP else ((field,),)
    return any(_added_again(pod, container, field, fields, facts) for fields in missing)


def _added_again(
    pod: PodView, container: Container, field: str, missing: tuple[str, ...], facts: Facts
) -> bool:
    kept = {key: value for key, value in container.spec.items() if key not in missing}
    spec = pod.json["spec"]
    if len(pod.containers) <= _FEW:
        spec, index = replaced(spec, (container.list, container.index), kept), container.index
    else:
        spec, index = {**spec, "containers": [], "initContainers": [], container.list: [kept]}, 0
    again = facts.view({**pod.json, "spec": spec})
    place = (container.list, index)
    return any(
        added.name == field and _stored(added.value) == _stored(container.spec[field])
        for each in again.running
        if (each.list, each.index) == place
        for added in added_fields(again, each, facts.settings(StandardProbes), facts)
    )


def _stored(probe: Json) -> Json:
    """A probe as the API server stores it: a pod is reviewed with its defaults, and a file without them."""
    filled = {**_DEFAULTS, **probe}
    for name, defaults in _OF_HANDLERS.items():
        if name in filled:
            filled[name] = {**defaults, **mapping(filled, name)}
    return filled


_DEFAULTS: Final = {"periodSeconds": 10, "timeoutSeconds": 1, "failureThreshold": 3, "successThreshold": 1}
_OF_HANDLERS: Final = {"httpGet": {"path": "/", "scheme": "HTTP"}, "grpc": {"service": ""}}
