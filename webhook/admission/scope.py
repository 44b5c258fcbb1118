"""Which requests are reviewed.

The API server leaves out objects and namespaces with the label `mlchassis.dev/admission: disabled` before
that, by the selectors of the webhook configurations. `is_disabled` is for readers of a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from policies.core.annotations import ADMISSION, OVERRIDE, POLICY_LABEL
from policies.core.coverage import Coverage, not_reviewed
from policies.kube.group_kinds import kind_of
from policies.kube.json import dig
from policies.kube.metadata import annotations_of, labels_of
from webhook.admission.configuration import Config
from webhook.admission.envelope import Request

MIRROR: Final = "kubernetes.io/config.mirror"
_NODE: Final = "system:node:"
_NODES: Final = "system:nodes"


def in_scope(request: Request, config: Config) -> bool:
    """Whether the request is reviewed. Subresources, objects that are being deleted and mirror pods are
    not."""
    if request.object is None or request.subresource or request.operation not in ("CREATE", "UPDATE"):
        return False
    deleted = dig(request.object, "metadata", "deletionTimestamp") is not None
    if deleted and not (request.operation == "CREATE" and request.username):  # a user may write the field
        return False
    if is_mirror_pod(request):
        return False
    own_policy = labels_of(request.object).get(POLICY_LABEL) in ("true", OVERRIDE)
    return own_policy or config.webhook.namespaces.covers(request.namespace)


def is_disabled(*labels: Mapping[str, str]) -> bool:
    """Whether the labels of an object or of its namespace keep the API server from calling the webhook."""
    return any(each.get(ADMISSION) == "disabled" for each in labels)


def is_mirror_pod(request: Request) -> bool:
    """Whether a node reports a static pod, which no patch or refusal affects."""
    if MIRROR not in annotations_of(request.object or {}):
        return False
    return not request.username or (request.username.startswith(_NODE) and _NODES in request.groups)


def coverage_out_of_scope(request: Request, config: Config) -> Coverage:
    """The coverage of an object that is not reviewed, with the reason."""
    kind = kind_of(request.object or {})
    if not config.webhook.namespaces.covers(request.namespace):
        return not_reviewed(kind, f"the policy excludes namespace {request.namespace}")
    return not_reviewed(kind, "it is a mirror pod, a subresource or an object that is being deleted")
