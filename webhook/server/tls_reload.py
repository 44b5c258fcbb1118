"""The serving certificate: its sources, its renewal and the switch to a new one.

Law: the TLS context in use always contains a matching pair. A new pair gets a new context: `load_cert_chain`
with a certificate and key that do not match removes the key of its context, and with another key type it
keeps the old pair next to the new one.

There are three sources: `MountedFiles` (a Secret volume of cert-manager or another issuer), `ManagedSecret`
(our own CA, shared by the replicas through a Secret), `SelfSigned` (in memory, for a laptop).
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import structlog

from policies.kube.json import Json
from policies.kube.metadata import labels_of
from webhook.errors import message_of
from webhook.kube import paths
from webhook.kube.calls import Calls
from webhook.server import pki
from webhook.server.pki import Bundle, CertificateError, expiry, issue, made_by_us, renewed, repaired

log = structlog.get_logger()

POLL_SECONDS = 60.0
"""The interval at which a Secret is read, and files, in case a file event was missed."""
SWAP_ATTEMPTS = 8
MANAGED_BY = "app.kubernetes.io/managed-by"
FIRST_PAUSE = 0.5
TRUST_POLL_SECONDS = 1.0
START_PATIENCE = 15.0
"""Seconds after which a replica without a certificate serves one that is not yet trusted."""
SWITCH_PATIENCE = 600.0
"""The same for a replica with a valid certificate."""


class CertificateSource(Protocol):
    """A source of serving certificates."""

    async def read(self) -> Bundle:
        """The bundle to serve now. CertificateError or OSError if there is none."""

    def changes(self) -> AsyncIterator[None]:
        """Yield, without end, whenever `read` may return a new bundle."""


# --- serving -------------------------------------------------------------------------------------------


class ServingCertificate:
    """The TLS context for new connections. Open connections keep theirs."""

    def __init__(self) -> None:
        self.context = _server_context()
        # At the start, a certificate that no API server trusts: /healthz and /readyz can answer, because the
        # kubelet does not verify. Without one, nobody can connect until `install`.
        with suppress(CertificateError):
            _load(self.context, issue(["mlchassis.invalid"], datetime.now(UTC)))
        self.bundle: Bundle | None = None

    def install(self, bundle: Bundle) -> bool:
        """Serve `bundle` from now on; False if it is already served.

        Raises CertificateError and keeps the old pair if certificate and key don't match.
        """
        if bundle == self.bundle:
            return False
        if (bundle.certificate, bundle.key) != (self.bundle and (self.bundle.certificate, self.bundle.key)):
            context = _server_context()
            _load(context, bundle)
            self.context = context
        self.bundle = bundle
        return True

    def problem(self, now: float) -> str:
        """Why API servers reject the certificate at `now` (seconds since the epoch), or an empty string.

        Trust is not checked: a webhook that can't read its own configuration may still be trusted.
        """
        if self.bundle is None:
            return "no serving certificate yet"
        begins, ends = pki.lifetime(self.bundle)
        moment = datetime.fromtimestamp(now, UTC)
        if moment >= ends:
            return f"the serving certificate expired at {ends.isoformat()}"
        if moment < begins:
            return f"the serving certificate is not valid before {begins.isoformat()}"
        return ""


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Forward secrecy and AEAD only. The list does not apply to TLS 1.3.
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    return context


def _load(context: ssl.SSLContext, bundle: Bundle) -> None:
    # The ssl module reads only files. The directory has mode 0700 and is removed before the call returns.
    with tempfile.TemporaryDirectory(prefix="chassis-tls-") as directory:
        certificate, key = Path(directory, "tls.crt"), Path(directory, "tls.key")
        certificate.write_bytes(bundle.certificate)
        key.write_bytes(bundle.key)
        try:
            # Without a password, OpenSSL would ask on the terminal for that of an encrypted key.
            context.load_cert_chain(certificate, key, password="")
        except (ssl.SSLError, ValueError) as error:
            raise CertificateError(f"certificate and key can't be served: {error}") from error


Trusts = Callable[[bytes], Awaitable[bool]]
"""Whether all API servers trust a CA (PEM)."""


async def always_trusted(_: bytes) -> bool:
    """Used if we do not manage the caBundle, or there is no API server."""
    return True


class Switch:
    """Switches to a new certificate when all API servers trust its CA.

    An unreachable API server does not block a replica for ever: a replica whose certificate is missing or
    expired waits START_PATIENCE, others wait SWITCH_PATIENCE.
    """

    def __init__(self, source: CertificateSource, serving: ServingCertificate, trusts: Trusts) -> None:
        self._source, self._serving, self._trusts = source, serving, trusts
        self._since: float | None = None
        """When the wait for trust began."""

    async def step(self) -> Bundle | None:
        """Serve the source's bundle if it is trusted, and return it; None if it is not yet trusted.

        Raises the errors of the source, and CertificateError.
        """
        bundle = await self._source.read()
        if bundle != self._serving.bundle and not await self._may_serve(bundle):
            return None
        self._since = None
        self._serving.install(bundle)
        return bundle

    async def _may_serve(self, bundle: Bundle) -> bool:
        why = ""
        try:
            if await self._trusts(bundle.ca):
                return True
        except Exception as error:
            why = message_of(error)
        if self._since is None:
            self._since = time.monotonic()
            log.info("certificate waits until its CA is trusted", until=expiry(bundle).isoformat(), error=why)
        served = self._serving.bundle
        valid = served is not None and datetime.now(UTC) < expiry(served)
        if time.monotonic() - self._since < (SWITCH_PATIENCE if valid else START_PATIENCE):
            return False
        log.warning("serving a certificate although its CA is not known to be trusted", error=why)
        return True


async def follow(
    source: CertificateSource,
    serving: ServingCertificate,
    installed: Callable[[Bundle], None],
    trusts: Trusts,
) -> None:
    """Serve the source's bundle, now and after every change, until cancelled.

    After an error, the present certificate stays, and the source is read again.
    """
    changed, switch = asyncio.Event(), Switch(source, serving, trusts)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_watch(source, changed))
        pause = FIRST_PAUSE
        while True:
            changed.clear()
            timeout, before = None, serving.bundle
            try:
                bundle = await switch.step()
                if bundle is None:
                    timeout = TRUST_POLL_SECONDS
                elif bundle != before:
                    installed(bundle)
                pause = FIRST_PAUSE
            except Exception as error:
                log.warning("no new serving certificate", error=message_of(error))
                timeout, pause = pause, min(pause * 2, POLL_SECONDS)
            # Also after an error: the second file of a pair may be written a moment later.
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await changed.wait()


async def _watch(source: CertificateSource, changed: asyncio.Event) -> None:
    pause = FIRST_PAUSE
    while True:
        try:
            async for _ in source.changes():
                changed.set()
                pause = FIRST_PAUSE
        except Exception as error:
            log.warning("no watch on the serving certificate", error=message_of(error))
        await asyncio.sleep(pause)
        pause = min(pause * 2, POLL_SECONDS)
        changed.set()  # a change in the meantime was missed


# --- sources -------------------------------------------------------------------------------------------


async def _poll() -> AsyncIterator[None]:
    while True:
        await asyncio.sleep(POLL_SECONDS)
        yield


class SelfSigned:
    """A CA and certificate in the memory of this process, for local work."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._hosts = tuple(hosts)
        self._bundle: Bundle | None = None

    async def read(self) -> Bundle:
        now = datetime.now(UTC)
        self._bundle = renewed(self._bundle, self._hosts, now) if self._bundle else issue(self._hosts, now)
        return self._bundle

    def changes(self) -> AsyncIterator[None]:
        return _poll()


