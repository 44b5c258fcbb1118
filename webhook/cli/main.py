"""The `chassis` command. Every subcommand is a thin wrapper; what it needs is imported when it runs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from webhook.admission.configuration import Config
from webhook.config.load import PolicyError, load, schema

if TYPE_CHECKING:
    from webhook.cli.output.report import Review, Tally
    from webhook.kube.offline import Document

OK: Final = 0
DENIED: Final = 1
BAD_INPUT: Final = 2


class UsageError(Exception):
    """What the user gave can't be used; the message is one sentence."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `chassis`; returns the exit status."""
    return _run("chassis", argv)


def kubectl() -> int:
    """Entry point of the kubectl plugin: `kubectl chassis review -f x.yaml`."""
    return _run("kubectl chassis", None)


def _run(prog: str, argv: Sequence[str] | None) -> int:
    args = _parser(prog).parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except (UsageError, PolicyError) as error:
        problems = error.problems if isinstance(error, PolicyError) else (error,)
        for problem in problems:
            print(f"{prog}: {problem}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader went away (`| head`); Python would complain again while it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog, description="The admission webhook that gives ML workloads their chassis."
    )
    parser.add_argument("--version", action="version", version=f"chassis {_version()}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="run the webhook"))
    _add_review(commands.add_parser("review", help="decide about manifests without a cluster"))
    _add_scan(commands.add_parser("scan", help="decide about what already runs in a cluster"))
    _add_explain(commands.add_parser("explain", help="what a rule or policy does, why, and how to mend"))
    _add_policy(commands.add_parser("policy", help="check a policy, or print its JSON Schema"))
    _add_install(commands)
    return parser


def _version() -> str:
    try:
        return version("ml-chassis")
    except PackageNotFoundError:
        return "from source"


# --- serve, manifests ----------------------------------------------------------------------------


def _add_serve(parser: argparse.ArgumentParser) -> None:
    from webhook.server import options as serve

    serve.add_arguments(parser)

    def run(args: argparse.Namespace) -> int:
        try:
            return serve.run(args)
        except serve.UsageError as error:
            raise UsageError(str(error)) from None

    parser.set_defaults(run=run)


def _add_install(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from webhook.cli import certs as certs_cli
    from webhook.cli import manifests

    parser = commands.add_parser("manifests", help="print the installation as YAML")
    manifests.add_arguments(parser)
    parser.set_defaults(run=manifests.run)

    parser = commands.add_parser("certs", help="make a serving certificate by hand, or look at one")
    certs_cli.add_arguments(parser)


# --- review, scan --------------------------------------------------------------------------------


def _add_review(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Decide about manifests as the webhook would. Services, claims, budgets, nodes and so on among "
        "them serve as what is known of the cluster. Exit status: 0 all admitted, 1 something denied, 2 bad "
        "input."
    )
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="files, directories, or - for standard input"
    )
    parser.add_argument(
        "-f", "--filename", action="append", default=[], metavar="PATH", help="as PATH; may be repeated"
    )
    parser.add_argument(
        "--policy", type=Path, metavar="DIR", help="directory of the policy (default: built-in)"
    )
    parser.add_argument("--operation", choices=("CREATE", "UPDATE"), default="CREATE")
    parser.add_argument(
        "--old", action="append", default=[], metavar="PATH", help="the objects before an UPDATE"
    )
    parser.add_argument(
        "--skip-non-kubernetes",
        action="store_true",
        help="pass over named files that hold no Kubernetes object",
    )
    _add_verdict(parser)
    parser.set_defaults(run=_review)


def _add_verdict(parser: argparse.ArgumentParser) -> None:
    """The flags that `review` and `scan` share."""
    parser.add_argument(
        "--profile", choices=("observe", "standard", "strict"), help="instead of the policy's profile"
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "diff", "json", "yaml", "junit", "sarif"),
        default="text",
        help="default: %(default)s",
    )
    parser.add_argument("--warnings-as-errors", action="store_true", help="exit with 1 on warnings too")


def _status(tally: Tally, args: argparse.Namespace) -> int:
    return DENIED if tally.denied or (args.warnings_as_errors and tally.warned) else OK


