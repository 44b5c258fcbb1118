"""Only the arguments and variables that name the model decide the startup budget."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.core.facts import Facts
from policies.core.pod_view import PodView
from policies.probes.preset import known_presets
from policies.probes.startup_budget import MAX_GUESS, budget_of
from tests.manifests import manifest

SERVED = {
    "vllm": ["vllm", "serve", "Qwen/Qwen3-8B"],
    "sglang": ["python3", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3-8B"],
    "tgi": ["text-generation-launcher", "--model-id", "Qwen/Qwen3-8B"],
    "tei": ["text-embeddings-router", "--model-id", "Qwen/Qwen3-8B"],
    "lightllm": ["python", "-m", "lightllm.server.api_server", "--model_dir", "/models/Qwen3-8B"],
    "lmdeploy": ["lmdeploy", "serve", "api_server", "Qwen/Qwen3-8B"],
    "trtllm-serve": ["trtllm-serve", "Qwen/Qwen3-8B"],
    "llama.cpp": ["llama-server", "--hf-repo", "Qwen/Qwen3-8B-GGUF"],
}
OTHER_FLAGS = [
    "--reasoning-parser",
    "--tool-call-parser",
    "--chat-template",
    "--tokenizer",
    "--served-model-name",
    "--speculative-config",
    "--speculative-draft-model-path",
    "--kv-transfer-config",
    "--guided-decoding-backend",
    "--lora-modules",
    "--api-key",
    "--download-dir",
    "--revision",
    "--log-file",
]
VALUES = ["deepseek_r1", "deepseek_v3", "llama-3.1-405b", "Qwen/Qwen3-235B-A22B", "70b", "a=acme/llama-405b"]


def budget(command: list[str], env: dict[str, str] | None = None) -> int:
    variables = [{"name": name, "value": value} for name, value in (env or {}).items()]
    spec = {
        "containers": [
            {"name": "model", "image": "example.org/server:1", "command": command, "env": variables}
        ]
    }
    pod = manifest("Pod", "model", spec)
    view = PodView(pod)
    [container] = view.containers
    return budget_of(view, container, Facts("ml")).seconds


@pytest.mark.parametrize("name", SERVED)
@given(flag=st.sampled_from(OTHER_FLAGS), value=st.sampled_from(VALUES), joined=st.booleans())
@settings(max_examples=30)
def test_another_argument_changes_no_budget(name: str, flag: str, value: str, joined: bool) -> None:
    assert flag not in known_presets()[name].model_flags
    added = [f"{flag}={value}"] if joined else [flag, value]
    assert budget([*SERVED[name], *added]) == budget(SERVED[name])


@pytest.mark.parametrize("name", SERVED)
@given(flag=st.sampled_from(OTHER_FLAGS), value=st.sampled_from(VALUES), joined=st.booleans())
@settings(max_examples=30)
def test_another_argument_before_the_model_changes_no_budget(
    name: str, flag: str, value: str, joined: bool
) -> None:
    """405B, since the budget of a small model is the one of an unknown model."""
    given = [word.replace("8B", "405B") for word in SERVED[name]]
    added = [f"{flag}={value}"] if joined else [flag, value]
    last = -1 if known_presets()[name].model_operand else -2
    assert budget([*given[:last], *added, *given[last:]]) == budget(given) > 3600


@pytest.mark.parametrize(
    "options", [["--enable-prefix-caching"], ["--port", "80"], ["--port", "80", "--enable-auto-tool-choice"]]
)
def test_the_model_may_come_after_options(options: list[str]) -> None:
    model = "meta-llama/Llama-3.1-405B"
    assert budget(["vllm", "serve", *options, model]) == budget(["vllm", "serve", model])


def test_a_word_that_may_be_a_value_is_not_the_model() -> None:
    first, second = "acme/giant-405B", "acme/other-405B"
    assert budget(["vllm", "serve", "--new-a", first, "--new-b", second]) == budget(["vllm", "serve"])


@pytest.mark.parametrize("name", SERVED)
def test_another_model_changes_the_budget(name: str) -> None:
    larger = [word.replace("8B", "235B") for word in SERVED[name]]
    assert budget(SERVED[name]) < budget(larger) <= MAX_GUESS


@pytest.mark.parametrize("value", VALUES)
def test_another_variable_changes_no_budget(value: str) -> None:
    assert budget(SERVED["vllm"], {"TOOL_MODEL_PARSER": value}) == budget(SERVED["vllm"])


def test_a_guess_is_bounded() -> None:
    assert budget(["vllm", "serve", "acme/giant-4000B"]) == MAX_GUESS


def test_every_server_that_loads_a_model_says_where_its_name_is() -> None:
    without = [
        name
        for name, preset in known_presets().items()
        if preset.loads_model and not (preset.model_flags or preset.model_env or preset.model_operand)
    ]
    assert without == []
