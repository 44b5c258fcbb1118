"""`chassis graph`: the dependencies between objects, and the workloads that the failure of one affects.

The graph comes from the same reading of commands, probes and Services as the rules use.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from policies.kube.group_kinds import kind_of
from policies.kube.json import Json, text
from policies.kube.names import did_you_mean, plural
from webhook.admission.bounds import allowance, bounded
from webhook.admission.printable import printable
from webhook.cli import flags
from webhook.cli.flags import BAD_INPUT, DENIED, OK
from webhook.cli.inputs import Input, opened
from webhook.cli.object_graph import Blast, Edge, Graph, GraphNode, graph_of, members_of
from webhook.cli.terminal import as_json
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


# --- output ---------------------------------------------------------------------------------------


def written(graph: Graph, form: str, blasts: Sequence[Blast] = ()) -> Iterator[str]:
    """The lines of a graph in one of the formats. `blasts`: the effects of the chosen failures."""
    match form:
        case "json":
            yield as_json(_json(graph, blasts))
        case "mermaid":
            yield from _mermaid(graph)
        case "dot":
            yield from _dot(graph)
        case _:
            yield from _text(graph, blasts)


# --- text ------------------------------------------------------------------------------------------


def _text(graph: Graph, blasts: Sequence[Blast]) -> Iterator[str]:
    for source, edges in groupby(graph.edges, key=lambda edge: edge.source):
        yield f"{_plain(source)}\n"
        for edge in edges:
            limit = "" if edge.limit is None else f"for up to {edge.limit:.0f} s"
            why = f"  ({', '.join(filter(None, (edge.who, limit, edge.path)))})" if edge.path else ""
            yield f"  {edge.relation} {_plain(edge.target)}{why and printable(why)}\n"
    for blast in blasts:
        yield from _failure(blast)
    for cycle in graph.cycles:
        names = [f"{step.waiter.kind} {step.waiter.namespace}/{step.waiter.name}" for step in cycle.steps]
        path = " -> ".join((*names, names[0]))
        yield f"cycle ({cycle.certainty.value}): {printable(path)}\n"
    workloads = sum(node.replicas is not None for node in graph.nodes)
    yield (
        f"{plural(workloads, 'workload')}, {plural(len(graph.edges), 'dependency', 'dependencies')}, "
        f"{plural(len(graph.cycles), 'cycle')}\n"
    )
    if graph.truncated:
        yield "The graph is too large, so some dependencies are not shown.\n"


def _failure(blast: Blast) -> Iterator[str]:
    restarted, unready = blast.restarted, blast.unready
    yield f"if {_plain(blast.of)} fails for longer than probes tolerate:\n"
    if not restarted and not unready:
        yield "  no probe of another workload fails\n"
    if restarted:
        pods = plural(blast.pods_restarted, "pod")
        yield f"  restarted: {pods} of {plural(len(restarted), 'workload')}: {_listed(restarted, blast)}\n"
    if unready:
        yield f"  not ready: {plural(len(unready), 'workload')}: {_listed(unready, blast)}\n"


def _listed(nodes: Iterable[GraphNode], blast: Blast) -> str:
    return ", ".join(f"{_plain(node)} after {blast.after[node]} s" for node in nodes)


def _plain(node: GraphNode) -> str:
    return printable(str(node))


# --- JSON ------------------------------------------------------------------------------------------


def _json(graph: Graph, blasts: Sequence[Blast]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "nodes": [
            {"id": node.id, "kind": node.kind, "namespace": node.namespace, "name": node.name}
            | ({} if node.replicas is None else {"replicas": node.replicas})
            for node in graph.nodes
        ],
        "edges": [_edge(edge) for edge in graph.edges],
        "cycles": [
            {
                "certainty": cycle.certainty.value,
                "members": members_of(cycle),
                "limitSeconds": cycle.limit,
            }
            for cycle in graph.cycles
        ],
        "truncated": graph.truncated,
    }
    if blasts:
        found["failures"] = [
            {
                "of": blast.of.id,
                "restarted": [node.id for node in blast.restarted],
                "podsRestarted": blast.pods_restarted,
                "notReady": [node.id for node in blast.unready],
                "afterSeconds": {node.id: seconds for node, seconds in blast.after.items()},
            }
            for blast in blasts
        ]
    return found


def _edge(edge: Edge) -> dict[str, Any]:
    return {
        "source": edge.source.id,
        "relation": str(edge.relation),
        "target": edge.target.id,
        "path": edge.path,
        "who": edge.who,
        "certainty": edge.certainty.value,
        "limitSeconds": edge.limit,
    }


# --- Mermaid and DOT -------------------------------------------------------------------------------


def _mermaid(graph: Graph) -> Iterator[str]:
    numbers = {node.id: f"n{number}" for number, node in enumerate(graph.nodes)}
    yield "flowchart LR\n"
    for node in graph.nodes:
        yield f'  {numbers[node.id]}["{_entities(str(node))}"]\n'
    for edge in graph.edges:
        label = _entities(str(edge.relation))
        yield f'  {numbers[edge.source.id]} -- "{label}" --> {numbers[edge.target.id]}\n'


def _entities(text: str) -> str:
    """The text for a quoted string of Mermaid: special characters become numbered entities."""
    return "".join(each if each.isalnum() or each in " ./-_:" else f"#{ord(each)};" for each in text)


def _dot(graph: Graph) -> Iterator[str]:
    yield "digraph dependencies {\n  rankdir=LR;\n  node [shape=box];\n"
    for node in graph.nodes:
        yield f"  {_quoted(node.id)} [label={_quoted(str(node))}];\n"
    for edge in graph.edges:
        ends = f"{_quoted(edge.source.id)} -> {_quoted(edge.target.id)}"
        yield f"  {ends} [label={_quoted(str(edge.relation))}];\n"
    yield "}\n"


def _quoted(text: str) -> str:
    escaped = printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
