"""The network and database clients that commands use, as data: where each one takes its host and timeouts
from.

A row lists which options take a value (so that the value isn't taken for a host), which of them name a host,
what the operands are, and the default host. The source is each client's manual page or `--help`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from policies.commands.model import Reach
from policies.commands.options import OptionSyntax, Style


class Operands(Enum):
    """What a client's operands are."""

    NONE = "none"
    URLS = "urls"
    """Each is a URL, its scheme optional."""
    HOSTS = "hosts"
    """Each is a host or host:port."""
    HOST = "host"
    """The first is a host or host:port, or a URL."""
    LOCATION = "location"
    """A URL or connection string where it looks like one; otherwise a database, a key, a path."""
    REMOTE = "remote"
    """`host:path` or a URL for another machine, a plain path otherwise (scp, rsync, git)."""
    LOOKUP = "lookup"
    """The first is a name to look up, the second the DNS server that is asked."""


@dataclass(frozen=True, slots=True)
class Client:
    """One row of a client table, made by `client`."""

    syntax: OptionSyntax
    operands: Operands = Operands.NONE
    hosts: frozenset[str] = frozenset()
    """Options whose value is a host, host:port, URL, or a comma-separated list of them."""
    locations: frozenset[str] = frozenset()
    """Options whose value is a database's name, or a URL or connection string for one."""
    env: tuple[str, ...] = ()
    """Variables that name the host when no option does."""
    default: Reach | None = None
    """The default host; None if there is none."""
    default_name: str = ""
    timeouts: dict[str, float] = field(default_factory=dict)
    """Options that bound the run, with the seconds that a bare number of theirs counts."""
    parts: frozenset[str] = frozenset()
    """Timeouts of one part, such as connecting: they count only if none of `timeouts` is given."""
    repeats: dict[str, int] = field(default_factory=dict)
    """Options that repeat the run: what to add to their number to get the tries."""
    proxies: frozenset[str] = frozenset()
    """Options whose value is a proxy, which is asked instead of the host."""
    bypass: frozenset[str] = frozenset()
    """Options that list the hosts for which no proxy is asked."""
    resolve: frozenset[str] = frozenset()
    """Options that give a name an address: curl's `host:port:address`, or `host:address`."""
    connect_to: frozenset[str] = frozenset()
    """Options that put another host in place of one: curl's `host:port:host:port`."""
    sockets: frozenset[str] = frozenset()
    """Options that name a Unix socket: no traffic leaves the container."""
    unread: frozenset[str] = frozenset()
    """Options that name a file or a profile with further settings, which can't be read here."""
    offline: frozenset[str] = frozenset()
    """Options and first operands with which the client reaches nothing (`--version`)."""


def client(
    operands: Operands = Operands.NONE,
    *,
    hosts: str = "",
    locations: str = "",
    ports: str = "",
    valued: str = "",
    flags: str = "",
    attached: str = "",
    env: str = "",
    default: Reach | None = None,
    default_name: str = "",
    timeouts: dict[str, float] | None = None,
    parts: dict[str, float] | None = None,
    repeats: dict[str, int] | None = None,
    proxies: str = "",
    bypass: str = "",
    resolve: str = "",
    connect_to: str = "",
    sockets: str = "",
    unread: str = "",
    offline: str = "--version --help",
    style: Style = Style.GNU,
) -> Client:
    """A row; option lists are separated by blanks. `timeouts` and `parts`: see `Client`."""
    bounds = {**(timeouts or {}), **(parts or {})}
    redirecting = (proxies, bypass, resolve, connect_to)
    named = (hosts, locations, ports, valued, *redirecting, sockets, unread)
    listed = " ".join((*named, *bounds, *(repeats or {})))
    return Client(
        syntax=OptionSyntax(
            frozenset(listed.split()), frozenset(flags.split()), frozenset(attached.split()), style
        ),
        operands=operands,
        hosts=frozenset(hosts.split()),
        locations=frozenset(locations.split()),
        env=tuple(env.split()),
        default=default,
        default_name=default_name,
        timeouts=bounds,
        parts=frozenset(parts or {}),
        repeats=repeats or {},
        proxies=frozenset(proxies.split()),
        bypass=frozenset(bypass.split()),
        resolve=frozenset(resolve.split()),
        connect_to=frozenset(connect_to.split()),
        sockets=frozenset(sockets.split()),
        unread=frozenset(unread.split()),
        offline=frozenset(offline.split()),
    )


