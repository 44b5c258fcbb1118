"""What the experiments share: the model API of `images/model-server`, and the shape of their figures."""

from __future__ import annotations

from tests.e2e.api import JSON
from tests.e2e.node import images
from tests.realnode.traffic import ask

Figures = dict[str, object]
SOON = {"mlchassis.dev/expected-start": "20s"}
BASE = images.base_name()


def http(**timing: int) -> JSON:
    """A probe of the model API."""
    return {"httpGet": {"path": "/health", "port": 8000}, **timing}


def answers(item: JSON) -> bool:
    """Whether a pod of the model API answers, asked without any Service."""
    return "podIP" in item["status"] and ask(item["status"]["podIP"], 8000, "/health")
