"""The hosts that one client program reaches and its longest duration: a row of `clients` applied to an
argv."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from policies.commands import hosts as hosts_module
from policies.commands import redirection
from policies.commands.clients import Client, Operands, clients
from policies.commands.durations import seconds
from policies.commands.hosts import host, is_url, url_hosts
from policies.commands.model import Host, Reach
from policies.commands.options import Parsed, Style, parse_options, valued

Lookup = Callable[[str], str | None]
"""A variable's value in the command's environment, or None if it is unknown."""


@dataclass(frozen=True, slots=True)
class Reached:
    hosts: tuple[Host, ...] = ()
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """What a program finds around it."""

    lookup: Lookup
    stated: Lookup
    """The same for variables that the container or the script sets itself: what `envFrom` or a sourced file
    might hold doesn't make a client's default doubtful."""
    local_names: Collection[str] = ()


def reached(name: str, arguments: Sequence[str], context: Context) -> Reached | None:
    """What the program `name` with `arguments` reaches; None if it is no known client."""
    special = _SPECIAL.get(name)
    if special is not None:
        return Reached(*special(name, arguments, context))
    client = clients().get(name)
    if client is None:
        return None
    parsed = parse_options(arguments, client.syntax)
    if parsed.has(*client.offline) or (parsed.operands and parsed.operands[0] in client.offline):
        return Reached()
    return Reached(tuple(_hosts(name, client, parsed, context)), _timeout(client, parsed))


def _hosts(name: str, client: Client, parsed: Parsed, context: Context) -> Iterator[Host]:
    if parsed.has(*client.sockets):
        return
    found = _hosts_named(name, client, parsed, context)
    if parsed.has(*client.unread):
        found = map(Host.doubted, found)  # the file may name another address, a proxy or a socket
    proxy = tuple(_proxy_hosts(name, client, parsed, context))
    if not proxy:
        yield from found
        return
    for each in found:
        if redirection.bypassed(each.name, _bypass(client, parsed, context)):
            yield each
            continue
        yield from proxy
        # What a proxy in the pod does with it, only the proxy knows.
        yield each.doubted() if all(at.reach is Reach.LOCAL for at in proxy) else each


def _proxy_hosts(name: str, client: Client, parsed: Parsed, context: Context) -> Iterator[Host]:
    """The proxy that the client's options name, or, where that is in the pod, its environment.

    A proxy that the environment sets elsewhere is not read: the host that is asked through it counts.
    """
    named = [value for option, value in parsed.options if option in client.proxies]
    named += redirection.wget_proxies(parsed.values(("-e", "--execute"))) if name == "wget" else []
    if named:
        address = redirection.proxy_address(named[-1])
        if address:
            yield from _named(address, name, context)
    elif client.operands is Operands.URLS:
        yield from environment_proxy(name, context)


def environment_proxy(name: str, context: Context) -> Iterator[Host]:
    """A proxy in the pod that HTTP clients find in their environment."""
    for variable in redirection.PROXY_VARIABLES:
        address = context.lookup(variable)
        if address:
            yield from (each for each in _named(address, name, context) if each.reach is Reach.LOCAL)


def _bypass(client: Client, parsed: Parsed, context: Context) -> str:
    """The hosts for which no proxy is asked, as the options or the environment list them."""
    named = parsed.values(tuple(client.bypass))
    return named[-1] if named else context.lookup("no_proxy") or context.lookup("NO_PROXY") or ""


def _hosts_named(name: str, client: Client, parsed: Parsed, context: Context) -> Iterator[Host]:
    if "PGHOSTADDR" in client.env and (address := context.stated("PGHOSTADDR")):
        yield from _named(address, name, context)  # libpq connects to it and ignores the host's name
        return
    found = False
    redirect = redirection.redirect(
        parsed.values(tuple(client.instead))[: hosts_module.MAX_HOSTS],
        parsed.values(tuple(client.resolve))[: hosts_module.MAX_HOSTS],
    )
    for text in parsed.values(tuple(client.hosts))[: hosts_module.MAX_HOSTS]:
        for item in text.split(",", hosts_module.MAX_HOSTS)[: hosts_module.MAX_HOSTS]:
            found = True
            if not item.isdigit():  # sqlcmd writes `host,port`
                yield from _named(item if redirect is None else redirect(item), name, context)
    for text in parsed.values(tuple(client.locations))[: hosts_module.MAX_HOSTS]:
        for each in _location(text, name, context):
            found = True
            yield each
    if redirect is not None and client.operands is Operands.URLS:
        parsed = replace(parsed, operands=[redirect(text) for text in parsed.operands])
    for index, each in _operand_hosts(name, client.operands, parsed, context):
        found = True
        yield each.doubted() if index in parsed.doubtful else each
    if found:
        return
    if parsed.has(*client.unread):
        yield Host("", Reach.UNDECIDABLE, name)
        return
    for variable in client.env:
        value = context.stated(variable)
        if value:
            yield from _named(value, name, context)
            return
    if client.default is not None:
        reach, called = client.default
        yield Host(called, reach, name)


_SOCKETS = ("/", "unix:", "unix-abstract:")
"""What begins so is a Unix socket, or the directory of one."""


def _named(text: str, name: str, context: Context) -> Iterator[Host]:
    """The hosts in an option's value: a URL, a host, host:port, `tcp:host:port` or `set/host:port`."""
    if is_url(text):
        yield from url_hosts(text, name, context.local_names)
    elif text.startswith(_SOCKETS):
        return
    else:
        text = redirection.grpc_address(text)
        text = text.removeprefix("tcp:").rpartition("/")[2]
        yield host(text, name, local_names=context.local_names)


