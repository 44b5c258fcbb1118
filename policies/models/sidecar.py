"""The puller in a pod that exists: where it shows the state of its models."""

from __future__ import annotations

from typing import Final

from policies.kube.json import Json, strings
from policies.kube.pods import containers
from policies.probes.recognition import PULLER

_PORT: Final = 9081


def status_port(pod: Json) -> int | None:
    """The port of the puller's status; None if the pod has no puller."""
    for container in containers(pod):
        command = strings(container.spec, "command")
        if not command or command[0].rpartition("/")[2] != PULLER:
            continue
        for word in (*command[1:], *strings(container.spec, "args")):
            digits = word.removeprefix("--port=")
            if word.startswith("--port=") and digits.isascii() and digits.isdigit() and len(digits) < 6:
                return int(digits)
        return _PORT
    return None
