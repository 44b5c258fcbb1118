"""`chassis certs`: create a serving certificate, or show one."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from webhook.errors import UserError
from webhook.server import pki

OK, DUE = 0, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    issue = commands.add_parser(
        "issue",
        help="create a CA and a serving certificate",
        description=(
            "Write ca.crt, tls.crt and tls.key for the flags --tls-ca, --tls-cert and --tls-key of chassis "
            "serve. The CA's key isn't stored: to renew, run issue again and install the new ca.crt."
        ),
    )
    issue.add_argument("directory", type=Path, metavar="DIR", help="created if missing")
    issue.add_argument(
        "--namespace", default="mlchassis-system", help="namespace of the Service (%(default)s)"
    )
    issue.add_argument("--service", default="mlchassis", help="name of the Service (%(default)s)")
    issue.add_argument(
        "--host", action="append", default=[], help="additional host name or IP; may be repeated"
    )
    issue.add_argument("--force", action="store_true", help="overwrite existing files")
    issue.set_defaults(run=_issue)
    show = commands.add_parser(
        "show",
        help="show a certificate's hosts and expiry",
        description="Exit status: 0 valid, 1 expired or due for renewal, 2 the file can't be read.",
    )
    show.add_argument("file", type=Path, metavar="FILE", help="PEM certificate or chain")
    show.set_defaults(run=_show)


def _issue(args: argparse.Namespace) -> int:
    names = ("ca.crt", "tls.crt", "tls.key")
    existing = [name for name in names if (args.directory / name).exists()]
    if existing and not args.force:
        raise UserError(
            f"{args.directory}: {', '.join(existing)} would be overwritten, and the API server would no "
            "longer trust a webhook that serves with them; --force overwrites them"
        )
    try:
        bundle = pki.issue(pki.service_hosts(args.namespace, args.service, args.host), datetime.now(UTC))
    except pki.CertificateError as error:
        raise UserError(str(error)) from None
    args.directory.mkdir(parents=True, exist_ok=True)
    for name, content in zip(names, (bundle.ca, bundle.certificate, bundle.key), strict=True):
        path = args.directory / name
        path.unlink(missing_ok=True)
        path.touch(mode=0o600 if name == "tls.key" else 0o644)
        path.write_bytes(content)
    print(f"wrote ca.crt, tls.crt and tls.key to {args.directory}, valid until {pki.expiry(bundle):%Y-%m-%d}")
    return OK


def _show(args: argparse.Namespace) -> int:
    try:
        bundle = pki.Bundle(args.file.read_bytes(), b"")
        ends, hosts = pki.expiry(bundle), pki.hosts_of(bundle)
    except (OSError, pki.CertificateError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{args.file}: {why}") from None
    now = datetime.now(UTC)
    state = "ended" if ends <= now else "due for renewal" if pki.needs_renewal(bundle, now) else "fine"
    print(f"hosts:  {', '.join(hosts) or 'none'}")
    print(f"until:  {ends:%Y-%m-%d %H:%M} UTC ({state})")
    return OK if state == "fine" else DUE
