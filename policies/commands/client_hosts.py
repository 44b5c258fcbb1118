"""The hosts that a client program reaches, and its longest duration.

A setting may name another host than the one in the URL: curl's options, proxies, gRPC names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from policies.commands import values
from policies.commands.clients import Client, Operands, clients
from policies.commands.durations import seconds
from policies.commands.hosts import MAX_HOSTS, host, is_url, url_hosts
from policies.commands.model import Host, Reach
from policies.commands.options import Parsed, Style, parse_options, valued

Lookup = Callable[[str], str | None]
"""A variable's value in the command's environment, or None if it is unknown."""


class ClientContext(Struct, frozen=True):
    """The environment of a client."""

    lookup: Lookup
    lookup_defined: Lookup
    """The same for variables that the container or the script itself sets. Variables of `envFrom` or of a
    sourced file do not make a client's default host uncertain."""
    local_names: Collection[str] = ()

    def host(self, text: str, client: str) -> Host:
        """The host of `host` or `host:port`."""
        return host(text, client, self.local_names)

    def url_hosts(self, text: str, client: str) -> Iterator[Host]:
        """The hosts of a URL, with or without its scheme."""
        return url_hosts(text, client, self.local_names)


class Reached(Struct, frozen=True):
    hosts: tuple[Host, ...] = ()
    timeout: float | None = None


def reached(name: str, arguments: Sequence[str], context: ClientContext) -> Reached | None:
    """The hosts and the timeout of the program `name` with `arguments`; None for an unknown program."""
    special = _SPECIAL.get(name)
    if special is not None:
        timeout = _dig_timeout(arguments) if special is _dig else None
        return Reached(tuple(special(name, arguments, context)), timeout)
    client = clients().get(name)
    if client is None:
        return None
    parsed = parse_options(arguments, client.syntax)
    if parsed.has(*client.offline) or (parsed.operands and parsed.operands[0] in client.offline):
        return Reached()
    return Reached(tuple(_hosts(name, client, parsed, context)), _timeout(client, parsed))


def _hosts(name: str, client: Client, parsed: Parsed, context: ClientContext) -> Iterator[Host]:
    if parsed.has(*client.sockets):
        return
    hosts = _direct_hosts(name, client, parsed, context)
    if parsed.has(*client.config_files):
        hosts = map(Host.uncertain, hosts)  # the file may name another address, a proxy or a socket
    proxies = tuple(_proxies(name, client, parsed, context))
    for each in hosts:
        if not proxies or is_bypassed(each.name, _no_proxy(client, parsed, context)):
            yield each
            continue
        yield from proxies
        # A proxy in the pod may answer itself, or ask the host.
        yield each.uncertain() if all(proxy.reach is Reach.LOCAL for proxy in proxies) else each


def _proxies(name: str, client: Client, parsed: Parsed, context: ClientContext) -> Iterator[Host]:
    """The proxy that the client's options name, or a proxy in the pod that its environment names.

    A proxy elsewhere that the environment names is ignored: the host behind it counts.
    """
    named = parsed.values(client.proxies)
    named += wget_proxies(parsed.values(("-e", "--execute"))) if name == "wget" else []
    if named:
        address = proxy_address(named[-1])
        if address:
            yield from _address(address, name, context)
    elif client.operands is Operands.URLS:
        for variable in PROXY_VARIABLES:
            address = context.lookup(variable) or ""
            for each in _address(address, name, context) if address else ():
                if each.reach is Reach.LOCAL:
                    yield each


def _no_proxy(client: Client, parsed: Parsed, context: ClientContext) -> str:
    """The list of hosts for which no proxy is used."""
    listed = parsed.values(client.no_proxy)
    return listed[-1] if listed else context.lookup("no_proxy") or context.lookup("NO_PROXY") or ""


def _direct_hosts(name: str, client: Client, parsed: Parsed, context: ClientContext) -> Iterable[Host]:
    """The hosts without a proxy: from the arguments, else from the environment, else the default."""
    if "PGHOSTADDR" in client.env and (address := context.lookup_defined("PGHOSTADDR")):
        return _address(address, name, context)  # libpq connects to it and ignores the host's name
    hosts = list(_argument_hosts(name, client, parsed, context))
    if hosts or parsed.has(*client.hosts):
        return hosts
    if parsed.has(*client.config_files):
        return [Host("", Reach.UNDECIDABLE, name)]
    for variable in client.env:
        if value := context.lookup_defined(variable):
            return _address(value, name, context)
    if client.default is None:
        return []
    reach, default = client.default
    return [Host(default, reach, name)]


