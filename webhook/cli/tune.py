"""`chassis tune`: startup budgets and memory limits next to the observed values. It changes nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Final

import yaml

from policies.core.reasons import in_words
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json, mapping
from policies.kube.names import plural
from policies.probes.observed import OBSERVED
from webhook.cli import flags
from webhook.cli.cluster_facts import read_facts
from webhook.cli.connection import connected, selected_namespace
from webhook.cli.flags import OK
from webhook.cli.missed import RESTARTABLE
from webhook.cli.named_policy import policy_of
from webhook.cli.terminal import as_json, print_note, table
from webhook.config.location import INSTALLED, config_map
from webhook.kube import paths
from webhook.kube.api import ApiServer
from webhook.kube.calls import ApiError
from webhook.observed.record import Record
from webhook.observed.tuning import Row, rows

_COLUMNS: Final = (
    *("namespace", "workload", "container", "budget", "by"),
    *("starts", "p50", "p99", "max", "verdict", "proposal"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compare startup budgets with the observed starts, show how runs ended, and propose changes. Reads "
        "pods, events, and, if it exists, the webhook's record of starts and ends. Changes nothing."
    )
    flags.add_namespaces(parser)
    flags.add_policy(parser)
    flags.add_output(parser, "text", "json", "yaml", about="yaml: a patch for each workload that needs one; ")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    with connected(args.kubeconfig, args.context) as (api, wait):
        namespace = selected_namespace(args, api)
        config, _ = wait(policy_of(api, args.policy))
        cluster, _ = wait(read_facts(api, namespace))
        pods, events, record = wait(_read(api, namespace))
        found = rows(pods, events, record, config, cluster)
        omitted = _without_pods(record, namespace, found)
        if omitted:
            names = ", ".join(omitted[:3]) + (", ..." if len(omitted) > 3 else "")
            workloads = plural(len(omitted), "workload")
            print_note(f"recorded but not shown, because they have no pod now: {workloads} ({names})")
        _print(found, args.output)
    return OK


# --- input ------------------------------------------------------------------------------------------


async def _read(api: ApiServer, namespace: str) -> tuple[list[Json], list[Json], Record]:
    pods = [each async for each in api.objects(paths.collection("v1", "pods", namespace))]
    killing = {"fieldSelector": "reason=Killing"}
    events = [each async for each in api.objects(paths.collection("v1", "events", namespace), killing)]
    return pods, events, await _record(api)


async def _record(api: ApiServer) -> Record:
    """The webhook's record; empty if there is none, or the user may not read it."""
    namespace, _ = config_map(INSTALLED)
    try:
        found = await api.get(paths.one("v1", "configmaps", OBSERVED, namespace))
    except ApiError as error:
        if error.status != 403:
            raise
        print_note(
            "earlier starts and ends are not shown, because you may not read ConfigMap "
            f"{namespace}/{OBSERVED}"
        )
        return Record()
    if found is None:
        print_note("the webhook has recorded no starts, so only current pods and events are known")
    return Record.load(mapping(found, "data"))


def _without_pods(record: Record, namespace: str, found: Iterable[Row]) -> list[str]:
    """The workloads of the record that have no row."""
    recorded = {
        (name, key.rpartition("/")[0])
        for name, entries in record.namespaces.items()
        if namespace in ("", name)
        for key in entries
    }
    shown = {(row.namespace, row.workload) for row in found}
    return [f"{name} {workload}" for name, workload in sorted(recorded - shown)]


# --- output -------------------------------------------------------------------------------------------


def _print(found: Sequence[Row], output: str) -> None:
    if output == "json":
        sys.stdout.write(as_json([row.as_json() for row in found]))
    elif output == "yaml":
        patches = [patch for row in found if (patch := patch_of(row))]
        sys.stdout.write(yaml.safe_dump_all(patches, sort_keys=False) if patches else "")
    elif found:
        sys.stdout.writelines(table(_COLUMNS, map(_cells, found)))
    else:
        print("No container serves or runs to completion.")


def _cells(row: Row) -> tuple[str, ...]:
    def seconds(value: int | None) -> str:
        return "-" if value is None else f"{value} s"

    return (
        row.namespace,
        row.workload,
        row.container,
        in_words(row.budget) if row.budget else "-",
        ("mlchassis" if row.injected else "author") if row.budget else "-",
        str(row.starts),
        seconds(row.percentile(0.5)),
        seconds(row.percentile(0.99)),
        seconds(row.slowest),
        "; ".join(row.verdicts),
        row.proposal or "-",
    )


def patch_of(row: Row) -> Json | None:
    """A strategic merge patch for the workload, with its kind and name; None if no change of probes helps."""
    kind, _, name = row.workload.partition("/")
    if GroupKind("apps", kind) not in RESTARTABLE or not (row.annotation or row.startup_failures):
        return None
    template: Json = {}
    if row.annotation:
        template = {"metadata": {"annotations": dict([row.annotation])}}
    elif row.startup_failures:
        probe = {"failureThreshold": row.startup_failures}
        template = {"spec": {"containers": [{"name": row.container, "startupProbe": probe}]}}
    metadata = {"namespace": row.namespace, "name": name}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": {"template": template}}