class MountedFiles:
    """Files, usually of a Secret volume, read again when their directory changes.

    The kubelet replaces the directory's `..data` link. The files' inodes never change, so a watch on them
    would miss it.
    """

    def __init__(self, certificate: Path, key: Path, ca: Path | None = None) -> None:
        self._certificate, self._key, self._ca = certificate, key, ca

    async def read(self) -> Bundle:
        return await asyncio.to_thread(self._read)

    def _read(self) -> Bundle:
        ca = self._ca.read_bytes() if self._ca else b""
        return Bundle(self._certificate.read_bytes(), self._key.read_bytes(), ca)

    async def changes(self) -> AsyncIterator[None]:
        from watchfiles import awatch  # not imported if other sources are used

        directories = {path.parent for path in (self._certificate, self._key, self._ca) if path}
        async for _ in awatch(
            *directories,
            recursive=False,
            rust_timeout=int(POLL_SECONDS * 1000),
            yield_on_timeout=True,
            step=20,
            debounce=100,
        ):
            yield


class ManagedSecret:
    """Our CA and serving certificate in one Secret, written by compare-and-swap.

    If several replicas issue or renew at once, one write succeeds and the others read it. No replica restores
    an old certificate: if the Secret was deleted, one of them creates it with a new CA; if our `ca.key` was
    removed, a new CA is added to the old one. Another issuer's certificate is served, and its Secret is never
    written.
    """

    def __init__(self, api: Calls, namespace: str, name: str, hosts: Iterable[str]) -> None:
        self._api, self._namespace, self._name = api, namespace, name
        self._path = f"{namespace}/{name}"
        self._hosts = tuple(hosts)

    async def read(self) -> Bundle:
        collection = paths.collection("v1", "secrets", self._namespace)
        path = paths.one("v1", "secrets", self._name, self._namespace)
        for _ in range(SWAP_ATTEMPTS):
            secret = await self._api.get(path)
            present = _from_secret(secret) if secret else None
            if present and not _ours(secret or {}, present):
                return present
            # By the API server's clock. A replica whose own clock is ahead would replace the certificate of
            # all replicas with one that is not valid yet.
            wanted = self._successor(present, datetime.fromtimestamp(self._api.now(), UTC))
            if wanted is present:
                return wanted
            target = ("POST", collection) if secret is None else ("PUT", path)
            if await self._api.unless_conflict(*target, _to_secret(wanted, secret or self._empty())):
                log.info("certificate issued", secret=self._path, until=str(expiry(wanted)))
                return wanted
        raise CertificateError(f"Secret {self._path} was changed under us {SWAP_ATTEMPTS} times in a row")

    def changes(self) -> AsyncIterator[None]:
        return _poll()

    def _successor(self, present: Bundle | None, now: datetime) -> Bundle:
        if present is None:
            log.info("no certificate in the Secret, issuing one", secret=self._path)
            return issue(self._hosts, now)
        if not present.ca_key:
            log.warning("the key of the CA was taken out of the Secret", secret=self._path)
        try:
            _load(_server_context(), present)
            return renewed(present, self._hosts, now)
        except (CertificateError, ValueError) as error:
            log.warning("certificate unusable, issuing another", secret=self._path, error=str(error))
            return repaired(present, self._hosts, now)

    def _empty(self) -> Json:
        labels = {"app.kubernetes.io/name": "mlchassis", MANAGED_BY: "mlchassis"}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"namespace": self._namespace, "name": self._name, "labels": labels},
        }


_KEYS = {"tls.crt": "certificate", "tls.key": "key", "ca.crt": "ca", "ca.key": "ca_key"}


def _ours(secret: Json, present: Bundle) -> bool:
    """Whether we renew the certificate in the Secret: also an unreadable one, if the CA's key is there."""
    if present.ca_key:
        return made_by_us(present) is not False
    return bool(made_by_us(present)) and labels_of(secret).get(MANAGED_BY) == "mlchassis"


def _to_secret(bundle: Bundle, secret: Json) -> Json:
    data = {key: base64.b64encode(getattr(bundle, field)).decode() for key, field in _KEYS.items()}
    return {**secret, "data": {**(secret.get("data") or {}), **data}}


def _from_secret(secret: Json) -> Bundle | None:
    """The bundle in a Secret; None if certificate or key is missing."""
    data = secret.get("data") or {}
    try:
        fields = {field: base64.b64decode(data.get(key) or "") for key, field in _KEYS.items()}
    except ValueError:
        return None
    return Bundle(**fields) if fields["certificate"] and fields["key"] else None
