"""The serving certificate: where it comes from, when it is renewed, how it is swapped.

Law: the TLS context in force always holds one whole pair. A new pair gets a new context, because
`load_cert_chain` with a torn certificate and key leaves the context it was called on without a key, and
with a key of another type goes on to serve the old pair next to the new one.

Three sources: `MountedFiles` (a Secret volume, cert-manager or any other issuer), `ManagedSecret` (a CA of
our own, shared by the replicas through one Secret), `SelfSigned` (in memory, for a laptop).
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
from webhook.kube import paths
from webhook.kube.calls import Calls
from webhook.server import pki
from webhook.server.pki import Bundle, CertificateError, expiry, issue, made_by_us, renewed, repaired

log = structlog.get_logger()

POLL_SECONDS = 60.0
"""The pace at which a managed Secret is read, and files are, in case a file event is missed."""
SWAP_ATTEMPTS = 8
MANAGED_BY = "app.kubernetes.io/managed-by"
FIRST_PAUSE = 0.5
TRUST_POLL_SECONDS = 1.0
START_PATIENCE = 15.0
"""Seconds after which a replica that has nothing to serve takes what it has, trusted or not."""
SWITCH_PATIENCE = 600.0
"""The same for one that has a pair in force."""


class CertificateSource(Protocol):
    """Where the serving certificate comes from."""

    async def read(self) -> Bundle:
        """The bundle as it should be served now; CertificateError or OSError if there is none."""

    def changes(self) -> AsyncIterator[None]:
        """Yield, without end, whenever `read` may give something new."""


# --- serving -------------------------------------------------------------------------------------------


class ServingCertificate:
    """The TLS context that is asked for at each connection. New ones see a swap at once; open ones stay."""

    def __init__(self) -> None:
        self.context = _server_context()
        # Something to shake hands with from the first moment, so that /healthz and /readyz can answer (a
        # kubelet does not verify); no API server trusts it.
        _load(self.context, issue(["mlchassis.invalid"], datetime.now(UTC)))
        self.bundle: Bundle | None = None

    def install(self, bundle: Bundle) -> bool:
        """Serve `bundle` from now on; False if it is served already.

        Raises CertificateError, with the old pair still in force, if certificate and key don't fit.
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
        """Why no API server accepts the certificate at `now` (seconds since the epoch); empty: unknown.

        Whether it is trusted is not asked here: a webhook that can't read its own configuration may be.
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
    # Forward secrecy and AEAD only; TLS 1.3's own suites are not governed by this list.
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    return context


def _load(context: ssl.SSLContext, bundle: Bundle) -> None:
    # The ssl module reads files only. The directory is 0700 and gone before the call returns.
    with tempfile.TemporaryDirectory(prefix="chassis-tls-") as directory:
        certificate, key = Path(directory, "tls.crt"), Path(directory, "tls.key")
        certificate.write_bytes(bundle.certificate)
        key.write_bytes(bundle.key)
        try:
            # An encrypted key would make OpenSSL ask on the terminal: an empty password fails instead.
            context.load_cert_chain(certificate, key, password="")
        except (ssl.SSLError, ValueError) as error:
            raise CertificateError(f"certificate and key can't be served: {error}") from error


Trusts = Callable[[bytes], Awaitable[bool]]
"""Whether all callers trust a CA (PEM) by now."""


async def nobody_to_ask(_: bytes) -> bool:
    """Where the caBundle is not ours to keep, or there is no API server."""
    return True


class Succession:
    """From the pair in force to the next: a pair is served once all callers trust its CA.

    An API server that can't be reached, or never learns of the CA, does not block a replica for ever: an
    expired pair gives way to any other, and a replica that has none yet does not wait for long.
    """

    def __init__(self, source: CertificateSource, serving: ServingCertificate, trusts: Trusts) -> None:
        self._source, self._serving, self._trusts = source, serving, trusts
        self._since: float | None = None
        """Since when a pair waits to be trusted."""

    async def step(self) -> Bundle | None:
        """Serve what the source holds now, if it may be; the bundle then in force, None to be asked again in
        a moment. Raises what the source raises, and CertificateError."""
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
            why = str(error) or type(error).__name__
        if self._since is None:
            self._since = time.monotonic()
            log.info("certificate waits until its CA is trusted", until=expiry(bundle).isoformat(), error=why)
        served = self._serving.bundle
        works = served is not None and datetime.now(UTC) < expiry(served)
        if time.monotonic() - self._since < (SWITCH_PATIENCE if works else START_PATIENCE):
            return False
        log.warning("serving a certificate although its CA is not known to be trusted", error=why)
        return True


async def keep(
    source: CertificateSource,
    serving: ServingCertificate,
    installed: Callable[[Bundle], None],
    trusts: Trusts,
) -> None:
    """Serve what the source holds, now and after every change, until cancelled.

    After an error, the pair in force stays, and the source is read again.
    """
    changed, succession = asyncio.Event(), Succession(source, serving, trusts)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_announce(source, changed))
        pause = FIRST_PAUSE
        while True:
            changed.clear()
            patience, before = None, serving.bundle
            try:
                bundle = await succession.step()
                if bundle is None:
                    patience = TRUST_POLL_SECONDS
                elif bundle != before:
                    installed(bundle)
                pause = FIRST_PAUSE
            except Exception as error:
                log.warning("no new serving certificate", error=str(error) or type(error).__name__)
                patience, pause = pause, min(pause * 2, POLL_SECONDS)
            # After a failure, too, the next change counts: a pair that is torn is whole a moment later.
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await changed.wait()


async def _announce(source: CertificateSource, changed: asyncio.Event) -> None:
    pause = FIRST_PAUSE
    while True:
        try:
            async for _ in source.changes():
                changed.set()
                pause = FIRST_PAUSE
        except Exception as error:
            log.warning("no watch on the serving certificate", error=str(error) or type(error).__name__)
        await asyncio.sleep(pause)
        pause = min(pause * 2, POLL_SECONDS)
        changed.set()  # what changed meanwhile was not seen


# --- sources -------------------------------------------------------------------------------------------


async def _now_and_then() -> AsyncIterator[None]:
    while True:
        await asyncio.sleep(POLL_SECONDS)
        yield


class SelfSigned:
    """A CA and certificate in memory, for local work; only this process knows it."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._hosts = tuple(hosts)
        self._bundle: Bundle | None = None

    async def read(self) -> Bundle:
        now = datetime.now(UTC)
        self._bundle = renewed(self._bundle, self._hosts, now) if self._bundle else issue(self._hosts, now)
        return self._bundle

    def changes(self) -> AsyncIterator[None]:
        return _now_and_then()


