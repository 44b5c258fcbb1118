"""`chassis policy`: check a policy, show what an edit of it would change, or print its JSON Schema."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Final

from webhook.cli.exit_status import OK

if TYPE_CHECKING:
    from webhook.admission.configuration import Config

WHERE: Final = "a directory, a file, - for standard input, or configmap:NAMESPACE/NAME"
BUILT_IN: Final = "built-in"
"""How the defaults are named where two policies are compared."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands of `chassis policy`."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    check = commands.add_parser("check", help="whether a policy loads; exit 2 if not")
    check.add_argument("policy", metavar="POLICY", help=WHERE)
    _add_connection(check)
    check.set_defaults(run=_check)
    from webhook.cli import policy_diff

    policy_diff.add_arguments(commands.add_parser("diff", help="what would change under another policy"))
    commands.add_parser("schema", help="print the JSON Schema of a policy").set_defaults(run=_schema)


def _add_connection(parser: argparse.ArgumentParser) -> None:
    from webhook.cli import connection

    connection.add_arguments(parser)


def _check(args: argparse.Namespace) -> int:
    config = read_policy(args.policy, kubeconfig=args.kubeconfig, context=args.context)
    print(f"{args.policy}: the policy is good (profile {config.rules.profile}, digest {config.digest})")
    return OK


def _schema(_: argparse.Namespace) -> int:
    from webhook.config.load import schema

    print(json.dumps(schema(), indent=2))
    return OK


def read_policy(
    where: str | None, profile: str | None = None, kubeconfig: str | None = None, context: str | None = None
) -> Config:
    """The policy at one of the places of WHERE, or the built-in one (None); UserError if it can't be had."""
    from webhook.config.load import load

    if where is None:
        config = load({})
    else:
        from webhook.config.location import CONFIG_MAP, config_map, read_config_map, read_files

        if where.startswith(CONFIG_MAP):
            config_map(where)  # before a cluster is looked for
            from webhook.cli.connection import connected

            with connected(kubeconfig, context) as (api, wait):
                config = load(wait(read_config_map(api, where)))
        else:
            config = load(read_files(where))
    return config if profile is None else config.with_profile(profile)
