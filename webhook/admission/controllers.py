"""Whether a controller sent the request, to create an object for its owner: `ratcheting` never refuses that.

Anybody can write an owner reference. It counts only if the account of the request, which the API server
authenticates, can be a controller's.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from policies.kube.json import Json
from policies.kube.metadata import controller
from webhook.admission.envelope import Request

_CONTROLLERS: Final = ("system:serviceaccount:", "system:node:", "system:kube-")
"""Prefixes of the account names of controllers: Kubernetes' own and operators'. A person who may use an
operator's service account is not told apart."""


def owner_behind(request: Request, accounts: Iterable[str] = ()) -> Json | None:
    """The controller reference of the object, if the account of the request can be a controller's.

    `accounts`: globs of further controllers' accounts.
    """
    username = request.username
    can_be_controller = (
        not username
        or username.startswith(_CONTROLLERS)
        or any(fnmatchcase(username, account) for account in accounts)
    )
    return controller(request.object or {}) if can_be_controller else None
