"""Targets of fuzzing: each target reads bytes as one kind of user text, and raises where a promise is broken.

The promises: no exception but the ones a reader documents, and a cost that is bounded, counted as calls of
functions (of C functions, too), never in seconds. What an input cost is the target's answer: the fuzzer
takes a rise of it for new coverage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from policies.accelerators.annotations import requested_memory, requested_products
from policies.commands import StepBudget, read
from policies.commands.clients import clients
from policies.core.annotations import EXEMPT, GPU_MEMORY, GPU_PRODUCT
from policies.kube.quantities import parse_bytes, parse_duration, parse_quantity
from puller.model_config import LIST_KEY, parse
from tests.calls import calls
from webhook.admission.exemptions import Exemptions
from webhook.config.load import load, models, problems_of

STEPS: Final = 20_000
"""A budget that a few hundred bytes can spend, so that what happens at its end is tried, too."""
CALLS_FOR_A_STEP: Final = 40
OVERSHOOT: Final = 4
"""Steps for each byte of the input that a reader may take before it notices that the budget is spent."""


clients()  # read once: no input's cost


def commands(data: bytes) -> int:
    """A shell script, Python code, or words and variables, by the first byte."""
    kind, text = data[:1], data[1:].decode("utf-8", "replace")
    env: list[dict[str, Any]] = []
    if kind == b"s":
        argv = ["sh", "-c", text]
    elif kind == b"p":
        argv = ["python", "-c", text]
    else:
        argv, _, variables = (part.split("\0") for part in text.partition("\1"))
        env = [dict(zip(("name", "value"), item.split("=", 1), strict=False)) for item in variables]
    budget = StepBudget(STEPS)
    cost = calls(lambda: read(argv, env, static=kind == b"e", budget=budget))
    assert budget.spent <= STEPS + OVERSHOOT * len(data) + 100, f"{budget.spent} steps of {STEPS}"
    assert cost <= CALLS_FOR_A_STEP * (budget.spent + 100), f"{cost} calls for {budget.spent} steps"
    return cost


def annotation_values(data: bytes) -> int:
    """The value of an annotation, in every place where one is parsed."""
    text = data.decode("utf-8", "replace")
    annotations = {GPU_MEMORY: text, GPU_PRODUCT: text}

    def read_all() -> None:
        for reader in (parse_duration, parse_quantity, parse_bytes):
            _refusing(reader, text)
        _refusing(requested_memory, annotations)
        requested_products(annotations)
        Exemptions.read({EXEMPT: text}, _DEFAULTS, "default")

    # A misspelt rule is compared with all names for a suggestion, at most four of them in one annotation.
    return _linear(calls(read_all), data, base=10_000, each=600)


def policy(data: bytes) -> int:
    """A key of the policy's ConfigMap: its name up to the first line's end, its YAML after that."""
    key, _, text = data.decode("utf-8", "replace").partition("\n")
    return _linear(calls(lambda: problems_of({key: text})), data, base=60_000, each=1_000)


def model_config(data: bytes) -> int:
    """The list of models of a model ConfigMap."""
    text = data.decode("utf-8", "replace")
    return _linear(calls(lambda: parse({LIST_KEY: text, "a.json": text})), data)


TARGETS: Final[dict[str, Callable[[bytes], int]]] = {
    "commands": commands,
    "annotations": annotation_values,
    "policy": policy,
    "model-config": model_config,
}

_DEFAULTS: Final = load(dict.fromkeys(models(), ""))
"""Builds what checks a policy, too: no input's cost."""


def _refusing(reader: Callable[[Any], object], value: object) -> None:
    refusal = ""
    try:
        reader(value)
    except ValueError as error:
        refusal = str(error)
    assert len(refusal) < 500, "a refusal as long as what it refuses"


def _linear(cost: int, data: bytes, *, base: int = 5_000, each: int = 200) -> int:
    assert cost <= base + each * len(data), f"{cost} calls for {len(data)} bytes"
    return cost