def _operand_hosts(name: str, kind: Operands, parsed: Parsed, context: Context) -> Iterator[tuple[int, Host]]:
    operands = parsed.operands[: hosts_module.MAX_HOSTS]
    if not operands:
        return
    names = context.local_names
    match kind:
        case Operands.URLS:
            for index, text in enumerate(operands):
                for each in url_hosts(text, name, names):
                    yield index, each
        case Operands.HOSTS | Operands.HOST:
            for index, text in enumerate(operands if kind is Operands.HOSTS else operands[:1]):
                for each in _named(text, name, context):
                    yield index, each
        case Operands.LOCATION:
            for index, text in enumerate(operands):
                for each in _location(text, name, context):
                    yield index, each
        case Operands.REMOTE:
            for index, text in enumerate(operands):
                for each in _remote(text, name, context):
                    yield index, each
        case Operands.LOOKUP:
            for each in _name_lookup(operands, name, context):
                yield 0, each


def _location(text: str, name: str, context: Context) -> Iterator[Host]:
    """psql's and mongosh's operand: a URL, `host=… port=…`, `host:port/db` or `host/db`."""
    if is_url(text):
        yield from url_hosts(text, name, context.local_names)
    elif "=" in text:
        pairs = dict(pair.partition("=")[::2] for pair in text.split())
        if address := pairs.get("hostaddr") or pairs.get("host"):
            yield from _named(address.strip("'"), name, context)
    elif name.startswith("mongo") and not text.endswith(".js") and ("/" in text or ":" in text):
        yield from url_hosts(text, name, context.local_names)


def _remote(text: str, name: str, context: Context) -> Iterator[Host]:
    if is_url(text):
        yield from url_hosts(text, name, context.local_names)
        return
    remote, colon, _ = text.partition(":")
    if colon and "/" not in remote:
        yield host(remote, name, local_names=context.local_names)


def _name_lookup(operands: Sequence[str], name: str, context: Context) -> Iterator[Host]:
    """A look-up touches the DNS server; if none is named, the looked-up name is the awaited host."""
    if len(operands) > 1:
        yield host(operands[1].removeprefix("@"), name, local_names=context.local_names)
    else:
        yield replace(host(operands[0], name, local_names=context.local_names), name_lookup=True)


def _timeout(client: Client, parsed: Parsed) -> float | None:
    bounds: dict[str, float] = {}
    for option, value in parsed.options:
        unit = client.timeouts.get(option)
        if unit is not None and (length := seconds(value, unit)) is not None:
            bounds[option] = length
    if not bounds:
        return None
    whole = [length for option, length in bounds.items() if option not in client.parts]
    total = sum(whole) if client.syntax.style is Style.GO else max(whole or bounds.values())
    tries = 1.0
    for option, extra in client.repeats.items():
        number = seconds(parsed.value((option,)))
        if number:
            tries = min(number, 1000.0) + extra
    return total * tries


# Clients that no row describes


def _dig(name: str, arguments: Sequence[str], context: Context) -> tuple[tuple[Host, ...], float | None]:
    parsed = parse_options(arguments, valued("-p -t -c -b -f -k -q -x -y"))
    servers = [word[1:] for word in parsed.operands if word.startswith("@")]
    names = [word for word in parsed.operands if word[:1] not in "@+" and not word.isupper()]
    timeout = None
    for word in parsed.operands:
        if word.startswith(("+time=", "+timeout=")):
            timeout = seconds(word.partition("=")[2])
    for word in parsed.operands:
        if word.startswith("+tries=") and timeout is not None:
            timeout *= min(seconds(word.partition("=")[2]) or 1.0, 1000.0)
    looked_up = [*servers[:1], *names[:1]] if servers else names[:1]
    return tuple(_name_lookup(looked_up[::-1], name, context)) if looked_up else (), timeout


