"""What pods ask the API server for, and what the roles in a set of files allow their account.

The table is `rights.yaml`; a server's own requests are a fact of its preset (`rights`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

from msgspec import Struct

from policies.commands import Command
from policies.commands.clients import clients
from policies.commands.options import parse_options
from policies.core import data
from policies.core.facts import WholeObjects
from policies.core.settings import Field, Model
from policies.core.workloads import workloads_by_kind
from policies.kube.group_kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE, ROLE_BINDING
from policies.kube.objects.rbac import ClusterRole, Role, RoleBinding, Subject
from policies.kube.objects.reading import readable

_CLIENT: Final = "kubectl"
_NAMESPACE: Final = ("-n", "--namespace")
_EVERYWHERE: Final = ("-A", "--all-namespaces")


class Request(Model):
    """An entry of `requests` in `rights.yaml`."""

    programs: tuple[str, ...] = Field((_CLIENT, "oc"), description="the programs")
    words: tuple[str, ...] = Field(min_length=1, description="the first operands, one text for all of them")
    resource: str = Field("", description="the resource, if it is no operand: `pods/log`, `jobs.batch`")
    part: str = Field("", description="the subresource of the operand")
    verbs: tuple[str, ...] = Field(min_length=1, description="the rights, each one verb or several with |")


class Rights(Model):
    """The file."""

    requests: tuple[Request, ...]
    resources: Mapping[str, tuple[str, ...]]
    credentials: tuple[str, ...]


@data.table
def _rights() -> Rights:
    return data.load_one(Rights, __package__, "rights.yaml")


@cache
def _names() -> Mapping[str, tuple[str, str]]:
    """Plural and group by each name of a resource."""
    return {
        name: (names.split()[0], group)
        for group, lines in _rights().resources.items()
        for names in lines
        for name in names.split()
    }


class Right(Struct, frozen=True):
    """One right that a container needs."""

    asked_by: str
    """What asks for it: the end of a clause about the container."""
    namespace: str
    """Of the objects; empty for that of the pod."""
    resource: str
    """`pods`, `pods/log`, `jobs.batch`."""
    verbs: tuple[str, ...]
    """One of which suffices."""

    def allowed_by(self, role: Role) -> bool:
        whole, slash, part = self.resource.partition("/")
        plural, _, group = whole.partition(".")
        resource = f"{plural}{slash}{part}"
        return any(rule.allows(verb, group, resource) for rule in role.rules for verb in self.verbs)

    @property
    def words(self) -> str:
        return f"{' or '.join(self.verbs)} {self.resource}"


def needed(asked_by: str, resource: str, verbs: tuple[str, ...], namespace: str = "") -> list[Right]:
    """The rights of an entry of a table, of which each text of `verbs` is one."""
    return [Right(asked_by, namespace, resource, tuple(each.split("|"))) for each in verbs]


def rights_of(command: Command) -> list[Right]:
    """The rights that a command needs with the account of its pod; none if its text doesn't show them."""
    known = _rights()
    if any(name in known.credentials for name, _ in command.variables):
        return []
    parsed = parse_options(command.argv[1:], clients()[_CLIENT].syntax)
    if parsed.has(*known.credentials, *_EVERYWHERE) or parsed.ambiguous:
        return []
    namespace = parsed.value(_NAMESPACE)
    for request in known.requests:
        if command.name not in request.programs:
            continue
        for words in request.words:
            begins, length = words.split(), len(words.split())
            if parsed.operands[:length] != begins:
                continue
            resource = request.resource or _resource(parsed.operands[length : length + 1])
            if not resource or "$" in namespace:
                return []
            part = f"/{request.part}" if request.part else ""
            asked_by = f"runs `{' '.join((command.name, *parsed.operands[: length + 1]))}`"
            return needed(asked_by, f"{resource}{part}", request.verbs, namespace)
    return []


def uses_other_credentials(variables: Iterator[str]) -> bool:
    """Whether a container has a variable by which clients use another account."""
    return any(name in _rights().credentials for name in variables)


def _resource(operands: list[str]) -> str:
    """The resource of `job/x`, `jobs` or `jobs.batch`; empty if it isn't known."""
    word = operands[0].partition("/")[0].lower() if operands else ""
    name, _, of = word.partition(".")
    plural, group = _names().get(name, ("", ""))
    return "" if of not in ("", group) else f"{plural}.{group}" if group else plural


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


def unused_accounts(right: Right, namespace: str, cluster: WholeObjects) -> Iterator[tuple[str, str]]:
    """The ServiceAccounts of a namespace that may do something there and that no workload has, each with its
    role."""
    for binding in _bindings(right.namespace or namespace, cluster):
        role = _role(binding, cluster)
        if role is not None and right.allowed_by(role):
            for each in binding.subjects:
                own = each.kind == "ServiceAccount" and _is_account(each, binding, each.name, namespace)
                if own and not _is_used(each.name, namespace, cluster):
                    yield each.name, binding.role_ref.name


def _is_used(account: str, namespace: str, cluster: WholeObjects) -> bool:
    """Whether the text of a workload names an account as that of its pods."""
    written = [f"'{field}': '{account}'" for field in ("serviceAccountName", "serviceAccount")]
    return any(
        each in text
        for kind in workloads_by_kind()
        for text in map(str, cluster.every(kind, namespace))
        for each in written
    )


def _bindings(namespace: str, cluster: WholeObjects) -> Iterator[RoleBinding]:
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
    if subject.kind != "ServiceAccount":
        return subject.name in (
            "system:authenticated",
            "system:serviceaccounts",
            f"system:serviceaccounts:{namespace}",
            f"system:serviceaccount:{namespace}:{name}",
        )
    of = subject.namespace or binding.metadata.namespace
    return subject.name == name and (not namespace or not of or of == namespace)
