"""`chassis graph`: who waits for whom, who asks whom, and what the failure of one object takes down.

Law: the graph is drawn from the same reading of commands, probes and Services as the rules use.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from policies.relations.graph import Blast, graph_of
from webhook.cli import files_or_cluster
from webhook.cli.exit_status import DENIED, OK
from webhook.cli.files_or_cluster import chosen
from webhook.cli.output.graph import written
from webhook.errors import UserError

FORMATS: Final = ("text", "json", "mermaid", "dot", "html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "The dependencies between workloads, Services, hosts and volumes, read from manifests or a cluster. "
        "Exit status: 0 no workloads wait for each other, 1 some do, 2 something could not be read."
    )
    files_or_cluster.add_arguments(parser)
    parser.add_argument(
        "--from",
        dest="start",
        metavar="NAME",
        help="only the objects that depend on one object or that it depends on, and the reach of its "
        "failure; NAME is a name, KIND/NAME or NAMESPACE/KIND/NAME",
    )
    parser.add_argument("-o", "--output", choices=FORMATS, default="text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    with chosen(args) as read:
        graph = graph_of(read.objects(), read.config.workloads, read.cluster)
        blasts: list[Blast] = []
        if args.start:
            starts = graph.find(args.start)
            if not starts:
                raise UserError(f"graph: no object is named {args.start}")
            # From the whole graph: a Service may have other workloads behind it.
            blasts = [graph.blast(start) for start in starts]
            graph = graph.around(starts)
        sys.stdout.writelines(written(graph, args.output, blasts))
        return DENIED if graph.cycles else OK
