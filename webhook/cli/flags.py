"""The flags and exit statuses that several commands share."""

from __future__ import annotations

import argparse
from typing import Final

from webhook.config.location import WHERE
from webhook.errors import UserError

OK: Final = 0
DENIED: Final = 1
"""Something was denied, or a warning counts as an error."""
BAD_INPUT: Final = 2


CURRENT_CONTEXT: Final = "-"
"""Of --against: the context that kubectl would use, or the account of the pod that this command runs in."""


def add_cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, ~/.kube/config, or the pod's own account"
    )
    parser.add_argument("--context", metavar="NAME", help="default: the kubeconfig's current context")


def add_namespaces(parser: argparse.ArgumentParser) -> None:
    """The flags that choose the cluster and one namespace or all."""
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument("-A", "--all-namespaces", action="store_true", help="read all namespaces")
    scope.add_argument("-n", "--namespace", metavar="NS", help="default: the namespace of the context")
    add_cluster(parser)


def add_policy(
    parser: argparse.ArgumentParser, default: str = "the installed one, or the built-in one"
) -> None:
    parser.add_argument("--policy", metavar="WHERE", help=f"{WHERE} (default: {default})")


def add_profile(parser: argparse.ArgumentParser) -> None:
    choices = ("observe", "standard", "strict")
    parser.add_argument("--profile", choices=choices, help="use this profile instead of the policy's")


def add_against(parser: argparse.ArgumentParser) -> None:
    """The flag that reviews manifests together with a cluster."""
    parser.add_argument(
        "--against",
        metavar="CONTEXT",
        help=(
            "review the manifests as part of the cluster of this kubeconfig context, with its objects and "
            f"its policy; use {CURRENT_CONTEXT} for the current context"
        ),
    )


def add_input(parser: argparse.ArgumentParser) -> None:
    """The arguments of `webhook.cli.inputs.opened`."""
    parser.add_argument("paths", nargs="*", metavar="PATH", help="manifests (default: the cluster)")
    add_namespaces(parser)
    add_policy(parser)
    add_against(parser)


def add_output(parser: argparse.ArgumentParser, *formats: str, about: str = "") -> None:
    """The flag that chooses one of some formats, the first by default."""
    parser.add_argument(
        "-o", "--output", choices=formats, default=formats[0], help=f"{about}default: %(default)s"
    )


def add_color(parser: argparse.ArgumentParser) -> None:
    """The flag of commands that print lines. `webhook.cli.main` hands it on as NO_COLOR or FORCE_COLOR."""
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="default: on a terminal, unless NO_COLOR or FORCE_COLOR is set",
    )


def add_review_output(parser: argparse.ArgumentParser) -> None:
    """The flags of `webhook.cli.output.show.show`."""
    add_profile(parser)
    add_output(parser, "text", "diff", "json", "yaml", "junit", "sarif", "html")
    parser.add_argument(
        "--statistics",
        action="store_true",
        help=(
            "print only numbers: warnings per 100 workloads by rule, refusals, fragments, and kinds and "
            "files that can't be read; -o json prints JSON"
        ),
    )
    parser.add_argument(
        "--unknown-kinds",
        choices=("warn", "error"),
        default="warn",
        help="objects of unknown kinds are listed and counted; error also exits with 1; default: %(default)s",
    )
    parser.add_argument(
        "--audited",
        action="store_true",
        help=(
            "with -o text or diff: also print the findings in mode audit, which other formats always include"
        ),
    )
    add_color(parser)
    parser.add_argument("--warnings-as-errors", action="store_true", help="also exit with 1 on warnings")


def check_review_output(args: argparse.Namespace) -> None:
    """UserError if flags do not go together."""
    if args.statistics and args.output not in ("text", "json"):
        raise UserError("--statistics can only be used with -o text or json")
    if args.audited and (args.statistics or args.output not in ("text", "diff")):
        raise UserError("--audited can only be used with -o text or diff")
