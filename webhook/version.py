"""Which version this is."""

from __future__ import annotations

from functools import cache


@cache
def version() -> str:
    """The installed version; `from source` if the package is not installed."""
    # Imported here: it takes longer than most commands, and few ask.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ml-chassis")
    except PackageNotFoundError:
        return "from source"
