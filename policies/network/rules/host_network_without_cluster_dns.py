"""host-network-without-cluster-dns: pods on the node's network that use names of Services.

The API server sets `dnsPolicy: ClusterFirst` before admission, so nobody can tell whether a user wrote it:
the webhook does not change it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from policies.containers.commands import container_command
from policies.core.contracts import Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.core.data import load_list, table
from policies.core.dns import is_address, resolve
from policies.core.settings import Field, Model
from policies.kube.group_kinds import JOB_SET, STATEFUL_SET, VOLCANO_JOB
from policies.kube.names import is_subdomain
from policies.kube.objects.jobs import JobSet
from policies.kube.objects.workloads import StatefulSet
from policies.kube.pods import Container

_LABEL: Final = r"[a-z0-9-]{1,63}"
_NAME: Final = re.compile(rf"(?<![\w.-]){_LABEL}(?:\.{_LABEL}){{1,2}}\.svc(?:\.cluster\.local)?(?![\w-])")
"""A full name of a Service, or of a pod behind one."""
_NODES_RESOLVER: Final = ("", "ClusterFirst")
"""Policies with which a pod on the node's network has the node's resolver."""


class NamedByOperator(Model):
    """An entry of the table named_by_operators.yaml."""

    kinds: tuple[str, ...] = Field(description="kinds with their groups")
    how: str = Field(description="where the names are")
    source: str = Field(description="the operator's source")


@table
def _operators() -> dict[str, str]:
    entries = load_list(NamedByOperator, "policies.network", "named_by_operators.yaml")
    return {kind: entry.how for entry in entries for kind in entry.kinds}


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        spec = template.typed.spec
        if not spec.host_network or spec.dns_policy not in _NODES_RESOLVER or spec.dns_config is not None:
            continue
        if target.kind == VOLCANO_JOB and not spec.dns_policy:
            continue  # its webhook sets ClusterFirstWithHostNet: https://github.com/volcano-sh/volcano/pull/779
        aliases = {name for alias in spec.host_aliases for name in alias.hostnames}
        used = _used(target, template, facts)
        name, where = next(((name, where) for name, where in used if name not in aliases), ("", ""))
        if name:
            yield Finding(
                f"{template.spec_path}.dnsPolicy",
                f"The pod uses {name} ({where}), which it can't resolve. With hostNetwork and dnsPolicy "
                "ClusterFirst, it queries the node's DNS servers instead of the cluster's.",
                "Set dnsPolicy: ClusterFirstWithHostNet.",
            )


def _used(target: Target, template: PodTemplate, facts: Facts) -> Iterator[tuple[str, str]]:
    """Names of Services that the pod uses, and where it has them from."""
    how = _operators().get(str(target.kind))
    if how is not None:
        yield "names of Services", f"{how}, by its operator"
    own = _of_own_pods(target, template)
    for container in template.containers():
        for value, where in _texts(container):
            if found := _NAME.search(value) or (own and own.search(value)):
                yield found[0], f"{where} of container {container.name}"
        for host in container_command(template, container).hosts:
            if host.name and not is_address(host.name) and resolve(host.name, facts.namespace, facts.cluster):
                yield host.name, f"command of container {container.name}"


def _of_own_pods(target: Target, template: PodTemplate) -> re.Pattern[str] | None:
    """The names of the workload's own pods below their headless Service, such as `train-0.train`."""
    service = template.typed.spec.subdomain
    if target.kind == STATEFUL_SET:
        service = target.read(StatefulSet).spec.service_name
    elif target.kind == JOB_SET:
        service = target.read(JobSet).spec.network.subdomain or target.name
    if not is_subdomain(service):
        return None  # a pattern of a long name is costly
    return re.compile(rf"(?<![\w.-]){_LABEL}-\d{{1,9}}\.{re.escape(service)}(?![\w-])")


def _texts(container: Container) -> Iterator[tuple[str, str]]:
    for variable in container.typed.env:
        yield variable.value, f"variable {variable.name}"
    for word in container.typed.argv:
        yield word, "command"


RULE = rule(__name__, check, requires=(PodFeature.HOST_PORT,))