# Plain network protocols: HTTP, gRPC, raw sockets, ping, DNS, SSH; and what waits for ports

_CURL = client(
    Operands.URLS,
    hosts="--url",
    proxies="-x --proxy --socks4 --socks4a --socks5 --socks5-hostname --preproxy --proxy1.0",
    bypass="--noproxy",
    resolve="--resolve",
    connect_to="--connect-to",
    valued=(
        "-A --user-agent -b --cookie -c --cookie-jar -C --continue-at -d --data --data-raw"
        " --data-binary --data-ascii --data-urlencode --json -D --dump-header -e --referer -E --cert"
        " -F --form --form-string -h -H --header -o --output --output-dir -P --ftp-port -Q --quote -r"
        " --range -t --telnet-option -T --upload-file -u --user -U --proxy-user -w --write-out -X"
        " --request -y --speed-time -Y --speed-limit -z --time-cond --cacert --capath --cert-type"
        " --ciphers --key --key-type --pass --oauth2-bearer --interface"
        " --dns-servers --limit-rate --max-redirs --max-filesize --retry-delay --tls-max"
        " --proto --proto-default --aws-sigv4 --trace --trace-ascii --stderr --pinnedpubkey"
        " --keepalive-time --local-port --url-query --request-target --haproxy-clientip"
        " --happy-eyeballs-timeout-ms --expect100-timeout --retry-max-time --doh-url --curves --engine"
        " --rate"
    ),
    flags=(
        "--fail --fail-with-body --fail-early --silent --show-error --location --location-trusted"
        " --insecure --verbose --include --head --get --ipv4 --ipv6 --compressed --http1.0 --http1.1"
        " --http2 --http2-prior-knowledge --http3 --retry-connrefused --retry-all-errors"
        " --no-progress-meter --globoff --no-keepalive --no-buffer --raw --path-as-is --tlsv1"
        " --tlsv1.2 --tlsv1.3 --ssl --ssl-reqd --negotiate --basic --digest --ntlm --anyauth --netrc"
        " --remote-name --progress-bar --tcp-nodelay --parallel --next --no-alpn --post301 --post302"
        " --create-dirs --disable --haproxy-protocol --proxy-insecure"
    ),
    timeouts={"-m": 1, "--max-time": 1},
    parts={"--connect-timeout": 1},
    repeats={"--retry": 1},
    sockets="--unix-socket --abstract-unix-socket",
    unread="-K --config",
    offline="--version --help -V --manual -M",
)

_WGET = client(
    Operands.URLS,
    hosts="-B --base",
    valued=(
        "-o --output-file -a --append-output -O --output-document -P --directory-prefix -U"
        " --user-agent --header --user --password --post-data --post-file --body-data --body-file"
        " --method --ca-certificate --ca-directory --certificate --private-key -w --wait --waitretry"
        " -Q --quota --limit-rate -e --execute --bind-address --http-user --http-password --referer"
        " --load-cookies --save-cookies -l --level -A --accept -R --reject -D --domains -I"
        " --include-directories -X --exclude-directories --secure-protocol --max-redirect --proxy-user"
        " --proxy-password -Y"
    ),
    flags=(
        "--quiet --spider --no-check-certificate --server-response --content-on-error --no-verbose"
        " --no-proxy --verbose --no-hsts --no-cache --no-cookies --inet4-only --inet6-only"
        " --retry-connrefused --continue --save-headers --no-http-keep-alive --trust-server-names"
        " --progress --show-progress --recursive"
    ),
    timeouts={"-T": 1, "--timeout": 1},
    parts={"--connect-timeout": 1, "--read-timeout": 1, "--dns-timeout": 1},
    repeats={"-t": 0, "--tries": 0},
    unread="-i --input-file --config",
    offline="--version --help -V",
)

