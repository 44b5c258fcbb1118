"""replicas-do-not-share-state: servers with several replicas, each of which keeps its own state."""

from __future__ import annotations

from collections.abc import Iterator

from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.services import selects
from policies.kube.group_kinds import DEPLOYMENT, ROLLOUT, STATEFUL_SET
from policies.kube.objects.services import Service
from policies.kube.pods import Role
from policies.probes.recognition import Server, release
from policies.probes.serving import recognised
from policies.rollouts.rollouts import minimum_replicas


def check(target: Target, facts: Facts) -> Findings:
    replicas = minimum_replicas(target, facts)
    if replicas <= 1:
        return
    one = "one replica" if target.kind == STATEFUL_SET else "one replica with strategy Recreate"
    for template in target.templates:
        if target.kind == STATEFUL_SET and not _share_a_service(template, facts):
            continue
        files = {
            each.name
            for each in template.typed.spec.volumes
            if each.config_map is not None or each.secret is not None or each.projected is not None
        }
        for container in template.containers(Role.MAIN):
            typed = container.typed
            if typed.env_from or any(mount.name in files for mount in typed.volume_mounts):
                continue  # which may say where the state is
            server = recognised(container, facts)
            for what, hint in _own(server, one) if server is not None else ():
                yield Finding(
                    template.at(container),
                    f"{replicas} replicas of {what}. A request gets what its replica knows.",
                    hint,
                )


def _share_a_service(template: PodTemplate, facts: Facts) -> bool:
    """Whether a Service distributes requests among the pods of a StatefulSet, which also have names of their
    own."""
    labels = template.typed.metadata.labels
    return any(
        each.has_address and each.spec.session_affinity != "ClientIP" and selects(each, labels)
        for each in facts.objects(Service) or ()
    )


def _own(server: Server, one: str) -> Iterator[tuple[str, str]]:
    """What each replica of a server keeps for itself, as the end of a sentence, and what to do."""
    state = server.preset.single_state
    if state is not None and server.keeps_state:
        names = (*state.env, *state.flags)
        move = f"Set {names[0]} to a store of all replicas, or run" if names else "Run"
        yield (
            f"{server.name} run, and each keeps {state.what}",
            f"{move} {one}.",
        )
    for each in server.preset.shared_state:
        old = server.version and server.version < release(each.since)
        if not old and not server.has_variable(*each.env):
            yield (
                f"{server.name} run, and without {each.env[0]}, each keeps {each.what} to itself",
                f"Set {each.env[0]} to {each.to}, or run one replica.",
            )


RULE = rule(__name__, check, (DEPLOYMENT, ROLLOUT, STATEFUL_SET))
