"""grace-shorter-than-drain: servers that are killed before they have finished their requests, and trainings
before they have saved."""

from __future__ import annotations

from policies.containers.commands import container_command
from policies.containers.programs import option
from policies.core import data
from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.settings import Field, Model
from policies.core.spot_nodes import SpotNodes, spot_nodes_of
from policies.disruption.disruption_guard import EXIT
from policies.disruption.disruption_guard_settings import DisruptionGuard
from policies.disruption.drains import DrainTime, drain_of, only_sleeps, pre_stop_sleep
from policies.jobs.training import launcher_of, options_of_launcher
from policies.kube.objects.pods import DEFAULT_GRACE
from policies.kube.pods import Container, Role
from policies.kube.quantities import whole_number
from policies.probes.serving import recognised


class Launcher(Model):
    """An entry of `launchers.yaml`."""

    programs: tuple[str, ...] = Field(min_length=1, description="as `launcher_of` names them")
    flags: tuple[str, ...] = Field(description="options with the seconds that it waits")
    env: str = Field(description="the variable with the same meaning")
    source: str = Field(pattern=r"^https://")


_launchers = data.entries(Launcher, "policies.disruption", "launchers.yaml")


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        spot = spot_nodes_of(template.typed.spec)
        if template.completes:
            yield from _lost_checkpoint(template, spot)
            for container in template.containers(Role.MAIN):
                yield from _cut_off(template, container)
            continue
        for container in template.containers(Role.MAIN):
            drain = drain_of(container, facts)
            if drain is not None and drain.seconds == 0 and not drain.assumed:
                yield from _aborted_requests(template, container, drain, facts)
            reclaimed = spot
            if drain is not None and not drain.option:
                # A sleep as long as disruption-guard adds loses fewer requests than the default of the server
                # that follows it, which nobody has chosen for this pod.
                added = facts.settings(DisruptionGuard).whole_drain
                drain, reclaimed = None, None if pre_stop_sleep(template, container) <= added else spot
            if drain is not None or reclaimed is not None:
                yield from _lost_requests(template, container, drain, reclaimed)


def _lost_requests(
    template: PodTemplate, container: Container, drain: DrainTime | None, spot: SpotNodes | None
) -> Findings:
    grace, sleep = template.typed.spec.grace, pre_stop_sleep(template, container)
    needed = sleep + (drain.seconds if drain is not None else 0)
    if drain is not None and sleep < grace < needed:
        first = f", after {sleep:g} s of preStop" if sleep else ""
        yield Finding(
            template.at(container),
            f"Container {container.name} may take {drain.seconds} s to finish requests "
            f"({drain.option}){first}, but the pod has only {grace} s to end. Requests that take longer "
            f"than {grace - sleep:g} s are killed.",
            f"Set terminationGracePeriodSeconds above {needed:g}, or set {drain.option} below "
            f"{grace - sleep:g}.",
        )
    elif spot is not None and spot.seconds < needed <= grace:
        takes = f"may take {drain.seconds} s to finish requests ({drain.option})" if drain is not None else ""
        sleeps = f"sleeps {sleep:g} s in its preStop hook" if sleep else ""
        yield Finding(
            template.at(container),
            f"Container {container.name} {' and '.join(filter(None, (sleeps, takes)))}, but "
            f"{_reclaimed(spot)}. The requests that are still open then are lost.",
            f"Shorten {'both' if sleeps and takes else 'it'} to fit, or run the pod on nodes that aren't "
            "reclaimed.",
        )


def _aborted_requests(
    template: PodTemplate, container: Container, drain: DrainTime, facts: Facts
) -> Findings:
    """A finding about a server that aborts its requests after a hook that is shorter than they are."""
    server = recognised(container, facts)
    answers = None if server is None else server.preset.long_answers
    flag = next(iter(server.preset.drain.flags), "") if server is not None and server.preset.drain else ""
    if answers is None or not only_sleeps(template, container):
        return
    setting = f" ({flag} is 0{'' if drain.option else ' by default'})" if flag else ""
    sleep = pre_stop_sleep(template, container)
    added = facts.settings(DisruptionGuard).whole_drain  # to pods without a hook that have the time
    if sleep < min(answers.seconds, added) and template.typed.spec.grace >= added + EXIT:
        yield Finding(
            template.at(container, "lifecycle.preStop"),
            f"Container {container.name} aborts its open requests at SIGTERM{setting}, after {sleep:g} s of "
            f"preStop. A normal answer may take {answers.seconds} s or longer.",
            f"Set {flag} to the longest answer that you want to serve, and terminationGracePeriodSeconds "
            "above that and the hook."
            if flag
            else "Let the hook sleep as long as the longest answer that you want to serve, and set "
            "terminationGracePeriodSeconds above that.",
        )


def _lost_checkpoint(template: PodTemplate, spot: SpotNodes | None) -> Findings:
    written = template.typed.spec.termination_grace_period_seconds
    if spot is not None and written is not None and written > max(spot.seconds, DEFAULT_GRACE):
        yield Finding(
            f"{template.spec_path}.terminationGracePeriodSeconds",
            f"The pod has {written} s to end, but {_reclaimed(spot)}. A checkpoint that takes longer is "
            "lost.",
            "Save checkpoints regularly instead of only at SIGTERM. The interval is the work that a "
            "preemption can cost.",
        )


def _cut_off(template: PodTemplate, container: Container) -> Findings:
    """A finding about a launcher that gives its processes more time to save than the pod has to end."""
    grace = template.typed.spec.grace
    every = [each.argv for each in container_command(template, container).commands]
    variables = {each.name: each.value for each in container.typed.env}
    for known in _launchers():
        in_script = any(known.env in word for word in container.typed.argv)
        of_pod = None if in_script else variables.get(known.env)
        for words in every:
            if launcher_of(words) not in known.programs:
                continue
            given = option(options_of_launcher(words), *known.flags)
            name, value = (known.env, of_pod) if given is None else (known.flags[0], given)
            seconds = whole_number(value or "", 6)
            if seconds is not None and seconds > grace:
                yield Finding(
                    template.at(container),
                    f"Container {container.name} gives its processes {seconds} s to save after SIGTERM "
                    f"({name}), but the pod has only {grace} s to end. A checkpoint that takes longer is "
                    "cut off.",
                    f"Set terminationGracePeriodSeconds above {seconds}.",
                )
                return


def _reclaimed(spot: SpotNodes) -> str:
    """How long pods have on such nodes, as half a sentence."""
    more = f" ({spot.raised})" if spot.raised else ""
    return f"its nodes ({spot.label}) give pods {spot.seconds} s when the cloud reclaims them{more}"


RULE = rule(__name__, check)
