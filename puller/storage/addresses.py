"""Which addresses a model may come from.

A storageUri is written by whoever may edit the model config, and the puller follows it from inside the pod's
network, credentials of the node within reach. Link-local addresses, and those at which clouds keep a
machine's metadata, are refused where the connection is made: a name that resolves differently a second time,
or a redirect, leads to no other place. The puller's own credential providers are not concerned: they ask for
credentials, by addresses that no config names.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Any
from urllib.parse import urlsplit

from puller.reasons import Reason
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
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class BlockedAddressError(OSError):
    """A name that leads to a blocked address."""


def blocked(address: str) -> bool:
    """Whether an IP address may not be connected to; False for what is none."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if inner is None and found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        found = inner or found
    return any(found.version == network.version and found in network for network in _BLOCKED)


def guarded_socket(info: tuple[Any, ...]) -> socket.socket:
    """A socket for the very address (of getaddrinfo) that is about to be connected to. Raises
    BlockedAddressError."""
    family, kind, protocol, _, address = info
    if blocked(address[0]):
        raise BlockedAddressError(f"{address[0]} is blocked")
    return socket.socket(family, kind, protocol)


async def check_endpoint(url: str) -> None:
    """Raises StorageError where the host of a store's address is, or resolves to, a blocked address."""
    host = urlsplit(url if "://" in url else f"//{url}").hostname or ""
    addresses = [host]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        addresses += [str(entry[4][0]) for entry in found]
    except OSError:
        pass  # whoever connects will say so
    if any(map(blocked, addresses)):
        raise address_blocked()


def address_blocked() -> StorageError:
    return StorageError(
        Reason.ADDRESS_BLOCKED,
        "the storage's name, or a redirect, leads to an address that is link-local or holds a cloud's"
        " metadata (--allow-link-local allows it).",
    )
