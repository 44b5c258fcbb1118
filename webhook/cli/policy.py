"""`chassis policy`: check and test a policy, preview an edit of it, or print its JSON Schema."""

from __future__ import annotations

import argparse
import json

from webhook.cli import flags, policy_diff, policy_test
from webhook.cli.flags import OK
from webhook.cli.named_policy import read_policy
from webhook.config.load import schema
from webhook.config.location import WHERE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    check = commands.add_parser("check", help="check that a policy loads; exit status 2 if it doesn't")
    check.add_argument("policy", metavar="POLICY", help=WHERE)
    flags.add_cluster(check)
    check.set_defaults(run=_check)
    policy_diff.add_arguments(commands.add_parser("diff", help="preview the effect of another policy"))
    policy_test.add_arguments(commands.add_parser("test", help="run the tests of a policy"))
    commands.add_parser("schema", help="print the JSON Schema of a policy").set_defaults(run=_schema)


def _check(args: argparse.Namespace) -> int:
    config = read_policy(args.policy, kubeconfig=args.kubeconfig, context=args.context)
    for note in config.notes:
        print(note)
    print(f"{args.policy}: the policy is valid (profile {config.rules.profile}, digest {config.digest})")
    return OK


def _schema(_: argparse.Namespace) -> int:
    print(json.dumps(schema(), indent=2))
    return OK
