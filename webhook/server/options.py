"""`chassis serve`: its flags, what goes together, and how many processes there are.

Light to import: the server itself, in `webhook.server.http.process`, is imported when it is to run.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from webhook.errors import UserError

ENVIRONMENT = "CHASSIS_"
CONFIG_MAP = "configmap:"


# --- flags ---------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `chassis serve`; each has an environment variable, `CHASSIS_` and its name."""
    parser.set_defaults(run=run)
    policy = parser.add_argument_group("policy")
    _flag(
        policy,
        "--policy",
        metavar="DIR|configmap:NS/NAME",
        help="where the policy comes from; without it everything is at its default",
    )
    tls = parser.add_argument_group("serving certificate")
    _flag(tls, "--tls-cert", type=Path, metavar="FILE", help="PEM certificate chain, with --tls-key")
    _flag(tls, "--tls-key", type=Path, metavar="FILE", help="PEM key of --tls-cert")
    _flag(tls, "--tls-ca", type=Path, metavar="FILE", help="PEM CA of --tls-cert, to be kept as caBundle")
    _switch(
        tls,
        "--self-signed",
        help="make a CA and certificate, renew them, and keep the caBundle; in a cluster they stand in "
        "--tls-secret, shared by all replicas, elsewhere in memory",
    )
    _flag(
        tls,
        "--tls-secret",
        default="mlchassis-tls",
        metavar="NAME",
        help="Secret of --self-signed (%(default)s)",
    )
    _flag(
        tls,
        "--tls-host",
        metavar="NAME|IP",
        action="append",
        help="another name in the certificate; may be repeated (in the environment: commas)",
    )
    cluster = parser.add_argument_group("cluster")
    _flag(
        cluster, "--kubeconfig", type=Path, metavar="FILE", help="API server to use (default: the pod's own)"
    )
    _flag(
        cluster,
        "--facts",
        type=Path,
        metavar="PATH",
        help="manifests that stand for the cluster where there is none, as for chassis review",
    )
    _flag(cluster, "--namespace", metavar="NAME", help="our own namespace (default: the pod's)")
    _flag(
        cluster, "--service", default="mlchassis", metavar="NAME", help="Service in front of us (%(default)s)"
    )
    _flag(
        cluster,
        "--webhook-configurations",
        default="chassis.mlchassis.dev",
        metavar="NAME",
        help="name of the Mutating- and ValidatingWebhookConfiguration that call us (%(default)s)",
    )
    serving = parser.add_argument_group("serving")
    _flag(serving, "--host", default="", help="address to listen on (default: all)")
    _flag(serving, "--port", type=int, default=8443, help="port to listen on, 0 for a free one (%(default)s)")
    _flag(serving, "--workers", type=int, default=1, help="processes that share the port (%(default)s)")
    _flag(
        serving,
        "--drain-grace",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="how long to go on serving, unready, after SIGTERM (%(default)s)",
    )
    _flag(
        serving,
        "--drain-patience",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="how long requests in flight may take after that (%(default)s)",
    )
    logs = parser.add_argument_group("log")
    _flag(logs, "--log-level", choices=("debug", "info", "warning", "error"), default="info")
    _flag(logs, "--log-format", choices=("auto", "json", "console"), default="auto")


def _variable(flag: str) -> str:
    return ENVIRONMENT + flag.removeprefix("--").replace("-", "_").upper()


def _flag(group: argparse._ArgumentGroup, flag: str, **options: Any) -> None:
    value = os.environ.get(_variable(flag))
    if value is not None:
        # argparse converts a default that is text by the flag's own type.
        options["default"] = value.split(",") if options.get("action") == "append" else value
    options["help"] = f"{options.get('help', '')} [{_variable(flag)}]".strip()
    group.add_argument(flag, **options)


def _switch(group: argparse._ArgumentGroup, flag: str, help: str) -> None:
    default = os.environ.get(_variable(flag), "").lower() in ("1", "true")
    group.add_argument(flag, action="store_true", default=default, help=f"{help} [{_variable(flag)}]")


def check(args: argparse.Namespace) -> None:
    """Raise UserError if the flags of `chassis serve` don't go together."""
    files = bool(args.tls_cert), bool(args.tls_key)
    if any(files) and not all(files):
        raise UserError("--tls-cert and --tls-key belong together")
    if all(files) == args.self_signed:
        raise UserError("choose one: --tls-cert with --tls-key, or --self-signed")
    if args.policy and args.policy.startswith(CONFIG_MAP):
        config_map(args.policy)
        if not (args.kubeconfig or in_cluster()):
            raise UserError("--policy configmap: needs a cluster: run in a pod or give --kubeconfig")
    if args.workers < 1:
        raise UserError("--workers must be 1 or more")


def config_map(value: str) -> tuple[str, str]:
    """Namespace and name in `configmap:NS/NAME`. UserError if they are not there."""
    namespace, _, name = value.removeprefix(CONFIG_MAP).partition("/")
    if not namespace or not name or "/" in name:
        raise UserError(f"--policy {value!r} must be configmap:NAMESPACE/NAME")
    return namespace, name


def in_cluster() -> bool:
    """Whether this process runs in a pod that may talk to its API server."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM; the exit status. UserError if the flags don't go together."""
    check(args)
    if args.workers == 1:
        return _start(args)
    with tempfile.TemporaryDirectory(prefix="chassis-metrics-") as directory:
        # Before prometheus_client is imported: it decides then where it keeps its counters.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = directory
        return _start(args)


def _start(args: argparse.Namespace) -> int:
    # Imported here: the server's libraries are not worth a `chassis --help`'s time.
    from webhook.server import log, process

    log.configure(args.log_level, args.log_format)
    return process.serve(args)
