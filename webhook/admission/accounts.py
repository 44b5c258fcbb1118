"""The accounts behind requests: some marks that any user can write count only from certain accounts.

An owner reference, or the annotation of a mirror pod, is text in an object: a person can write it as well as
a controller. What the API server vouches for is the account of the request.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from policies.kube.json import Json
from policies.kube.metadata import annotations_of, controller
from webhook.admission.envelope import Request

MIRROR: Final = "kubernetes.io/config.mirror"
_NODE: Final = "system:node:"
_NODES: Final = "system:nodes"
_CONTROLLERS: Final = ("system:serviceaccount:", _NODE, "system:kube-")
"""How the names of the accounts begin under which controllers run: Kubernetes' own, and operators'. A person
who may use an operator's service account looks the same."""


def is_mirror_pod(request: Request) -> bool:
    """Whether a node shows what its kubelet runs from a file: no patch and no refusal would reach that."""
    if MIRROR not in annotations_of(request.object or {}):
        return False
    return not request.username or (request.username.startswith(_NODE) and _NODES in request.groups)


def owner_behind(request: Request, accounts: Iterable[str] = ()) -> Json | None:
    """The controller that made, or changes, the object of a request: its owner reference, where the account
    can be a controller's. `accounts`: globs of further accounts that are."""
    owner = controller(request.object or {})
    if owner is None or not _is_a_controllers(request.username, accounts):
        return None
    return owner


def _is_a_controllers(username: str, accounts: Iterable[str]) -> bool:
    return (
        not username
        or username.startswith(_CONTROLLERS)
        or any(fnmatchcase(username, account) for account in accounts)
    )
