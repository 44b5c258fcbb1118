"""The input of a command: manifests, or a cluster if none are given."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from policies.core.facts import Cluster
from policies.kube.json import Json
from webhook.admission.configuration import Config
from webhook.cli import against, connection
from webhook.cli.against import applied
from webhook.cli.cluster_reviews import Scan
from webhook.cli.connection import chosen_namespace, connected
from webhook.cli.named_policy import policy_of, read_policy
from webhook.cli.output.review import Review
from webhook.cli.review import review_documents
from webhook.errors import UserError
from webhook.kube.offline import ManifestCluster, read_what_can_be


@dataclass(frozen=True, slots=True)
class Input:
    """Objects, the policy that decides about them, and the facts that rules may ask for."""

    config: Config
    cluster: Cluster
    objects: Callable[[], Iterator[Json]]
    """Reads the objects."""
    reviews: Callable[[], Iterator[Review]]
    """Reads the objects and decides about each."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that choose the input and the policy."""
    parser.add_argument("paths", nargs="*", metavar="PATH", help="manifests (default: the cluster)")
    connection.add_scope(parser)
    against.add_argument(parser)


@contextmanager
def chosen(args: argparse.Namespace) -> Iterator[Input]:
    """The input that the arguments choose. UserError if it can't be read; if a part can't, at the end."""
    if args.against and not args.paths:
        raise UserError("--against goes with manifests")
    documents, problems = read_what_can_be(args.paths)
    if problems and not documents:
        raise UserError(*problems)
    if args.against:
        with applied(args, documents, whole=not problems) as into:
            yield Input(
                into.config,
                into.cluster,
                into.objects,
                lambda: review_documents(into.documents, into.config, into.cluster),
            )
    elif args.paths:
        config = read_policy(args.policy, None, args.kubeconfig, args.context)
        objects = [document.obj for document in documents]
        cluster = ManifestCluster(objects)
        yield Input(
            config, cluster, lambda: iter(objects), lambda: review_documents(documents, config, cluster)
        )
    else:
        with connected(args.kubeconfig, args.context) as (api, wait):
            namespace = chosen_namespace(args, api)
            config, _ = wait(policy_of(api, args.policy))
            scan: Scan = wait(Scan.prepare(api, namespace, config))
            yield Input(
                config,
                scan.cluster,
                lambda: scan.objects(wait),
                lambda: (review for (review,) in scan.reviews(wait)),
            )
    if problems:
        sys.stdout.flush()
        raise UserError(*problems)
