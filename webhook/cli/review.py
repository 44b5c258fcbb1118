"""`chassis review`: the decision of admission about manifests, without a cluster."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from policies.core.facts import Cluster
from webhook.cli import flags
from webhook.cli.named_policy import read_policy
from webhook.cli.output.show import show
from webhook.cli.reviewed import NamedObjects, Subject, review_documents
from webhook.cli.terminal import progress
from webhook.errors import UserError
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import is_complete, is_whole, observed_in, read, read_all
from webhook.manifests.rendered import kustomization_in


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Review manifests as the webhook would. Services, claims, budgets, nodes and other objects among "
        "them serve as facts about the cluster. For kustomizations and charts in a directory, the rendered "
        "result is reviewed if kubectl, kustomize or helm is installed. A file that isn't valid YAML is "
        "named, and the others are reviewed. Exit status: 0 all admitted, 1 something denied, 2 something "
        "can't be read."
    )
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="files, directories, or - for standard input"
    )
    parser.add_argument(
        "-f", "--filename", action="append", default=[], metavar="PATH", help="same as PATH; may be repeated"
    )
    parser.add_argument(
        "-k",
        "--kustomize",
        action="append",
        default=[],
        metavar="DIR",
        help="a kustomization, whose rendered result is reviewed; may be repeated",
    )
    parser.add_argument(
        "--values",
        action="append",
        default=[],
        metavar="FILE",
        help="values for the Helm charts among the directories; may be repeated",
    )
    flags.add_policy(parser, "the built-in one")
    parser.add_argument(
        "--operation",
        choices=("CREATE", "UPDATE"),
        default="CREATE",
        help="the operation that is reviewed; default: CREATE",
    )
    parser.add_argument(
        "--old", action="append", default=[], metavar="PATH", help="the objects before an UPDATE"
    )
    parser.add_argument(
        "--skip-non-kubernetes",
        action="store_true",
        help="skip named files that don't contain a Kubernetes object",
    )
    parser.add_argument(
        "--observed",
        metavar="FILE",
        help="compute startup budgets from these observed starts, the cluster's ConfigMap mlchassis-observed",
    )
    flags.add_review_output(parser)
    flags.add_against(parser)
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="with --against; default: as for kubectl, or the pod's own account",
    )
    parser.add_argument(
        "-n",
        "--namespace",
        metavar="NS",
        help="with --against: read only this namespace, and put manifests without a namespace into it",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    flags.check_review_output(args)
    for directory in args.kustomize:
        if kustomization_in(Path(directory)) is None:
            raise UserError(f"review: -k {directory}: the directory has no kustomization.yaml")
    paths = [*args.paths, *args.filename, *args.kustomize]
    if not paths:
        raise UserError("review: specify a file, a directory, or - for standard input")
    if args.old and args.operation != "UPDATE":
        raise UserError("review: --old requires --operation UPDATE")
    if not args.against and (args.kubeconfig or args.namespace):
        raise UserError("review: --kubeconfig and --namespace can only be used with --against")
    config = None if args.against else read_policy(args.policy, args.profile)
    documents, problems = read_all(
        paths, lenient=args.skip_non_kubernetes, build=True, values=args.values, watch=progress("files read")
    )
    if problems and not documents and args.output in ("text", "diff") and not args.statistics:
        raise UserError(*problems)
    old = read(args.old)
    observed = observed_in(args.observed) if args.observed else None
    not_read = [str(each) for each in problems]
    cluster: Cluster
    if config is None:
        from webhook.cli.inputs import applied  # which loads the client of the API server

        complete = is_complete(paths, problems)
        with applied(args, documents, args.profile, observed, whole=complete) as found:
            documents, config, policy, cluster = [*found.documents], found.config, found.policy, found.cluster
            not_read += found.not_read
    else:
        policy = args.policy or "the built-in one"
        objects = [document.obj for document in documents]
        sources = [document.source for document in documents]
        cluster = ManifestCluster(objects, observed, whole=is_whole(paths, problems), sources=sources)
    # On a terminal the reviews themselves show the progress, but text comes after the last one.
    streams = sys.stdout.isatty() and args.output != "text"
    watch = iter if streams else progress(f"of {len(documents):,} documents reviewed")
    reviews = review_documents(
        watch(documents), config, cluster, args.operation, old, among=NamedObjects(documents)
    )
    status = show(reviews, Subject(", ".join(paths), policy, config, cluster, time.time(), not_read), args)
    if problems:
        sys.stdout.flush()
        raise UserError(*problems)
    return status
