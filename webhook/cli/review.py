"""`chassis review`: the decision of admission about manifests, without a cluster."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from policies.core.facts import Cluster
from policies.core.fragments import is_fragment
from webhook.admission.configuration import Config
from webhook.admission.engine import decide
from webhook.cli import against, decision_flags
from webhook.cli.named_policy import read_policy
from webhook.cli.output.review import Review, Subject
from webhook.cli.output.show import show
from webhook.cli.progress import progress
from webhook.errors import UserError
from webhook.kube.offline import (
    Document,
    ManifestCluster,
    is_complete,
    is_whole,
    observed_in,
    read,
    read_what_can_be,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Review manifests as the webhook would. Services, claims, budgets, nodes and so on among them "
        "serve as facts about the cluster. A file that is not valid YAML is named, and the others are "
        "reviewed. Exit status: 0 all admitted, 1 something denied, 2 something could not be read."
    )
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="files, directories, or - for standard input"
    )
    parser.add_argument(
        "-f", "--filename", action="append", default=[], metavar="PATH", help="as PATH; may be repeated"
    )
    parser.add_argument(
        "--policy",
        metavar="WHERE",
        help="a directory, a file, - or configmap:NAMESPACE/NAME (default: built-in)",
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
    parser.add_argument(
        "--observed",
        metavar="FILE",
        help="observed starts, from which startup budgets follow: the cluster's ConfigMap mlchassis-observed",
    )
    decision_flags.add_arguments(parser)
    against.add_argument(parser)
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="with --against; default: as kubectl, or the pod's own account"
    )
    parser.add_argument(
        "-n",
        "--namespace",
        metavar="NS",
        help="with --against: read this namespace only, and put manifests without a namespace into it",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    decision_flags.check(args)
    paths = [*args.paths, *args.filename]
    if not paths:
        raise UserError("review: give files, directories or - to review")
    if args.old and args.operation != "UPDATE":
        raise UserError("review: --old goes with --operation UPDATE")
    if not args.against and (args.kubeconfig or args.namespace):
        raise UserError("review: --kubeconfig and --namespace go with --against")
    config = None if args.against else read_policy(args.policy, args.profile)
    documents, problems = read_what_can_be(
        paths, lenient=args.skip_non_kubernetes, watch=progress("files read")
    )
    if problems and not documents and args.output in ("text", "diff") and not args.statistics:
        raise UserError(*problems)
    old = read(args.old)
    observed = observed_in(args.observed) if args.observed else None
    not_read = [str(each) for each in problems]
    cluster: Cluster
    if config is None:
        complete = is_complete(paths, problems)
        with against.applied(args, documents, args.profile, observed, whole=complete) as into:
            documents, config, where, cluster = into.documents, into.config, into.policy, into.cluster
            not_read = [*not_read, *into.not_read]
    else:
        where = args.policy or "the built-in one"
        objects = [document.obj for document in documents]
        sources = [document.source for document in documents]
        cluster = ManifestCluster(objects, observed, whole=is_whole(paths, problems), sources=sources)
    # A person who sees the reviews themselves come needs no line between them.
    watch = iter if sys.stdout.isatty() else progress(f"of {len(documents):,} documents reviewed")
    quiet = args.unknown_kinds == "ignore"
    reviews = review_documents(watch(documents), config, cluster, args.operation, old, quiet=quiet)
    subject = Subject(", ".join(paths), where, config, cluster, time.time(), not_read)
    tally = show(
        reviews,
        args.output,
        subject,
        args.split_by_namespace,
        figures_only=args.statistics,
    )
    if problems:
        sys.stdout.flush()
        raise UserError(*problems)
    return decision_flags.exit_status(tally, args)


def review_documents(
    documents: Iterable[Document],
    config: Config,
    cluster: Cluster,
    operation: str = "CREATE",
    old: Iterable[Document] = (),
    *,
    quiet: bool = False,
) -> Iterator[Review]:
    """The decision about each document, as it is asked for. `quiet`: unknown kinds are counted only."""
    before = {document.identity: document.obj for document in old}
    for document in documents:
        earlier = before.get(document.identity) if operation == "UPDATE" else None
        # Applying an object that was not there is a creation, even if others are updated.
        request = document.request("UPDATE" if earlier is not None else "CREATE", earlier)
        facts = cluster.near(document.source) if isinstance(cluster, ManifestCluster) else cluster
        decision = decide(request, config, facts)
        notes = [_repeated(document.repeated)] if document.repeated else []
        if is_fragment(document.obj, config.workloads):
            notes.append(_FRAGMENT)
        if notes:
            decision = replace(decision, notes=(*notes, *decision.notes))
        yield Review(document, decision, request, quiet)


_FRAGMENT = (
    "Partly reviewed: a fragment without an image or a selector, which kustomize or Helm completes; "
    "review the result."
)


def _repeated(keys: Sequence[str]) -> str:
    """One sentence on the keys that appear twice in a document."""
    others = len(keys) - 1
    more = f" ({others} more {'keys' if others > 1 else 'key'} likewise)" if others else ""
    return f"{keys[0]}; the last value is used, as in Helm and kubectl{more}."
