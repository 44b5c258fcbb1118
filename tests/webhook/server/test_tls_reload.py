"""Certificates: issued ones verify, due ones are renewed without a gap, a swap is whole."""

from __future__ import annotations

import asyncio
import base64
import itertools
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.exceptions import InternalError
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from msgspec.structs import replace

from webhook.server import pki, tls_reload
from webhook.server.pki import Bundle, CertificateError
from webhook.server.tls_reload import ManagedSecret, MountedFiles, ServingCertificate

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOSTS = ("mlchassis.mlchassis-system.svc", "127.0.0.1", "::1")


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return pki.issue(HOSTS, datetime.now(UTC))


@asynccontextmanager
async def listening(serving: ServingCertificate) -> AsyncIterator[int]:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        await writer.wait_closed()

    """A server that asks for the context at each connection, as ours does."""
    loop = asyncio.get_running_loop()

    async def serve() -> None:
        while True:
            accepted, _ = await loop.sock_accept(listener)
            with suppress(OSError):  # the caller may refuse the certificate
                await loop.connect_accepted_socket(
                    lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader(), answer),
                    accepted,
                    ssl=serving.context,
                )

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        task = asyncio.create_task(serve())
        yield listener.getsockname()[1]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def served(port: int, ca: bytes, host: str = HOSTS[0], **versions: Any) -> bytes:
    """The DER certificate that a verifying client is shown."""
    context = ssl.create_default_context(cadata=ca.decode())
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    for name, value in versions.items():
        setattr(context, name, value)
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host)
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert isinstance(shown, bytes)
        return shown
    finally:
        writer.close()
        await writer.wait_closed()


# --- issuing -------------------------------------------------------------------------------------------


def test_the_api_server_s_names_for_a_service_come_first_and_once() -> None:
    assert pki.service_hosts("ns", "svc", ["127.0.0.1", "svc.ns.svc"]) == (
        "svc.ns.svc",
        "svc.ns.svc.cluster.local",
        "svc.ns",
        "127.0.0.1",
    )


@pytest.mark.parametrize("host", HOSTS)
async def test_an_issued_certificate_verifies_strictly_for_each_of_its_hosts(
    bundle: Bundle, host: str
) -> None:
    serving = ServingCertificate()
    serving.install(bundle)
    async with listening(serving) as port:
        assert await served(port, bundle.ca, host)


async def test_another_host_or_another_ca_is_refused(bundle: Bundle) -> None:
    serving = ServingCertificate()
    serving.install(bundle)
    async with listening(serving) as port:
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            await served(port, bundle.ca, "other.example")
        with pytest.raises(ssl.SSLCertVerificationError):
            await served(port, pki.issue(HOSTS, datetime.now(UTC)).ca)


async def test_tls_below_1_2_is_refused(bundle: Bundle) -> None:
    serving = ServingCertificate()
    assert serving.context.minimum_version is ssl.TLSVersion.TLSv1_2
    serving.install(bundle)
    async with listening(serving) as port:
        assert await served(port, bundle.ca, maximum_version=ssl.TLSVersion.TLSv1_2)
    suites = {cipher["name"] for cipher in serving.context.get_ciphers()}
    assert suites
    assert all("GCM" in suite or "CHACHA20" in suite for suite in suites)


# --- renewal -------------------------------------------------------------------------------------------


def test_nothing_is_renewed_before_it_is_due() -> None:
    bundle = pki.issue(HOSTS, NOW)
    assert pki.expiry(bundle) == NOW + pki.SERVING_LIFETIME
    just_before = NOW + pki.SERVING_LIFETIME - pki.SERVING_RENEW_BEFORE - timedelta(seconds=1)
    assert pki.renewed(bundle, HOSTS, just_before) is bundle


def test_a_due_serving_certificate_is_signed_again_by_the_same_ca() -> None:
    bundle = pki.issue(HOSTS, NOW)
    due = NOW + pki.SERVING_LIFETIME - pki.SERVING_RENEW_BEFORE
    after = pki.renewed(bundle, HOSTS, due)
    assert (after.ca, after.ca_key) == (bundle.ca, bundle.ca_key)
    assert after.certificate != bundle.certificate
    assert pki.expiry(after) == due + pki.SERVING_LIFETIME
    assert pki.renewed(after, HOSTS, due) is after


