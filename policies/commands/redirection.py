"""Settings by which a client connects to another host than the one in its URL: curl's options, proxies,
gRPC names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from policies.commands import values

PROXY_VARIABLES: Final = ("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "HTTP_PROXY")
_HOST: Final = r"(\[[^\]]*\]|[^:\[\]]*)"
_CONNECT_TO: Final = re.compile(rf"{_HOST}:([^:]*):{_HOST}(?::([^:]*))?")
_RESOLVE: Final = re.compile(rf"\+?{_HOST}:(?:([^:\[]*):)?(\[.*|[^:]*|[0-9a-fA-F:.]+(?:,.*)?)")
_URL: Final = re.compile(
    r"((?:([A-Za-z][A-Za-z0-9+.-]*)://)?(?:[^/?#@]*@)?)(\[[^\]]*\]|[^/?#:]*)(?::([^/?#]*))?"
)
_PORTS: Final = {"https": "443", "wss": "443", "ftp": "21"}
_GRPC_SCHEMES: Final = frozenset({"ipv4", "ipv6", "dns", "passthrough"})


def redirected(url: str, connect_to: Sequence[str], resolve: Sequence[str]) -> str:
    """The URL with the host that curl's `--connect-to` and `--resolve` put in its place."""
    found = _URL.match(url) if connect_to or resolve else None
    if found is None:
        return url
    before, scheme, name, port = found.groups()
    port = port or _PORTS.get((scheme or "").lower(), "80")
    name = name.lower()
    for rule in map(_CONNECT_TO.fullmatch, connect_to):
        if rule and rule[1].lower() in ("", name) and rule[2] in ("", port):
            name, port = rule[3].lower() or name, rule[4] or port
            break
    for rule in map(_RESOLVE.fullmatch, resolve):
        if rule and rule[1].lower() in ("*", "", name) and rule[2] in (None, port):
            name = _address(rule[3])
    return f"{before}{name}:{port}{url[found.end() :]}"


def _address(addresses: str) -> str:
    """The first address of the list, an IPv6 address in brackets."""
    first = addresses.partition(",")[0].strip("[]")
    return f"[{first}]" if first.count(":") > 1 and values.is_known(first) else first


def proxy_address(text: str) -> str:
    """The proxy in an option's value. HTTPie adds a scheme: `http:http://localhost`."""
    return re.sub(r"^(?:https?|all):(?!//)", "", text)


def wget_proxies(commands: Iterable[str]) -> Iterator[str]:
    """The proxies among the settings of wget's `-e`."""
    for command in commands:
        name, _, value = command.partition("=")
        if name.strip() in ("http_proxy", "https_proxy"):
            yield value.strip()


def is_bypassed(name: str, no_proxy: str) -> bool:
    """Whether the list `no_proxy` contains a host or its domain."""
    for each in re.split(r"[,\s]+", no_proxy.lower()):
        domain = each.lstrip(".")
        if each == "*" or (domain and (name == domain or name.endswith(f".{domain}"))):
            return True
    return False


def grpc_address(text: str) -> str:
    """The address in a gRPC name with a scheme, `ipv4:127.0.0.1:80`."""
    scheme, _, rest = text.partition(":")
    return rest if scheme in _GRPC_SCHEMES and rest and not rest.isdigit() else text
