"""`chassis graph`: who waits for whom, who asks whom, and what the failure of one object takes down.

Law: the graph is drawn from the same reading of commands, probes and Services as the rules use.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

from webhook.cli.exit_status import DENIED, OK
from webhook.errors import UserError

if TYPE_CHECKING:
    from policies.relations.graph import Graph, Node

FORMATS: Final = ("text", "json", "mermaid", "dot", "html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `chassis graph`."""
    from webhook.cli import connection
    from webhook.cli.named_policy import WHERE

    parser.description = (
        "The dependencies between workloads, Services, hosts and volumes, read from manifests or a cluster. "
        "Exit status: 0 no workloads wait for each other, 1 some do, 2 something could not be read."
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="manifests (default: the cluster)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-A", "--all-namespaces", action="store_true", help="of all namespaces")
    where.add_argument("-n", "--namespace", metavar="NS", help="default: the namespace of the context")
    parser.add_argument(
        "--from",
        dest="start",
        metavar="NAME",
        help="only what depends on an object or what it depends on, and what its failure takes down; "
        "NAME is a name, KIND/NAME or NAMESPACE/KIND/NAME",
    )
    parser.add_argument(
        "--policy", metavar="WHERE", help=f"{WHERE} (default: the one installed, or built-in)"
    )
    parser.add_argument("-o", "--output", choices=FORMATS, default="text")
    connection.add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the graph; the exit status."""
    from webhook.cli.output.graph import written

    graph = _of_manifests(args) if args.paths else _of_cluster(args)
    starts: list[Node] = []
    if args.start:
        starts = graph.find(args.start)
        if not starts:
            raise UserError(f"graph: nothing is named {args.start}")
        graph = graph.around(starts)
    sys.stdout.writelines(written(graph, args.output, starts))
    return DENIED if graph.cycles else OK


def _of_manifests(args: argparse.Namespace) -> Graph:
    from policies.relations.graph import graph_of
    from webhook.cli.named_policy import read_policy
    from webhook.kube.offline import ManifestCluster, read

    config = read_policy(args.policy, None, args.kubeconfig, args.context)
    objects = [document.obj for document in read(args.paths)]
    return graph_of(objects, config.workloads, ManifestCluster(objects))


def _of_cluster(args: argparse.Namespace) -> Graph:
    from policies.relations.graph import graph_of
    from webhook.cli.connection import connected
    from webhook.cli.scan import Scan, policy_of

    with connected(args.kubeconfig, args.context) as (api, wait):
        namespace = "" if args.all_namespaces else args.namespace or api.namespace
        config, _ = wait(policy_of(api, args.policy))
        scan: Scan = wait(Scan.prepare(api, namespace, config))
        return graph_of(scan.objects(wait), config.workloads, scan.cluster)
