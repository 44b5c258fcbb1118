"""No text of a user decides the depth of the stack: a RecursionError would drop a mutator or a rule.

The tokens that separate parts of names, addresses, commands and sizes are repeated in every text of a pod.
The stack has room for a review, but not for one frame for each repetition.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from policies.kube.group_kinds import kind_of
from tests.hostile.objects import Json, deployment, pod, server
from webhook.admission import engine
from webhook.admission.envelope import Request
from webhook.admission.review import Review
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster

CONFIG, NOWHERE = load({}), ManifestCluster([])
REPEATED = 600
FRAMES = 250
"""More than a review needs, and less than half of the repetitions."""
TOKENS = [
    *("a://", "://", "a/", "/", "a:", ":", "a@", "a.", ".", "a-", "a,", ",", "a=", "=", "a;"),
    *(";", "a|", "a&", "a ", "a\n", "a\\", "\\", "'", '"', "a'b'", "(", ")", "[", "]", "{", "}"),
    *("<", ">", "!", "#", "~", "*", "?", "%", "+", "-", "$", "$(", "$((", "$(a", "${", "${a:-"),
    *("${a", "$a", "`", "$(A)", "$(A", "$$", "((", "[[ ", "f(){ ", "if a;then ", "while a;do "),
    *("case a in b)", "a && ", "a || ", "! ", "{ ", "sh -c ", "eval ", "timeout 5 ", "exec "),
    *("env A=b ", "<<E\n", "> a ", "lambda: ", "not ", "(lambda: ", "a[", "-(", "1+", "[1,"),
    *("8x", "70b-", "q4_", "1Gi", "1e", "1h1m"),
]
KEYS = (
    "expected-start",
    "model-size",
    "health-path",
    "health-port",
    "gpu",
    "exempt",
    "model-config",
    "checkpoint",
)
VLLM = "vllm/vllm-openai:v0.9.1"


def _server(**fields: Any) -> Json:
    return pod(server(image=VLLM, **{"ports": [{"containerPort": 8000}], **fields}))


def _script(text: str) -> Json:
    return pod(server(command=["sh", "-c", text]))


def _wait(text: str) -> Json:
    wait = {
        "name": "wait",
        "image": "busybox",
        "command": ["sh", "-c", f"until nc -z {text} 1; do sleep 1; done"],
    }
    return pod(initContainers=[wait])


def _of_probes(text: str) -> Json:
    get = {"httpGet": {"path": text, "port": text, "host": text}}
    return _server(livenessProbe=get, readinessProbe={"exec": {"command": ["curl", text]}})


def _of_pod(text: str) -> Json:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": text}}]
    mounts = [{"name": "v", "mountPath": text}]
    annotations = {f"mlchassis.dev/{key}": text for key in KEYS}
    made = _server(volumeMounts=mounts, resources={"limits": {"nvidia.com/gpu": text, "memory": text}})
    metadata = {**made["metadata"], "annotations": annotations, "labels": {"a": text}}
    return {**made, "metadata": metadata, "spec": {**made["spec"], "volumes": volumes, "hostname": text}}


PLACES: dict[str, Callable[[str], Json]] = {
    "a model": lambda text: _server(args=["--model", text]),
    "an option": lambda text: _server(args=["--model", "m", f"--port={text}"]),
    "an image": lambda text: pod(server(image=f"vllm/vllm-openai:{text[:900]}")),
    "a variable": lambda text: _server(env=[{"name": "MODEL_NAME", "value": text}]),
    "a script": _script,
    "Python": lambda text: pod(server(command=["python", "-c", text])),
    "a wait": _wait,
    "a hook": lambda text: _server(lifecycle={"preStop": {"exec": {"command": ["sh", "-c", text]}}}),
    "probes": _of_probes,
    "a pod": _of_pod,
}


@contextmanager
def shallow_stack() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + FRAMES)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@pytest.mark.parametrize("place", PLACES)
def test_no_mutator_or_rule_is_dropped_for_a_repeated_token(place: str) -> None:
    dropped: list[tuple[str, str, str]] = []
    read = 0
    for token in TOKENS:
        obj = deployment(PLACES[place](token * REPEATED))
        request = Request("u", kind_of(obj), "CREATE", "ml", object=obj, username="ada")
        with shallow_stack():
            decision = engine.decide(Review(request, CONFIG, NOWHERE))
        dropped += [(token, crash.id, crash.trace) for crash in decision.crashes]
        read += decision.coverage is not None and not any("not decided" in note for note in decision.notes)
    assert dropped == []
    assert read > len(TOKENS) // 2
