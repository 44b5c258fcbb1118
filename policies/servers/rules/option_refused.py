"""option-refused: servers with an option that their version does not have any more, or not yet, with one dash
instead of two, with a variable that nothing expands, or with a data type that the accelerators lack."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import PurePosixPath
from typing import Final

from policies.accelerators.fit import compute_of
from policies.containers.commands import container_command
from policies.containers.programs import flags_and_values
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.kube.images import image_matches
from policies.kube.pods import Container, Role
from policies.probes.recognition import Server, is_since, release
from policies.probes.server_facts import RefusedOption
from policies.probes.serving import recognised

_ONE_DASH: Final = re.compile(r"-[a-z][a-z0-9]*(?:[-_][a-z0-9]+)+", re.ASCII)
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))", re.ASCII)


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        if template.rewritten:
            continue  # the operator may start another image
        for container in template.containers(Role.MAIN):
            server = recognised(container, facts)
            if server is None:
                continue
            yield from _with_one_dash(server, template, container)
            yield from _unexpanded(server, target, template, container)
            yield from _beyond_accelerators(server, template, container, facts)
            if len(server.version) == 1:
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


def _with_one_dash(server: Server, template: PodTemplate, container: Container) -> Findings:
    """Long options with one dash, which argparse takes for none, or for a short option and its value."""
    for word in server.argv if server.preset.argparse else ():
        name = word.partition("=")[0]
        long = f"-{name.replace('_', '-')}"
        if _ONE_DASH.fullmatch(name) and server.preset.takes_value(long):
            yield Finding(
                template.at(container),
                f"Container {container.name} starts {server.name} with {name}, but the option is {long}. It "
                "exits with an error, and the kubelet restarts it forever.",
                f"Write {long}.",
            )


def _unexpanded(server: Server, target: Target, template: PodTemplate, container: Container) -> Findings:
    """Values of options that are a variable of the container in the form that only a shell expands."""
    if container_command(template, container).scripts or not _runs_itself(server, container):
        return
    for name, value in flags_and_values(container.typed.argv):
        found = _VARIABLE.fullmatch(value)
        variable = found and (found[1] or found[2])
        if (
            found
            and variable in server.variables
            and server.preset.takes_value(name)
            and not _is_template(target, container)
        ):
            yield Finding(
                template.at(container),
                f"Container {container.name} gives {server.name} the text {found[0]} as {name}: Kubernetes "
                f"expands only $({variable}), and no shell runs here.",
                f"Write $({variable}).",
            )
            return


def _beyond_accelerators(
    server: Server, template: PodTemplate, container: Container, facts: Facts
) -> Findings:
    """Values and images that the accelerators which the pod asks for do not support."""
    for need in server.preset.compute_needs:
        value = server.options.value(need.flags)
        named = "@" not in container.image  # a digest may be of any image
        with_image = named and image_matches(container.image, need.images, need.excluded_images)
        found = compute_of(template.view, facts) if with_image or value in need.values else None
        if found is not None and found.most < need.least:
            what = f"the image {container.image[:80]}" if with_image else f"{need.flags[0]} {value}"
            yield Finding(
                template.at(container),
                f"Container {container.name} starts {server.name} with {what}, which needs "
                f"compute capability {need.least}. The accelerators of this pod ({found.by}) have "
                f"{found.most}, and the server exits with an error.",
                f"{need.instead}.",
                Certainty.LIKELY,
            )


def _is_template(target: Target, container: Container) -> bool:
    """Whether envsubst or Flux may replace `${NAME}` in the manifest, as other fields need it."""
    return str(target.obj).count("${") > sum(word.count("${") for word in container.typed.argv)


def _runs_itself(server: Server, container: Container) -> bool:
    """Whether the container's own words start the server, without a script that may expand them."""
    command = container.typed.command
    if not command:
        return server.own_image
    first = PurePosixPath(command[0]).name
    return first.startswith("python") or first in {each.split()[0] for each in server.preset.commands}


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
