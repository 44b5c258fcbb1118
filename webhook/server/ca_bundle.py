"""Our own webhook configurations: the caBundle that makes the API server trust us.

Law: whoever applies the manifests anew, and so wipes a caBundle, finds it mended within a second. The CA is
read afresh before every write: a replica that still holds the CA from before a rotation must not fight the
one that rotated it.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import structlog

from policies.kube.json import Json
from webhook.kube import paths
from webhook.kube.api import ADMISSION_REGISTRATION
from webhook.kube.errors import ApiError
from webhook.kube.reflector import Lister, Reflector

log = structlog.get_logger()

RESOURCES = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
POLL_SECONDS = 60.0
RETRY_SECONDS = 1.0


class Registrations(Lister, Protocol):
    """The part of `ApiServer` that this module needs."""

    async def set_ca_bundle(self, resource: str, name: str, bundle: str) -> int: ...


class Registration:
    """Keeps the caBundle of the configurations of one name, mutating and validating."""

    def __init__(self, api: Registrations, name: str, ca: Callable[[], Awaitable[bytes]]) -> None:
        """`ca` reads the PEM of all CAs to be trusted; empty means: nothing to say yet."""
        self._api, self._name, self._ca = api, name, ca
        self._stale = asyncio.Event()

    async def run(self) -> None:
        """Reconcile until cancelled: after every change seen, after `changed`, and now and then anyway."""
        async with asyncio.TaskGroup() as tasks:
            for resource in RESOURCES:
                reflector = Reflector(
                    self._api,
                    paths.collection(ADMISSION_REGISTRATION, resource),
                    _Wake(self._stale),
                    query={"fieldSelector": f"metadata.name={self._name}"},
                )
                tasks.create_task(reflector.run())
            retry = RETRY_SECONDS
            while True:
                self._stale.clear()
                try:
                    await self._reconcile()
                    pause, retry = POLL_SECONDS, RETRY_SECONDS
                except Exception as error:  # also of the certificate's source
                    if not (isinstance(error, ApiError) and error.status == 409):  # another replica was first
                        log.warning("caBundle not written", configuration=self._name, error=str(error))
                    pause, retry = retry, min(retry * 2, POLL_SECONDS)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._stale.wait()

    def changed(self) -> None:
        """The CA has changed."""
        self._stale.set()

    async def _reconcile(self) -> None:
        ca = await self._ca()
        if not ca:
            return
        bundle = base64.b64encode(ca).decode()
        for resource in RESOURCES:
            entries = await self._api.set_ca_bundle(resource, self._name, bundle)
            if entries:
                log.info("caBundle written", resource=resource, configuration=self._name, entries=entries)


class _Wake:
    """A sink that only says that something happened."""

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    def begin(self) -> None: ...

    def put(self, item: Json) -> None:
        self._event.set()

    def commit(self) -> None:
        self._event.set()

    def remove(self, item: Json) -> None: ...

    def lost(self, error: ApiError) -> None: ...
