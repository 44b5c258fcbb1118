"""The caBundle of our webhook configurations, which makes the API servers trust us.

Law: a CA is trusted before any replica uses it, and for as long as one may use it. Each replica adds the CAs
that it uses now and next, and removes the CAs of other replicas only after `RETENTION`. So replicas that know
different CAs during a rotation do not overwrite each other's bundle. If somebody applies the manifests again
and so empties a caBundle, it is restored within a second.

All state is in the configuration: the caBundle, and an annotation with the time of the last added CA.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

import structlog
from msgspec import Struct

from policies.core.annotations import CA_BUNDLE_CHANGED
from policies.kube.json import Json, text
from policies.kube.metadata import annotations_of
from webhook.kube import paths
from webhook.kube.api import ADMISSION_REGISTRATION
from webhook.kube.calls import STRATEGIC_MERGE, Calls
from webhook.kube.reflector import Lister, OneObject, Reflector
from webhook.server import pki

log = structlog.get_logger()

RESOURCES = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
POLL_SECONDS = 60.0
RETRY_SECONDS = 1.0
SWAP_ATTEMPTS: Final = 4
"""At the start, `run` and `trusts` of all replicas write the same change: a conflict is resolved by reading
again."""
LAG: Final = timedelta(seconds=10)
"""How long an API server may need to see a write to the webhook configurations; usually milliseconds."""
RETENTION: Final = timedelta(days=7)
"""How long a CA stays trusted that this replica does not use: another replica may use it if it can't read the
Secret."""
MAX_RETAINED: Final = 16
"""CAs that are kept for other replicas, newest first. An object has room for some thousand."""
CLOCK_SKEW: Final = timedelta(minutes=1)
TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


class Registrations(Lister, Calls, Protocol):
    """The part of `ApiServer` that this module needs."""


class Update(Struct, frozen=True):
    """The update of a configuration's caBundles."""

    patch: Json | None
    """None if no change is needed."""
    added: datetime | None
    """When a CA was last added to others: the new value of the annotation."""

    def in_force(self, now: datetime) -> bool:
        """Whether every API server trusts the wanted CAs."""
        return self.added is None or now - self.added >= LAG


def update_of(configuration: Json, wanted: bytes, now: datetime) -> Update:
    """The update with which `configuration` trusts the CAs in `wanted` (PEM), and for a time its present
    ones."""
    entries = {entry["name"]: _trusted(entry) for entry in configuration.get("webhooks") or ()}
    ours = pki.certificates_in(wanted)
    present = tuple(dict.fromkeys(ca for trusted in entries.values() for ca in trusted))
    missing = set(ours) - set(present)
    others = [ca for ca in present if ca not in ours]
    recorded = added = _time(annotations_of(configuration).get(CA_BUNDLE_CHANGED, ""), now)
    if present and (missing or (others and recorded is None)):
        others = [ca for ca in others if not pki.has_expired(ca, now)][:MAX_RETAINED]
        added = now
    elif recorded is not None and now - recorded >= RETENTION:
        others, added = [], None
    bundle = (*ours, *others)
    stale = [name for name, trusted in entries.items() if set(trusted) != set(bundle)]
    if not stale and added == recorded:
        return Update(None, added)
    patch: Json = {"metadata": {"resourceVersion": text(configuration, "metadata", "resourceVersion")}}
    if added != recorded:
        patch["metadata"]["annotations"] = {CA_BUNDLE_CHANGED: added and f"{added:{TIME}}"}
    if stale:
        encoded = base64.b64encode(b"".join(bundle)).decode()
        patch["webhooks"] = [{"name": name, "clientConfig": {"caBundle": encoded}} for name in stale]
    return Update(patch, added)


def _trusted(entry: Json) -> tuple[bytes, ...]:
    with suppress(ValueError):
        return pki.certificates_in(base64.b64decode(text(entry, "clientConfig", "caBundle")))
    return ()