def _add_scan(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Decide about what already runs in a cluster as the webhook would if it were created now. Nothing in "
        "the cluster is changed. Exit status: 0 all would be admitted, 1 something would be denied, 2 bad "
        "input or the cluster can't be read."
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-A", "--all-namespaces", action="store_true", help="scan all namespaces")
    where.add_argument("-n", "--namespace", metavar="NS", help="default: the namespace of the context")
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, ~/.kube/config, or the pod's own account"
    )
    parser.add_argument("--context", metavar="NAME", help="default: the kubeconfig's current context")
    parser.add_argument(
        "--policy",
        metavar="DIR|configmap:NS/NAME",
        help="default: the policy installed in the cluster, or else the built-in one",
    )
    parser.add_argument(
        "--report", action="store_true", help="write what is found as PolicyReports into the namespaces"
    )
    _add_verdict(parser)

    def run(args: argparse.Namespace) -> int:
        from webhook.cli import scan

        try:
            return _status(scan.run(args), args)
        except scan.ScanError as error:
            raise UsageError(str(error)) from None

    parser.set_defaults(run=run)


def _review(args: argparse.Namespace) -> int:
    from webhook.cli.output import report
    from webhook.kube.offline import BadInput, read

    paths = [*args.paths, *args.filename]
    if not paths:
        raise UsageError("review: give files, directories or - to review")
    if args.old and args.operation != "UPDATE":
        raise UsageError("review: --old goes with --operation UPDATE")
    config = read_policy(args.policy, args.profile)
    try:
        documents = read(paths, lenient=args.skip_non_kubernetes)
        old = read(args.old)
    except BadInput as error:
        raise UsageError(str(error)) from None
    reviews = review_documents(documents, config, args.operation, old)
    return _status(report.show(reviews, args.output), args)


def review_documents(
    documents: Sequence[Document], config: Config, operation: str = "CREATE", old: Sequence[Document] = ()
) -> list[Review]:
    """The decision about each document, the others being what is known of the cluster."""
    from webhook.admission.engine import decide
    from webhook.cli.output.report import Review
    from webhook.kube.offline import ManifestCluster

    cluster = ManifestCluster([document.obj for document in documents])
    before = {document.identity: document.obj for document in old}
    reviews = []
    for document in documents:
        earlier = before.get(document.identity) if operation == "UPDATE" else None
        # Applying an object that was not there is a creation, whatever else is updated.
        request = document.request("UPDATE" if earlier is not None else "CREATE", earlier)
        reviews.append(Review(document, decide(request, config, cluster)))
    return reviews


def read_policy(directory: Path | None, profile: str | None = None) -> Config:
    """The policy in a directory, or the built-in one; PolicyError or UsageError if it can't be had."""
    files: Mapping[str, str] = {}
    if directory is not None:
        from webhook.config.source import read_directory

        try:
            files = read_directory(directory)
        except OSError as error:
            raise UsageError(f"{directory}: {error.strerror}") from None
    config = load(files)
    return config if profile is None else config.with_profile(profile)


# --- explain, policy -----------------------------------------------------------------------------


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", metavar="RULE|POLICY", help="its id; without it, all are listed")
    parser.set_defaults(run=_explain)


def _explain(args: argparse.Namespace) -> int:
    from webhook.cli import explain

    try:
        print(explain.explain(args.id) if args.id else explain.overview())
    except KeyError as error:
        raise UsageError(str(error.args[0])) from None
    return OK


def _add_policy(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    check = commands.add_parser("check", help="whether the policy in a directory loads; exit 2 if not")
    check.add_argument("directory", type=Path, metavar="DIR")
    check.set_defaults(run=_check)
    commands.add_parser("schema", help="print the JSON Schema of a policy").set_defaults(run=_schema)


def _check(args: argparse.Namespace) -> int:
    config = read_policy(args.directory)
    print(f"{args.directory}: the policy is good (profile {config.rules.profile}, digest {config.digest})")
    return OK


def _schema(_: argparse.Namespace) -> int:
    print(json.dumps(schema(), indent=2))
    return OK
