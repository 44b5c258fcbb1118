"""The place of hosts: the cases that a rule must not get wrong, then each client's own ways."""

from __future__ import annotations

from typing import Any

import pytest

from policies.commands import Host, Reach, read
from tests.tables import table

ENV: list[dict[str, Any]] = [
    {"name": "MODEL_REGISTRY", "value": "http://registry:5000"},
    {"name": "LOCAL_URL", "value": "http://127.0.0.1:$(PORT)"},
    {"name": "PORT", "value": "8080"},
    {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
    {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
    {"name": "DB_HOST", "valueFrom": {"secretKeyRef": {"name": "db", "key": "host"}}},
]


def reaches(argv: list[str], **options: Any) -> list[tuple[str, Reach]]:
    return [(host.name, host.reach) for host in read(argv, ENV, **options).hosts]


def sh(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


LOCAL = [
    sh("curl -sf http://localhost:8080/health"),
    sh("curl -sf http://$POD_IP:8080/health"),
    sh("curl -sf http://${HOSTNAME}:8080/"),
    sh("curl -sf http://$POD_NAME.svc-headless:8080/"),
    sh("curl 'http://[::1]:8080/'"),
    ["curl", "http://127.0.0.1:$(PORT)/ready"],
    ["curl", "$(LOCAL_URL)/ready"],
    ["curl", "--url", "localhost:8080", "-H", "Host: example.com", "-o", "/dev/null"],
    sh("curl http://${BIND_HOST:-localhost}:8080"),
    sh("A=127.0.0.1:8080; nc -z ${A%:*} ${A#*:}"),
    sh("curl http://$(hostname -i):8080"),
    sh("curl http://`hostname`:8080"),
    sh('IP=$(hostname -I | cut -d" " -f1); curl http://$IP:8080'),
    sh("curl --unix-socket /run/x.sock http://payments/health; redis-cli ping"),
    sh("wget -T 2 -q -O- http://localhost:52365/api/local_raylet_healthz | grep success"),
    ["grpc_health_probe", "-addr=:8080"],
    ["grpc_health_probe", "--addr", "localhost:8080"],
    ["redis-cli", "ping"],
    ["pg_isready", "-U", "postgres"],
    ["psql", "-U", "postgres", "-c", "select 1"],
    ["pg_isready", "-U", "postgres", "-d", "dbname=app"],
    ["psql", "-d", "app", "-c", "select 1"],
    ["psql", "postgresql:///app?host=/run/postgresql"],
    ["mysqladmin", "ping", "-h127.0.0.1", "-psecret@db"],
    ["mongosh", "--eval", "db.adminCommand('ping')"],
    ["aws", "--endpoint-url", "http://localhost:9000", "s3", "ls"],
    ["nc", "-z", "127.1", "9000"],
    ["etcdctl", "endpoint", "health"],
    sh("exec 3<>/dev/tcp/127.0.0.1/5432"),
    sh("dig @127.0.0.1 -p 53 kubernetes.default.svc"),
    ["python3", "-c", "import requests; requests.get(f'http://localhost:{8000}/health')"],
    ["python", "-c", "import socket; socket.create_connection((socket.gethostname(), 8080))"],
    ["node", "-e", "require('http').get('http://127.0.0.1:3000/healthz')"],
    ["env", "PGHOST=localhost", "psql", "-c", "select 1"],
    sh("for p in 80 81; do curl -sf localhost:$p || exit 1; done"),
    sh("for h in localhost 127.0.0.1; do nc -z $h 80; done"),
    ["sqlcmd", "-S", "localhost,1433", "-Q", "select 1"],
    sh("if curl -sf localhost; then echo http://db; fi || kill 1"),
    ["wget", "-qO-", "--header=Host: db", "http://127.0.0.1"],
    ["curl", "-d", '{"url": "http://db"}', "localhost/health"],
    sh('curl -sf -H "Host: models.example.com" http://127.0.0.1:8080/health'),
    sh("""wget -qO- 127.0.0.1:8080/health | grep -q '"status":"ok"'"""),
    sh("nc -z 0.0.0.0 8080"),
    ["curl", "-g", "http://[::1]:8080/health"],
    # sockets, addresses in options, and lists of hosts without a proxy
    sh("curl --resolve payments:443:127.0.0.1 https://payments/health"),
    sh("curl --resolve '*:80:[::1]' http://payments/"),
    sh("curl --resolve +payments:80:$POD_IP http://payments/"),
    sh("curl --connect-to ::localhost:8443 https://payments/"),
    sh("curl --connect-to payments:443:127.0.0.1:8443 https://payments/"),
    sh("curl --connect-to=::x: --resolve x:443:127.0.0.1 https://payments/"),
    sh("curl --abstract-unix-socket x http://payments/"),
    sh("curl -x http://proxy:3128 --noproxy '*' http://localhost:80/"),
    sh("curl -x http://proxy:3128 --noproxy localhost,10.0.0.0/8 http://localhost:80/"),
    sh("curl -x http://proxy:3128 --proxy '' http://localhost:80/"),
    sh("curl --interface eth0 --local-port 1-9 --dns-servers 1.1.1.1 http://localhost"),
    sh("wget --bind-address 10.0.0.1 http://localhost/"),
    sh("wget --bind-address=10.0.0.1 http://localhost/"),
    sh("wget -e use_proxy=off http://localhost/"),
    sh("xh --resolve payments:127.0.0.1 https://payments/"),
    sh("xh --unix-socket=/run/x.sock https://payments/"),
    ["grpc_health_probe", "-addr=unix:/run/x.sock"],
    ["grpc_health_probe", "-addr=unix:///run/x.sock"],
    ["grpc_health_probe", "-addr", "unix-abstract:x"],
    ["grpc_health_probe", "-addr=passthrough:///localhost:1"],
    ["grpc_health_probe", "-addr=dns:///localhost:1"],
    ["grpc_health_probe", "-addr=ipv4:127.0.0.1:1"],
    ["grpc_health_probe", "-addr=ipv6:[::1]:1"],
    ["grpcurl", "-unix", "/run/x.sock", "list"],
    ["grpcurl", "-plaintext", "-unix=true", "/run/x.sock", "list"],
    sh("nc -U /run/x.sock"),
    sh("ncat --unixsock /run/x.sock"),
    sh("openssl s_client -unix /run/x.sock"),
    sh("openssl s_client -servername payments -connect localhost:443"),
    sh("psql postgresql://payments/db?hostaddr=127.0.0.1"),
    sh("psql 'host=payments hostaddr=127.0.0.1'"),
    sh("psql postgresql://%2Frun%2Fpostgresql/db"),
    sh("psql 'postgresql://payments/db?host=/run/postgresql'"),
    sh("PGHOSTADDR=127.0.0.1 psql -h payments"),
    sh("PGHOSTADDR=127.0.0.1 pg_isready -h payments"),
    sh("mongosh mongodb://%2Ftmp%2Fmongodb-27017.sock/db"),
    sh("http http+unix://%2Frun%2Fx.sock/info"),
    sh("redis-cli -u unix:///run/x"),
    sh("redis-cli -s /run/x -h payments"),
    sh("socat - UNIX-CONNECT:/run/x"),
    ["python", "-c", "import requests_unixsocket as r; r.get('http+unix://%2Frun%2Fx/info')"],
    ["python", "-c", "import pymysql; pymysql.connect(host='db', unix_socket='/run/x')"],
    ["python", "-c", "import psycopg; psycopg.connect(host='db', hostaddr='127.0.0.1')"],
    ["python", "-c", "import redis; redis.Redis(host='db', unix_socket_path='/run/x')"],
]


@table("argv", LOCAL)
def test_local(argv: list[str]) -> None:
    assert {reach for _, reach in reaches(argv)} <= {Reach.LOCAL}


NOTHING = [
    sh("echo http://payments/health"),
    sh("test -f /tmp/redis-cli && cat /opt/redis-cli/ready"),
    ["cat", "/var/lib/curl/http://payments"],
    ["test", "-x", "/opt/redis-cli/ready"],
    sh("test -f /tmp/ready # curl http://payments/health"),
    ["/opt/redis-cli/bin/check"],
    sh("grep -q http://payments /etc/config"),
    sh("[ -s /model ] && ! pgrep -f 'curl http://payments'"),
    ["kubectl", "version", "--client"],
    sh("command -v kubectl"),
    sh("command -V aws && test -s /tmp/ready"),
    ["curl", "--version"],
    sh("# curl http://payments\ntrue"),
    sh("cat <<'EOF'\ncurl http://payments\nEOF"),
    sh("echo 'curl http://payments' | tee /tmp/x | cat"),
    sh("echo 'curl http://payments' | { cat; sh -c true; }"),
    sh("echo 'curl http://payments'; cat /tmp/x | bash"),
    ["getent", "passwd", "app"],
    ["ray", "--version"],
    ["python", "-c", "import logging; logging.info('http://payments/'); print('http://db')"],
    ["python", "-c", "import sqlite3; sqlite3.connect('/data/db')"],
]


@table("argv", NOTHING)
def test_reaches_nothing(argv: list[str]) -> None:
    assert reaches(argv) == []


EXTERNAL = [
    (sh("exec 3<>/dev/tcp/db/5432"), "db"),
    (["bash", "-c", "</dev/tcp/db/5432"], "db"),
    (sh("(echo > /dev/tcp/db/5432) 2>/dev/null"), "db"),
    (["bash", "-c", "{ true; } 3<>/dev/tcp/db/5432"], "db"),
    (sh('curl "$MODEL_REGISTRY/health"'), "registry"),
    (["curl", "$(MODEL_REGISTRY)/health"], "registry"),
    (["bash", "-c", "wget -qO- http://other-svc"], "other-svc"),
    (sh("curl http://$HOST_IP:8126/health"), "$HOST_IP"),
    (sh("curl http://db.$NAMESPACE.svc:80/"), "db.$NAMESPACE.svc"),
    (sh("true && (sleep 1; sh -c \"bash -c 'curl -s http://db'\")"), "db"),
    (sh("timeout 3 env A=b nohup curl db:80"), "db"),
    (["bash", "-c", "timeout 4 bash -c 'curl -f http://db:80'"], "db"),
    (sh("curl -sf localhost:8080 && curl -sf payments"), "payments"),
    (sh("cat <<< PING | nc -w 2 queue 5672"), "queue"),
    (sh("if [ -f x ]; then :; else exec nc -w 2 db 80; fi"), "db"),
    (sh("case $1 in a) ;; *) curl db;; esac"), "db"),
    (sh("until curl -s db; do sleep 1; done"), "db"),
    (sh("H=db; curl http://$H/"), "db"),
    (sh("A=db:5432; nc -z ${A%:*} ${A##*:}"), "db"),
    (sh("U=postgres://u:p@db:5432/x; H=${U#*@}; nc -z ${H%%:*} 5432"), "db"),
    (sh("F=db.data.svc; getent hosts ${F%%.*}"), "db"),
    (sh("check() { curl -sf http://$1/; }; check db"), "db"),
    (sh('[ "$(curl -s -o /dev/null -w "%{http_code}" http://db/)" = 200 ]'), "db"),
    (sh("echo `curl -s http://db/`"), "db"),
    (sh("cat <(curl -s http://db/)"), "db"),
    (["sh", "-c", 'curl "http://$1/"', "_", "db"], "db"),
    (sh("for h in db cache:6379; do nc -z $h 80 || exit 1; done"), "cache"),
    (sh("for i in 0 1 2; do nc -z shard-$i.shard 80 || exit 1; done"), "shard-2.shard"),
    (sh("for i in $(seq 0 2); do nc -z shard-$i.shard 80 || exit 1; done"), "shard-2.shard"),
    (["bash", "-c", "for i in {0..2}; do nc -z shard-$i.shard 80 || exit 1; done"], "shard-2.shard"),
    (sh('HOSTS="db cache"; for h in $HOSTS; do nc -z $h 80 || exit 1; done'), "cache"),
    (["sh", "-c", 'exec "$@"', "_", "curl", "http://db"], "db"),
    (["sh", "-euo", "pipefail", "-c", "curl db"], "db"),
    (["bash", "-lc", "bash <<'EOF'\ncurl db\nEOF"], "db"),
    (sh('bash <<< "curl db"'), "db"),
    (sh('echo "curl -sf http://db/" | sh'), "db"),
    (sh("echo -e 'test -f x\\ncurl db' | timeout 5 bash -s"), "db"),
    (sh("printf '%s\\n' 'curl db' | sh"), "db"),
    (sh("cat <<EOF | sh\ncurl db\nEOF"), "db"),
    (sh("echo 'import requests; requests.get(\"http://db\")' | python3 -"), "db"),
    (sh('eval "curl http://db"'), "db"),
    (sh('CMD="curl -s http://db"; $CMD'), "db"),
    (["busybox", "wget", "-q", "http://db/"], "db"),
    (["curl", "http://user:p@ss@db:80/?next=http://localhost/"], "db"),
    (["curl", "http://localhost@db/"], "db"),
    (["curl", "-sfm5", "db"], "db"),
    (["curl", "-x", "http://proxy:3128", "http://localhost"], "proxy"),
    (["curl", "http://[2001:db8::1]:80/"], "2001:db8::1"),
    (["nc", "-zvw3", "db", "5432"], "db"),
    (["telnet", "db", "80"], "db"),
    (["grpc_health_probe", "-addr", "triton:8001"], "triton"),
    (["redis-cli", "-h", "redis", "ping"], "redis"),
    (["redis-cli", "-u", "redis://redis:6379/0"], "redis"),
    (["env", "PGHOST=db", "psql", "-c", "select 1"], "db"),
    (["psql", "host=db port=5432 dbname=x"], "db"),
    (["psql", "postgresql://u:p@db/x"], "db"),
    (["psql", "-d", "postgresql://u:p@db/x", "-c", "select 1"], "db"),
    (["pg_isready", "--dbname=host=db port=5432"], "db"),
    (["rabbitmqadmin", "-H", "queue", "list", "queues"], "queue"),
    (["mysqladmin", "--host=db", "ping"], "db"),
    (["mongosh", "mongodb://a,b/x"], "a"),
    (["mongo", "db:27017/admin", "--eval", "1"], "db"),
    (["cqlsh", "cassandra", "9042"], "cassandra"),
    (["kafka-topics.sh", "--bootstrap-server", "k1:9092,k2:9092", "--list"], "k2"),
    (["/usr/bin/kubectl", "get", "pods"], "the Kubernetes API server"),
    (["aws", "s3", "ls"], "AWS"),
    (["gsutil", "ls", "gs://models"], "Google Cloud Storage"),
    (["ping", "-q", "-c", "1", "db"], "db"),
    (["openssl", "s_client", "-connect", "db:443"], "db"),
    (["ssh", "user@bastion", "true"], "bastion"),
    (["ray", "health-check", "--address", "head:6379"], "head"),
    (["dig", "@10.0.0.10", "x"], "10.0.0.10"),
    (["getent", "hosts", "db"], "db"),
    (["socat", "-", "TCP:db:80,connect-timeout=2"], "db"),
    (["wait-for-it.sh", "db:5432", "-t", "0"], "db"),
    (["dockerize", "-wait", "tcp://db:5432"], "db"),
    (["python", "-c", "import requests as r; r.get('http://db/x')"], "db"),
    (["python", "-c", "from urllib.request import urlopen\nurlopen('http://db/')"], "db"),
    (["python", "-c", "import os,redis; redis.Redis(host=os.getenv('R', 'redis')).ping()"], "redis"),
    (["python", "-c", "import socket; s=socket.socket(); s.connect(('db', 1))"], "db"),
    (["python", "-c", "import grpc; grpc.insecure_channel('db:1')"], "db"),
    (["python", "-c", "import psycopg; psycopg.connect('host=db dbname=x')"], "db"),
    (["python", "-c", "import psycopg; psycopg.connect('dbname=x', host='db')"], "db"),
    (["python", "-c", "import os; os.system('curl http://db')"], "db"),
    (["python", "-c", "import subprocess; subprocess.run(['curl', 'http://db'])"], "db"),
    (["python", "-c", "import os,httpx\nu=os.environ['MODEL_REGISTRY']\nhttpx.get(u+'/h')"], "registry"),
    (
        [
            "python",
            "-c",
            "import tritonclient.http as t; t.InferenceServerClient('triton:8000').is_server_live()",
        ],
        "triton",
    ),
    (["python", "-c", "import http.client as h; h.HTTPConnection('db', 80)"], "db"),
    (["python", "-c", "import boto3; boto3.client('s3').list_buckets()"], "AWS"),
    (sh("python - <<EOF\nimport requests\nrequests.get('http://db')\nEOF"), "db"),
    # options that do not concern the host, or name another one
    (sh("curl --resolve payments:443:127.0.0.1 http://payments/"), "payments"),
    (sh("curl --resolve other:80:127.0.0.1 http://payments/"), "payments"),
    (sh("curl --connect-to other:80:localhost:80 http://payments/"), "payments"),
    (sh("curl --resolve payments:80:10.0.0.7 http://payments/"), "10.0.0.7"),
    (sh("curl --connect-to ::db:80 http://localhost/"), "db"),
    (sh("curl -x http://proxy:3128 --noproxy other http://localhost/"), "proxy"),
    (sh("curl -x http://proxy:3128 http://localhost/"), "proxy"),
    (sh("curl -x http://localhost:1 --noproxy payments http://payments/"), "payments"),
    (sh("http_proxy=http://localhost:1 no_proxy=payments curl http://payments/"), "payments"),
    (["grpc_health_probe", "-addr=dns:///payments:80"], "payments"),
    (["grpc_health_probe", "-addr=dns://1.1.1.1/payments:80"], "payments"),
    (sh("psql postgresql://localhost/db?hostaddr=10.0.0.1"), "10.0.0.1"),
]


@table(("argv", "name"), EXTERNAL)
def test_external(argv: list[str], name: str) -> None:
    assert (name, Reach.EXTERNAL) in reaches(argv)


UNDECIDABLE = [
    sh("curl http://$DB_HOST/"),
    sh("curl $UNSET_URL/health"),
    sh('curl -f "http://$(cat /etc/target)/"'),
    ["curl", "$(DB_HOST)/health"],
    ["mysqladmin", "ping", "-h", "$(NOT_SET)"],
    sh(". /etc/app.env; curl $MODEL_REGISTRY"),
    sh("if [ -n $X ]; then H=db; else H=localhost; fi; curl http://$H/"),
    sh("read H < /etc/host; curl http://$H/"),
    sh("for h in db localhost; do nc -z $h 80; done"),
    sh("for h in $HOSTS; do nc -z $h 80; done"),
    sh("curl http://$NAMESPACE-db/"),
    sh("A=db-0-1; curl http://${A%-?-*}/"),
    sh("A=db; curl http://${A%*b*}/"),
    sh("echo http://db | xargs curl"),
    ["curl", "-K", "/etc/curlrc"],
    ["curl", "--brand-new-option", "db:80"],
    ["/app/check", "--url=http://db/health"],
    ["node", "-e", "require('http').get('http://db/')"],
    ["perl", "-e", "use IO::Socket; socket($x)"],
    ["python", "-c", "import requests; requests.get(url"],
    ["python", "-c", "import requests; requests.Session().get('http://db/')"],
    ["python", "-c", "import requests,sys; requests.get(sys.argv[1])"],
    ["ray", "health-check"],
    ["python", "-c", "import ray; ray.init('auto')"],
    ["python", "-c", "import ray; ray.init(address='auto', namespace='serve')"],
    sh("curl http://db/ ; ((("),
    sh("if true; then curl http://db"),
    sh('http() { set -- -s "$@"; curl "$@" "http://127.0.0.1:9200$1"; }; http / -f'),
    # a proxy in the pod, or an unknown address, may answer
    sh("curl -x http://localhost:3128 http://payments/"),
    sh("curl --proxy socks5h://127.0.0.1:1080 http://payments/"),
    sh("curl --socks5-hostname localhost:9050 http://payments/"),
    sh("curl --socks4a localhost:9050 http://payments/"),
    sh("http_proxy=http://127.0.0.1:15001 curl http://payments/"),
    sh("export https_proxy=http://127.0.0.1:15001; wget https://payments/"),
    sh("ALL_PROXY=socks5://localhost:1 curl http://payments/"),
    sh("wget -e use_proxy=yes -e http_proxy=127.0.0.1:8080 http://payments/"),
    sh("curl -K /etc/curlrc http://payments/"),
    sh("http --proxy http:http://localhost:1 http://payments/"),
    sh("nc -X connect -x localhost:3128 payments 80"),
    sh("ncat --proxy localhost:3128 payments 80"),
    sh("openssl s_client -proxy localhost:1 -connect payments:443"),
    sh("echo 127.0.0.1 payments >> /etc/hosts; curl http://payments/"),
    sh("curl --resolve payments:443:$ADDR https://payments/"),
    sh("curl --connect-to ::$T: https://payments/"),
    [
        "python",
        "-c",
        "import requests; requests.get('http://payments/', proxies={'http': 'http://localhost:1'})",
    ],
    ["python", "-c", "import httpx; httpx.get('http://payments/', proxy='http://localhost:1')"],
]


@table("argv", UNDECIDABLE)
def test_undecidable(argv: list[str]) -> None:
    found = [reach for _, reach in reaches(argv)]
    assert Reach.UNDECIDABLE in found
    assert Reach.EXTERNAL not in found


def test_a_host_names_its_client_and_no_secret() -> None:
    (found,) = read(sh("curl -s https://user:secret@Registry.example.:8443/v2/?a=b")).hosts
    assert found == Host(name="registry.example", reach=Reach.EXTERNAL, client="curl")


def test_a_lookup_connects_to_nothing() -> None:
    (found,) = read(["nslookup", "mydb"]).hosts
    assert (found.name, found.name_lookup, found.reach) == ("mydb", True, Reach.EXTERNAL)
    (asked,) = read(["nslookup", "mydb", "127.0.0.1"]).hosts
    assert (asked.name, asked.name_lookup, asked.reach) == ("127.0.0.1", False, Reach.LOCAL)


def test_references_are_literal_in_probes_and_full_in_a_containers_command() -> None:
    probe = read(["curl", "http://$(POD_IP):80/"], ENV)
    assert [host.reach for host in probe.hosts] == [Reach.UNDECIDABLE]
    assert any("$(POD_IP) is empty in a probe" in note for note in probe.undecidable)
    assert reaches(["curl", "http://$(POD_IP):80/"], static=False) == [("$POD_IP", Reach.LOCAL)]
    assert reaches(["curl", "http://$$(PORT):80/"]) == [("$(port)", Reach.UNDECIDABLE)]


def test_env_from_makes_unset_variables_unknown() -> None:
    argv = sh("curl http://${BIND_HOST:-localhost}:8080")
    assert reaches(argv) == [("localhost", Reach.LOCAL)]
    assert reaches(argv, env_from=[{"configMapRef": {"name": "x"}}]) == [("$BIND_HOST", Reach.UNDECIDABLE)]


@pytest.mark.parametrize(
    "script", ["pg_isready -U app", "mysqladmin ping", ". /opt/env.sh; psql -c 'select 1'"]
)
def test_a_clients_default_host_is_used_despite_env_from(script: str) -> None:
    found = read(sh(script), [], [{"secretRef": {"name": "db"}}]).hosts
    assert [host.reach for host in found] == [Reach.LOCAL]
    stated = [{"name": name, "value": "db"} for name in ("PGHOST", "MYSQL_HOST")]
    assert {host.reach for host in read(["sh", "-c", script], stated).hosts} <= {
        Reach.EXTERNAL,
        Reach.UNDECIDABLE,
    }


def test_the_nodes_address_is_the_pods_own_with_host_network() -> None:
    assert reaches(sh("curl $HOST_IP"), host_network=True) == [("$HOST_IP", Reach.LOCAL)]


def test_further_local_names() -> None:
    assert reaches(["curl", "http://Me:80"], local_names=["me"]) == [("me", Reach.LOCAL)]
