"""The hosts that code given to an interpreter reaches. The code is never run.

`ast` parses Python. Hosts are in the arguments of known calls: string literals, f-strings, `os.environ`,
names bound to these, `socket.gethostname()`. Of other languages only the URLs in string literals are read.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from policies.commands import values
from policies.commands.client_hosts import ClientContext
from policies.commands.hosts import is_url
from policies.commands.model import Host, Reach, StepBudget

MAX_CODE = 32_768
"""Maximum length of code that is parsed, in characters."""
_NUMBER_LIMIT = 1 << 128
"""Python refuses to convert numbers with thousands of digits to text; an IPv6 address is a smaller number."""

_REQUEST_CALLS = frozenset({"requests.request", "httpx.request"})
"""Calls whose second argument is the URL."""
_PAIR_CALLS = frozenset({"socket.create_connection", "create_connection"})
"""Calls whose first argument is a pair (host, port)."""
_ADDRESS_CLASSES = frozenset({"InferenceServerClient", "HTTPConnection", "HTTPSConnection"})
"""Classes that count in any module: Triton's client has one for HTTP and one for gRPC."""
_CONNECTING = frozenset({"connect", "connect_ex"})
_TEXT_CALLS = frozenset(
    {"print", "write", "log", "debug", "info", "warning", "error", "exception", "format", "join", "split"}
    | {"urlparse", "urlsplit", "quote", "replace", "startswith", "endswith", "strip", "dumps", "len", "str"}
)
"""Calls that only handle text: they do not reach a URL in it."""
_KEYWORD_CALLS = frozenset(
    {"redis.Redis", "redis.StrictRedis", "Redis", "StrictRedis", "clickhouse_connect.get_client"}
    | {"psycopg.connect", "psycopg2.connect", "asyncpg.connect"}
    | {"pymysql.connect", "MySQLdb.connect", "mysql.connector.connect"}
)
"""Calls that ask localhost if no argument names the host."""
_HOST_CALLS = (
    _KEYWORD_CALLS
    | {
        f"{module}.{verb}"
        for module in ("requests", "httpx")
        for verb in ("get", "post", "head", "put", "options")
    }
    | {"urllib.request.urlopen", "urlopen", "request.urlopen", "urllib.request.Request", "urllib.urlopen"}
    | {"urllib2.urlopen", "urllib.request.urlretrieve", "websocket.create_connection", "websockets.connect"}
    | {"http.client.HTTPConnection", "http.client.HTTPSConnection"}
    | {"smtplib.SMTP", "ftplib.FTP", "telnetlib.Telnet", "socket.gethostbyname", "socket.getaddrinfo"}
    | {"grpc.insecure_channel", "grpc.secure_channel", "grpc.aio.insecure_channel", "grpc.aio.secure_channel"}
    | {"pymongo.MongoClient", "MongoClient", "redis.from_url", "redis.Redis.from_url", "Redis.from_url"}
    | {"sqlalchemy.create_engine", "create_engine", "memcache.Client", "ray.init"}
    | {"amqp.Connection", "pika.URLParameters", "nats.connect"}
)
"""Calls with a host, `host:port` or a URL in a keyword of `_HOST_KEYWORDS` or in their first argument."""
_CLOUD_CALLS = frozenset({"boto3.client", "boto3.resource", "boto3.Session", "storage.Client"})
_COMMAND_CALLS = frozenset(
    {"os.system", "os.popen", "system", "popen", "check_output", "check_call", "run", "Popen"}
)
_NAME_LOOKUPS = frozenset({"socket.gethostbyname", "socket.getaddrinfo"})
_SOCKET_KEYWORDS = frozenset({"unix_socket", "unix_socket_path", "uds"})
"""Keywords for a Unix socket, which takes precedence over the host (PyMySQL, redis-py, httpx)."""
_PROXY_KEYWORDS = frozenset({"proxies", "proxy", "transport", "mounts", "connector"})
"""Keywords for a proxy or the like, which may answer instead of the host (requests, httpx, aiohttp)."""
_HOST_KEYWORDS = (
    *("hostaddr", "host", "hostname", "server", "bootstrap_servers"),
    *("hosts", "address", "target", "url", "dsn"),
)
_OWN_CALLS = frozenset({"socket.gethostname", "gethostname", "socket.getfqdn", "platform.node"})
_NETWORK_WORDS = ("requests", "urllib", "httpx", "socket", "redis", "psycopg", "grpc", "pymongo", "boto3")


