"""The flags of `chassis serve`. Importing this loads no server module."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import fields

from puller.flags import SWITCHED, Flags
from webhook.config.location import CONFIG_MAP, config_map
from webhook.errors import UserError
from webhook.kube.own_pod import in_cluster

ENVIRONMENT = "CHASSIS_"

LEVELS = ("debug", "info", "warning", "error")
Format = Literal["auto", "json", "console"]
FORMATS: tuple[Format, ...] = ("auto", "json", "console")
Switch = Literal["on", "off"]
SWITCH: tuple[Switch, ...] = ("on", "off")


class ServerOptions(Struct, frozen=True, kw_only=True):
    """The parsed flags. Times in seconds."""

    policy: str | None
    """A directory, or `configmap:NS/NAME`; None: defaults."""
    tls_cert: Path | None
    tls_key: Path | None
    tls_ca: Path | None
    self_signed: bool
    tls_secret: str
    tls_host: Sequence[str] | None
    kubeconfig: Path | None
    facts: Path | None
    namespace: str | None
    service: str
    webhook_configurations: str
    host: str
    port: int
    workers: int
    memo: int
    """MiB."""
    fast_path: Switch
    drain_grace: float
    drain_patience: float
    log_level: str
    log_format: Format

    @property
    def policy_config_map(self) -> tuple[str, str] | None:
        """Namespace and name of the policy's ConfigMap. UserError if `policy` has no such form."""
        if self.policy and self.policy.startswith(CONFIG_MAP):
            return config_map(self.policy)
        return None

    @property
    def uses_cluster(self) -> bool:
        return bool(self.kubeconfig) or in_cluster()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `chassis serve`. Each has an environment variable: `CHASSIS_` and its name."""
    flags = Flags(ENVIRONMENT, os.environ)
    policy = partial(flags.add, parser.add_argument_group("policy"))
    policy(
        "--policy",
        metavar="DIR|configmap:NS/NAME",
        help="where the policy comes from; default: the built-in policy",
    )
    tls = partial(flags.add, parser.add_argument_group("serving certificate"))
    tls("--tls-cert", type=Path, metavar="FILE", help="PEM certificate chain, with --tls-key")
    tls("--tls-key", type=Path, metavar="FILE", help="PEM key for --tls-cert")
    tls("--tls-ca", type=Path, metavar="FILE", help="PEM CA of --tls-cert, which is written to the caBundle")
    tls(
        "--self-signed",
        **SWITCHED,
        help=(
            "create a CA and a certificate, renew them, and write the caBundle; in a cluster they are in "
            "--tls-secret, which all replicas share, elsewhere in memory"
        ),
    )
    tls(
        "--tls-secret", default="mlchassis-tls", metavar="NAME", help="Secret for --self-signed (%(default)s)"
    )
    tls(
        "--tls-host",
        metavar="NAME|IP",
        action="append",
        help="additional name in the certificate; may be repeated (in the environment: separated by commas)",
    )
    cluster = partial(flags.add, parser.add_argument_group("cluster"))
    cluster("--kubeconfig", type=Path, metavar="FILE", help="API server to use (default: the pod's own)")
    cluster(
        "--facts",
        type=Path,
        metavar="PATH",
        help="manifests whose objects serve as facts if there is no cluster",
    )
    cluster("--namespace", metavar="NAME", help="the webhook's own namespace (default: the pod's)")
    cluster(
        "--service", default="mlchassis", metavar="NAME", help="Service in front of the webhook (%(default)s)"
    )
    cluster(
        "--webhook-configurations",
        default="chassis.mlchassis.dev",
        metavar="NAME",
        help=(
            "name of the MutatingWebhookConfiguration and ValidatingWebhookConfiguration that call the "
            "webhook (%(default)s)"
        ),
    )
    serving = partial(flags.add, parser.add_argument_group("serving"))
    serving("--host", default="", help="address to listen on (default: all)")
    serving("--port", type=int, default=8443, help="port to listen on, 0 for a free one (%(default)s)")
    serving("--workers", type=int, default=1, help="number of processes that share the port (%(default)s)")
    serving(
        "--memo",
        type=int,
        default=16,
        metavar="MIB",
        help=(
            "memory of each process for answers that it can repeat for the same pod template, 0 for none "
            "(%(default)s)"
        ),
    )
    serving(
        "--fast-path",
        choices=SWITCH,
        default="on",
        help=(
            "whether repeated requests may be answered without aiohttp, JSON and the engine; `off` "
            "includes --memo 0 and changes no answer (%(default)s)"
        ),
    )
    serving(
        "--drain-grace",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="how long to continue serving, unready, after SIGTERM (%(default)s)",
    )
    serving(
        "--drain-patience",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="how long open requests may take after that (%(default)s)",
    )
    logs = partial(flags.add, parser.add_argument_group("log"))
    logs("--log-level", choices=LEVELS, default="info", help="lowest level that is logged (%(default)s)")
    logs(
        "--log-format",
        choices=FORMATS,
        default="auto",
        help="log format: `auto` is JSON in a pod and columns on a terminal (%(default)s)",
    )


def options_of(args: argparse.Namespace) -> ServerOptions:
    """The flags as Options. UserError if they contradict each other."""
    files = bool(args.tls_cert), bool(args.tls_key)
    if any(files) and not all(files):
        raise UserError("--tls-cert and --tls-key must be used together")
    if all(files) == args.self_signed:
        raise UserError("choose one: --tls-cert with --tls-key, or --self-signed")
    if args.workers < 1:
        raise UserError("--workers must be 1 or more")
    if args.memo < 0:
        raise UserError("--memo must be 0 or more")
    options = ServerOptions(**{field.name: getattr(args, field.name) for field in fields(ServerOptions)})
    if options.policy_config_map and not options.uses_cluster:
        raise UserError("--policy configmap: needs a cluster; run in a pod or set --kubeconfig")
    return options
