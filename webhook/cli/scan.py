"""`chassis scan`: the decision of admission about the objects of a cluster, and other views of the cluster.

Only `--report` writes to the cluster (PolicyReports), and `--repair` (restarts).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from webhook.cli import flags, pulled_models, servers
from webhook.cli.cluster_reviews import Scan
from webhook.cli.connection import connected, selected_namespace
from webhook.cli.flags import DENIED, OK
from webhook.cli.named_policy import policy_of
from webhook.cli.output import policyreport
from webhook.cli.output.show import show
from webhook.cli.repair import scan_missed
from webhook.cli.reviewed import Subject
from webhook.cli.terminal import as_json, print_note
from webhook.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Review the objects of a cluster as if they were created now. No object is changed. Exit status: 0 "
        "all would be admitted, 1 something would be denied, 2 bad input or the cluster can't be read."
    )
    flags.add_namespaces(parser)
    flags.add_policy(parser)
    parser.add_argument(
        "--report",
        nargs="?",
        const="",
        choices=("", *(each.group for each in policyreport.APIS)),
        metavar="GROUP",
        help="write the findings as PolicyReports into the namespaces; GROUP is "
        f"{' or '.join(each.group for each in policyreport.APIS)}; default: the first that the cluster "
        "serves",
    )
    parser.add_argument(
        "--missed",
        action="store_true",
        help=(
            "list running pods that lack fields of the policy or have fields of another policy, and "
            "explain why; exit status 1 if there are any"
        ),
    )
    parser.add_argument(
        "--repair",
        action="store_true",
        help=(
            "with --missed: restart their Deployments, StatefulSets and DaemonSets one after another, as "
            "kubectl rollout restart does; asks for confirmation"
        ),
    )
    parser.add_argument("--yes", action="store_true", help="with --repair: don't ask for confirmation")
    parser.add_argument(
        "--view",
        choices=("servers", "models"),
        help=(
            "servers: the server, version, health paths, ports, models, probes, drain and start budget of "
            "each serving workload; with -o text, json or html. models: the models of each running pod as "
            "its puller reports them through the API server's proxy; with -o text or json"
        ),
    )
    parser.add_argument(
        "--ask",
        action="store_true",
        help="with --view servers: ask a ready pod of each workload for its version, through the API "
        "server's proxy",
    )
    flags.add_review_output(parser)
    parser.set_defaults(run=run)


_GOES_WITH: Final[Mapping[str, tuple[Sequence[str], Sequence[str]]]] = {
    "--missed": (("text", "json"), ("report", "statistics", "view", "ask", "split_by_namespace")),
    "--view models": (("text", "json"), ("report", "statistics", "ask", "split_by_namespace")),
    "--view servers": (("text", "json", "html"), ("report", "statistics", "split_by_namespace")),
}
"""For each view: its output formats, and the flags that do not apply to it."""


def _check(args: argparse.Namespace) -> None:
    flags.check_review_output(args)
    view = "--missed" if args.missed else f"--view {args.view}"
    outputs, excluded = _GOES_WITH.get(view, ((args.output,), ()))
    if args.output not in outputs:
        raise UserError(f"{view} can only be used with -o {', '.join(outputs[:-1])} or {outputs[-1]}")
    for name in excluded:
        if getattr(args, name) not in (None, False):
            raise UserError(f"{view} can't be used with --{name.replace('_', '-')}")
    if (args.repair or args.yes) and not args.missed:
        raise UserError("--repair and --yes can only be used with --missed")
    if args.yes and not args.repair:
        raise UserError("--yes can only be used with --repair")
    if args.ask and args.view != "servers":
        raise UserError("--ask can only be used with --view servers")


def run(args: argparse.Namespace) -> int:
    _check(args)
    with connected(args.kubeconfig, args.context) as (api, wait):
        namespace = selected_namespace(args, api)
        if args.view == "models":
            models = wait(pulled_models.pulled(api, namespace))
            sys.stdout.writelines([as_json(models)] if args.output == "json" else pulled_models.table(models))
            return OK
        apis = None if args.report is None else wait(policyreport.served(api, args.report))
        policy, place = wait(policy_of(api, args.policy))
        config = policy.with_profile(args.profile) if args.profile else policy
        if args.missed:
            return DENIED if scan_missed(api, wait, namespace, config, args) else OK
        quiet = args.unknown_kinds == "ignore" or args.view is not None
        scan: Scan = replace(wait(Scan.prepare(api, namespace, config)), quiet=quiet)
        subject = Subject(scan.source, place, config, scan.cluster, api.now(), scan.not_read)
        reviews = (review for (review,) in scan.reviews(wait))
        if args.view:
            found = servers.servings(reviews, subject)
            found = servers.with_versions(api, wait, found) if args.ask else found
            sys.stdout.writelines(servers.written(found, subject, args.output))
            return OK
        if apis is None:
            return show(reviews, subject, args)
        results = policyreport.ReportResults(api.now())
        status = show(results.collect(reviews), subject, args)
        print_note(str(wait(policyreport.write(api, namespace, results, apis))))
        return status
