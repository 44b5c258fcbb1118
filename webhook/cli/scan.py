"""`chassis scan`: the decision of admission about what already runs in a cluster, and other views of it.

Only PolicyReports are written, and what `--repair` restarts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from webhook.admission.configuration import Config
from webhook.cli import connection, decision_flags, pulled_models
from webhook.cli.ask import asked
from webhook.cli.cluster_facts import facts_of
from webhook.cli.cluster_reviews import Scan
from webhook.cli.connection import Wait
from webhook.cli.exit_status import DENIED, OK
from webhook.cli.named_policy import policy_of
from webhook.cli.output import policyreport as policy_reports
from webhook.cli.output import servers
from webhook.cli.output.plain import as_json
from webhook.cli.output.review import Review, Subject
from webhook.cli.output.show import show
from webhook.cli.repair import scan_missed
from webhook.cli.tell import tell
from webhook.errors import UserError
from webhook.kube.api import ApiServer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Review the objects of a cluster as if they were created now. No object is changed. Exit status: "
        "0 all would be admitted, 1 something would be denied, 2 bad input or the cluster can't be read."
    )
    connection.add_scope(parser)
    parser.add_argument(
        "--report",
        nargs="?",
        const="",
        choices=("", *(each.group for each in policy_reports.APIS)),
        metavar="GROUP",
        help="write the findings as PolicyReports into the namespaces; GROUP is "
        f"{' or '.join(each.group for each in policy_reports.APIS)}, by default the first that is served",
    )
    parser.add_argument(
        "--missed",
        action="store_true",
        help="list running pods that lack what the policy gives to new ones, or have another policy's "
        "result, and why; exit status 1 if there are any",
    )
    parser.add_argument(
        "--repair",
        action="store_true",
        help="with --missed: restart their Deployments, StatefulSets and DaemonSets one after the other, as "
        "kubectl rollout restart does; asks first",
    )
    parser.add_argument(
        "--view",
        choices=("servers", "models"),
        help="servers: each serving workload with its server, version, health paths, ports, models, what its "
        "probes notice, drain and budget for its start; as text, json or html. models: what the puller of "
        "each running pod reports, asked through the API server's proxy; as text or json",
    )
    parser.add_argument(
        "--ask",
        action="store_true",
        help="with --view servers: ask a ready pod of each for its version, through the API server's proxy",
    )
    parser.add_argument("--yes", action="store_true", help="with --repair: do not ask")
    decision_flags.add_arguments(parser)
    parser.set_defaults(run=run)


_GOES_WITH: Final[Mapping[str, tuple[Sequence[str], Sequence[str]]]] = {
    "--missed": (("text", "json"), ("report", "statistics", "view", "ask", "split_by_namespace")),
    "--view models": (("text", "json"), ("report", "statistics", "ask", "split_by_namespace")),
    "--view servers": (("text", "json", "html"), ("report", "statistics", "split_by_namespace")),
}
"""By what `scan` prints instead of decisions: its output formats, and the flags that do not apply to it."""


def _check(args: argparse.Namespace) -> None:
    """UserError if flags do not go together."""
    chosen = "--missed" if args.missed else f"--view {args.view}"
    outputs, without = _GOES_WITH.get(chosen, ((args.output,), ()))
    if args.output not in outputs:
        raise UserError(f"{chosen} goes with -o {', '.join(outputs[:-1])} or {outputs[-1]}")
    for name in without:
        if getattr(args, name) not in (None, False):
            raise UserError(f"{chosen} does not go with --{name.replace('_', '-')}")
    if (args.repair or args.yes) and not args.missed:
        raise UserError("--repair and --yes go with --missed")
    if args.yes and not args.repair:
        raise UserError("--yes goes with --repair")
    if args.ask and args.view != "servers":
        raise UserError("--ask goes with --view servers")


def run(args: argparse.Namespace) -> int:
    decision_flags.check(args)
    _check(args)
    with connection.connected(args.kubeconfig, args.context) as (api, wait):
        namespace = connection.chosen_namespace(args, api)
        if args.view == "models":
            return _models(args, api, namespace, wait)
        served_reports = None if args.report is None else wait(policy_reports.served(api, args.report))
        policy, where = wait(policy_of(api, args.policy))
        config = policy.with_profile(args.profile) if args.profile else policy
        if args.missed:
            return _missed(args, api, namespace, config, wait)
        quiet = args.unknown_kinds == "ignore" or args.view is not None
        scan: Scan = replace(wait(Scan.prepare(api, namespace, config)), quiet=quiet)
        subject = Subject(scan.source, where, config, scan.cluster, api.now(), scan.not_read)
        reviews = (review for (review,) in scan.reviews(wait))
        if args.view:
            return _servers(args, api, reviews, subject, wait)
        results = None if served_reports is None else policy_reports.Results(api.now())
        tally = show(
            reviews if results is None else results.seeing(reviews),
            args.output,
            subject,
            args.split_by_namespace,
            figures_only=args.statistics,
        )
        if results is not None and served_reports is not None:
            tell(str(wait(policy_reports.write(api, namespace, results, served_reports))))
    return decision_flags.exit_status(tally, args)


def _missed(args: argparse.Namespace, api: ApiServer, namespace: str, config: Config, wait: Wait) -> int:
    cluster, unknown = wait(facts_of(api, namespace))
    if unknown:
        tell(f"not known to the policies, since you may not read them: {', '.join(unknown)}")
    left = scan_missed(
        api, wait, namespace, config, cluster, args.policy, args.output, repair=args.repair, yes=args.yes
    )
    return DENIED if left else OK


def _models(args: argparse.Namespace, api: ApiServer, namespace: str, wait: Wait) -> int:
    found = wait(pulled_models.pulled(api, namespace))
    sys.stdout.writelines([as_json(found)] if args.output == "json" else pulled_models.table(found))
    return OK


def _servers(
    args: argparse.Namespace, api: ApiServer, reviews: Iterable[Review], subject: Subject, wait: Wait
) -> int:
    found = servers.servings(reviews, subject)
    if args.ask:
        found = asked(api, wait, found)
    if args.output == "html":
        sys.stdout.writelines(servers.html(found, subject))
    else:
        sys.stdout.writelines((servers.json if args.output == "json" else servers.text)(found))
    return OK
