"""exec-probe-default-timeout: liveness commands that have one second to start and answer."""

from __future__ import annotations

from collections.abc import Iterator

from policies.core.contracts import rule
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.needs import Need
from policies.core.target import Target
from policies.kube.json import mapping
from policies.probes.probe import LIVENESS, probes


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    for probe in probes(target, LIVENESS):
        if mapping(probe.spec, "exec") and probe.timeout <= 1:
            yield Finding(
                probe.at("timeoutSeconds"),
                f"The {probe.name} starts a process and gives it 1 s: on a busy node that passes before the "
                "process runs, and the container is killed.",
                "Set timeoutSeconds to 5 or more, or ask over httpGet or grpc.",
            )


RULE = rule(__name__, check, needs=(Need.LIVENESS, Need.EXEC))