_NC = client(
    Operands.HOST,
    proxies="-x --proxy",
    valued=(
        "-e -c --exec --sh-exec -p --source-port -s --source -I -O -q -T -X -P -i -m -G -V -b -M"
        " --idle-timeout --proxy-type --proxy-auth"
    ),
    flags="--send-only --recv-only --udp --ssl --verbose --no-dns --zero --ssl-verify",
    timeouts={"-w": 1, "--wait": 1},
    sockets="-U --unixsock",
    offline="--version --help -l --listen -h",
)

_GRPC_HEALTH_PROBE = client(
    hosts="-addr",
    valued=(
        "-service -user-agent -rpc-header -tls-ca-cert -tls-client-cert -tls-client-key"
        " -tls-server-name -alts -spiffe"
    ),
    timeouts={"-connect-timeout": 1, "-rpc-timeout": 1},
    style=Style.GO,
    offline="-version -help",
)


def _url_tool(valued: str = "", timeouts: dict[str, float] | None = None) -> Client:
    return client(Operands.URLS, valued=valued, timeouts=timeouts)


_HTTPIE = client(
    Operands.URLS,
    valued="-a --auth -A --auth-type --timeout -o --output --session -p --print --interface",
    proxies="--proxy",
    resolve="--resolve",
    sockets="--unix-socket",
)
_PING = client(
    Operands.HOSTS,
    valued="-c -i -s -t -I -p -Q -m -l -S",
    timeouts={"-w": 1},
    parts={"-W": 1},
    repeats={"-c": 0},
    offline="-V -h",
)
_SSH = client(
    Operands.HOST,
    valued="-b -c -D -E -e -F -I -i -J -L -l -m -O -o -p -Q -R -S -W -w -B -P",
    ports="-p",
    offline="-V",
)
_COPY = client(Operands.REMOTE, valued="-c -F -i -J -l -o -P -S -e --rsh --exclude --include --port -b -n -T")
_WAIT_FOR = client(
    Operands.HOST,
    hosts="-h --host",
    ports="-p --port",
    flags="--quiet --strict -s -q",
    timeouts={"-t": 1, "--timeout": 1},
)

NETWORK: dict[str, Client] = {
    "curl": _CURL,
    "wget": _WGET,
    "nc": _NC,
    "ncat": _NC,
    "netcat": _NC,
    "telnet": client(Operands.HOST, valued="-l -b -e -n -S -X"),
    "grpc_health_probe": _GRPC_HEALTH_PROBE,
    "grpc-health-probe": _GRPC_HEALTH_PROBE,
    "grpcurl": client(
        Operands.HOST,
        valued=(
            "-d -H -rpc-header -reflect-header -proto -import-path -protoset -cacert -cert -key"
            " -authority -servername -max-msg-sz -format -user-agent"
        ),
        flags="-plaintext -insecure -v -vv -emit-defaults -allow-unknown-fields -format-error",
        timeouts={"-max-time": 1},
        parts={"-connect-timeout": 1},
        sockets="-unix",
        style=Style.GO,
        offline="-version -help",
    ),
    "grpc-client-cli": client(Operands.HOST, valued="-s -m -i -d -a --deadline"),
    "http": _HTTPIE,
    "https": _HTTPIE,
    "xh": _HTTPIE,
    "xhs": _HTTPIE,
    "lynx": _url_tool(),
    "aria2c": _url_tool("-d -o -x -s -j"),
    "axel": _url_tool("-o -n"),
    "hey": _url_tool("-n -c -q -z -m -H -t -A -d -D -T -a -x -cpus", {"-t": 1}),
    "ab": _url_tool("-n -c -t -s -p -T -H -C -A"),
    "websocat": _url_tool(),
    "wscat": client(hosts="-c --connect"),
    "ftp": client(Operands.HOST),
    "tftp": client(Operands.HOST),
    "lftp": client(Operands.HOST, valued="-e -u -p -c -f"),
    "ping": _PING,
    "ping6": _PING,
    "fping": _PING,
    "arping": _PING,
    "tracepath": client(Operands.HOST, valued="-m -l -p"),
    "traceroute": client(Operands.HOST, valued="-m -p -q -w -f -i -s"),
    "nmap": client(Operands.HOSTS, valued="-p -iL -oN -oX -oG --script -T"),
    "nslookup": client(Operands.LOOKUP, style=Style.GO, timeouts={"-timeout": 1}),
    "host": client(Operands.LOOKUP, valued="-t -c -N -R -m", timeouts={"-W": 1}),
    "ssh": _SSH,
    "sftp": _SSH,
    "scp": _COPY,
    "rsync": _COPY,
    "wait-for-it": _WAIT_FOR,
    "wait-for-it.sh": _WAIT_FOR,
    "wait-for": _WAIT_FOR,
    "wait-for-port": client(hosts="--host", valued="--state", timeouts={"--timeout": 1}, default=Reach.LOCAL),
    "wait4x": client(Operands.HOSTS, timeouts={"-t": 1, "--timeout": 1}),
    "dockerize": client(
        hosts="-wait",
        valued="-wait-http-header -wait-retry-interval -template -stdout -stderr -env",
        timeouts={"-timeout": 1},
        style=Style.GO,
    ),
    "rpcinfo": client(Operands.HOST, valued="-T -n"),
    "showmount": client(Operands.HOST),
}

