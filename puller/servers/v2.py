"""The model repository API of the Open Inference Protocol: MLServer, KServe's own servers, Triton.

Source: the V2 model repository extension, and the responses of MLServer 1.7, KServe 0.15 and Triton 2.5x.
"""

from __future__ import annotations

from urllib.parse import quote

from puller.reasons import StatusReason
from puller.servers.base import HttpServer, ServerError, ServerHealth, json_object, poll


class V2Server(HttpServer):
    """MLServer, and KServe's model servers (which respond 503 to a failed load)."""

    async def health(self) -> ServerHealth:
        return await self.probe("/v2/health/live")

    async def ready(self, name: str) -> bool:
        status, body = await self.call("GET", f"/v2/models/{quote(name)}/ready", self.timeouts.probe)
        # KServe's servers may respond 200 with {"ready": false}.
        return status == 200 and json_object(body).get("ready") is not False

    async def gone(self, name: str) -> bool:
        # An overloaded server responds 503 or 429 for a model that it has.
        status, _ = await self.call("GET", f"/v2/models/{quote(name)}/ready", self.timeouts.probe)
        return status in (400, 404)

    async def load(self, name: str, *, was_ready: bool) -> None:
        status, body = await self.call(
            "POST", f"/v2/repository/models/{quote(name)}/load", self.timeouts.load
        )
        if not 200 <= status < 300:
            # The ready state decides, unless the model was ready before: then it may be the old version.
            if not was_ready and await self.ready(name):
                return
            raise ServerError(StatusReason.LOAD_FAILED, self._explain(status, body))
        if not await poll(lambda: self.ready(name), self.timeouts.load):
            raise ServerError(
                StatusReason.NOT_READY, f"loaded, but not ready within {self.timeouts.load:g} s."
            )

    async def unload(self, name: str) -> None:
        path = f"/v2/repository/models/{quote(name)}/unload"
        status, body = await self.call("POST", path, self.timeouts.unload)
        if status == 404:
            return

        async def unloaded() -> bool:
            return not await self.ready(name)

        if not 200 <= status < 300 and not await self.gone(name):
            raise ServerError(StatusReason.UNLOAD_FAILED, self._explain(status, body))
        if not await poll(unloaded, self.timeouts.unload):
            raise ServerError(
                StatusReason.UNLOAD_FAILED, f"still ready {self.timeouts.unload:g} s after the unload."
            )

    def _explain(self, status: int, body: bytes) -> str:
        answer = json_object(body)
        text = str(answer.get("error") or answer.get("detail") or body[:300].decode(errors="replace")).strip()
        return f"the server answers {status}: {text[:300] or 'with an empty body'}"


class TritonServer(V2Server):
    """Triton loads and unloads models only in its explicit mode."""

    def _explain(self, status: int, body: bytes) -> str:
        text = super()._explain(status, body)
        wrong_mode = "polling is enabled", "explicit model load / unload is not allowed"
        hint = any(sign in text.lower() for sign in wrong_mode)
        return text + (" (start Triton with --model-control-mode=explicit)" if hint else "")
