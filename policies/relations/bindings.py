"""The rights of ServiceAccounts in a set of files: their roles, and bindings that miss a role or an account.

https://kubernetes.io/docs/reference/access-authn-authz/rbac/#rolebinding-and-clusterrolebinding
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from policies.core.facts import WholeObjects
from policies.core.workloads import workloads_by_kind
from policies.kube.group_kinds import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    ROLE,
    ROLE_BINDING,
    SERVICE_ACCOUNT,
)
from policies.kube.objects.pods import PodSpec
from policies.kube.objects.rbac import ClusterRole, Role, RoleBinding, ServiceAccount, Subject
from policies.kube.objects.reading import readable
from policies.relations.rights import Right, is_for_another_api

_ALL_ACCOUNTS: Final = "system:"


class Account(Struct, frozen=True):
    """The roles that a set of files gives an account in one namespace."""

    roles: tuple[Role, ...] = ()
    is_known: bool = True
    """Whether all of its roles are in the files."""


def account_of(name: str, namespace: str, at: str, cluster: WholeObjects) -> Account:
    """What ServiceAccount `name` of a namespace may do in namespace `at`."""
    roles, known = [], True
    for binding in _bindings(at, cluster):
        if any(_is_account(each, binding, name, namespace) for each in binding.subjects):
            role = _role(binding, cluster)
            known = known and role is not None
            roles += [role] if role is not None else []
    return Account(tuple(roles), known)


def has_token(pod: PodSpec, namespace: str, cluster: WholeObjects) -> bool:
    """Whether the containers of a pod get the token of its account."""
    if pod.automount_service_account_token is not None:
        return pod.automount_service_account_token
    account = _own(pod.own_account or "default", namespace, cluster)
    return account is None or account.automount_service_account_token


def _own(account: str, namespace: str, cluster: WholeObjects) -> ServiceAccount | None:
    found = cluster.named(SERVICE_ACCOUNT, namespace, account)
    return None if found is None else readable(found, ServiceAccount)


def unused_accounts(right: Right, namespace: str, cluster: WholeObjects) -> Iterator[tuple[str, str]]:
    """The ServiceAccounts of a namespace that have a right and that no workload has, each with its role."""
    used = cluster.cache.once_for(namespace, _used_accounts, namespace, cluster)
    for binding in _bindings(right.namespace or namespace, cluster):
        role = _role(binding, cluster)
        if role is not None and right.allowed_by(role):
            for each in binding.subjects:
                own = each.kind == SERVICE_ACCOUNT.kind and _is_account(each, binding, each.name, namespace)
                if own and each.name not in used:
                    yield each.name, binding.role_ref.name


_ACCOUNT: Final = re.compile(r"'serviceAccount(?:Name)?': '([^']*)'")


def _used_accounts(namespace: str, cluster: WholeObjects) -> frozenset[str]:
    """The accounts that the texts of workloads name as those of their pods."""
    texts = (str(each) for kind in workloads_by_kind() for each in cluster.every(kind, namespace))
    return frozenset(account for text in texts for account in _ACCOUNT.findall(text))


def _bindings(namespace: str | None, cluster: WholeObjects) -> Iterator[RoleBinding]:
    """Those of a namespace (None: of all) and of the whole cluster."""
    yield from cluster.typed(ROLE_BINDING, namespace, RoleBinding)
    yield from cluster.typed(CLUSTER_ROLE_BINDING, None, RoleBinding)


def _role(binding: RoleBinding, cluster: WholeObjects) -> Role | None:
    """The role of a binding; None if it is not in the files, or adds up others."""
    ref = binding.role_ref
    if ref.kind != CLUSTER_ROLE.kind:
        found = cluster.named(ROLE, binding.metadata.namespace, ref.name)
        return None if found is None else readable(found, Role)
    found = cluster.named(CLUSTER_ROLE, "", ref.name)
    role = None if found is None else readable(found, ClusterRole)
    return role if role is not None and role.aggregation_rule is None else None


def _is_account(subject: Subject, binding: RoleBinding, name: str, namespace: str) -> bool:
    """Whether a subject is the account, or may be it: a file may leave its namespace to kubectl."""
    if subject.kind != SERVICE_ACCOUNT.kind:
        return subject.name in (
            "system:authenticated",
            "system:serviceaccounts",
            f"system:serviceaccounts:{namespace}",
            f"system:serviceaccount:{namespace}:{name}",
        )
    return subject.name == name and ("" in (namespace, of := _place(binding, subject)) or of == namespace)


def lost_rights(pod: PodSpec, namespace: str, cluster: WholeObjects) -> str:
    """Why the binding that is meant for a pod's own ServiceAccount gives it nothing, as a sentence; empty if
    it may get rights, if none is, or if the pod may need none."""
    account = pod.own_account
    own = _own(account, namespace, cluster)
    if own is None or not has_token(pod, namespace, cluster) or is_for_another_api(own.metadata.annotations):
        return ""
    subjects = [(each, subject) for each in _bindings(None, cluster) for subject in each.subjects]
    if any(subject.name.startswith(_ALL_ACCOUNTS) for _, subject in subjects):
        return ""
    named = [
        (each, subject)
        for each, subject in subjects
        if (subject.kind, subject.name) == (SERVICE_ACCOUNT.kind, account)
    ]
    bound = [each for each, subject in named if _place(each, subject) in ("", namespace)]
    if bound:
        return _without_role(bound[0], namespace, cluster) if len(bound) == 1 else ""
    others = {_place(each, subject) for each, subject in named}
    other = min(others, default="")
    if len(others) != 1 or not own.metadata.namespace or cluster.named(SERVICE_ACCOUNT, other, account):
        return ""
    binding = named[0][0]
    return (
        f"{binding.kind} {binding.name} is for ServiceAccount {account} of namespace {other}, and this one "
        f"is in {namespace}."
    )


def _place(binding: RoleBinding, subject: Subject) -> str:
    """The namespace of a subject; that of its binding if it names none."""
    return subject.namespace or binding.metadata.namespace


def _without_role(binding: RoleBinding, namespace: str, cluster: WholeObjects) -> str:
    """Why a binding gives no rights although a role without a binding is among the files."""
    role = binding.role_ref
    if role.kind != ROLE.kind or cluster.named(ROLE, namespace, role.name) is not None:
        return ""
    used = {each.role_ref.name for each in cluster.typed(ROLE_BINDING, namespace, RoleBinding)}
    unused = sorted({each.name for each in cluster.typed(ROLE, namespace, Role)} - used)
    if len(unused) != 1:
        return ""
    return (
        f"RoleBinding {binding.name} names Role {role.name}, which isn't there, and no binding names Role "
        f"{unused[0]}."
    )
