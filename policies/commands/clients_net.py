"""Clients of plain network protocols: HTTP, gRPC, raw sockets, ping, DNS, SSH; and what waits for ports."""

from __future__ import annotations

from policies.commands.client import Client, Operands, client
from policies.commands.model import Reach
from policies.commands.options import Style

_CURL = client(
    Operands.URLS,
    hosts="--url -x --proxy --socks5 --socks5-hostname --preproxy",
    valued=(
        "-A --user-agent -b --cookie -c --cookie-jar -C --continue-at -d --data --data-raw"
        " --data-binary --data-ascii --data-urlencode --json -D --dump-header -e --referer -E --cert"
        " -F --form --form-string -h -H --header -o --output --output-dir -P --ftp-port -Q --quote -r"
        " --range -t --telnet-option -T --upload-file -u --user -U --proxy-user -w --write-out -X"
        " --request -y --speed-time -Y --speed-limit -z --time-cond --cacert --capath --cert-type"
        " --ciphers --key --key-type --pass --oauth2-bearer --resolve --connect-to --interface"
        " --dns-servers --noproxy --limit-rate --max-redirs --max-filesize --retry-delay --tls-max"
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
    Operands.HOST_PORT,
    hosts="-x --proxy",
    valued=(
        "-e -c --exec --sh-exec -p --source-port -s --source -I -O -q -T -X -P -i -m -G -V -b -M"
        " --idle-timeout"
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
    "telnet": client(Operands.HOST_PORT, valued="-l -b -e -n -S -X"),
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
    "http": _url_tool("-a --auth -A --auth-type --timeout -o --output --session -p --print"),
    "https": _url_tool("-a --auth -A --auth-type --timeout -o --output --session -p --print"),
    "xh": _url_tool("-a --auth -A --auth-type --timeout -o --output --session -p --print"),
    "lynx": _url_tool(),
    "aria2c": _url_tool("-d -o -x -s -j"),
    "axel": _url_tool("-o -n"),
    "hey": _url_tool("-n -c -q -z -m -H -t -A -d -D -T -a -x -cpus", {"-t": 1}),
    "ab": _url_tool("-n -c -t -s -p -T -H -C -A"),
    "websocat": _url_tool(),
    "wscat": client(hosts="-c --connect"),
    "ftp": client(Operands.HOST_PORT),
    "tftp": client(Operands.HOST_PORT),
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
