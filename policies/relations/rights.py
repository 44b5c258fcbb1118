"""What pods ask the API server for.

The table is `rights.yaml`; a server's own requests are a fact of its preset (`rights`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

from msgspec import Struct

from policies.commands import Command
from policies.commands.clients import clients
from policies.commands.options import parse_options
from policies.core import data
from policies.core.settings import Field, Model
from policies.kube.objects.pods import ContainerSpec
from policies.kube.objects.rbac import Role

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
    other_access: tuple[str, ...]
    unsent: tuple[str, ...]
    identities: tuple[str, ...]


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
    if parsed.has(*known.credentials, *known.unsent, *_EVERYWHERE) or parsed.ambiguous:
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


def may_use_other_credentials(container: ContainerSpec) -> bool:
    """Whether clients in a container may use another account, or first ask what theirs may do."""
    known = _rights()
    paths = (each.mount_path for each in container.volume_mounts)
    return (
        bool(container.env_from)
        or any(each.name in known.credentials for each in container.env)
        or any(sign in word.lower() for word in (*container.argv, *paths) for sign in known.other_access)
    )


def is_for_another_api(annotations: Iterable[str]) -> bool:
    """Whether a ServiceAccount has an identity of a cloud, by the keys of its annotations."""
    return any(key in _rights().identities for key in annotations)


def _resource(operands: list[str]) -> str:
    """The resource of `job/x`, `jobs` or `jobs.batch`; empty if it isn't known."""
    word = operands[0].partition("/")[0].lower() if operands else ""
    name, _, of = word.partition(".")
    plural, group = _names().get(name, ("", ""))
    return "" if of not in ("", group) else f"{plural}.{group}" if group else plural
