"""eviction-guard-misplaced: annotations against eviction on a workload, where no autoscaler reads them."""

from __future__ import annotations

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.lifecycles import known_lifecycles
from policies.disruption.disruption_guard import GUARDS
from policies.kube.field_paths import field_path
from policies.kube.group_kinds import KNATIVE_SERVICE, POD, SELDON_DEPLOYMENT, SERVING
from policies.kube.json import mapping
from policies.kube.objects.metadata import Object

_RENAMED = {"karpenter.sh/do-not-evict": "karpenter.sh/do-not-disrupt"}


def check(target: Target, facts: Facts) -> Findings:
    if target.kind == POD:
        return
    annotations = target.read(Object).metadata.annotations
    for key, value in GUARDS.items():
        if annotations.get(key) != value or not target.templates:
            continue
        pods = [each for each in target.templates if each.typed.metadata.annotations.get(key) != value]
        if len(pods) == len(target.templates):
            yield Finding(
                f"metadata.annotations[{key}]",
                f"Autoscalers read {key} from pods. This annotation is on the {target.kind.kind} but not "
                "on its pods, so they can be evicted like any others.",
                f"Move it to {pods[0].metadata_path}.annotations.",
            )
    yield from _between(target)
    for old, new in _RENAMED.items():
        for each in target.templates:
            own = each.typed.metadata.annotations
            if own.get(old) == "true" and new not in own:
                yield Finding(
                    f"{each.metadata_path}.annotations[{old}]",
                    f"Karpenter 1.0 and later versions ignore {old}, so the pods can be evicted like any "
                    "others.",
                    f"Use {new} instead.",
                )


def _between(target: Target) -> Findings:
    """Annotations in the metadata of a template around the pod template, such as a CronJob's jobTemplate."""
    found: dict[str, Finding] = {}
    for template in target.templates:
        for end in range(2, len(template.steps)):
            level = template.steps[:end]
            if level[-1] not in _TEMPLATES:
                continue
            annotations = mapping(target.obj, *level, "metadata", "annotations")
            for key, value in GUARDS.items():
                if annotations.get(key) == value != template.typed.metadata.annotations.get(key):
                    path = f"{field_path(level)}.metadata.annotations[{key}]"
                    found[path] = Finding(
                        path,
                        f"Autoscalers read {key} from pods. The template of the pods doesn't have this "
                        "annotation, so they can be evicted like any others.",
                        f"Move it to {template.metadata_path}.annotations.",
                    )
    yield from found.values()


_TEMPLATES = ("jobTemplate", "template")
"""Fields with the template of an object whose controller creates the pods."""
_MAY_COPY = (SELDON_DEPLOYMENT, KNATIVE_SERVICE)
"""Kinds whose controllers were not read for annotations that they copy."""

RULE = rule(
    __name__, check, (*SERVING, *(each for each in known_lifecycles() if each not in _MAY_COPY)), unowned=True
)