def _time(written: str, now: datetime) -> datetime | None:
    """The time in the annotation; None if it is no time, or in the future."""
    with suppress(ValueError):
        time = datetime.strptime(written, TIME).replace(tzinfo=UTC)
        return time if time <= now + CLOCK_SKEW else None
    return None


def ignoring(configuration: Json) -> list[Json]:
    """The patch of all entries whose failurePolicy is not Ignore."""
    entries = configuration.get("webhooks") or ()
    closed = [entry["name"] for entry in entries if text(entry, "failurePolicy") != "Ignore"]
    return [{"name": name, "failurePolicy": "Ignore"} for name in closed]


class Registration:
    """Manages the caBundle of the mutating and the validating configuration of one name."""

    def __init__(
        self,
        api: Registrations,
        name: str,
        used: Callable[[], Awaitable[bytes]],
        *,
        fails_open: Callable[[], bool] = lambda: False,
    ) -> None:
        """`used` returns the PEM of the CAs that this replica uses now and next; empty if still unknown.
        `fails_open`: whether the override sets the failurePolicy Ignore for all entries."""
        self._api, self._name, self._used, self._fails_open = api, name, used, fails_open
        self._stale = asyncio.Event()

    async def run(self) -> None:
        """Reconcile after every change, and every POLL_SECONDS, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for resource in RESOURCES:
                reflector = Reflector(
                    self._api,
                    paths.collection(ADMISSION_REGISTRATION, resource),
                    OneObject(lambda *_: self._stale.set()),
                    query={"fieldSelector": f"metadata.name={self._name}"},
                )
                tasks.create_task(reflector.run())
            retry = RETRY_SECONDS
            while True:
                self._stale.clear()
                try:
                    await self._reconcile(await self._used())
                    pause, retry = POLL_SECONDS, RETRY_SECONDS
                except Exception as error:  # also of the certificate's source
                    log.warning("caBundle not written", configuration=self._name, error=str(error))
                    pause, retry = retry, min(retry * 2, POLL_SECONDS)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._stale.wait()

    async def trusts(self, ca: bytes) -> bool:
        """Whether every API server trusts these CAs. Adds missing ones.

        True also if there is no such configuration, so no API server calls us, or `ca` is empty because we do
        not manage the caBundle. Raises the errors of reading and writing.
        """
        return not ca or await self._reconcile(ca + b"\n" + await self._used())

    async def _reconcile(self, wanted: bytes) -> bool:
        if not wanted.strip():
            return True
        if not pki.certificates_in(wanted):
            raise pki.CertificateError("the CA is no PEM certificate")
        return all([await self._reconcile_one(resource, wanted) for resource in RESOURCES])

    async def _reconcile_one(self, resource: str, wanted: bytes) -> bool:
        path = paths.one(ADMISSION_REGISTRATION, resource, self._name)
        for _ in range(SWAP_ATTEMPTS):
            configuration = await self._api.get(path)
            if configuration is None:
                return True
            if self._fails_open() and (closed := ignoring(configuration)):
                unchanged = {"resourceVersion": text(configuration, "metadata", "resourceVersion")}
                fields: Json = {"metadata": unchanged, "webhooks": closed}
                if await self._patch(path, fields):
                    log.info(
                        "failurePolicy set to Ignore by the override", resource=resource, entries=len(closed)
                    )
                continue
            now = datetime.fromtimestamp(self._api.now(), UTC)
            update = update_of(configuration, wanted, now)
            if update.patch is None:
                return update.in_force(now)
            if await self._patch(path, update.patch):
                entries = len(update.patch.get("webhooks", ()))
                log.info("caBundle written", resource=resource, configuration=self._name, entries=entries)
                return update.in_force(now)
        self._stale.set()  # other replicas wrote first each time
        return False

    async def _patch(self, path: str, fields: Json) -> bool:
        """Patch entries by name; False if the configuration has changed or is gone. The resourceVersion in
        `fields` prevents that a removed entry comes back."""
        return await self._api.unless_conflict("PATCH", path, fields, STRATEGIC_MERGE)
