"""Roles, and the accounts that they are bound to."""

from __future__ import annotations

from policies.kube.group_kinds import GroupKind
from policies.kube.objects.metadata import Object, Part, Present


class PolicyRule(Part):
    verbs: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()

    def allows(self, verb: str, group: str, resource: str) -> bool:
        """`resource`: the plural, with its subresource if it is one: `pods/log`. A rule for some objects by
        their names counts as one for all."""
        whole, _, part = resource.partition("/")
        return (
            not {"*", verb}.isdisjoint(self.verbs)
            and not {"*", group}.isdisjoint(self.api_groups)
            and not {"*", resource, f"*/{part}" if part else whole}.isdisjoint(self.resources)
        )


class Role(Object):
    rules: tuple[PolicyRule, ...] = ()

    def may_change(self, kind: GroupKind) -> bool:
        """Whether it allows a change of existing objects of a kind."""
        return any(
            rule.allows(verb, kind.group, kind.resource)
            for rule in self.rules
            for verb in ("patch", "update")
        )


class ClusterRole(Role):
    aggregation_rule: Present | None = None


class RoleRef(Part):
    kind: str = ""
    name: str = ""


class Subject(Part):
    kind: str = ""
    name: str = ""
    namespace: str = ""


class ServiceAccount(Object):
    automount_service_account_token: bool = True


class RoleBinding(Object):
    """A RoleBinding or a ClusterRoleBinding."""

    role_ref: RoleRef = RoleRef()
    subjects: tuple[Subject, ...] = ()