# Databases, queues and coordination services, Kubernetes, clouds

_PG = "PGHOST PGHOSTADDR"
_PSQL = client(
    Operands.LOCATION,
    hosts="-h --host",
    locations="-d --dbname",
    ports="-p --port",
    valued=(
        "-U --username -c --command -f --file -v --set --variable -P --pset -o --output"
        " -F --field-separator -R --record-separator -L --log-file -T --table-attr -t -n -j -Z"
    ),
    flags="--no-align --tuples-only --quiet --no-password --no-psqlrc --single-transaction",
    env=_PG,
    default=Reach.LOCAL,
    default_name="localhost",
)
_PG_ISREADY = client(
    hosts="-h --host",
    locations="-d --dbname",
    ports="-p --port",
    valued="-U --username",
    timeouts={"-t": 1, "--timeout": 1},
    env=_PG,
    default=Reach.LOCAL,
    default_name="localhost",
    offline="--version --help -V -?",
)
_MYSQL = client(
    hosts="-h --host",
    ports="-P --port",
    valued=(
        "-u --user -D --database -e --execute -S --socket --protocol --defaults-file"
        " --defaults-extra-file --default-character-set --ssl-ca --ssl-cert --ssl-key --ssl-mode"
        " --login-path -r --count -i --sleep"
    ),
    attached="-p -w",
    flags="--silent --skip-column-names --password --no-beep --batch --verbose --ssl --wait --skip-ssl",
    timeouts={"--connect-timeout": 1, "--connect_timeout": 1},
    env="MYSQL_HOST",
    default=Reach.LOCAL,
    default_name="localhost",
    offline="--version --help -V -?",
)
_REDIS = client(
    hosts="-h -u",
    ports="-p",
    valued=(
        "-a --pass --user -n -r -i -D -d -c --cacert --cacertdir --cert --key --sni --pattern --rdb"
        " --eval --ldb --tls-ciphers --tls-ciphersuites"
    ),
    flags=(
        "--tls --raw --no-raw --no-auth-warning --csv --json --insecure --stat --latency --scan"
        " --bigkeys -3 --askpass"
    ),
    timeouts={"-t": 1},
    sockets="-s",
    default=Reach.LOCAL,
    default_name="127.0.0.1",
    offline="--version --help -v",
)
_MONGO = client(
    Operands.LOCATION,
    hosts="--host",
    ports="--port",
    valued=(
        "-u --username -p --password --authenticationDatabase --authenticationMechanism --eval -f"
        " --file --tlsCAFile --tlsCertificateKeyFile --tlsCertificateKeyFilePassword --sslCAFile"
        " --sslPEMKeyFile --serverSelectionTimeoutMS --apiVersion --tlsCertificateSelector"
    ),
    flags=(
        "--quiet --norc --tls --ssl --tlsAllowInvalidCertificates --tlsAllowInvalidHostnames --shell"
        " --nodb --sslAllowInvalidCertificates --sslAllowInvalidHostnames --json"
    ),
    default=Reach.LOCAL,
    default_name="localhost",
    offline="--version --help --nodb",
)
_CQLSH = client(
    Operands.HOST,
    valued=(
        "-u --username -p --password -e --execute -k --keyspace -f --file --cqlversion"
        " --protocol-version --encoding --browser"
    ),
    flags="--ssl --no-color --color --debug -C --tty",
    timeouts={"--connect-timeout": 1, "--request-timeout": 1},
    unread="--cqlshrc --credentials",
    env="CQLSH_HOST",
    default=Reach.LOCAL,
    default_name="localhost",
)
_KAFKA = client(
    hosts="--bootstrap-server --broker-list --zookeeper --bootstrap-controller",
    valued=(
        "--topic --group --command-config --consumer.config --producer.config --partitions --timeout"
        " --replication-factor --entity-type --entity-name --config --max-messages --property --from"
    ),
    flags="--list --describe --create --version --if-not-exists --unavailable-partitions --all-groups",
    timeouts={"--timeout-ms": 1e-3},
)
_KCAT = client(
    hosts="-b",
    valued="-t -p -o -c -X -D -K -G -m -s -r -F -f",
    offline="-V -h",
)
_ETCDCTL = client(
    hosts="--endpoints --endpoint",
    valued="--cacert --cert --key --user --password -C",
    flags="--cluster --insecure-skip-tls-verify --insecure-transport",
    timeouts={"--command-timeout": 1, "--dial-timeout": 1},
    env="ETCDCTL_ENDPOINTS",
    default=Reach.LOCAL,
    default_name="127.0.0.1",
    offline="version help --version --help",
)