class Code(Struct, frozen=True):
    """The effects of Python code. `commands`: scripts for a shell (str), programs with arguments (list)."""

    hosts: tuple[Host, ...] = ()
    timeout: float | None = None
    calls: tuple[str, ...] = ()
    commands: tuple[str | list[str], ...] = ()
    endless: bool = False
    """It contains a `while True` that no counter or deadline ends."""
    undecidable: str = ""


_STRING = re.compile(r"'([^'\n]*)'|\"([^\"\n]*)\"|`([^`\n]*)`")
_NETWORK_CODE = re.compile(
    r"\b(?:http|https|net|fetch|axios|socket|Socket|TCPSocket|LWP|curl|redis|pg|mysql)\b"
)


def hosts_of_code(text: str, program: str, context: ClientContext, budget: StepBudget) -> list[Host]:
    """The hosts in code of a language that is not parsed, all uncertain. `program`: its interpreter."""
    budget.spend(len(text) // 8)
    found: list[Host] = []
    for literal in _STRING.finditer(text):
        budget.spend(2)
        inside = literal[1] or literal[2] or literal[3] or ""
        if is_url(inside):
            budget.spend(8)
            found.extend(context.url_hosts(inside, program))
        elif inside in ("localhost", "127.0.0.1", "::1"):
            found.append(Host(inside, Reach.LOCAL, program))
    if not found and _NETWORK_CODE.search(text):
        found.append(Host("", Reach.UNDECIDABLE, program))
    return list(map(Host.uncertain, found))


def read_python(code: str, context: ClientContext, budget: StepBudget) -> Code:
    """The hosts, calls and commands of Python code. Raises only BudgetSpent."""
    budget.spend(len(code))
    tree = _parsed(code) if len(code) <= MAX_CODE else None
    if tree is None:
        reaches = any(word in code for word in _NETWORK_WORDS)
        unread = (Host("", Reach.UNDECIDABLE, "python"),) if reaches else ()
        return Code(unread, undecidable="the Python code could not be parsed")
    reader = _CodeReader(tree, context, budget)
    return reader.code()


def argument_of(code: str, called: str, keyword: str) -> int | None:
    """A number that Python code passes by keyword to a function or class of this name."""
    tree = _parsed(code) if called in code and len(code) <= MAX_CODE else None
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and called in (
            getattr(node.func, "id", ""),
            getattr(node.func, "attr", ""),
        ):
            for each in node.keywords:
                if each.arg == keyword and isinstance(each.value, ast.Constant):
                    return each.value.value if isinstance(each.value.value, int) else None
    return None


def _parsed(code: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


_RAY_WORDS = frozenset({"auto", "local"})
"""Addresses of Ray that are no hosts: https://docs.ray.io/en/latest/ray-core/api/doc/ray.init.html"""


class _CodeReader:
    def __init__(self, tree: ast.Module, context: ClientContext, budget: StepBudget) -> None:
        self.context = context
        self.budget = budget
        self.nodes: list[ast.AST] = []
        for node in ast.walk(tree):
            budget.spend(4)
            self.nodes.append(node)
        self.imports = _imported_names(self.nodes)
        self.bound = self._bindings()
        self.texts: dict[str, str] = {}

    def code(self) -> Code:
        hosts: list[Host] = []
        timeouts: list[float] = []
        calls: list[str] = list(self.imports.values())
        commands: list[str | list[str]] = []
        for node in self.nodes:
            if not isinstance(node, ast.Call):
                continue
            name = self._name(node.func)
            calls.append(name)
            hosts.extend(self._redirected(node, self._hosts_of_call(name, node)))
            timeouts.extend(_timeouts_of_call(node))
            commands.extend(self._commands_of_call(name, node))
        return Code(
            hosts=tuple(hosts),
            timeout=sum(timeouts) if timeouts else None,
            calls=tuple(dict.fromkeys(call for call in calls if call)),
            commands=tuple(commands),
            endless=_has_endless_loop(self.nodes),
        )

    def _bindings(self) -> dict[str, ast.expr]:
        """The expressions of names that are assigned once."""
        bound: dict[str, ast.expr] = {}
        reassigned: set[str] = set()
        for node in self.nodes:
            if (
                isinstance(node, ast.Assign)
                and len(node.targets) == 1
                and isinstance(node.targets[0], ast.Name)
            ):
                name = node.targets[0].id
                reassigned.update({name} & bound.keys())
                bound[name] = node.value
            elif isinstance(node, ast.For | ast.AugAssign | ast.NamedExpr) and isinstance(
                node.target, ast.Name
            ):
                reassigned.add(node.target.id)
        return {name: value for name, value in bound.items() if name not in reassigned}

    def _name(self, node: ast.expr) -> str:
        """The dotted name of a callee, its first part as imported: `r.get` -> `requests.get`."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            parts.append(self.imports.get(node.id, node.id))
        elif parts:
            parts.append("")
        name = ".".join(reversed(parts))
        self.budget.scan(len(name))
        return name

    def _text(self, node: ast.expr | None, depth: int = 0) -> str:
        """The string value of an expression; parts that only the running container knows are marked."""
        text = self._evaluated(node, depth)
        self.budget.scan(len(text))
        return text

    def _evaluated(self, node: ast.expr | None, depth: int) -> str:
        if depth > 30:
            return values.unknown("value")
        match node:
            case ast.Constant(value=str(text)):
                return values.clean(text)
            case ast.Constant(value=bytes(raw)):
                return values.clean(raw.decode("ascii", "replace"))
            case ast.Constant(value=int(number)) if abs(number) < _NUMBER_LIMIT:
                return str(number)
            case ast.JoinedStr(values=parts):
                return "".join(self._text(part, depth + 1) for part in parts)[: values.MAX_VALUE]
            case ast.FormattedValue(value=inner):
                return self._text(inner, depth + 1)
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                joined = self._text(left, depth + 1) + self._text(right, depth + 1)
                return joined if len(joined) <= values.MAX_VALUE else values.unknown("value")
            case ast.Name(id=name) if name in self.bound:
                if name not in self.texts:
                    self.texts[name] = values.unknown(name)  # for a name bound to itself
                    self.texts[name] = self._text(self.bound[name], depth + 1)
                return self.texts[name]
            case ast.Name(id=name):
                return values.unknown(name)
            case ast.Subscript(value=mapping, slice=ast.Constant(value=str(variable))):
                if self._name(mapping) in ("os.environ", "environ"):
                    return self._variable(variable, None)
            case ast.Call(func=function, args=arguments):
                return self._text_of_call(self._name(function), arguments, depth)
        return values.unknown("value")

    def _text_of_call(self, name: str, arguments: list[ast.expr], depth: int) -> str:
        if name in _OWN_CALLS:
            return values.own("HOSTNAME")
        if name in ("socket.gethostbyname", "str") and arguments:
            return self._text(arguments[0], depth + 1)
        if name in ("os.getenv", "getenv", "os.environ.get", "environ.get") and arguments:
            match arguments[0]:
                case ast.Constant(value=str(variable)):
                    default = self._text(arguments[1], depth + 1) if len(arguments) > 1 else None
                    return self._variable(variable, default)
        return values.unknown(name or "value")

    def _variable(self, name: str, default: str | None) -> str:
        value = self.context.lookup(name)
        if value is not None:
            return value
        return values.unknown(name) if default is None else default

    def _redirected(self, call: ast.Call, hosts: Iterator[Host]) -> Iterator[Host]:
        """The hosts of a call, which a socket or a proxy in its keywords may replace."""
        keywords = {
            keyword.arg
            for keyword in call.keywords
            if not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)
        }
        if keywords & _SOCKET_KEYWORDS:
            return
        yield from hosts if keywords.isdisjoint(_PROXY_KEYWORDS) else map(Host.uncertain, hosts)

    def _hosts_of_call(self, name: str, call: ast.Call) -> Iterator[Host]:
        keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        first = call.args[0] if call.args else None
        base = name.rpartition(".")[2]
        pair = first if first is not None else keywords.get("address")
        if (
            (base in _CONNECTING or name in _PAIR_CALLS)
            and isinstance(pair, ast.Tuple)
            and len(pair.elts) > 1
        ):
            yield self._host(self._text(pair.elts[0]))
        elif name in _PAIR_CALLS:
            yield Host("", Reach.UNDECIDABLE, "python")
        elif name in _REQUEST_CALLS:
            yield from self._address(call.args[1] if len(call.args) > 1 else keywords.get("url"))
        elif name in _HOST_CALLS or base in _ADDRESS_CLASSES:
            yield from self._named(name, first, keywords)
        elif name in _CLOUD_CALLS:
            endpoint = keywords.get("endpoint_url")
            aws = Host("AWS", Reach.EXTERNAL, "python")
            yield from self._address(endpoint) if endpoint is not None else [aws]
        elif base not in _TEXT_CALLS and is_url(url := self._text(first) if first is not None else ""):
            # A session's `get`, or an unknown library: the call probably asks the URL.
            yield from map(Host.uncertain, self.context.url_hosts(url, "python"))

    def _named(self, name: str, first: ast.expr | None, keywords: dict[str, ast.expr]) -> Iterator[Host]:
        """The host in a keyword, else in the first argument, else the call's default."""
        named = next((keywords[keyword] for keyword in _HOST_KEYWORDS if keyword in keywords), first)
        if name == "ray.init" and (text := self._text(named)) in _RAY_WORDS:
            if text == "auto":  # the head that RAY_ADDRESS or a file of the node names
                yield Host("", Reach.UNDECIDABLE, "ray")
        elif named is not None:
            lookup = name in _NAME_LOOKUPS
            yield from (replace(each, name_lookup=lookup) for each in self._address(named))
        elif name in _KEYWORD_CALLS:
            yield self._host("localhost")

    def _address(self, node: ast.expr | None) -> Iterator[Host]:
        if isinstance(node, ast.List | ast.Tuple) and node.elts:
            for element in node.elts[:20]:
                yield from self._address(element)
            return
        if isinstance(node, ast.Call) and node.args and self._name(node.func).endswith("Request"):
            node = node.args[0]
        text = self._text(node)
        if is_url(text):
            yield from self.context.url_hosts(text, "python")
        elif "=" in text:
            pairs = dict(pair.partition("=")[::2] for pair in text.split())
            yield self._host(pairs.get("host") or "localhost")
        else:
            yield self._host(text)

    def _host(self, text: str) -> Host:
        return self.context.host(text, "python")

    def _commands_of_call(self, name: str, call: ast.Call) -> Iterator[str | list[str]]:
        if name not in _COMMAND_CALLS and not name.startswith("subprocess."):
            return
        match next(iter(call.args), None):
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                yield [self._text(element) for element in elements]
            case ast.expr() as node:
                yield self._text(node)


def _imported_names(nodes: list[ast.AST]) -> dict[str, str]:
    """Local name -> dotted name, of every import."""
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.partition(".")[0]
                names[local] = alias.name if alias.asname else local
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module or ''}.{alias.name}"
    return names


def _timeouts_of_call(call: ast.Call) -> Iterator[float]:
    for keyword in call.keywords:
        if keyword.arg not in ("timeout", "connect_timeout", "socket_timeout"):
            continue
        match keyword.value:
            case ast.Constant(value=int() | float() as number) if (
                not isinstance(number, bool) and number >= 0
            ):
                yield float(min(number, 1e6))
            case ast.Tuple(elts=elements):
                yield sum(
                    float(min(each.value, 1e6))
                    for each in elements
                    if isinstance(each, ast.Constant) and isinstance(each.value, int | float)
                )


def _has_endless_loop(nodes: list[ast.AST]) -> bool:
    """Whether the code contains a `while True` without an exit that depends on a counter or a clock.

    `nodes` are in the order of `ast.walk`, parents before children. In reverse order one pass is enough,
    however deep loops and tests are nested.
    """
    exiting: set[ast.AST] = set()
    exiting_by_counter: set[ast.AST] = set()
    for node in reversed(nodes):
        inner = list(ast.iter_child_nodes(node))
        if _exits(node) or not exiting.isdisjoint(inner):
            exiting.add(node)
        if not exiting_by_counter.isdisjoint(inner) or (node in exiting and _tests_a_counter(node)):
            exiting_by_counter.add(node)
        if node not in exiting_by_counter:
            match node:
                case ast.While(test=ast.Constant(value=always)) if always:
                    return True
    return False


def _tests_a_counter(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Compare)
        and any(isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in node.test.ops)
    )


def _exits(node: ast.AST) -> bool:
    if isinstance(node, ast.Break | ast.Raise | ast.Return):
        return True
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("exit", "_exit", "quit")
