"""Our own webhook configurations: the caBundle that makes the API servers trust us.

Law: a CA is trusted before anybody serves under it, and for as long as anybody may. Each replica keeps in
the caBundle what it serves under and what it is going to; it takes out nothing that another one put in
before `RETENTION` is over. So replicas that know different CAs, in the middle of a rotation, do not
overwrite each other's bundle. If applying the manifests again empties a caBundle, it is restored within a
second.

All state is in the configuration: the caBundle, and an annotation with the time at which a CA was last added
to one.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

import structlog

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
"""At a start `run` and `trusts` write the same at the same time, in each replica: who comes second looks
again at once, and is ready a second earlier."""
LAG: Final = timedelta(seconds=10)
"""How far behind an API server may be that watches the webhook configurations: older writes are in force. A
healthy one has them after some milliseconds."""
RETENTION: Final = timedelta(days=7)
"""How long a CA stays trusted that this replica does not use: another one may, if it could not read the
present Secret for so long."""
MOST_RETAINED: Final = 16
"""CAs that are kept for others; the newest ones stay. An object has room for some thousand."""
CLOCK_SKEW: Final = timedelta(minutes=1)
TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


class Registrations(Lister, Calls, Protocol):
    """The part of `ApiServer` that this module needs."""


@dataclass(frozen=True)
class Trust:
    """What becomes of a configuration so that it trusts what it should."""

    patch: Json | None
    """What to write; None if all is as it should be."""
    added: datetime | None
    """When a CA was last added next to others; the new value of the annotation."""

    def in_force(self, now: datetime) -> bool:
        """Whether every API server trusts the wanted CAs by now."""
        return self.added is None or now - self.added >= LAG


def trusting(configuration: Json, wanted: bytes, now: datetime) -> Trust:
    """`configuration` is to trust the CAs in `wanted` (PEM), and for a time those that it trusts already."""
    entries = {entry["name"]: _trusted(entry) for entry in configuration.get("webhooks") or ()}
    ours = pki.certificates_in(wanted)
    present = tuple(dict.fromkeys(ca for trusted in entries.values() for ca in trusted))
    missing = set(ours) - set(present)
    others = [ca for ca in present if ca not in ours]
    said = added = _time(annotations_of(configuration).get(CA_BUNDLE_CHANGED, ""), now)
    if present and (missing or (others and said is None)):
        others = [ca for ca in others if not pki.has_ended(ca, now)][:MOST_RETAINED]
        added = now
    elif said is not None and now - said >= RETENTION:
        others, added = [], None
    bundle = (*ours, *others)
    stale = [name for name, trusted in entries.items() if set(trusted) != set(bundle)]
    if not stale and added == said:
        return Trust(None, added)
    patch: Json = {"metadata": {"resourceVersion": text(configuration, "metadata", "resourceVersion")}}
    if added != said:
        patch["metadata"]["annotations"] = {CA_BUNDLE_CHANGED: added and f"{added:{TIME}}"}
    if stale:
        encoded = base64.b64encode(b"".join(bundle)).decode()
        patch["webhooks"] = [{"name": name, "clientConfig": {"caBundle": encoded}} for name in stale]
    return Trust(patch, added)


def _trusted(entry: Json) -> tuple[bytes, ...]:
    with suppress(ValueError):
        return pki.certificates_in(base64.b64decode(text(entry, "clientConfig", "caBundle")))
    return ()


def _time(written: str, now: datetime) -> datetime | None:
    """A time that somebody may have written by hand; one that is still to come is none."""
    with suppress(ValueError):
        time = datetime.strptime(written, TIME).replace(tzinfo=UTC)
        return time if time <= now + CLOCK_SKEW else None
    return None


def opened(configuration: Json) -> list[Json]:
    """What to write so that no entry of the configuration fails closed."""
    entries = configuration.get("webhooks") or ()
    closed = [entry["name"] for entry in entries if text(entry, "failurePolicy") != "Ignore"]
    return [{"name": name, "failurePolicy": "Ignore"} for name in closed]


class Registration:
    """Keeps the caBundle of the configurations of one name, mutating and validating."""

    def __init__(
        self,
        api: Registrations,
        name: str,
        used: Callable[[], Awaitable[bytes]],
        *,
        fails_open: Callable[[], bool] = lambda: False,
    ) -> None:
        """`used` reads the PEM of all CAs that this replica serves under or is going to; empty: unknown
        as yet. `fails_open`: a person chose that no entry fails closed, while the installer writes the
        shipped failurePolicy."""
        self._api, self._name, self._used, self._fails_open = api, name, used, fails_open
        self._stale = asyncio.Event()

    async def run(self) -> None:
        """Reconcile until cancelled: after every change seen, and now and then anyway."""
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
        """Whether every API server trusts these CAs by now; missing ones are written.

        True also where there is no such configuration, or `ca` is empty: then no API server calls us, or
        the caBundle is not ours to keep. Raises the errors of reading and writing.
        """
        return not ca or await self._reconcile(ca + b"\n" + await self._used())

    async def _reconcile(self, wanted: bytes) -> bool:
        if not wanted.strip():
            return True
        if not pki.certificates_in(wanted):
            raise pki.CertificateError("the CA is no PEM certificate")
        return all([await self._kept(resource, wanted) for resource in RESOURCES])

    async def _kept(self, resource: str, wanted: bytes) -> bool:
        path = paths.one(ADMISSION_REGISTRATION, resource, self._name)
        for _ in range(SWAP_ATTEMPTS):
            configuration = await self._api.get(path)
            if configuration is None:
                return True
            if self._fails_open() and (closed := opened(configuration)):
                unchanged = {"resourceVersion": text(configuration, "metadata", "resourceVersion")}
                fields: Json = {"metadata": unchanged, "webhooks": closed}
                if await self._patched(path, fields):
                    log.info(
                        "failurePolicy set to Ignore by the override", resource=resource, entries=len(closed)
                    )
                continue
            now = datetime.fromtimestamp(self._api.now(), UTC)
            trust = trusting(configuration, wanted, now)
            if trust.patch is None:
                return trust.in_force(now)
            if await self._patched(path, trust.patch):
                entries = len(trust.patch.get("webhooks", ()))
                log.info("caBundle written", resource=resource, configuration=self._name, entries=entries)
                return trust.in_force(now)
        self._stale.set()  # other replicas were first each time, perhaps with something else
        return False

    async def _patched(self, path: str, fields: Json) -> bool:
        """Entries are found by name. The resourceVersion in `fields` keeps an entry that somebody removes
        meanwhile from being put back; False if the configuration changed or went away."""
        return await self._api.unless_conflict("PATCH", path, fields, STRATEGIC_MERGE)
