"""Which requests are reviewed.

The API server leaves out objects and namespaces with the label `mlchassis.dev/admission: disabled` before
that, by the selectors of the webhook configurations. `is_disabled` is for readers of a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from policies.core.annotations import ADMISSION, OVERRIDE, POLICY_LABEL
from policies.kube.json import dig
from policies.kube.metadata import annotations_of, labels_of
from webhook.admission.configuration import Config
from webhook.admission.envelope import Request

MIRROR: Final = "kubernetes.io/config.mirror"
_NODE: Final = "system:node:"
_NODES: Final = "system:nodes"


def out_of_scope(request: Request, config: Config) -> str:
    """Why a request is not reviewed; empty if it is."""
    if request.object is None or request.operation not in ("CREATE", "UPDATE"):
        return "only creates and updates are"
    if request.subresource:
        return "it is a subresource"
    deleted = dig(request.object, "metadata", "deletionTimestamp") is not None
    if deleted and not (request.operation == "CREATE" and request.username):  # a user may write the field
        return "it is being deleted"
    if is_mirror_pod(request):
        return "it is a mirror pod"
    own_policy = labels_of(request.object).get(POLICY_LABEL) in ("true", OVERRIDE)
    if own_policy or config.webhook.namespaces.covers(request.namespace):
        return ""
    return f"the policy excludes namespace {request.namespace}"


def is_disabled(*labels: Mapping[str, str]) -> bool:
    """Whether the labels of an object or of its namespace keep the API server from calling the webhook."""
    return any(each.get(ADMISSION) == "disabled" for each in labels)


def is_mirror_pod(request: Request) -> bool:
    """Whether a node reports a static pod, which no patch or refusal affects."""
    if MIRROR not in annotations_of(request.object or {}):
        return False
    return not request.username or (request.username.startswith(_NODE) and _NODES in request.groups)
