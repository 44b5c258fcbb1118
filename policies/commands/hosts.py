"""The hosts in URLs and host:port pairs, and where they are: in the pod or outside of it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterator

from policies.commands import values
from policies.commands.model import Host, Reach

_SCHEME = re.compile("(?:jdbc:)?([A-Za-z][A-Za-z0-9+.-]*|\ue000[^\ue003]*\ue003)://", re.ASCII)
_AUTHORITY_END = re.compile(r"[/?#]")
_LOCAL_SCHEMES = frozenset(
    {"file", "unix", "data", "about", "sqlite", "ipc", "npipe", "http+unix", "https+unix"}
)
_STORE_SCHEMES = frozenset(
    {
        "s3",
        "s3a",
        "s3n",
        "gs",
        "gcs",
        "az",
        "abfs",
        "abfss",
        "wasb",
        "wasbs",
        "oss",
        "cos",
        "hf",
        "oci",
        "pvc",
    }
)
"""Behind these is a bucket, a registry's repository or a claim, not a host."""
_NOT_HOSTS = _LOCAL_SCHEMES | _STORE_SCHEMES
_LOCAL_NAMES = frozenset(
    {"localhost", "localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback"}
)
MAX_HOSTS = 32
"""Maximum number of hosts that are read from one URL, list or command."""

_MAX_ADDRESS_LENGTH = 45
"""Characters of the longest IP address: IPv6 with an IPv4 address at its end."""

_HOSTNAME = re.compile(r"[a-z0-9._-]+", re.ASCII)
_LABEL = re.compile(r"[a-z_]([a-z0-9_-]*[a-z0-9_])?", re.ASCII)


def is_url(text: str) -> bool:
    """Whether `text` begins with a scheme and `://`."""
    return _SCHEME.match(text) is not None


def reach_of(name: str, local_names: Collection[str] = ()) -> Reach:
    """Where the host `name` is. `local_names`: further names of the pod."""
    name = name.strip("[]").rstrip(".").lower()
    if not name:
        return Reach.UNDECIDABLE
    if (
        name in _LOCAL_NAMES
        or name.endswith(".localhost")
        or name in local_names
        or name.startswith(("/", "%2f"))
    ):
        return Reach.LOCAL
    if name.startswith(values.OWN):
        rest = name.partition(values.END)[2]
        return Reach.LOCAL if not rest or rest[0] in ".%" else Reach.UNDECIDABLE
    if name.startswith(values.OTHER):
        return Reach.EXTERNAL
    if not values.is_known(name):
        # "db.$NAMESPACE.svc" is never loopback; "$RELEASE-db" could be this pod.
        label, dot, _ = name.partition(".")
        named = dot and values.is_known(label) and _LABEL.fullmatch(label) and label != "localhost"
        return Reach.EXTERNAL if named else Reach.UNDECIDABLE
    return _reach_of_known(name)


def _reach_of_known(name: str) -> Reach:
    try:
        address = ipaddress.ip_address(name.partition("%")[0][: _MAX_ADDRESS_LENGTH + 1])
    except ValueError:
        if not _HOSTNAME.fullmatch(name):
            return Reach.UNDECIDABLE  # "$(DB)" that the kubelet did not replace, a glob, part of a template
        octets = name.split(".")
        short_loopback = octets[0] in ("127", "0") and all(octet.isdigit() for octet in octets)
        return Reach.LOCAL if short_loopback else Reach.EXTERNAL
    mapped = getattr(address, "ipv4_mapped", None) or address
    return Reach.LOCAL if mapped.is_loopback or mapped.is_unspecified else Reach.EXTERNAL


def split_port(text: str) -> tuple[str, int | None]:
    """`host`, `host:port`, `[v6]:port` or a bare IPv6 address -> the host without brackets, the port."""
    if text.startswith("["):
        inside, _, rest = text[1:].partition("]")
        return inside, _port(rest.removeprefix(":"))
    if text.count(":") > 1:
        return text, None
    name, _, port = text.partition(":")
    return name, _port(port)


def _port(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else None


def _shown_name(name: str) -> str:
    name = name.rstrip(".")
    return name.lower() if values.is_known(name) else values.show(name)


def host(text: str, client: str, local_names: Collection[str] = ()) -> Host:
    """The host of `host` or `host:port`. `:8080` is this machine, as for Go's clients."""
    name, port = split_port(text.rpartition("@")[2])
    reach = Reach.LOCAL if text.startswith(":") and port else reach_of(name, local_names)
    return Host(_shown_name(name.strip("[]")), reach, client)


_GRPC_SCHEMES = frozenset({"dns", "passthrough", "xds"})
_POSTGRES_HOST = re.compile(r"[?&](hostaddr|host)=([^&#]*)")


def _postgres_host(rest: str) -> str:
    """The host among the parameters of a PostgreSQL URL, which takes precedence over the URL's own."""
    found = dict(_POSTGRES_HOST.findall(rest))
    return found.get("hostaddr") or found.get("host") or ""


def url_hosts(text: str, client: str, local_names: Collection[str] = ()) -> Iterator[Host]:
    """The hosts of the URL `text`, with or without its scheme; several for `mongodb://a,b`."""
    text = text.strip()
    scheme = _SCHEME.match(text)
    if scheme and scheme[1].lower() in _NOT_HOSTS:
        return
    rest = text[scheme.end() :] if scheme else text
    if scheme and scheme[1].lower() in _GRPC_SCHEMES:
        rest = rest.partition("/")[2]  # `dns://server/host`
    end = _AUTHORITY_END.search(rest)
    authority = rest[: end.start()] if end else rest
    authority = authority.rpartition("@")[2]
    if scheme and end and scheme[1].lower() in ("postgres", "postgresql"):
        authority = _postgres_host(rest[end.start() :]) or authority
    parts = authority.split(",", MAX_HOSTS)[:MAX_HOSTS] if scheme else [authority]
    for part in parts:
        if scheme and not part and scheme[1].lower() not in ("http", "https"):
            continue  # "redis:///0", "postgresql:///db": the client's own default
        name, _ = split_port(part)
        yield Host(_shown_name(name), reach_of(name, local_names), client)