_KUBECTL = client(
    hosts="-s --server",
    valued=(
        "-n --namespace -l --selector -o --output -f --filename -c --container --context --kubeconfig"
        " --token --as --field-selector --for --timeout -p --patch --type --cluster --user --template"
        " --sort-by"
    ),
    flags=(
        "--all-namespaces -A --no-headers --watch --all --ignore-not-found --insecure-skip-tls-verify"
        " --overwrite --force --now --previous --quiet"
    ),
    default=Reach.EXTERNAL,
    default_name="the Kubernetes API server",
    timeouts={"--request-timeout": 1, "--timeout": 1},
    offline="--version --help -h --client config completion kustomize options help",
)
_HELM = client(
    default=Reach.EXTERNAL, default_name="the Kubernetes API server", offline="version template lint"
)


def _cloud(name: str, *, hosts: str = "", valued: str = "", offline: str = "") -> Client:
    return client(
        hosts=hosts,
        valued=valued,
        default=Reach.EXTERNAL,
        default_name=name,
        offline=f"--version --help help version -h {offline}",
    )


DATA: dict[str, Client] = {
    "psql": _PSQL,
    "pg_dump": _PSQL,
    "pg_dumpall": _PSQL,
    "pg_basebackup": _PSQL,
    "createdb": _PSQL,
    "vacuumdb": _PSQL,
    "pg_isready": _PG_ISREADY,
    "mysql": _MYSQL,
    "mysqladmin": _MYSQL,
    "mysqlshow": _MYSQL,
    "mysqlcheck": _MYSQL,
    "mysqldump": _MYSQL,
    "mariadb": _MYSQL,
    "mariadb-admin": _MYSQL,
    "redis-cli": _REDIS,
    "valkey-cli": _REDIS,
    "keydb-cli": _REDIS,
    "redis-benchmark": _REDIS,
    "mongosh": _MONGO,
    "mongo": _MONGO,
    "cqlsh": _CQLSH,
    "nodetool": client(
        hosts="-h --host",
        ports="-p --port",
        valued="-u --username -pw --password -pwf --password-file",
        default=Reach.LOCAL,
        default_name="127.0.0.1",
    ),
    "clickhouse-client": client(
        hosts="-h --host",
        ports="--port",
        valued="-u --user --password -q --query -d --database --format",
        timeouts={"--connect_timeout": 1},
        default=Reach.LOCAL,
        default_name="localhost",
    ),
    "influx": client(hosts="-host --host", ports="-port", default=Reach.LOCAL, default_name="localhost"),
    "sqlcmd": client(
        hosts="-S --server",
        valued="-U -P -Q -q -d -i -o -v -h -W",
        timeouts={"-l": 1, "-t": 1},
        default=Reach.LOCAL,
        default_name="localhost",
    ),
    "cypher-shell": client(
        hosts="-a --address --uri",
        valued="-u --username -p --password -d --database",
        default=Reach.LOCAL,
        default_name="localhost",
    ),
    "ldapsearch": client(
        hosts="-H -h",
        ports="-p",
        valued="-D -w -W -b -s -y -l -o",
        default=Reach.LOCAL,
        default_name="localhost",
    ),
    "rabbitmqctl": client(valued="-n -t", default=Reach.LOCAL, default_name="localhost", timeouts={"-t": 1}),
    "rabbitmqadmin": client(
        hosts="-H --host",
        ports="-P --port",
        valued="-u --username -p --password -V --vhost -N --node -f --format -c --config",
        default=Reach.LOCAL,
        default_name="localhost",
        offline="--version --help help",
    ),
    "rabbitmq-diagnostics": client(
        valued="-n --node", default=Reach.LOCAL, default_name="localhost", timeouts={"-t": 1, "--timeout": 1}
    ),
    "memcached-tool": client(Operands.HOST),
    "kcat": _KCAT,
    "kafkacat": _KCAT,
    **{
        name + suffix: _KAFKA
        for name in (
            "kafka-topics",
            "kafka-broker-api-versions",
            "kafka-consumer-groups",
            "kafka-console-consumer",
            "kafka-console-producer",
            "kafka-configs",
            "kafka-metadata-quorum",
            "kafka-get-offsets",
            "kafka-cluster",
            "kafka-acls",
            "kafka-leader-election",
            "kafka-log-dirs",
        )
        for suffix in (".sh", "")
    },
    "zkcli.sh": client(hosts="-server", style=Style.GO, default=Reach.LOCAL, default_name="localhost"),
    "zookeeper-shell.sh": client(Operands.HOST),
    "zookeeper-shell": client(Operands.HOST),
    "etcdctl": _ETCDCTL,
    "vault": client(
        hosts="-address", env="VAULT_ADDR", default=Reach.LOCAL, default_name="127.0.0.1", style=Style.GO
    ),
    "consul": client(
        hosts="-http-addr",
        env="CONSUL_HTTP_ADDR",
        default=Reach.LOCAL,
        default_name="127.0.0.1",
        style=Style.GO,
    ),
    "nats": client(hosts="-s --server", env="NATS_URL", default=Reach.LOCAL, default_name="localhost"),
}

CLOUD: dict[str, Client] = {
    "kubectl": _KUBECTL,
    "oc": _KUBECTL,
    "helm": _HELM,
    "aws": _cloud(
        "AWS",
        hosts="--endpoint-url --endpoint",
        valued="--region --profile --output --query --cli-connect-timeout --cli-read-timeout --bucket --key",
        offline="configure",
    ),
    "gsutil": _cloud("Google Cloud Storage"),
    "gcloud": _cloud("Google Cloud", offline="config"),
    "bq": _cloud("BigQuery"),
    "az": _cloud("Azure"),
    "azcopy": _cloud("Azure Storage"),
    "s3cmd": _cloud("S3", hosts="--host", valued="-c --config"),
    "s5cmd": _cloud("S3", hosts="--endpoint-url"),
    "huggingface-cli": _cloud("Hugging Face", offline="env scan-cache"),
    "hf": _cloud("Hugging Face", offline="env"),
    "rclone": client(default=Reach.UNDECIDABLE, offline="version config help rc"),  # rc asks its own pod
    "mc": client(default=Reach.UNDECIDABLE, offline="--version --help alias"),
}

CLIENTS: dict[str, Client] = {**NETWORK, **DATA, **CLOUD}
