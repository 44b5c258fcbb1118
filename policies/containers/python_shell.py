"""The words with which a check of ours runs a Python program in any image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

SHELL: Final = (
    "sh",
    "-c",
    "p=`command -v python3`"
    " || for e in /proc/[0-9]*/exe; do p=`readlink $e`; case $p in */python*) break;; esac; p=; done;"
    ' ${p:-false} -I -S -c "$0" "$@"; s=$?;'
    ' test $s -ne 100 || exit 1; test $s -ne 0 -a $3 -eq 0 -a -n "$4" || exit 0;'
    ' echo "no python3 runs here ($s): progress is not checked"; command -v curl >/dev/null || exit 0;'
    ' curl -gksfm 10 -o /dev/null "$2://localhost:$1$4"; s=$?;'
    " test $s -ne 7 -a $s -ne 22 -a $s -ne 28 -a $s -ne 52",
)
"""Runs the program in the next argument with the image's Python, or that of a process of the container.

Its exit status 100 fails the probe. Any other means that the program did not run: then curl asks the path, if
there is one, a startupProbe has waited for the start (START is 0), and the image has curl. Else it passes."""


def runs_our_program(argv: Sequence[str]) -> bool:
    """Whether a command begins with these words. They use no variable of the container."""
    return tuple(argv[: len(SHELL)]) == SHELL
