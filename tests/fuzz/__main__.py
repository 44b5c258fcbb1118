"""Fuzz one target, or each in turn: `python -m tests.fuzz [TARGET…] [--runs N] [--keep]`.

Stops at the first input that breaks a promise, which is then in the working directory as `crash-…` (an
exception, a cost) or `timeout-…` (one regular expression that never ends); put it into the corpus.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

CORPUS = Path(__file__).with_name("corpus")
DICTIONARY = Path(__file__).with_name("tokens.dict")
MAX_LENGTH = 4096
"""Bytes of an input: superlinear costs show long before."""
INSTRUMENTED = (
    "policies",
    "puller.model_config",
    "webhook.config",
    "policies.kube.yaml_text",
    "webhook.admission",
)


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    arguments.add_argument("targets", nargs="*", metavar="TARGET")
    arguments.add_argument("--runs", type=int, default=2_000, help="inputs to try for each target")
    arguments.add_argument("--keep", action="store_true", help="add inputs that reach further to the corpus")
    arguments.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = arguments.parse_args()
    if asked.here:
        return fuzz(asked.targets[0], asked.runs, keep=asked.keep)
    for target in asked.targets or sorted(path.name for path in CORPUS.iterdir()):
        print(f"== {target}: {asked.runs} inputs", flush=True)
        # A process for each: libFuzzer ends its own.
        command = [sys.executable, "-m", "tests.fuzz", target, "--here", "--runs", str(asked.runs)]
        ended = subprocess.run([*command, *(["--keep"] if asked.keep else [])], check=False)
        if ended.returncode:
            return ended.returncode
    return 0


def fuzz(target: str, runs: int, *, keep: bool) -> int:
    try:
        import atheris
    except ImportError:
        print("Atheris is not installed for this Python: the corpus alone is read.")
        return replay(target)
    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        from tests.fuzz.targets import TARGETS

    def one(data: bytes) -> None:
        grown = rises[min(TARGETS[target](data).bit_length(), len(rises) - 1)]
        grown()

    rises = [atheris.instrument_func(_rise(power)) for power in range(24)]
    with tempfile.TemporaryDirectory() as scratch:
        seeds = CORPUS / target
        folders = [str(seeds)] if keep else [scratch, str(seeds)]
        options = [f"-runs={runs}", f"-max_len={MAX_LENGTH}", f"-dict={DICTIONARY}", "-seed=1"]
        limits = ["-timeout=30", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0"]
        atheris.Setup([sys.argv[0], *options, *limits, *folders], one)
        atheris.Fuzz()
    return 0


def _rise(power: int) -> object:
    """One function for each power of two of the cost: a cost never seen is new coverage."""
    made: dict[str, object] = {}
    exec(compile(f"def rise():\n    return {power}\n", f"rise-{power}", "exec"), made)
    return made["rise"]


def replay(target: str) -> int:
    from tests.fuzz.targets import TARGETS

    for path in sorted((CORPUS / target).iterdir()):
        TARGETS[target](path.read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
