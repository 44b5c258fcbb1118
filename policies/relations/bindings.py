"""The rights of ServiceAccounts: bindings that miss a role or an account of the same files.

https://kubernetes.io/docs/reference/access-authn-authz/rbac/#rolebinding-and-clusterrolebinding
"""

from __future__ import annotations

from itertools import chain
from typing import Final

from policies.core.facts import WholeObjects
from policies.kube.group_kinds import SERVICE_ACCOUNT, GroupKind
from policies.kube.json import Json, maps, text

_RBAC: Final = "rbac.authorization.k8s.io"
_ROLE: Final = GroupKind(_RBAC, "Role")
_ROLE_BINDING: Final = GroupKind(_RBAC, "RoleBinding")
_CLUSTER_ROLE_BINDING: Final = GroupKind(_RBAC, "ClusterRoleBinding")
_ALL_ACCOUNTS: Final = "system:"


def lost_rights(account: str, namespace: str, whole: WholeObjects) -> str:
    """Why the binding that is meant for a ServiceAccount gives it nothing, as a sentence; empty if it may get
    rights, or if none is."""
    own = whole.named(SERVICE_ACCOUNT, namespace, account)
    everywhere = list(chain(whole.every(_ROLE_BINDING, None), whole.every(_CLUSTER_ROLE_BINDING, None)))
    subjects = [(each, subject) for each in everywhere for subject in maps(each, "subjects")]
    if own is None or any(text(subject, "name").startswith(_ALL_ACCOUNTS) for _, subject in subjects):
        return ""
    named = [(each, subject) for each, subject in subjects if text(subject, "name") == account]
    bound = [each for each, subject in named if _place(each, subject) in ("", namespace)]
    if bound:
        return _without_role(bound, namespace, whole) if len(bound) == 1 else ""
    others = {_place(each, subject) for each, subject in named}
    other = min(others, default="")
    if (
        len(others) != 1
        or not text(own, "metadata", "namespace")
        or whole.named(SERVICE_ACCOUNT, other, account)
    ):
        return ""
    binding = named[0][0]
    what = f"{text(binding, 'kind')} {text(binding, 'metadata', 'name')}"
    return f"{what} is for ServiceAccount {account} of namespace {other}, and this one is in {namespace}."


def _place(binding: Json, subject: Json) -> str:
    """The namespace of a subject; that of its binding if it names none."""
    return text(subject, "namespace") or text(binding, "metadata", "namespace")


def _without_role(bound: list[Json], namespace: str, whole: WholeObjects) -> str:
    """Why a binding gives no rights although a role without a binding is among the files."""
    binding, role = bound[0], text(bound[0], "roleRef", "name")
    if text(binding, "roleRef", "kind") != _ROLE.kind or whole.named(_ROLE, namespace, role) is not None:
        return ""
    used = {text(each, "roleRef", "name") for each in whole.every(_ROLE_BINDING, namespace)}
    roles = {text(each, "metadata", "name") for each in whole.every(_ROLE, namespace)}
    unused = sorted(roles - used)
    if len(unused) != 1:
        return ""
    what = f"RoleBinding {text(binding, 'metadata', 'name')}"
    return f"{what} names Role {role}, which isn't there, and no binding names Role {unused[0]}."
