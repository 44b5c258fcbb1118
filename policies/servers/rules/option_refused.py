"""option-refused: servers with an option that their version does not have any more, or not yet."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.kube.pods import Container, Role
from policies.probes.recognition import Server, is_since, release
from policies.probes.server_facts import RefusedOption
from policies.probes.serving import recognised


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        if template.rewritten:
            continue  # the operator may start another image
        for container in template.containers(Role.MAIN):
            server = recognised(container, facts)
            if server is None or len(server.version) == 1:
                continue  # one number is the year of a date
            given = next(_refused(server, container), None)
            if given is None:
                continue
            flag, instead = given
            version = (
                f"version {'.'.join(map(str, server.version))}" if server.version else "the newest version"
            )
            yield Finding(
                template.at(container),
                f"Container {container.name} starts {server.name} with {flag}, which {version} "
                "doesn't have. It exits with the error 'unrecognized arguments', and the kubelet restarts it "
                "forever.",
                f"{instead}.",
                Certainty.CERTAIN if server.version else Certainty.LIKELY,
            )


def _refused(server: Server, container: Container) -> Iterator[tuple[str, str]]:
    """The flags in a command line that a server's version does not have, also written as `--a_b`, each with
    what to write instead."""
    for refused in server.preset.refused_options:
        forms = _forms(refused.flags)
        if server.has_option(*forms) and _lacks(server, container, refused):
            yield next(filter(server.has_option, forms)), refused.instead


def _lacks(server: Server, container: Container, refused: RefusedOption) -> bool:
    """Whether a server's version does not have the flags any more, or not yet."""
    if refused.since:
        return is_since(server, container, refused.since)
    known = server.own_image and "@" not in container.image
    return known and () < server.version <= release(refused.newer_than)


@cache
def _forms(flags: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(form for flag in flags for form in dict.fromkeys((flag, f"--{flag[2:].replace('-', '_')}")))


RULE = rule(__name__, check)