_OPERANDS_READ = {Operands.NONE: 0, Operands.HOST: 1, Operands.LOOKUP: 1}


def _argument_hosts(name: str, client: Client, parsed: Parsed, context: ClientContext) -> Iterator[Host]:
    connect_to = parsed.values(client.connect_to)[:MAX_HOSTS]
    resolve = parsed.values(client.resolve)[:MAX_HOSTS]
    for text in parsed.values(client.hosts)[:MAX_HOSTS]:
        for item in text.split(",", MAX_HOSTS)[:MAX_HOSTS]:
            if not item.isdigit():  # sqlcmd's `host,port`
                yield from _address(redirected(item, connect_to, resolve), name, context)
    for text in parsed.values(client.locations)[:MAX_HOSTS]:
        yield from _location(text, name, context)
    operands = parsed.operands[: _OPERANDS_READ.get(client.operands, MAX_HOSTS)]
    for index, text in enumerate(operands):
        hosts: Iterable[Host]
        match client.operands:
            case Operands.URLS:
                hosts = context.url_hosts(redirected(text, connect_to, resolve), name)
            case Operands.LOCATION:
                hosts = _location(text, name, context)
            case Operands.REMOTE:
                hosts = _remote(text, name, context)
            case Operands.LOOKUP:
                hosts = [_name_lookup(parsed.operands, name, context)]
            case _:
                hosts = _address(text, name, context)
        yield from map(Host.uncertain, hosts) if index in parsed.ambiguous else hosts


_SOCKETS = ("/", "unix:", "unix-abstract:")
"""The beginnings of a Unix socket's address, or of the path of its directory."""


def _address(text: str, name: str, context: ClientContext) -> Iterator[Host]:
    """The hosts in an option's value: a URL, a host, host:port, `tcp:host:port` or `set/host:port`."""
    if is_url(text):
        yield from context.url_hosts(text, name)
    elif not text.startswith(_SOCKETS):
        text = grpc_address(text).removeprefix("tcp:").rpartition("/")[2]
        yield context.host(text, name)


def _location(text: str, name: str, context: ClientContext) -> Iterator[Host]:
    """psql's and mongosh's operand: a URL, `host=… port=…`, `host:port/db` or `host/db`."""
    if is_url(text):
        yield from context.url_hosts(text, name)
    elif "=" in text:
        pairs = dict(pair.partition("=")[::2] for pair in text.split())
        if address := pairs.get("hostaddr") or pairs.get("host"):
            yield from _address(address.strip("'"), name, context)
    elif name.startswith("mongo") and not text.endswith(".js") and ("/" in text or ":" in text):
        yield from context.url_hosts(text, name)


def _remote(text: str, name: str, context: ClientContext) -> Iterator[Host]:
    if is_url(text):
        yield from context.url_hosts(text, name)
        return
    remote, colon, _ = text.partition(":")
    if colon and "/" not in remote:
        yield context.host(remote, name)


def _name_lookup(operands: Sequence[str], name: str, context: ClientContext) -> Host:
    """The DNS server if the operands name one, else the name to resolve: that is the awaited host."""
    if len(operands) > 1:
        return context.host(operands[1].removeprefix("@"), name)
    return replace(context.host(operands[0], name), name_lookup=True)


def _timeout(client: Client, parsed: Parsed) -> float | None:
    limits: dict[str, float] = {}
    for option, value in parsed.options:
        unit = client.timeouts.get(option)
        if unit is not None and (limit := seconds(value, unit)) is not None:
            limits[option] = limit
    if not limits:
        return None
    whole = [limit for option, limit in limits.items() if option not in client.phase_timeouts]
    total = max(whole or limits.values())
    attempts = 1.0
    for option, extra in client.retries.items():
        number = seconds(parsed.value((option,)))
        if number:
            attempts = min(number, 1000.0) + extra
    return total * attempts


# Clients that the table cannot describe


def _dig(name: str, arguments: Sequence[str], context: ClientContext) -> Iterator[Host]:
    operands = parse_options(arguments, valued("-p -t -c -b -f -k -q -x -y")).operands
    servers = [word[1:] for word in operands if word.startswith("@")]
    names = [word for word in operands if word[:1] not in "@+" and not word.isupper()]
    if servers or names:
        yield _name_lookup([*names[:1], *servers[:1]], name, context)


