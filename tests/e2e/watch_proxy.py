"""A TLS proxy between a client and the API server that makes its picture of the pods a stale one.

This is the fault behind double creations: the client's own requests go through at once, but its cache
learns of their effect only seconds later, as it does when an API server or an informer is overloaded.
Frozen, it shows the pods of one moment even to a client that starts again, as a replica of the API server
that lags far behind does.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import tempfile
import threading
from base64 import b64encode
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Self

import aiohttp
from aiohttp import web

from tests.e2e.controlplane import HOST, ControlPlane
from tests.e2e.pki import Authority

HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade", "te"}
LARGEST_BODY = 16 * 1024 * 1024


class WatchProxy:
    """Forwards everything to one control plane; the events of a watch of pods arrive `delay` seconds late.

    Use it as a context manager; it runs in another thread.
    """

    def __init__(self, control_plane: ControlPlane, delay: float) -> None:
        self.delay = delay
        """Seconds; may be changed while it runs."""
        self.url = ""
        self.deletions: list[tuple[str, int]] = []
        """The pods that clients asked to delete, by name, and the API server's status for each."""
        self._control_plane = control_plane
        self._lists: dict[str, dict[str, str]] = {}
        self._frozen: dict[str, web.Response] = {}
        self._authority = Authority("watch-proxy")
        self._started = Future[None]()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="watch-proxy")
        self._session: aiohttp.ClientSession
        self._loop: asyncio.AbstractEventLoop
        self._stopped: asyncio.Event
        self._flowing: asyncio.Event

    def kubeconfig(self, token: str) -> Path:
        """A kubeconfig that leads through the proxy, for the ServiceAccount that the token is of."""
        authority = b64encode(self._authority.certificate).decode()
        cluster = {"server": self.url, "certificate-authority-data": authority}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "proxied", "cluster": cluster}],
            "users": [{"name": "client", "user": {"token": token}}],
            "contexts": [{"name": "proxied", "context": {"cluster": "proxied", "user": "client"}}],
            "current-context": "proxied",
        }
        path = self._control_plane.state / f"watch-proxy-{self.url.rpartition(':')[2]}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(config))
        return path

    def freeze(self) -> None:
        """Show a client that starts from here on the pods as they are now, and no more until `thaw`.

        Lists that were asked for before are answered as of now; watches that begin later are silent.
        """
        asyncio.run_coroutine_threadsafe(self._freeze(), self._loop).result(30)

    def thaw(self) -> None:
        """Undo `freeze`: lists are true again, watches deliver the held events."""
        asyncio.run_coroutine_threadsafe(self._thaw(), self._loop).result(30)

    async def _freeze(self) -> None:
        self._flowing = asyncio.Event()
        for path, headers in self._lists.items():
            async with self._session.get(self._control_plane.url + path, headers=headers) as answer:
                kept = _end_to_end(answer.headers)
                self._frozen[path] = web.Response(
                    status=answer.status, headers=kept, body=await answer.read()
                )

    async def _thaw(self) -> None:
        self._frozen.clear()
        self._flowing.set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.result(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._stopped, self._loop = asyncio.Event(), asyncio.get_running_loop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        upstream = ssl.create_default_context(cafile=str(self._control_plane.state / "ca.crt"))
        app = web.Application(client_max_size=LARGEST_BODY)
        app.router.add_route("*", "/{path:.*}", self._forward)
        runner = web.AppRunner(
            app, access_log=None, auto_decompress=False, shutdown_timeout=0.1, handler_cancellation=True
        )
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=upstream, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        ) as self._session:
            try:
                await runner.setup()
                await web.TCPSite(runner, HOST, 0, ssl_context=self._tls()).start()
                self.url = f"https://{HOST}:{runner.addresses[0][1]}"
                self._started.set_result(None)
                await self._stopped.wait()
            finally:
                # The end of TLS needs an answer of the other side, for which the event loop does not wait.
                for connection in runner.server.connections if runner.server else ():
                    if connection.transport is not None:
                        connection.transport.abort()
                # Until the server has ended, a request can still open a connection to the API server.
                await runner.cleanup()
                if self._session.connector is not None:
                    await self._session.connector.close(abort_ssl=True)

    def _tls(self) -> ssl.SSLContext:
        pair = self._authority.server("watch-proxy", [HOST])
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # A separate file: several proxies may start at the same moment.
        with tempfile.NamedTemporaryFile(dir=self._control_plane.state, suffix=".pem") as file:
            file.write(pair.certificate + pair.key)
            file.flush()
            context.load_cert_chain(file.name)
        return context

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        headers = _end_to_end(request.headers)
        is_watch = request.query.get("watch") in ("1", "true")
        if request.method == "GET" and request.path.endswith("/pods") and not is_watch:
            self._lists[request.raw_path] = headers
            if old := self._frozen.get(request.raw_path):
                return web.Response(status=old.status, headers=old.headers, body=old.body)
        async with self._session.request(
            request.method,
            self._control_plane.url + request.raw_path,
            headers=headers,
            data=await request.read() or None,
        ) as answer:
            resource, _, name = request.path.rpartition("/")
            if request.method == "DELETE" and resource.endswith("/pods"):
                self.deletions.append((name, answer.status))
            response = web.StreamResponse(status=answer.status, headers=_end_to_end(answer.headers))
            # Either side may go away in the middle: then the other one's connection ends too.
            with suppress(ConnectionError, aiohttp.ClientError):
                await response.prepare(request)
                if request.path.endswith("/pods") and is_watch:
                    await self._hold_back(answer, response)
                else:
                    async for chunk in answer.content.iter_any():
                        await response.write(chunk)
                await response.write_eof()
            return response

    async def _hold_back(self, answer: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
        """Every chunk in its order, each `delay` seconds after it came; none before the thaw."""
        clock = asyncio.get_running_loop().time
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        flowing = self._flowing

        async def receive() -> None:
            try:
                async for chunk in answer.content.iter_any():
                    held.put_nowait((clock(), chunk))
            finally:
                held.put_nowait((clock(), b""))

        receiver = asyncio.create_task(receive())
        try:
            while (item := await held.get())[1]:
                await asyncio.sleep(max(0.0, item[0] + self.delay - clock()))
                await flowing.wait()
                await response.write(item[1])
        finally:
            receiver.cancel()
            await asyncio.gather(receiver, return_exceptions=True)


def _end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in headers.items() if key.lower() not in HOP_BY_HOP}
