"""Issuing, renewing and repairing certificates: pure functions of bytes and a time.

The CA rotates without a gap. A new CA is added to the old one a year before the old one expires, or when
somebody removes its key to ask for a new CA. It signs nothing before `SETTLING` has passed: by then every
webhook configuration trusts both.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InternalError, InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct
from msgspec.structs import replace

CA_LIFETIME = timedelta(days=3650)
CA_RENEW_BEFORE = timedelta(days=365)
SERVING_LIFETIME = timedelta(days=90)
SERVING_RENEW_BEFORE = timedelta(days=30)
CA_NAME = "mlchassis webhook CA"
CLOCK_SKEW = timedelta(hours=1)
"""How far certificates are dated back, for API servers whose clock is behind ours."""
SETTLING = timedelta(hours=1)
"""How long a new CA is in every caBundle before it signs a serving certificate."""
MAX_STEPS = 8
"""A renewal takes at most three: a new CA, a certificate signed by it, removal of the old CA."""

_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
_BLOCK = re.compile(_BEGIN + rb"([A-Za-z0-9+/=\s]+)" + _END)


class CertificateError(Exception):
    """The certificate can't be used."""


class Bundle(Struct, frozen=True):
    """A serving certificate with its key and CAs, all PEM.

    `certificate` may contain a chain, leaf first. `ca` may contain several CAs, newest first; it is empty if
    we do not manage the caBundle. `ca_key` is set only for our own CA.
    """

    certificate: bytes
    key: bytes
    ca: bytes = b""
    ca_key: bytes = b""


def service_hosts(namespace: str, service: str, extra: Iterable[str] = ()) -> tuple[str, ...]:
    """The names under which the API server calls a Service, then any extra names or IP addresses."""
    name = f"{service}.{namespace}.svc"
    return tuple(dict.fromkeys([name, f"{name}.cluster.local", f"{service}.{namespace}", *extra]))


def issue(hosts: Iterable[str], now: datetime) -> Bundle:
    """A new CA and a serving certificate for `hosts` (DNS names or IP addresses)."""
    ca, ca_key = _new_ca(now)
    return _sign(Bundle(b"", b"", ca=ca, ca_key=ca_key), hosts, now)


def renewed(bundle: Bundle, hosts: Iterable[str], now: datetime) -> Bundle:
    """`bundle` itself if no renewal is due at `now`, else its successor.

    Hosts are only added: replicas with different flags, during a rolling update, agree on the union instead
    of overwriting each other.
    """
    wanted = tuple(hosts)
    for _ in range(MAX_STEPS):
        after = _step(bundle, wanted, now)
        if after is bundle:
            break
        bundle = after
    return bundle


def _step(bundle: Bundle, hosts: Iterable[str], now: datetime) -> Bundle:
    """The most urgent change that is due; `bundle` itself if none is."""
    leaf, cas = _leaf(bundle.certificate), _certificates(bundle.ca)
    newest = cas[0]
    known = _names(leaf)
    wanted = tuple(dict.fromkeys([*known, *hosts]))
    works = _lasts(leaf, now) and any(_lasts(ca, now) and _signed_by(leaf, ca) for ca in cas)
    if not works and bundle.ca_key and _lasts(newest, now):
        # Before a new CA is due: the present one may be trusted already.
        return _sign(bundle, wanted, now)
    ends = newest.not_valid_after_utc - CA_RENEW_BEFORE
    if not bundle.ca_key or not newest.not_valid_before_utc <= now < ends:
        ca, ca_key = _new_ca(now)
        return replace(bundle, ca=ca + _valid(cas, now), ca_key=ca_key)
    current = _signed_by(leaf, newest)
    settled = current or now >= newest.not_valid_before_utc + CLOCK_SKEW + SETTLING
    due = needs_renewal(bundle, now) or set(wanted) != set(known) or not current
    if due and settled:
        return _sign(bundle, wanted, now)
    if len(cas) > 1 and current and now >= leaf.not_valid_before_utc + CLOCK_SKEW + SETTLING:
        return replace(bundle, ca=_pem(newest))
    return bundle


def repaired(bundle: Bundle, hosts: Iterable[str], now: datetime) -> Bundle:
    """The successor of an unusable bundle: signed by its CA, or by a new CA that is added to the old one.

    Certificates that other replicas serve stay trusted.
    """
    with suppress(CertificateError, ValueError):
        return renewed(_sign(bundle, hosts, now), hosts, now)
    fresh = issue(hosts, now)
    with suppress(CertificateError):
        fresh = replace(fresh, ca=fresh.ca + _valid(_certificates(bundle.ca), now))
    return fresh


