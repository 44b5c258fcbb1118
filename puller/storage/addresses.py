"""The addresses that a model may come from.

Every user who may edit the model config can set a storageUri, and the puller follows it inside the pod's
network, where the node's credentials can be read. Link-local addresses and the metadata servers of clouds are
refused when the connection is made, so a redirect, or a name that resolves differently the second time, does
not avoid the check. The puller's own credential providers are not affected: no config contains their
addresses.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import unicodedata
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from puller.reasons import StatusReason
from puller.storage.base import StorageError

_BLOCKED = tuple(
    map(
        ipaddress.ip_network,
        (
            "169.254.0.0/16",  # link-local; AWS, Azure, Google and others keep their metadata here
            "fe80::/10",
            "fd00:ec2::/112",  # AWS: metadata, time, DNS over IPv6
            "fd20:ce::254/128",  # Google: metadata over IPv6
            "100.100.100.200/32",  # Alibaba Cloud
            "168.63.129.16/32",  # Azure: the host's agent
            "192.0.0.192/32",  # Oracle Cloud
        ),
    )
)
_BLOCKED_NAMES = frozenset(
    {
        "metadata.google.internal",
        "metadata.goog",
        "instance-data.ec2.internal",
        "metadata.azure.internal",
        "metadata.tencentyun.com",
    }
)
"""Names of these servers: behind a proxy, only the name can be checked."""
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]{0,8}|[0-9]{1,12}")
_EMBEDDED = ((4, 5, 6, 7), (5, 6, 7, 9), (6, 7, 9, 10), (7, 9, 10, 11), (9, 10, 11, 12), (12, 13, 14, 15))
"""The bytes of an IPv6 address that contain an IPv4 address according to RFC 6052, for prefixes of 32, 40,
48, 56, 64 and 96 bits. The prefix of a network's NAT64 is not known here, so all lengths are checked. One
address in 10,000 is refused by chance; then the other addresses of its name are tried."""


class BlockedAddressError(OSError):
    """A name that resolves to a blocked address."""


def blocked(address: str) -> bool:
    """Whether connecting to an IP address is refused; False for any other text."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return any(
        each.version == network.version and each in network
        for each in _with_embedded(found)
        for network in _BLOCKED
    )


def _with_embedded(
    found: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The address, and every IPv4 address that the network may translate it to."""
    yield found
    if isinstance(found, ipaddress.IPv6Address):
        for places in _EMBEDDED:
            yield ipaddress.IPv4Address(bytes(found.packed[place] for place in places))
        if found.sixtofour:
            yield found.sixtofour
        if found.teredo:
            yield from found.teredo


def blocked_name(host: str) -> bool:
    """Whether the host of a URL is a blocked address, in any form that a resolver accepts, or a blocked name.
    A proxy resolves the host itself, so only the text can be checked."""
    plain = unicodedata.normalize("NFKC", host).strip("[]").rstrip(".").lower()
    return blocked(plain) or plain in _BLOCKED_NAMES or any(map(blocked, _inet_aton(plain)))


def _inet_aton(host: str) -> Iterator[str]:
    """The addresses that `inet_aton` reads from a text such as `2852039166` or `0xa9.0376.43518`. A number
    that begins with 0 is read as octal and as decimal, since programs differ."""
    parts = host.split(".")
    if len(parts) > 4 or not all(map(_NUMBER.fullmatch, parts)):
        return
    for octal in (True, False):
        try:
            *high, low = (_number(part, octal) for part in parts)
            value = low + sum(each << 8 * (3 - at) for at, each in enumerate(high))
            yield str(ipaddress.IPv4Address(value))
        except ValueError:
            continue


def _number(part: str, octal: bool) -> int:
    if part[:2].lower() == "0x":
        return int(part[2:] or "0", 16)
    return int(part, 8) if octal and part[0] == "0" else int(part)


def guarded_socket(info: tuple[Any, ...]) -> socket.socket:
    """A socket for this address (of getaddrinfo). Raises BlockedAddressError."""
    family, kind, protocol, _, address = info
    if blocked(address[0]):
        raise BlockedAddressError(f"{address[0]} is blocked")
    return socket.socket(family, kind, protocol)


async def check_endpoint(url: str) -> None:
    """Raises StorageError if the host of a store's URL is, or resolves to, a blocked address."""
    host = urlsplit(url if "://" in url else f"//{url}").hostname or ""
    addresses = [host]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        addresses += [str(entry[4][0]) for entry in found]
    except OSError:
        pass  # the connection will fail with the same error
    if any(map(blocked, addresses)):
        raise address_blocked()


def address_blocked() -> StorageError:
    return StorageError(
        StatusReason.ADDRESS_BLOCKED,
        "the storage's name, or a redirect, leads to a link-local address or a cloud's metadata server"
        " (--allow-link-local allows it).",
    )
