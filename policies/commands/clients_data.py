"""Clients of databases, queues and coordination services, of Kubernetes and of the clouds."""

from __future__ import annotations

from policies.commands.client import Client, Operands, client
from policies.commands.model import Reach
from policies.commands.options import Style

_PG = {"PGHOST": "", "PGHOSTADDR": ""}
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
    env=" ".join(_PG),
    default=Reach.LOCAL,
    default_name="localhost",
)
_PG_ISREADY = client(
    hosts="-h --host",
    locations="-d --dbname",
    ports="-p --port",
    valued="-U --username",
    timeouts={"-t": 1, "--timeout": 1},
    env=" ".join(_PG),
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
    Operands.HOST_PORT,
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
    "rclone": client(default=Reach.UNDECIDABLE, offline="version config help"),
    "mc": client(default=Reach.UNDECIDABLE, offline="--version --help alias"),
}
