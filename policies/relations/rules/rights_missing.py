"""rights-missing: programs that ask the API server for what their account may not have."""

from __future__ import annotations

from collections.abc import Iterator

from policies.containers.commands import container_command
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.facts import WholeObjects
from policies.kube.group_kinds import SERVICE_ACCOUNT
from policies.kube.pods import Container
from policies.probes.serving import recognised
from policies.relations.bindings import account_of, has_token, unused_accounts
from policies.relations.rights import Right, may_use_other_credentials, needed, rights_of


def check(target: Target, facts: Facts) -> Findings:
    cluster = facts.whole
    if cluster is None or not cluster.of_files or target.has_controller:
        return
    for template in target.templates:
        if not template.is_exact or not has_token(template.typed.spec, facts.namespace, cluster):
            continue
        for container in template.containers():
            if not may_use_other_credentials(container.typed):
                yield from _missing(template, container, facts, cluster)


def _missing(template: PodTemplate, container: Container, facts: Facts, cluster: WholeObjects) -> Findings:
    own, namespace = template.typed.spec.own_account, facts.namespace
    for right in _needed(template, container, facts):
        account = account_of(own or "default", namespace, right.namespace or namespace, cluster)
        if not account.is_known or any(right.allowed_by(role) for role in account.roles):
            continue
        needs = f"Container {container.name} {right.asked_by}, for which it must be allowed to {right.words}"
        if account.roles:
            roles = ", ".join(dict.fromkeys(role.metadata.name for role in account.roles))
            yield Finding(
                template.command_path(container),
                f"{needs}. No role of ServiceAccount {own or 'default'} ({roles}) allows it, so the API "
                "server answers with status 403.",
                f"Add it to a role: resource {right.resource}, verb {right.verbs[0]}.",
                # Other files may bind an account that these do not create.
                Certainty.CERTAIN
                if cluster.named(SERVICE_ACCOUNT, namespace, own) is not None
                else Certainty.LIKELY,
            )
            return
        other = None if own else next(unused_accounts(right, namespace, cluster), None)
        if other is not None:
            yield Finding(
                template.command_path(container),
                f"{needs}. The pod runs as the default ServiceAccount, and role {other[1]} allows it to "
                f"{other[0]}, so the API server answers with status 403.",
                f"Set serviceAccountName: {other[0]}.",
                Certainty.LIKELY,
            )
            return


def _needed(template: PodTemplate, container: Container, facts: Facts) -> Iterator[Right]:
    for command in container_command(template, container).commands:
        if not command.forgiven and not command.conditional:
            yield from rights_of(command)
    server = recognised(container, facts)
    if server is None:
        return
    for each in server.preset.rights:
        given = server.has_option(*each.flags) and not server.has_option(*each.unless_flags)
        if given and each.value in ("", server.options.value(each.flags)):
            yield from needed(f"has {each.flags[0]}", each.resource, each.verbs)


RULE = rule(__name__, check)
