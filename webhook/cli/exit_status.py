"""The exit statuses of `chassis`, as documented: scripts and CI read them."""

from __future__ import annotations

from typing import Final

OK: Final = 0
DENIED: Final = 1
"""Something was denied, or a warning counts as an error."""
BAD_INPUT: Final = 2
