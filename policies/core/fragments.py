"""Fragments: objects that are completed elsewhere, such as kustomize patches; they can't be judged in full.

The API server refuses a container without an image and a Deployment without a selector, so a file that holds
one holds a part of an object. The missing fields of a fragment show nothing about the object it becomes.
"""

from __future__ import annotations

from collections.abc import Mapping

from policies.core.target import PodTemplate, pod_templates
from policies.core.workloads import Workload
from policies.kube.group_kinds import DAEMON_SET, DEPLOYMENT, STATEFUL_SET, GroupKind, kind_of
from policies.kube.json import Json, mapping
from policies.kube.pods import Role


def is_fragment(obj: Json, workloads: Mapping[GroupKind, Workload]) -> bool:
    """Whether an object of a built-in kind lacks what the API server demands: it is completed elsewhere."""
    kind = kind_of(obj)
    if kind.group not in ("", "apps", "batch"):
        return False  # an operator may complete it: KServe takes the image from the ServingRuntime
    if kind in (DEPLOYMENT, STATEFUL_SET, DAEMON_SET) and not mapping(obj, "spec", "selector"):
        return True
    templates = pod_templates(obj, workloads)
    return (kind in workloads and not templates) or any(map(_lacks_an_image, templates))


def _lacks_an_image(template: PodTemplate) -> bool:
    return not template.containers(Role.MAIN) or any(not each.image for each in template.containers())