def test_a_new_host_is_added_and_no_host_is_ever_dropped() -> None:
    bundle = pki.issue(["a.svc"], NOW)
    settled = NOW + pki.SETTLING
    both = pki.renewed(bundle, ["b.svc"], settled)
    assert both is not bundle
    assert pki.renewed(both, ["a.svc"], settled) is both
    assert pki.renewed(both, ["b.svc"], settled) is both


def test_ca_rotation_never_leaves_a_certificate_that_some_bundle_does_not_trust() -> None:
    """Walk through a whole life, day by day: the leaf is always trusted by the bundle of the day before."""
    bundle = pki.issue(HOSTS, NOW)
    now, cas = NOW, {bundle.ca}
    step = timedelta(days=20)
    while now < NOW + pki.CA_LIFETIME + timedelta(days=400):
        now += step
        after = pki.renewed(bundle, HOSTS, now)
        leaf = pki._leaf(after.certificate)
        assert leaf.not_valid_after_utc > now
        assert any(pki._signed_by(leaf, ca) for ca in pki._certificates(bundle.ca))
        assert after.ca == bundle.ca or after.certificate == bundle.certificate, "one step at a time"
        bundle = after
        cas.add(bundle.ca)
    assert [len(pki.certificates_in(ca)) for ca in sorted(cas, key=len)] == [1, 1, 2]


def test_a_new_ca_signs_nothing_before_it_has_settled() -> None:
    bundle = pki.issue(HOSTS, NOW)
    late = NOW + pki.CA_LIFETIME - pki.CA_RENEW_BEFORE
    bundle = pki._sign(bundle, HOSTS, late + timedelta(days=1) - pki.SERVING_LIFETIME)  # due as well
    rotated = pki.renewed(bundle, HOSTS, late)
    assert rotated.certificate == bundle.certificate
    assert rotated.ca != bundle.ca
    assert pki.renewed(rotated, HOSTS, late + pki.SETTLING - timedelta(minutes=1)) is rotated
    signed = pki.renewed(rotated, HOSTS, late + pki.SETTLING)
    assert pki._signed_by(pki._leaf(signed.certificate), pki._certificates(signed.ca)[0])


def test_no_certificate_outlives_its_ca() -> None:
    bundle = pki.issue(HOSTS, NOW)
    late = NOW + pki.CA_LIFETIME - timedelta(days=5)
    assert pki.expiry(pki._sign(bundle, HOSTS, late)) == NOW + pki.CA_LIFETIME


def test_an_expired_certificate_is_replaced_at_once_even_by_a_new_ca() -> None:
    bundle = pki.issue(HOSTS, NOW)
    later = NOW + timedelta(days=200)
    assert pki.expiry(pki.renewed(bundle, HOSTS, later)) > later


@pytest.mark.parametrize("late", [timedelta(0), timedelta(days=1), timedelta(days=4000)])
def test_an_expired_certificate_of_an_expired_ca_is_replaced_in_one_call(late: timedelta) -> None:
    bundle = pki.issue(HOSTS, NOW)
    now = NOW + pki.CA_LIFETIME + late
    after = pki.renewed(bundle, HOSTS, now)
    assert pki.expiry(after) > now
    (ca,) = pki._certificates(after.ca)
    assert pki._signed_by(pki._leaf(after.certificate), ca)
    assert ca.not_valid_after_utc > now
    assert pki.renewed(after, HOSTS, now) is after


def test_an_expired_certificate_of_a_ca_that_is_due_is_signed_by_the_ca_that_is_trusted() -> None:
    bundle = pki.issue(HOSTS, NOW)
    now = NOW + pki.CA_LIFETIME - pki.CA_RENEW_BEFORE + timedelta(days=1)
    after = pki.renewed(bundle, HOSTS, now)
    newest, trusted = pki._certificates(after.ca)
    assert pki._pem(trusted) == bundle.ca
    leaf = pki._leaf(after.certificate)
    assert pki._signed_by(leaf, trusted)
    assert leaf.not_valid_after_utc > now
    settled = now + pki.SETTLING
    assert pki._signed_by(pki._leaf(pki.renewed(after, HOSTS, settled).certificate), newest)


