"""One page in headless Chromium, driven by the DevTools protocol."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from policies.kube.json import Json

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium")


class Tab:
    """One page, driven by the DevTools protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.requests: list[str] = []
        self.complaints: list[Json] = []

    async def call(self, method: str, **parameters: Any) -> Json:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message: Json = await self._socket.receive_json()
            if message.get("id") == number:
                assert "error" not in message, message
                result: Json = message["result"]
                return result
            match message["method"]:
                case "Network.requestWillBeSent":
                    self.requests.append(message["params"]["request"]["url"])
                case "Log.entryAdded" | "Runtime.exceptionThrown" | "Runtime.consoleAPICalled":
                    self.complaints.append(message["params"])

    async def ask(self, expression: str) -> Any:
        """The value of an expression, once it is there."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        while not await self.ask(expression):  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # a page has no other way of telling

    async def open(self, file: Path, fragment: str = "") -> None:
        await self.call("Page.navigate", url="about:blank")
        await self.call("Page.navigate", url=f"{file.as_uri()}{fragment}")
        await self.until("location.protocol === 'file:' && document.readyState === 'complete'")

    async def shown(self) -> list[str]:
        """The names of the objects that are not filtered out."""
        names: list[str] = await self.ask(
            "[...document.querySelectorAll('.w')].filter((row) => row.checkVisibility())"
            ".map((row) => row.querySelector('b').textContent)"
        )
        return names

    async def filter(self, **values: str) -> None:
        await self.ask("document.getElementById('filter').reset()")
        for name, value in values.items():
            event = "input" if name == "text" else "change"
            await self.ask(
                f"(() => {{ const it = document.getElementById('f-{name}'); it.value = {json.dumps(value)};"
                f" it.dispatchEvent(new Event('{event}', {{bubbles: true}})); }})()"
            )
            await self.until(f"new URLSearchParams(location.hash.slice(2)).has('{name}')")


@contextmanager
def chromium(profile: Path) -> Iterator[str]:
    """A browser, which takes a second of CPU to start; yields where it listens."""
    assert CHROMIUM
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    flags += ["--disable-background-networking", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
    silent = subprocess.DEVNULL
    process = subprocess.Popen([CHROMIUM, *flags, "about:blank"], stdout=silent, stderr=silent)
    try:
        port = profile / "DevToolsActivePort"
        while not port.exists() or len(port.read_text().split()) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port.read_text().split()[0]}"
    finally:
        process.terminate()
        process.wait()


@asynccontextmanager
async def browsing(browser: str) -> AsyncIterator[Tab]:
    """A new tab of the browser, in a context without the cookies, storage and caches of other tabs."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{browser}/json/version") as answered:
            whole = (await answered.json())["webSocketDebuggerUrl"]
        async with session.ws_connect(whole) as control:
            driven = Tab(control)
            context = (await driven.call("Target.createBrowserContext"))["browserContextId"]
            made = await driven.call("Target.createTarget", url="about:blank", browserContextId=context)
            page = f"{browser.replace('http', 'ws', 1)}/devtools/page/{made['targetId']}"
            async with session.ws_connect(page, max_msg_size=0) as socket:
                tab = Tab(socket)
                for domain in ("Page", "Network", "Log", "Runtime", "Accessibility"):
                    await tab.call(f"{domain}.enable")
                yield tab
            await driven.call("Target.disposeBrowserContext", browserContextId=context)
