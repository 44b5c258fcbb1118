"""No calls: the server watches the model directory itself, or there is no server."""

from __future__ import annotations

from puller.servers.base import Health


class NoServer:
    """A model on disk counts as loaded."""

    declarative = False

    async def health(self) -> Health:
        return Health.UP

    async def ready(self, name: str) -> bool:
        return True

    async def load(self, name: str, *, was_ready: bool) -> None:
        """No server to call."""

    async def unload(self, name: str) -> None:
        """No server to call."""

    async def declare(self, names: frozenset[str]) -> None:
        """No server to call."""

    async def close(self) -> None:
        """No server to call."""
