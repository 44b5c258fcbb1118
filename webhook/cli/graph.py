"""`chassis graph`: the dependencies between objects, and the workloads that the failure of one affects.

The graph comes from the same reading of commands, probes and Services as the rules use.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from policies.kube.group_kinds import kind_of
from policies.kube.json import Json, text
from policies.kube.names import did_you_mean
from policies.relations.graph import Blast, graph_of
from webhook.admission.bounds import allowance, bounded
from webhook.cli import flags
from webhook.cli.flags import BAD_INPUT, DENIED, OK
from webhook.cli.inputs import Input, opened
from webhook.cli.output.graph import written
from webhook.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show the dependencies between workloads, Services, hosts and volumes in manifests or a cluster. "
        "Exit status: 0 no shown workloads wait for each other, 1 some do, 2 something can't be read."
    )
    flags.add_input(parser)
    parser.add_argument(
        "--from",
        dest="start",
        metavar="NAME",
        help=(
            "show only the objects that depend on this object or that it depends on, and the workloads "
            "that its failure affects; NAME is a name, KIND/NAME, NAMESPACE/NAME or NAMESPACE/KIND/NAME"
        ),
    )
    flags.add_output(parser, "text", "json", "mermaid", "dot")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    with opened(args) as given:
        unread: list[str] = []
        readable = _readable(given, unread)
        graph = graph_of(readable, given.config.workloads, given.cluster)
        blasts: list[Blast] = []
        if args.start:
            starts = graph.find(args.start)
            if not starts:
                known = [node.place if "/" in args.start else node.name for node in graph.nodes]
                raise UserError(
                    f"graph: there is no object named {args.start}{did_you_mean(args.start, known)}"
                )
            # Computed from the whole graph, because a Service may have other workloads behind it.
            blasts = [graph.blast(start) for start in starts if start.answers]
            graph = graph.connected_to(starts)
        sys.stdout.writelines(written(graph, args.output, blasts))
        for sentence in unread:
            print(f"chassis graph: {sentence}", file=sys.stderr)
        return BAD_INPUT if unread else DENIED if graph.cycles else OK


def _readable(given: Input, unread: list[str]) -> Iterator[Json]:
    """The objects that can be read; for the others a sentence is added to `unread`."""
    for obj in given.objects:
        undecided = bounded(obj, given.config.workloads, allowance()).left_out
        if undecided:
            unread.append(f"{kind_of(obj).kind} {text(obj, 'metadata', 'name')}: {undecided[0]}")
        else:
            yield obj