def test_a_bundle_that_is_repaired_after_its_ca_expired_gets_a_ca_that_lasts() -> None:
    bundle = replace(pki.issue(HOSTS, NOW), certificate=b"rubbish")
    for late in (timedelta(minutes=1), timedelta(days=1)):  # shorter and longer than CLOCK_SKEW
        now = NOW + pki.CA_LIFETIME + late
        after = pki.repaired(bundle, HOSTS, now)
        assert pki.expiry(after) > now
        assert pki._certificates(after.ca)[0].not_valid_after_utc > now


def test_a_certificate_outside_of_its_lifetime_is_named_as_a_problem() -> None:
    serving = ServingCertificate()
    assert serving.problem(NOW.timestamp()) == "no serving certificate yet"
    serving.install(pki.issue(HOSTS, NOW))
    assert serving.problem(NOW.timestamp()) == ""
    begins, ends = NOW - pki.CLOCK_SKEW, NOW + pki.SERVING_LIFETIME
    assert serving.problem(begins.timestamp()) == ""
    before = serving.problem(begins.timestamp() - 1)
    assert before == "the serving certificate is not valid before 2025-12-31T23:00:00+00:00"
    assert serving.problem(ends.timestamp() - 1) == ""
    assert serving.problem(ends.timestamp()) == "the serving certificate expired at 2026-04-01T00:00:00+00:00"


def test_without_an_openssl_that_makes_keys_only_a_certificate_of_others_is_served(
    monkeypatch: pytest.MonkeyPatch, bundle: Bundle
) -> None:
    def fail(*_: object) -> None:
        raise InternalError("unable to fetch drbg", [])

    monkeypatch.setattr(ec, "generate_private_key", fail)
    with pytest.raises(CertificateError, match="serve it with --tls-cert and --tls-key"):
        pki.issue(["a.b.svc"], datetime.now(UTC))
    serving = ServingCertificate()
    assert serving.problem(0) == "no serving certificate yet"
    assert serving.install(bundle)


def test_a_key_that_is_not_the_ca_s_is_an_error() -> None:
    bundle = replace(pki.issue(HOSTS, NOW), ca_key=pki.issue(HOSTS, NOW).ca_key)
    with pytest.raises(CertificateError, match="does not belong"):
        pki.renewed(bundle, HOSTS, NOW + timedelta(days=80))


# --- serving -------------------------------------------------------------------------------------------


async def test_a_torn_pair_leaves_the_live_context_serving(bundle: Bundle) -> None:
    serving = ServingCertificate()
    assert serving.install(bundle)
    other = pki.issue(HOSTS, datetime.now(UTC))
    async with listening(serving) as port:
        before = await served(port, bundle.ca)
        torn_pairs = [
            replace(other, key=bundle.key),  # the one that costs a live context its key
            replace(bundle, key=other.key),
            replace(bundle, key=b""),
            replace(bundle, certificate=b"x"),
        ]
        for torn in torn_pairs:
            with pytest.raises(CertificateError):
                serving.install(torn)
        assert await served(port, bundle.ca) == before


async def test_a_swap_is_seen_by_new_connections_while_the_server_runs(bundle: Bundle) -> None:
    serving = ServingCertificate()
    serving.install(bundle)
    other = pki.issue(HOSTS, datetime.now(UTC))
    async with listening(serving) as port:
        before = await served(port, bundle.ca)
        assert serving.install(other)
        assert not serving.install(other), "the same again is no swap"
        assert await served(port, other.ca) != before


class Answers:
    """A source that gives one answer after the other; `events` announce changes."""

    def __init__(self, *answers: Bundle | Exception) -> None:
        self.answers = [*answers]
        self.events: asyncio.Queue[None] = asyncio.Queue()

    async def read(self) -> Bundle:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def changes(self) -> AsyncIterator[None]:
        while True:
            await self.events.get()
            yield


@asynccontextmanager
async def followed(source: tls_reload.CertificateSource) -> AsyncIterator[asyncio.Queue[Bundle]]:
    """The bundles of a source as they are installed."""
    installed: asyncio.Queue[Bundle] = asyncio.Queue()
    task = asyncio.create_task(
        tls_reload.follow(source, ServingCertificate(), installed.put_nowait, tls_reload.always_trusted)
    )
    yield installed
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_failing_source_is_read_again(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_reload, "FIRST_PAUSE", 0.01)
    async with followed(Answers(OSError("not yet"), CertificateError("torn"), bundle)) as installed:
        assert await asyncio.wait_for(installed.get(), 60) == bundle


