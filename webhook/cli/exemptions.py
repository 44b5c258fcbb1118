"""`chassis exemptions`: the exemptions in manifests or a cluster, with reason, end and use.

Annotations are read by the code of admission.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from typing import Final

from policies.core.pod_templates import pod_templates
from policies.kube.json import Json, text
from policies.kube.metadata import annotations_of
from webhook.admission.configuration import Config
from webhook.admission.exemptions import SOON, ExemptionState, exemptions_in
from webhook.cli import flags
from webhook.cli.flags import OK
from webhook.cli.inputs import opened
from webhook.cli.reviewed import Reviewed
from webhook.cli.terminal import as_json, table

_COLUMNS: Final = ("object", "rule", "state", "until", "age", "used", "reason")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List the exemptions of objects and their pod templates, and the overrides with an end date. For "
        "each, show whether it is in force, when it ends, how old it is, and whether a finding uses it."
    )
    flags.add_input(parser)
    flags.add_output(parser, "text", "json")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    with opened(args) as given:
        found = [*_exemptions(given.reviews, given.config), *_overrides(given.config)]
        if args.output == "json":
            sys.stdout.write(as_json(found))
        else:
            rows = ([_cell(each, name) for name in _COLUMNS] for each in found)
            sys.stdout.writelines(table(_COLUMNS, rows) if found else ["no exemptions\n"])
    return OK


def _exemptions(reviews: Iterable[Reviewed], config: Config) -> Iterator[Json]:
    for review in reviews:
        document = review.document
        namespace = document.namespace or "default"
        carriers = {"": annotations_of(document.obj)}
        for template in pod_templates(document.obj, config.workloads):
            if template.path:
                carriers[template.metadata_path] = annotations_of(template.pod)
        used = {result.rule for result in review.decision.results if result.exempted is not None}
        since = document.exempted_at or text(document.obj, "metadata", "creationTimestamp")
        for path, written in carriers.items():
            for each in exemptions_in(written, config, namespace):
                yield {
                    "source": document.place,
                    "object": review.title,
                    "path": path or "metadata",
                    "rule": each.rule,
                    "reason": each.reason,
                    "until": each.until.isoformat() if each.until else None,
                    "state": each.state.value,
                    "counts": each.counts,
                    "used": each.rule in used if each.counts else None,
                    "since": since or None,
                    "age": _age(since, config.today),
                }


def _overrides(config: Config) -> Iterator[Json]:
    """The overrides of the policy that have an end."""
    for index, override in enumerate(config.webhook.overrides):
        if override.until is None:
            continue
        left = (override.until - config.today).days
        state = (
            ExemptionState.ENDED
            if left < 0
            else ExemptionState.ENDS_SOON
            if left <= SOON
            else ExemptionState.COUNTS
        )
        yield {
            "source": "policy",
            "object": f"webhook.yaml overrides.{index}",
            "path": f"overrides.{index}",
            "rule": ", ".join((*override.modes, *override.settings)) or "profile",
            "reason": ", ".join(override.namespaces),
            "until": override.until.isoformat(),
            "state": state.value,
            "counts": left >= 0,
            "used": None,
            "since": None,
            "age": None,
        }


def _age(since: str, today: date) -> int | None:
    """Days since a time such as `2026-01-31T12:00:00Z`; None for any other text."""
    try:
        return (today - datetime.fromisoformat(since.replace("Z", "+00:00")).date()).days
    except ValueError:
        return None


def _cell(each: Json, name: str) -> str:
    value = each[name]
    if name == "age":
        return "" if value is None else f"{value}d"
    if name == "used":
        return {None: "", True: "yes", False: "no"}[value]
    return "" if value is None else " ".join(str(value).split())
