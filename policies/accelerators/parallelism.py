"""Over how many accelerators a model server spreads itself, by its flags and variables.

Law: it is unknown where a flag moves a part of the server to other nodes, or a word may hold any flag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from policies.containers.programs import has_option
from policies.probes.recognition import Server

MOST: Final = 1024
"""A greater value of a flag is a mistake that the server itself reports."""


@dataclass(frozen=True, slots=True)
class Factor:
    """One number by which a server multiplies its processes; an absent one counts as 1."""

    flags: tuple[str, ...]
    variables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Parallelism:
    """The options of a server that set over how many accelerators it spreads itself."""

    copy: tuple[Factor, ...]
    """The number of accelerators that one copy of the weights is spread over."""
    copies: Factor | None = None
    """The number of copies, each on separate accelerators."""
    shared_with: tuple[str, ...] = ()
    """Options with which copies share accelerators."""
    unknown_with: tuple[str, ...] = ()
    """Options that change which weights are loaded or where."""
    elsewhere_with: tuple[str, ...] = ()
    """Options with which a part of the processes runs on other nodes, or on no accelerator."""


# vLLM: vllm/config/parallel.py and vllm/engine/arg_utils.py of 0.32.
# SGLang: python/sglang/srt/server_args.py and python/sglang/srt/managers/data_parallel_controller.py.
# TGI: launcher/src/main.rs and server/text_generation_server/utils/dist.py.
_SERVERS: Final[Mapping[str, Parallelism]] = {
    "vllm": Parallelism(
        (
            Factor(("--tensor-parallel-size", "--tensor_parallel_size", "-tp")),
            Factor(("--pipeline-parallel-size", "--pipeline_parallel_size", "-pp")),
        ),
        Factor(("--data-parallel-size", "--data_parallel_size", "-dp")),
        unknown_with=(
            "--config",
            "--cpu-offload-gb",
            "--data-parallel-size",
            "-dp",
            "--enable-expert-parallel",
            "--hf-overrides",
            "--load-format",
            "--offload-group-size",
            "--quantization",
            "-q",
        ),
        elsewhere_with=(
            "--config",
            "--data-parallel-address",
            "-dpa",
            "--data-parallel-backend",
            "-dpb",
            "--data-parallel-external-lb",
            "-dpe",
            "--data-parallel-hybrid-lb",
            "-dph",
            "--data-parallel-rank",
            "-dpn",
            "--data-parallel-size-local",
            "-dpl",
            "--data-parallel-start-rank",
            "-dpr",
            "--device",
            "--distributed-executor-backend",
            "--headless",
            "--master-addr",
            "--nnodes",
            "-n",
            "--node-rank",
            "--worker-cls",
        ),
    ),
    "sglang": Parallelism(
        (
            Factor(("--tensor-parallel-size", "--tp-size", "--tp")),
            Factor(("--pipeline-parallel-size", "--pp-size", "--pp")),
        ),
        Factor(("--data-parallel-size", "--dp-size", "--dp")),
        shared_with=("--enable-dp-attention",),
        unknown_with=(
            "--config",
            "--cpu-offload-gb",
            "--data-parallel-size",
            "--dp-size",
            "--dp",
            "--ep-size",
            "--ep",
            "--expert-parallel-size",
            "--json-model-override-args",
            "--load-format",
            "--offload-group-size",
            "--quantization",
            "--torchao-config",
        ),
        elsewhere_with=(
            "--config",
            "--device",
            "--dist-init-addr",
            "--nccl-init-addr",
            "--ep-join-mode",
            "--nnodes",
            "--node-rank",
            "--use-ray",
        ),
    ),
    "tgi": Parallelism((Factor(("--num-shard",), ("NUM_SHARD",)),)),
}


_EXACT: Final = frozenset(
    flag
    for known in _SERVERS.values()
    for factor in (*known.copy, known.copies)
    if factor is not None
    for flag in factor.flags
)
"""Flags that are read as they are, although they begin like others."""


def knows_weights(server: Server) -> bool:
    """Whether the size of one copy of a server's weights can be computed."""
    known = _SERVERS.get(server.name)
    return known is not None and bool(known.unknown_with) and _is_readable(server, known.unknown_with)


def per_copy(server: Server) -> int:
    """Over how many accelerators one copy of the weights is spread; 0 if that is not known."""
    known = _SERVERS.get(server.name)
    return _product(server, known.copy) if known is not None else 0


def on_this_node(server: Server) -> int:
    """The least number of accelerators on its node that a server takes; 0 if that is not known."""
    known = _SERVERS.get(server.name)
    if known is None or not _is_readable(server, known.elsewhere_with):
        return 0
    factors = known.copy
    if known.copies is not None and not has_option(server.words, *known.shared_with):
        factors = (*factors, known.copies)
    return _product(server, factors)


def _is_readable(server: Server, flags: tuple[str, ...]) -> bool:
    """Whether all options of a server can be read, and none of the flags is among them."""
    return not (
        server.sometimes
        or any("$" in word for word in server.words)  # a variable may hold any option
        or any(_may_be_one_of(flags, word) for word in server.words)
    )


def _may_be_one_of(flags: tuple[str, ...], word: str) -> bool:
    """Whether a word may be one of the flags.

    argparse accepts the beginning of a long flag, and a value right after a short one. vLLM accepts
    underscores.
    """
    given = word.partition("=")[0].replace("_", "-")
    if given in flags or given in _EXACT:
        return given in flags
    if given.startswith("--"):
        return any(flag.startswith(given) for flag in flags)
    return given.startswith(flags)


def _product(server: Server, factors: tuple[Factor, ...]) -> int:
    total = 1
    for factor in factors:
        value = server.told(factor.flags, factor.variables)
        if value is None:
            continue
        if not (value.isascii() and value.isdigit() and 0 < int(value) <= MOST):
            return 0
        total *= int(value)
    return total
