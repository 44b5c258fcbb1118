"""Manifests together with the cluster that they go into, for the flag `--against`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from policies.kube.json import Json
    from webhook.admission.configuration import Config
    from webhook.cli.cluster_reviews import Scan
    from webhook.cli.connection import Wait
    from webhook.kube.offline import Document
    from webhook.kube.overlaid import Overlaid

CURRENT: Final = "-"
"""The context that kubectl would use, or the account of the pod that this command runs in."""


def add_argument(parser: argparse.ArgumentParser) -> None:
    """The flag `--against`."""
    parser.add_argument(
        "--against",
        metavar="CONTEXT",
        help="judge the manifests as they will be in the cluster of this context of the kubeconfig, next to "
        f"the objects there, under the policy there; {CURRENT} for the current context",
    )


@dataclass(frozen=True, slots=True)
class Applied:
    """Manifests in a cluster, as if all of them were applied."""

    documents: list[Document]
    config: Config
    policy: str
    """Where the policy is from, such as `the built-in one`."""
    cluster: Overlaid
    not_read: Sequence[str]
    """What may not be read, in one sentence each."""
    _scan: Scan
    _wait: Wait

    def objects(self) -> Iterator[Json]:
        """The objects of the cluster that no manifest replaces, and those of the manifests."""
        from policies.kube.group_kinds import kind_of
        from policies.kube.json import text

        replaced = {document.identity for document in self.documents}
        for obj in self._scan.objects(self._wait):
            metadata = text(obj, "metadata", "namespace"), text(obj, "metadata", "name")
            if (kind_of(obj), *metadata) not in replaced:
                yield obj
        yield from (document.obj for document in self.documents)


@contextmanager
def applied(
    args: argparse.Namespace,
    documents: Iterable[Document],
    profile: str | None = None,
    observed: Json | None = None,
    *,
    whole: bool = True,
) -> Iterator[Applied]:
    """Manifests in the cluster that the flags choose. UserError if it can't be read.

    `whole`: whether the documents are all that the input makes.
    """
    from webhook.cli.cluster_reviews import Scan
    from webhook.cli.connection import connected
    from webhook.cli.named_policy import policy_of
    from webhook.kube.offline import ManifestCluster
    from webhook.kube.overlaid import Overlaid

    context = None if args.against == CURRENT else args.against
    with connected(args.kubeconfig, context) as (api, wait):
        config, where = wait(policy_of(api, args.policy))
        config = config.with_profile(profile) if profile else config
        scan: Scan = wait(Scan.prepare(api, args.namespace or "", config))
        placed = [_placed(each, args.namespace or api.namespace, scan) for each in documents]
        objects = [document.obj for document in placed]
        wait(scan.fetch(objects))
        cluster = Overlaid(ManifestCluster(objects, observed, whole=whole), scan.cluster)
        yield Applied(placed, config, where, cluster, scan.not_read, scan, wait)


def _placed(document: Document, namespace: str, scan: Scan) -> Document:
    """The document in the namespace that kubectl would put it into."""
    from policies.core.resources import known_resources
    from policies.kube.group_kinds import kind_of
    from policies.kube.json import replaced

    if document.namespace:
        return document
    namespaced = chain(
        (listed.kind for listed in scan.resources if listed.namespaced),
        (known.group_kind for known in known_resources() if known.namespaced),
    )
    if kind_of(document.obj) not in namespaced:
        return document
    return replace(document, obj=replaced(document.obj, ("metadata", "namespace"), namespace))