async def test_a_torn_pair_is_read_again_at_the_next_event_and_not_after_a_pause(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_reload, "FIRST_PAUSE", 3600.0)
    source = Answers(replace(bundle, key=b""), bundle)
    async with followed(source) as installed:
        while len(source.answers) == 2:  # noqa: ASYNC110 - it has read the torn one
            await asyncio.sleep(0)
        source.events.put_nowait(None)
        assert await asyncio.wait_for(installed.get(), 60) == bundle


# --- mounted files -------------------------------------------------------------------------------------


async def test_mounted_files_are_read_again_after_the_data_link_is_swapped(
    bundle: Bundle, tmp_path: Path
) -> None:
    def mount(version: str, content: Bundle) -> None:
        directory = tmp_path / f"..{version}"
        directory.mkdir()
        (directory / "tls.crt").write_bytes(content.certificate)
        (directory / "tls.key").write_bytes(content.key)
        (tmp_path / "..tmp").symlink_to(directory.name)
        (tmp_path / "..tmp").rename(tmp_path / "..data")

    mount("1", bundle)
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    source = MountedFiles(tmp_path / "tls.crt", tmp_path / "tls.key")
    other = pki.issue(HOSTS, datetime.now(UTC))

    async def swap() -> None:
        """Repeatedly: the watch starts in another thread without a signal."""
        for version in itertools.count(2):
            mount(str(version), other)
            await asyncio.sleep(0.3)

    async with followed(source) as installed:
        assert (await asyncio.wait_for(installed.get(), 60)).certificate == bundle.certificate
        swaps = asyncio.create_task(swap())
        assert (await asyncio.wait_for(installed.get(), 50)).certificate == other.certificate
        swaps.cancel()
        await asyncio.gather(swaps, return_exceptions=True)


# --- the managed Secret --------------------------------------------------------------------------------


class Secrets:
    """Secrets with compare-and-swap, and a turn for others between each read and write."""

    def __init__(self) -> None:
        self.stored: Any = None
        self.version = 0
        self.writes = 0
        self.clock = datetime.now(UTC)

    def now(self) -> float:
        return self.clock.timestamp()

    async def get(self, path: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.stored
        await asyncio.sleep(0)
        return found

    async def unless_conflict(
        self, method: str, path: str, body: dict[str, Any], content_type: str = ""
    ) -> bool:
        await asyncio.sleep(0)
        if method == "POST":
            return self.stored is None and self._write(body)
        return body["metadata"]["resourceVersion"] == str(self.version) and self._write(body)

    def _write(self, secret: dict[str, Any]) -> bool:
        self.version += 1
        self.writes += 1
        self.stored = {**secret, "metadata": {**secret["metadata"], "resourceVersion": str(self.version)}}
        return True

    def damage(self, **values: bytes) -> None:
        """Replace values; `tls_crt` is the key `tls.crt`."""
        for key, value in values.items():
            self.stored["data"][key.replace("_", ".")] = base64.b64encode(value).decode()

    def data(self) -> dict[str, bytes]:
        return {key: base64.b64decode(value) for key, value in self.stored["data"].items()}


def managed(secrets: Secrets, *hosts: str) -> ManagedSecret:
    return ManagedSecret(secrets, "mlchassis-system", "mlchassis-tls", hosts or HOSTS)


async def test_replicas_that_start_at_once_agree_on_one_certificate() -> None:
    secrets = Secrets()
    bundles = await asyncio.gather(*(managed(secrets).read() for _ in range(5)))
    assert len(set(bundles)) == 1
    assert secrets.writes == 1
    assert secrets.stored["type"] == "kubernetes.io/tls"
    assert set(secrets.data()) == {"tls.crt", "tls.key", "ca.crt", "ca.key"}


async def test_a_good_secret_is_only_read() -> None:
    secrets = Secrets()
    first = await managed(secrets).read()
    assert await managed(secrets).read() == first
    assert secrets.writes == 1


async def test_a_replica_whose_clock_is_wrong_renews_by_the_api_server_s() -> None:
    secrets = Secrets()
    before = await managed(secrets).read()
    secrets.clock += timedelta(days=70)
    after = await managed(secrets).read()
    assert pki.expiry(after) - pki.expiry(before) == timedelta(days=70)


async def test_replicas_with_other_hosts_settle_on_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pki, "SETTLING", timedelta(0))
    secrets = Secrets()
    for _ in range(3):
        await managed(secrets, "a.svc").read()
        await managed(secrets, "b.svc").read()
    assert secrets.writes == 2


