"""The rights of the nightly scan: manifests/components/scan/rbac.yaml.

A scan lists every kind that a mutator or a rule reads, every kind of the facts, and
CustomResourceDefinitions. It gets two objects by name: the policy's ConfigMap, and the namespace of
`--namespace`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from policies.core.resources import resource_kinds
from policies.core.workloads import known_workloads
from policies.kube.group_kinds import CONFIG_MAP, CUSTOM_RESOURCE_DEFINITION, NAMESPACE, GroupKind
from webhook.cli.cluster_reviews import kinds_of
from webhook.cli.output.policyreport import APIS

FILE: Final = Path("components", "scan", "rbac.yaml")
"""Below manifests/."""
_TEMPLATE: Final = Path(__file__).with_suffix(".yaml")


def manifest() -> str:
    """The ServiceAccount of the scan, its ClusterRole and the binding, as YAML."""
    listed = (
        *kinds_of(each.group_kind for each in known_workloads()),
        *(known.group_kind for known in resource_kinds()),
        CUSTOM_RESOURCE_DEFINITION,
    )
    verbs = ("list", "create", "update", "delete")
    reports = (_rule(api.group, (api.plural, f"cluster{api.plural}"), *verbs) for api in APIS)
    return _TEMPLATE.read_text(encoding="utf-8").format(
        listed="\n".join(_rules(listed, "list")),
        got="\n".join(_rules((CONFIG_MAP, NAMESPACE), "get")),
        written="\n".join(reports),
    )


def _rules(kinds: Iterable[GroupKind], verb: str) -> Iterator[str]:
    """One rule for each API group."""
    groups: dict[str, dict[str, None]] = {}
    for kind in kinds:
        groups.setdefault(kind.group, {})[kind.resource] = None
    return (_rule(group, resources, verb) for group, resources in groups.items())


def _rule(group: str, resources: Iterable[str], *verbs: str) -> str:
    names = "".join(f"      - {resource}\n" for resource in resources)
    return f"""  - apiGroups: [{group or '""'}]\n    resources:\n{names}    verbs: [{", ".join(verbs)}]"""
