"""Whether standard-probes would add a probe of a container if it were missing.

Injected probes in a Pod, and in a file that `chassis fix` has written, look like the user's. They are what
the webhook recommends, so rules do not report them.
"""

from __future__ import annotations

from typing import Final

from policies.core.facts import Facts
from policies.core.pod_view import PodView
from policies.kube.pods import Container
from policies.probes.standard_probes import mutate
from policies.probes.standard_probes_settings import StandardProbes

_LIVENESS: Final = "livenessProbe"
_STARTUP: Final = "startupProbe"


def looks_injected(pod: PodView, container: Container, field: str, facts: Facts) -> bool:
    """Whether standard-probes adds the same probe at `field` to the pod without it."""
    if container.spec.get(field) is None:
        return False
    return facts.pod_cache(pod).once_for((container, field), _looks_injected, pod, container, field, facts)


def _looks_injected(pod: PodView, container: Container, field: str, facts: Facts) -> bool:
    # A startupProbe follows from liveness, which may be injected with it.
    missing = ((field,), (_STARTUP, _LIVENESS)) if field == _STARTUP else ((field,),)
    return any(_added_again(pod, container, field, fields, facts) for fields in missing)


def _added_again(
    pod: PodView, container: Container, field: str, missing: tuple[str, ...], facts: Facts
) -> bool:
    kept = {key: value for key, value in container.spec.items() if key not in missing}
    # Without the other containers: otherwise the cost would be quadratic in their number.
    alone = {**pod.json["spec"], "containers": [], "initContainers": [], container.list: [kept]}
    mutated = mutate({**pod.json, "spec": alone}, facts.settings(StandardProbes), facts)
    return any(each.spec.get(field) == container.spec[field] for each in facts.view(mutated).containers)
