"""`chassis scan`: the decision of admission about the objects of a cluster, and other views of the cluster.

Only `--report` writes to the cluster (PolicyReports), and `--repair` (restarts).
"""

from __future__ import annotations

import argparse
import sys

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
            "each serving workload. models: the models of each running pod as its puller reports them "
            "through the API server's proxy. With -o text or json"
        ),
    )
    flags.add_review_output(parser)
    parser.set_defaults(run=run)


def _check(args: argparse.Namespace) -> None:
    flags.check_review_output(args)
    if args.missed or args.view:
        view = "--missed" if args.missed else f"--view {args.view}"
        if args.output not in ("text", "json"):
            raise UserError(f"{view} can only be used with -o text or json")
        for name in ("report", "statistics", *(["view"] if args.missed else [])):
            if getattr(args, name) not in (None, False):
                raise UserError(f"{view} can't be used with --{name}")
    if (args.repair or args.yes) and not args.missed:
        raise UserError("--repair and --yes can only be used with --missed")
    if args.yes and not args.repair:
        raise UserError("--yes can only be used with --repair")


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
        scan: Scan = wait(Scan.prepare(api, namespace, config))
        subject = Subject(scan.source, place, config, scan.cluster, api.now(), scan.not_read)
        reviews = (review for (review,) in scan.reviews(wait))
        if args.view:
            found = servers.servings(reviews, subject)
            sys.stdout.writelines(servers.written(found, args.output))
            return OK
        if apis is None:
            return show(reviews, subject, args)
        results = policyreport.ReportResults(api.now())
        status = show(results.collect(reviews), subject, args)
        print_note(str(wait(policyreport.write(api, namespace, results, apis))))
        return status