def _getent(name: str, arguments: Sequence[str], context: Context) -> tuple[tuple[Host, ...], float | None]:
    databases = ("hosts", "ahosts", "ahostsv4", "ahostsv6")
    parsed = parse_options(arguments, valued("-s --service"))
    if not parsed.operands or parsed.operands[0] not in databases:
        return (), None
    names = parsed.operands[1 : hosts_module.MAX_HOSTS + 1]
    return tuple(found for each in names for found in _name_lookup([each], name, context)), None


def _openssl(name: str, arguments: Sequence[str], context: Context) -> tuple[tuple[Host, ...], float | None]:
    if not arguments or arguments[0] != "s_client":
        return (), None
    options = "-connect -host -port -servername -CAfile -cert -key -proxy -starttls -unix -bind"
    parsed = parse_options(arguments[1:], valued(options, Style.GO))
    target = parsed.value(("-connect",)) or parsed.value(("-host",)) or next(iter(parsed.operands), "")
    if not target or parsed.has("-unix"):
        return (), None
    found = host(target, name, local_names=context.local_names)
    if not (proxy := parsed.value(("-proxy",))):
        return (found,), None
    asked = host(proxy, name, local_names=context.local_names)
    return (asked, found.doubted() if asked.reach is Reach.LOCAL else found), None


def _ray(name: str, arguments: Sequence[str], context: Context) -> tuple[tuple[Host, ...], float | None]:
    """`ray health-check` and its like. Without an address Ray looks for one in RAY_ADDRESS, then on disk."""
    if not arguments or arguments[0] not in ("health-check", "status", "list", "summary", "job", "memory"):
        return (), None
    parsed = parse_options(arguments[1:], valued("--address --redis_password --component --timeout"))
    address = parsed.value(("--address",)) or context.stated("RAY_ADDRESS") or ""
    if address in ("", "auto"):
        return (Host("", Reach.UNDECIDABLE, name),), None
    return tuple(_named(address, name, context)), None


_SOCAT_REMOTE = ("tcp", "tcp4", "tcp6", "tcp-connect", "udp", "udp4", "udp6", "openssl", "ssl", "udp-connect")


def _socat(name: str, arguments: Sequence[str], context: Context) -> tuple[tuple[Host, ...], float | None]:
    found = []
    operands = parse_options(arguments, valued("-t -T -b -lf")).operands
    for word in operands[: hosts_module.MAX_HOSTS]:
        kind, colon, rest = word.partition(":")
        if colon and kind.lower() in _SOCAT_REMOTE:
            found.append(host(rest.partition(",")[0], name, local_names=context.local_names))
    return tuple(found), None


def _git(name: str, arguments: Sequence[str], context: Context) -> tuple[tuple[Host, ...], float | None]:
    parsed = parse_options(arguments, valued("-C -c -b --branch --depth --git-dir"))
    if not parsed.operands or parsed.operands[0] not in ("clone", "fetch", "pull", "push", "ls-remote"):
        return (), None
    named = [
        each for word in parsed.operands[1 : hosts_module.MAX_HOSTS] for each in _remote(word, name, context)
    ]
    return tuple(named) or (Host("the git remote", Reach.UNDECIDABLE, name),), None


_Special = Callable[[str, Sequence[str], Context], tuple[tuple[Host, ...], float | None]]
_SPECIAL: dict[str, _Special] = {
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
def names() -> frozenset[str]:
    """Every program that is known to reach hosts."""
    return frozenset(clients()) | frozenset(_SPECIAL)


def urls_of_unknown_program(name: str, arguments: Sequence[str], context: Context) -> Iterator[Host]:
    """The hosts of the URLs among `arguments` of a program that no table knows.

    It probably reaches them, but who knows: another machine's URL is undecidable, never external.
    """
    for word in arguments:
        text = word.partition("=")[2] if word.startswith("-") and "=" in word else word
        if is_url(text):
            yield from (each.doubted() for each in url_hosts(text, name, context.local_names))


def devtcp(path: str, context: Context) -> Host | None:
    """The host of bash's `/dev/tcp/host/port`, if `path` is one."""
    parts = path.split("/", 4)
    if len(parts) < 5 or parts[0] or parts[1] != "dev" or parts[2] not in ("tcp", "udp"):
        return None
    return host(parts[3], "/dev/tcp", local_names=context.local_names)