class MountedFiles:
    """A pair on disk, usually a Secret volume, read again when its directory changes.

    Kubelet swaps the `..data` link of the directory; the file's own inode never changes, so a watch on the
    file would see nothing after the first swap.
    """

    def __init__(self, certificate: Path, key: Path, ca: Path | None = None) -> None:
        self._certificate, self._key, self._ca = certificate, key, ca

    async def read(self) -> Bundle:
        ca = await asyncio.to_thread(self._ca.read_bytes) if self._ca else b""
        return Bundle(
            await asyncio.to_thread(self._certificate.read_bytes),
            await asyncio.to_thread(self._key.read_bytes),
            ca=ca,
        )

    async def changes(self) -> AsyncIterator[None]:
        from watchfiles import awatch  # not needed if watches of the cluster report changes

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
    """Our CA and serving certificate in one Secret, agreed on by compare-and-swap.

    Any number of replicas may start or renew at once: one write wins, the others read it. None puts back what
    it remembers: if the Secret was deleted, one of them makes it with a new CA; if `ca.key` was removed
    from one of ours, a new CA is added next to the old one. Another issuer's certificate is served as it
    is, and its Secret is never written.
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
            # The API server's clock: it is the one that verifies, and one replica whose own runs ahead would
            # renew for all of them with a certificate that is not valid yet.
            wanted = self._successor(present, datetime.fromtimestamp(self._api.now(), UTC))
            if wanted is present:
                return wanted
            target = ("POST", collection) if secret is None else ("PUT", path)
            if await self._api.unless_conflict(*target, _to_secret(wanted, secret or self._empty())):
                log.info("certificate issued", secret=self._path, until=str(expiry(wanted)))
                return wanted
        raise CertificateError(f"Secret {self._path} was changed under us {SWAP_ATTEMPTS} times in a row")

    def changes(self) -> AsyncIterator[None]:
        return _now_and_then()

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
    """Whether the certificate in the Secret is ours to renew; an unreadable one with the CA's key is."""
    if present.ca_key:
        return made_by_us(present) is not False
    return bool(made_by_us(present)) and labels_of(secret).get(MANAGED_BY) == "mlchassis"


def _to_secret(bundle: Bundle, secret: Json) -> Json:
    data = {key: base64.b64encode(getattr(bundle, field)).decode() for key, field in _KEYS.items()}
    return {**secret, "data": {**(secret.get("data") or {}), **data}}


def _from_secret(secret: Json) -> Bundle | None:
    """The bundle in a Secret; None if it holds nothing of ours yet (the pair is missing)."""
    data = secret.get("data") or {}
    try:
        fields = {field: base64.b64decode(data.get(key) or "") for key, field in _KEYS.items()}
    except ValueError:
        return None
    return Bundle(**fields) if fields["certificate"] and fields["key"] else None
