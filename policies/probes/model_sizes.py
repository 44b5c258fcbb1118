"""The size of a model's weights, from its name: `Llama-3.1-70B` is 140 GB, `Qwen3-32B-AWQ` about 21 GB.

Names contain the number of parameters and their number format. The size is None without a number of
parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal

from policies.core import data
from policies.core.settings import Field, Model

_SPLIT: Final = re.compile(r"[^A-Za-z0-9.]+")
_COUNT: Final = re.compile(r"(?:([0-9]{1,2})x)?([0-9]{1,4}(?:\.[0-9]{1,3})?)([bm])", re.IGNORECASE)
"""`70B`, `8x22B`, `0.5b`, `350M`; not `A22B`, the active parameters only."""
_EXPERTS: Final = re.compile(r"[0-9]{1,3}e", re.IGNORECASE)
"""`17B-16E`: 17 billion active parameters, and an unknown total."""
_UNITS: Final = {"b": 10**9, "m": 10**6}
_SHARED: Final = 0.85
"""The experts of `8x7B` share their attention: Mixtral has 47 billion parameters, not 56."""
_ADAPTERS: Final = frozenset({"lora", "loras", "adapter", "adapters", "qlora"})
"""Parts of the names of adapters, which are small even if they name a large base model."""
_LARGEST: Final = 4 * 10**12
"""Parameters. A greater number in a name has another meaning."""

_PLAIN: Final = 2.0
"""Bytes of a parameter in bfloat16, in which most models are published."""
_WRITTEN: Final = {
    **dict.fromkeys(("fp32", "f32", "float32"), 4.0),
    **dict.fromkeys(("bf16", "fp16", "f16"), 2.0),
    **dict.fromkeys(("fp8", "int8", "8bit", "w8a8", "w8a16"), 1.1),
    **dict.fromkeys(("awq", "gptq", "int4", "4bit", "w4a16", "w4a8", "nf4", "fp4", "nvfp4", "mxfp4"), 0.65),
}
"""Bytes of a parameter with its scales, by the number format in a name."""
_GGUF: Final = re.compile(r"i?q([2-8])", re.IGNORECASE)
"""`Q4_K_M`: four bits and the scales of the blocks."""
_GGUF_DEFAULT: Final = 0.65
"""Bytes of a parameter of a repository of GGUF files without a format in its name: llama.cpp takes Q4_K_M
(`-hf` in tools/server/README.md)."""
_BY_FLAG: Final = {
    **dict.fromkeys(("awq", "awq_marlin"), 0.65),
    **dict.fromkeys(("gptq", "gptq_marlin", "marlin"), 1.1),
    **dict.fromkeys(("float32", "float"), 4.0),
}
"""Bytes of a parameter by `--quantization` and `--dtype`. Other values convert the weights after loading."""


class Published(Model):
    """A model whose name gives a wrong size or none."""

    name: str = Field(description="in lower case: whole words anywhere in a model's name")
    billions: float = Field(gt=0, description="parameters")
    written: Literal["bfloat16", "fp8", "mxfp4"] = Field(description="how most of them are written")
    gigabytes: float = Field(gt=0, description="its files as published")
    source: str = Field(description="the page that shows the number of parameters and how they are written")


@data.table
def published() -> tuple[tuple[str, bool, Published], ...]:
    """Each published model with its name between hyphens, and whether the name has a number of parameters."""
    found = data.load_list(Published, __package__, "published.yaml")
    return tuple((f"-{each.name}-", bool(_counts(each.name)), each) for each in found)


def heaviest(texts: Iterable[str], flags: Iterable[str | None] = ()) -> tuple[int, str]:
    """Bytes of the largest model that one of the texts names, and that text; 0 and an empty one if none does.

    `flags` are the values of `--quantization` and `--dtype`; a name with a number format wins.
    """
    written = [_BY_FLAG[flag] for flag in flags if flag in _BY_FLAG]
    usual = max(written, default=_PLAIN)
    return max(((size, each) for each in texts if (size := _size(each, usual))), default=(0, ""))


def _size(text: str, usual: float) -> int | None:
    _, remote, place = text.partition("://")
    if not remote:
        return _size_of_name(text, usual)
    bucket, _, path = place.partition("/")  # the path names the model more reliably than the bucket
    return _size_of_name(path, usual) or _size_of_name(bucket, usual)


def _size_of_name(text: str, usual: float) -> int | None:
    parts = [part.lower() for part in _SPLIT.split(text)]
    if not _ADAPTERS.isdisjoint(parts):
        return None
    written, experts = [], False
    for part in parts:
        if part in _WRITTEN:
            written.append(_WRITTEN[part])
        elif match := _GGUF.fullmatch(part):
            written.append((int(match[1]) + 1) / 8)
        elif _EXPERTS.fullmatch(part):
            experts = True
    if not written and "gguf" in parts:
        written.append(_GGUF_DEFAULT)
    counts = _counts(text)
    if known := _published(parts, counted=bool(counts)):
        return round(known.billions * max(written) * 10**9 if written else known.gigabytes * 10**9)
    if not counts or experts or max(counts) > _LARGEST:
        return None
    return round(max(counts) * max(written, default=usual))


def _published(parts: list[str], *, counted: bool) -> Published | None:
    """The published model with these parts in its name. `counted`: the name has a number of parameters, so
    only published names with a number match."""
    text = f"-{'-'.join(parts)}-"
    for name, numbered, each in published():
        if numbered >= counted and name in text:
            return each
    return None


def names_several_sizes(text: str) -> bool:
    """Whether a name has several numbers, of which one may be that of its training's tokens, as in
    `mpt-1b-redpajama-200b`."""
    return len(set(_counts(text))) > 1


def _counts(text: str) -> list[float]:
    """The numbers of parameters in a name."""
    found = []
    for part in _SPLIT.split(text):
        if part[:1].isdigit() and (match := _COUNT.fullmatch(part)):
            experts = int(match[1] or 1)
            shared = _SHARED if experts > 1 else 1
            found.append(experts * float(match[2]) * _UNITS[match[3].lower()] * shared)
    return found