def _dig_timeout(arguments: Sequence[str]) -> float | None:
    values = dict(word.partition("=")[::2] for word in arguments if word.startswith("+"))
    timeout = seconds(values.get("+timeout") or values.get("+time") or "")
    attempts = seconds(values.get("+tries", "")) or 1.0
    return None if timeout is None else timeout * min(attempts, 1000.0)


def _getent(name: str, arguments: Sequence[str], context: ClientContext) -> Iterator[Host]:
    operands = parse_options(arguments, valued("-s --service")).operands
    if operands and operands[0] in ("hosts", "ahosts", "ahostsv4", "ahostsv6"):
        for each in operands[1 : MAX_HOSTS + 1]:
            yield _name_lookup([each], name, context)


def _openssl(name: str, arguments: Sequence[str], context: ClientContext) -> Iterator[Host]:
    if not arguments or arguments[0] != "s_client":
        return
    options = "-connect -host -port -servername -CAfile -cert -key -proxy -starttls -unix -bind"
    parsed = parse_options(arguments[1:], valued(options, Style.GO))
    target = parsed.value(("-connect",)) or parsed.value(("-host",)) or next(iter(parsed.operands), "")
    if not target or parsed.has("-unix"):
        return
    found = context.host(target, name)
    if proxy := parsed.value(("-proxy",)):
        first = context.host(proxy, name)
        yield first
        found = found.uncertain() if first.reach is Reach.LOCAL else found
    yield found


def _ray(name: str, arguments: Sequence[str], context: ClientContext) -> Iterator[Host]:
    """`ray health-check` and the like. Without `--address` Ray reads RAY_ADDRESS, then a file."""
    if not arguments or arguments[0] not in ("health-check", "status", "list", "summary", "job", "memory"):
        return
    parsed = parse_options(arguments[1:], valued("--address --redis_password --component --timeout"))
    address = parsed.value(("--address",)) or context.lookup_defined("RAY_ADDRESS") or ""
    if address in ("", "auto"):
        yield Host("", Reach.UNDECIDABLE, name)
    else:
        yield from _address(address, name, context)


_SOCAT_REMOTE = ("tcp", "tcp4", "tcp6", "tcp-connect", "udp", "udp4", "udp6", "openssl", "ssl", "udp-connect")


def _socat(name: str, arguments: Sequence[str], context: ClientContext) -> Iterator[Host]:
    for word in parse_options(arguments, valued("-t -T -b -lf")).operands[:MAX_HOSTS]:
        kind, colon, rest = word.partition(":")
        if colon and kind.lower() in _SOCAT_REMOTE:
            yield context.host(rest.partition(",")[0], name)


def _git(name: str, arguments: Sequence[str], context: ClientContext) -> Iterator[Host]:
    operands = parse_options(arguments, valued("-C -c -b --branch --depth --git-dir")).operands
    if not operands or operands[0] not in ("clone", "fetch", "pull", "push", "ls-remote"):
        return
    hosts = [each for word in operands[1:MAX_HOSTS] for each in _remote(word, name, context)]
    yield from hosts or [Host("the git remote", Reach.UNDECIDABLE, name)]


_SPECIAL: dict[str, Callable[[str, Sequence[str], ClientContext], Iterator[Host]]] = {
    "dig": _dig,
    "drill": _dig,
    "kdig": _dig,
    "getent": _getent,
    "openssl": _openssl,
    "ray": _ray,
    "socat": _socat,
    "git": _git,
}


@cache
def client_names() -> frozenset[str]:
    """Every program that is known to reach hosts."""
    return frozenset(clients()) | frozenset(_SPECIAL)


def urls_of_unknown_program(name: str, arguments: Sequence[str], context: ClientContext) -> Iterator[Host]:
    """The hosts of the URLs among the arguments of a program that the tables do not contain.

    The program may or may not reach them.
    """
    for word in arguments:
        text = word.partition("=")[2] if word.startswith("-") and "=" in word else word
        if is_url(text):
            yield from map(Host.uncertain, context.url_hosts(text, name))


def devtcp(path: str, context: ClientContext) -> Host | None:
    """The host of bash's `/dev/tcp/host/port`, if `path` has that form."""
    parts = path.split("/", 4)
    if len(parts) < 5 or parts[0] or parts[1] != "dev" or parts[2] not in ("tcp", "udp"):
        return None
    return context.host(parts[3], "/dev/tcp")


PROXY_VARIABLES: Final = ("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "HTTP_PROXY")
"""The variables with the addresses of proxies, as most clients spell them."""
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
            name = _first_address(rule[3])
    return f"{before}{name}:{port}{url[found.end() :]}"


def _first_address(addresses: str) -> str:
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