@pytest.mark.parametrize("broken", ["tls_crt", "tls_key", "ca_crt", "ca_key"])
async def test_a_damaged_secret_is_replaced(broken: str) -> None:
    secrets = Secrets()
    before = await managed(secrets).read()
    secrets.damage(**{broken: b"rubbish"})
    bundle = await managed(secrets).read()
    # The CA's key is not looked at until the CA has to sign.
    assert secrets.writes == (1 if broken == "ca_key" else 2)
    # What the other replicas serve stays trusted, unless the CA itself is lost.
    assert (bundle.ca == before.ca) is (broken != "ca_crt")
    ServingCertificate().install(bundle)


async def test_a_ca_that_can_t_sign_any_more_stays_trusted_with_a_new_one() -> None:
    secrets = Secrets()
    before = await managed(secrets).read()
    secrets.damage(tls_key=b"rubbish", ca_key=b"rubbish")
    bundle = await managed(secrets).read()
    assert bundle.ca.endswith(before.ca)
    assert len(bundle.ca) > len(before.ca)
    ServingCertificate().install(bundle)


async def test_a_deleted_secret_comes_back_with_a_new_ca_that_all_replicas_agree_on() -> None:
    secrets = Secrets()
    sources = [managed(secrets) for _ in range(3)]
    (before,) = {await source.read() for source in sources}
    secrets.stored = None
    (after,) = set(await asyncio.gather(*(source.read() for source in sources)))
    assert after.ca_key not in (b"", before.ca_key)
    assert secrets.data()["ca.key"] == after.ca_key
    assert secrets.writes == 2


async def test_a_secret_that_is_deleted_while_it_is_renewed_is_created_again() -> None:
    class Deleted(Secrets):
        async def unless_conflict(
            self, method: str, path: str, body: dict[str, Any], content_type: str = ""
        ) -> bool:
            if method == "POST":
                return await super().unless_conflict(method, path, body)
            self.stored = None
            return False

    secrets = Deleted()
    before = await managed(secrets).read()
    secrets.clock += timedelta(days=70)
    after = await managed(secrets).read()
    assert after.ca_key not in (b"", before.ca_key)
    assert secrets.data()["ca.key"] == after.ca_key


async def test_a_secret_without_ca_key_belongs_to_another_issuer_and_is_never_written() -> None:
    secrets = Secrets()
    bundle = await managed(secrets).read()
    del secrets.stored["data"]["ca.key"]
    secrets.stored["metadata"]["labels"] = {}
    assert await managed(secrets, "other.svc").read() == replace(bundle, ca_key=b"")
    assert secrets.writes == 1


async def test_an_empty_secret_that_somebody_made_is_filled() -> None:
    secrets = Secrets()
    metadata = {"namespace": "mlchassis-system", "name": "mlchassis-tls", "resourceVersion": "0"}
    secrets.stored = {"metadata": {**metadata, "labels": {"team": "ml"}}}
    await managed(secrets).read()
    assert secrets.stored["metadata"]["labels"] == {"team": "ml"}
    assert len(secrets.data()) == 4


async def test_a_secret_that_never_holds_still_is_an_error_not_a_loop() -> None:
    class Restless(Secrets):
        async def unless_conflict(
            self, method: str, path: str, body: dict[str, Any], content_type: str = ""
        ) -> bool:
            return False

    with pytest.raises(CertificateError, match="changed under us"):
        await managed(Restless()).read()


async def test_a_ca_key_that_is_taken_out_is_replaced_step_by_step_by_a_new_ca() -> None:
    """This is how a new CA is asked for: added to the old one, then signing, then the only one."""
    secrets = Secrets()
    source = managed(secrets)
    before = await source.read()
    del secrets.stored["data"]["ca.key"]
    both = await source.read()
    assert both.ca.endswith(before.ca)
    assert both.ca_key not in (b"", before.ca_key)
    assert both.certificate == before.certificate
    assert await source.read() == both, "it signs nothing yet"
    secrets.clock += pki.SETTLING
    signed = await source.read()
    assert signed.ca == both.ca
    assert pki._signed_by(pki._leaf(signed.certificate), pki._certificates(both.ca)[0])
    assert await source.read() == signed, "what other replicas serve stays trusted"
    secrets.clock += pki.SETTLING
    alone = await source.read()
    assert alone == replace(signed, ca=pki.certificates_in(both.ca)[0])
    assert await source.read() == alone


