"""`chassis graph`: the dependencies between objects, and the workloads that the failure of one affects.

The graph comes from the same reading of commands, probes and Services as the rules use.
"""

from __future__ import annotations

import argparse
import sys

from policies.relations.graph import Blast, graph_of
from webhook.cli import flags
from webhook.cli.exit_status import DENIED, OK
from webhook.cli.inputs import opened
from webhook.cli.output.graph import written
from webhook.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show the dependencies between workloads, Services, hosts and volumes in manifests or a cluster. "
        "Exit status: 0 no shown workloads wait for each other, 1 some do, 2 something could not be read."
    )
    flags.add_input(parser)
    parser.add_argument(
        "--from",
        dest="start",
        metavar="NAME",
        help="show only the objects that depend on one object or that it depends on, and the workloads that "
        "its failure affects; NAME is a name, KIND/NAME or NAMESPACE/KIND/NAME",
    )
    flags.add_output(parser, "text", "json", "mermaid", "dot")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    with opened(args) as given:
        graph = graph_of(given.objects, given.config.workloads, given.cluster)
        blasts: list[Blast] = []
        if args.start:
            starts = graph.find(args.start)
            if not starts:
                raise UserError(f"graph: no object is named {args.start}")
            # Computed from the whole graph, because a Service may have other workloads behind it.
            blasts = [graph.blast(start) for start in starts]
            graph = graph.connected_to(starts)
        sys.stdout.writelines(written(graph, args.output, blasts))
        return DENIED if graph.cycles else OK
