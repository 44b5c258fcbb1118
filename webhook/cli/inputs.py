"""The input of a command: manifests, a cluster, or manifests next to the objects of a cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from policies.core.facts import Cluster
from policies.core.resources import resource_kinds
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json, replaced, text
from webhook.admission.configuration import Config
from webhook.cli.cluster_reviews import Scan
from webhook.cli.connection import connected, selected_namespace
from webhook.cli.flags import CURRENT_CONTEXT
from webhook.cli.named_policy import policy_of, read_policy
from webhook.cli.reviewed import Reviewed, review_documents
from webhook.errors import UserError
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import Document, read_all
from webhook.manifests.overlaid import OverlaidCluster


class Input(Struct, frozen=True):
    """Objects, the policy that decides about them, and the facts for the rules.

    The iterators read the objects as they are consumed; a command consumes one of the two.
    """

    config: Config
    cluster: Cluster
    objects: Iterator[Json]
    reviews: Iterator[Reviewed]


class Applied(Struct, frozen=True):
    """Manifests in their namespaces, next to the objects of a cluster."""

    config: Config
    policy: str
    """The source of the policy, such as `the built-in one`."""
    cluster: Cluster
    documents: Sequence[Document]
    """The manifests."""
    objects: Iterator[Json]
    """Those of the cluster that no manifest replaces, then the manifests; read as they are consumed."""
    not_read: Sequence[str]
    """One sentence for each kind that may not be read."""


@contextmanager
def opened(args: argparse.Namespace) -> Iterator[Input]:
    """The input that the arguments of `flags.add_input` choose.

    Raises:
        UserError: the input can't be read; if only some files can't, it is raised at the end.
    """
    if args.against and not args.paths:
        raise UserError("--against can only be used with manifests")
    documents, problems = read_all(args.paths, build=True)
    if problems and not documents:
        raise UserError(*problems)

    if args.against:
        with applied(args, documents, whole=not problems) as found:
            reviews = review_documents(found.documents, found.config, found.cluster)
            yield Input(found.config, found.cluster, found.objects, reviews)
    elif args.paths:
        config = read_policy(args.policy, None, args.kubeconfig, args.context)
        objects = [document.obj for document in documents]
        cluster = ManifestCluster(objects)
        yield Input(config, cluster, iter(objects), review_documents(documents, config, cluster))
    else:
        with connected(args.kubeconfig, args.context) as (api, wait):
            config, _ = wait(policy_of(api, args.policy))
            scan: Scan = wait(Scan.prepare(api, selected_namespace(args, api), config))
            reviews = (review for (review,) in scan.reviews(wait))
            yield Input(config, scan.cluster, scan.objects(wait), reviews)
    if problems:
        sys.stdout.flush()
        raise UserError(*problems)


@contextmanager
def applied(
    args: argparse.Namespace,
    documents: Iterable[Document],
    profile: str | None = None,
    observed: Json | None = None,
    *,
    whole: bool = True,
) -> Iterator[Applied]:
    """Manifests as if applied to the cluster that `--against` chooses.

    `whole`: whether all documents of the input could be read.
    """
    context = None if args.against == CURRENT_CONTEXT else args.against
    with connected(args.kubeconfig, context) as (api, wait):
        config, policy = wait(policy_of(api, args.policy))
        config = config.with_profile(profile) if profile else config
        scan: Scan = wait(Scan.prepare(api, args.namespace or "", config))
        documents = [_with_namespace(each, args.namespace or api.namespace, scan) for each in documents]
        objects = [document.obj for document in documents]
        wait(scan.fetch_referenced(objects))
        replacing = {document.identity for document in documents}

        def all_objects() -> Iterator[Json]:
            for obj in scan.objects(wait):
                metadata = text(obj, "metadata", "namespace"), text(obj, "metadata", "name")
                if (kind_of(obj), *metadata) not in replacing:
                    yield obj
            yield from objects

        cluster = OverlaidCluster(ManifestCluster(objects, observed, whole=whole), scan.cluster)
        yield Applied(config, policy, cluster, documents, all_objects(), scan.not_read)


def _with_namespace(document: Document, namespace: str, scan: Scan) -> Document:
    """The document in the namespace that kubectl would put it into."""
    if document.namespace:
        return document
    namespaced = chain(
        (served.kind for served in scan.resources if served.namespaced),
        (known.group_kind for known in resource_kinds() if known.namespaced),
    )
    if kind_of(document.obj) not in namespaced:
        return document
    return replace(document, obj=replaced(document.obj, ("metadata", "namespace"), namespace))