def needs_renewal(bundle: Bundle, now: datetime) -> bool:
    """Whether the serving certificate is in the last third of its lifetime, or expired."""
    leaf = _leaf(bundle.certificate)
    life = leaf.not_valid_after_utc - leaf.not_valid_before_utc
    return now >= leaf.not_valid_after_utc - min(SERVING_RENEW_BEFORE, life / 3)


def made_by_us(bundle: Bundle) -> bool | None:
    """Whether a CA of `issue` or `renewed` has signed the serving certificate; None if it is unreadable."""
    try:
        issuer = _leaf(bundle.certificate).issuer
    except CertificateError:
        return None
    return any(
        str(name.value).startswith(CA_NAME) for name in issuer.get_attributes_for_oid(NameOID.COMMON_NAME)
    )


def certificates_in(pem: bytes) -> tuple[bytes, ...]:
    """The distinct certificates in a text, as PEM in one form."""
    bodies = (b"".join(found.split()) for found in _BLOCK.findall(pem))
    lines = ((body[at : at + 64] for at in range(0, len(body), 64)) for body in bodies)
    return tuple(dict.fromkeys(b"\n".join([_BEGIN, *each, _END, b""]) for each in lines))


def has_expired(pem: bytes, now: datetime) -> bool:
    """Whether a certificate has expired; False if it is unreadable."""
    try:
        return _leaf(pem).not_valid_after_utc <= now
    except (CertificateError, ValueError):
        return False


def lifetime(bundle: Bundle) -> tuple[datetime, datetime]:
    """When the serving certificate begins and ends (UTC)."""
    leaf = _leaf(bundle.certificate)
    return leaf.not_valid_before_utc, leaf.not_valid_after_utc


def expiry(bundle: Bundle) -> datetime:
    """When the serving certificate ends (UTC)."""
    return _leaf(bundle.certificate).not_valid_after_utc


def hosts_of(bundle: Bundle) -> tuple[str, ...]:
    """The DNS names, then the IP addresses, that the serving certificate is for."""
    return _names(_leaf(bundle.certificate))


@contextmanager
def _signing() -> Iterator[None]:
    """CertificateError where the OpenSSL of `cryptography` can't make keys, as with a FIPS provider."""
    try:
        yield
    except InternalError as error:
        raise CertificateError(
            "the package cryptography can't make keys with this OpenSSL configuration (OPENSSL_CONF): make "
            "a certificate elsewhere, and serve it with --tls-cert and --tls-key"
        ) from error


@_signing()
def _new_ca(now: datetime) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # The serial in the name keeps two generations apart for clients that look a CA up by subject.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{CA_NAME} {serial:040x}"[:64])])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), serial)
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + CA_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pem(certificate), _key_pem(key)


@_signing()
def _sign(bundle: Bundle, hosts: Iterable[str], now: datetime) -> Bundle:
    ca = _certificates(bundle.ca)[0]
    ca_key = serialization.load_pem_private_key(bundle.ca_key, password=None)
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
        raise CertificateError("the CA's key is not an elliptic-curve key of our making")
    if ca_key.public_key() != ca.public_key():
        raise CertificateError("the CA's key does not belong to the CA's certificate")
    key = ec.generate_private_key(ec.SECP256R1())
    names = list(hosts)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    leaf = (
        x509.CertificateBuilder(ca.subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(min(now + SERVING_LIFETIME, ca.not_valid_after_utc))
        .add_extension(x509.SubjectAlternativeName([_general_name(n) for n in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    return replace(bundle, certificate=_pem(leaf), key=_key_pem(key))


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _names(leaf: x509.Certificate) -> tuple[str, ...]:
    try:
        alternatives = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    addresses = [str(address) for address in alternatives.get_values_for_type(x509.IPAddress)]
    return (*alternatives.get_values_for_type(x509.DNSName), *addresses)


def _lasts(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def _signed_by(leaf: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _certificates(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise CertificateError(f"not a PEM certificate: {error}") from error


def _valid(certificates: Iterable[x509.Certificate], now: datetime) -> bytes:
    return b"".join(
        _pem(certificate) for certificate in certificates if certificate.not_valid_after_utc > now
    )


def _leaf(pem: bytes) -> x509.Certificate:
    return _certificates(pem)[0]


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
