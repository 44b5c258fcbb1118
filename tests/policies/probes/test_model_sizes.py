"""The size of models, from their names."""

import pytest

from policies.probes.model_sizes import Published, heaviest, published
from tests.tables import table

GB = 10**9


@table(
    ("name", "size"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", 140),
        ("mistralai/Mixtral-8x22B-v0.1", 281),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 93),
        ("TheBloke/Mixtral-8x7B-Instruct-v0.1-AWQ", 30.355),
        ("acme/MoE-8x3B", 40.8),
        ("Qwen/Qwen3-235B-A22B", 470),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", 33),
        ("openai/gpt-oss-120b", 65),
        ("/models/gpt-oss-20b", 14),
        ("unsloth/gpt-oss-120b-BF16", 233.6),
        ("deepseek-ai/DeepSeek-R1", 688),
        ("deepseek-ai/DeepSeek-V3.1", 688),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", 140),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", 16),
        ("cognitivecomputations/DeepSeek-R1-AWQ", 444.795),
        ("meta-llama/Llama-4-Scout-17B-16E", 218),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8", 440),
        ("neuralmagic/Meta-Llama-3.1-405B-Instruct-FP8", 445.5),
        ("/models/llama-3.1-70b-instruct-q4_k_m.gguf", 43.75),
        ("/models/Qwen3-32B-UD-Q2_K_XL.gguf", 12),
        ("gs://models-70b/gemma-2-2b-it", 4),
        ("s3://llama-70b-weights/current", 140),
        ("Qwen/Qwen2.5-0.5B-Instruct", 1),
        ("HuggingFaceTB/SmolLM-135M", 0.27),
        ("TheBloke/Llama-2-70B-AWQ", 45.5),
        ("hugging-quants/Meta-Llama-3.1-405B-Instruct-GPTQ-INT4", 263.25),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", 7.7),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16", 140),
        ("bartowski/Llama-3.3-70B-Instruct-GGUF:Q4_K_M", 43.75),
        ("unsloth/gemma-3-27b-it-bnb-4bit", 17.55),
        ("--model=tiiuae/falcon-40b", 80),
        ("nvcr.io/nim/meta/llama-3.1-8b-instruct", 16),
        ("gemma3:27b", 54),
    ],
)
def test_size_by_name(name: str, size: float) -> None:
    assert heaviest([name])[0] == round(size * GB)


@pytest.mark.parametrize(
    "name",
    [
        "acme/MoE-17B-16E",
        "deepseek-ai/DeepSeek-R2",
        "acme/llama-70b-lora",
        "google/flan-t5-xxl",
        "--max-model-len=8192",
        "/models/ours",
        "A22B",
        "4bit",
        "9999999b",
        "9000b",
        "",
    ],
)
def test_names_without_a_size(name: str) -> None:
    assert heaviest([name]) == (0, "")


def test_the_largest_of_several_and_the_flags() -> None:
    assert heaviest(["drafter-1B", "base-70B"])[0] == 140 * GB
    assert heaviest(["base-7B"], ["awq", None])[0] == round(0.65 * 7 * GB)
    assert heaviest(["base-7B"], [None, "float32"])[0] == 28 * GB
    assert heaviest(["base-7B"], ["fp8", "bfloat16"])[0] == 14 * GB, "what is loaded is written in full"
    assert heaviest(["base-7B-AWQ"], ["gptq"])[0] == round(0.65 * 7 * GB), "the name wins"


BYTES = {"bfloat16": (2, 2), "fp8": (1, 1.01), "mxfp4": (0.53125, 0.7)}
"""Of a parameter: all in 4.25 bits, or the share of gpt-oss-20b that is not."""


@pytest.mark.parametrize("model", [each for _, _, each in published()], ids=lambda each: each.name)
def test_a_published_size_is_its_parameters_times_their_bytes(model: Published) -> None:
    least, most = BYTES[model.written]
    assert round(model.billions * least - 0.5) <= model.gigabytes <= round(model.billions * most + 0.5)
    assert model.source.startswith(("https://arxiv.org/abs/", "https://huggingface.co/"))
    if model.source.startswith("https://huggingface.co/"):
        assert model.name.split("-")[0] in model.source.lower()
