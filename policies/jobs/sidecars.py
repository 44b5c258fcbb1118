"""Containers that a Job waits for although nothing ends them."""

from __future__ import annotations

import re
from typing import Final

from policies.commands import SHELLS, is_python
from policies.core.target import PodTemplate
from policies.kube.json import strings
from policies.kube.metadata import controller
from policies.kube.pods import Container

_STOPS: Final = re.compile(
    r"quitquitquit|/(?:quit|shutdown|stop)\b|\bp?kill(?:all)?\b|linkerd-await|\bscuttle\b|\btimeout\b"
)
_ENDS: Final = re.compile(
    # --quitquitquit switches the proxy's own way to be stopped on: somebody is to use it.
    r"exit[-_]after[-_]auth|quitquitquit|--exit-zero-on-sigterm|\bexit\b|\bp?kill\b|\btimeout\b"
)


def is_of_a_job(template: PodTemplate) -> bool:
    """Whether a Job waits for every ordinary container; Kubeflow's operators look at one alone."""
    owner = controller(template.pod)
    return owner is not None and owner.get("kind") == "Job"


def stops_another(container: Container) -> bool:
    """Whether what a container runs visibly stops a sidecar."""
    return _STOPS.search(_words(container)) is not None


def may_end(container: Container) -> bool:
    """Whether it runs something else than its image, or says itself when it ends."""
    first = next(iter(strings(container.spec, "command")), "").rpartition("/")[2]
    return first in SHELLS or is_python(first) or _ENDS.search(_words(container)) is not None


def _words(container: Container) -> str:
    return " ".join((*strings(container.spec, "command"), *strings(container.spec, "args")))