async def test_a_pair_of_another_issuer_with_our_ca_key_is_served_and_never_written() -> None:
    secrets = Secrets()
    await managed(secrets).read()
    theirs = other_key_type(Bundle(b"", b""))
    secrets.damage(tls_crt=theirs.certificate, tls_key=theirs.key, ca_crt=theirs.certificate)
    served = await managed(secrets, "other.svc").read()
    assert (served.certificate, served.ca) == (theirs.certificate, theirs.certificate)
    assert secrets.writes == 1


# --- from one pair to the next -------------------------------------------------------------------------


async def test_a_pair_is_served_once_its_ca_is_trusted(bundle: Bundle) -> None:
    other = pki.issue(HOSTS, datetime.now(UTC))
    serving, trusted = ServingCertificate(), {bundle.ca}

    async def trusts(ca: bytes) -> bool:
        return ca in trusted

    switch = tls_reload.Switch(Answers(bundle, other, other), serving, trusts)
    assert await switch.step() == serving.bundle == bundle
    assert await switch.step() is None
    assert serving.bundle == bundle
    trusted.add(other.ca)
    assert await switch.step() == serving.bundle == other


async def test_nobody_waits_for_ever_to_be_trusted(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    async def trusts(_: bytes) -> bool:
        raise OSError("no API server")

    monkeypatch.setattr(tls_reload, "START_PATIENCE", 0.0)
    serving, other = ServingCertificate(), pki.issue(HOSTS, datetime.now(UTC))
    switch = tls_reload.Switch(Answers(bundle, other, other), serving, trusts)
    assert await switch.step() == serving.bundle == bundle, "there was nothing to serve"
    assert await switch.step() is None
    assert serving.bundle == bundle, "which still works"
    monkeypatch.setattr(tls_reload, "SWITCH_PATIENCE", 0.0)
    assert await switch.step() == serving.bundle == other


async def test_a_pair_that_has_run_out_is_not_kept_for_trust(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def trusts(_: bytes) -> bool:
        return False

    serving = ServingCertificate()
    serving.install(pki.issue(HOSTS, datetime.now(UTC) - timedelta(days=100)))
    switch = tls_reload.Switch(Answers(bundle, bundle), serving, trusts)
    assert await switch.step() is None
    monkeypatch.setattr(tls_reload, "START_PATIENCE", 0.0)
    assert await switch.step() == serving.bundle == bundle


# --- what the world does to certificates ---------------------------------------------------------------


def other_key_type(like: Bundle) -> Bundle:
    """A pair with an RSA key, signed by nobody's CA but its own."""
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rsa")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return replace(like, certificate=certificate.public_bytes(serialization.Encoding.PEM), key=pem)


async def shown(port: int) -> bytes:
    """The certificate shown to a client that sends no server name and verifies nothing."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="")
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    assert isinstance(certificate, bytes)
    writer.close()
    await writer.wait_closed()
    return certificate


async def test_a_change_of_key_type_and_back_is_served_at_once(bundle: Bundle) -> None:
    serving = ServingCertificate()
    async with listening(serving) as port:
        for installed in (bundle, other_key_type(bundle), pki.issue(HOSTS, datetime.now(UTC))):
            assert serving.install(installed)
            (expected,) = x509.load_pem_x509_certificates(installed.certificate)
            assert await shown(port) == expected.public_bytes(serialization.Encoding.DER)


def test_a_certificate_that_is_not_valid_yet_is_issued_again() -> None:
    ahead = NOW + timedelta(days=10)
    for bundle in (pki.issue(HOSTS, ahead), pki._sign(pki.issue(HOSTS, NOW), HOSTS, ahead)):
        now, after = NOW, bundle
        for _ in range(2):  # one step a call: the CA, then the leaf
            after = pki.renewed(after, HOSTS, now)
        leaf, ca = pki._leaf(after.certificate), pki._certificates(after.ca)[0]
        assert leaf.not_valid_before_utc <= now
        assert ca.not_valid_before_utc <= now
        assert pki._signed_by(leaf, ca)
        assert pki.renewed(after, HOSTS, now) is after
