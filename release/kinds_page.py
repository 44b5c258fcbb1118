"""The page of the kinds: how much of each is read, what is known about its retries and ends, and which of
that was tried with its own controller. From workloads.yaml and lifecycles.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from policies.core.lifecycles import Lifecycle, known_lifecycles
from policies.core.workloads import Workload, known_without_pods, known_workloads
from release.generated import table_row

_INTRO: Final = """# Kinds

How much of each kind's pods is read, and what is known about its retries and ends. Commands report the same
about each object: `reviewed`, `partly reviewed` or `not reviewed`, with the reason. Pods are read as such.

- *Assembled* pods are put together from several fields, as the operator does it. Findings in them only warn.
- *Retries and ends*: the releases whose controller was read. The [rules about Jobs](rules/README.md#jobs)
  use it.
- *Tried*: the release whose own controller did the same [in an experiment](#tried), in a cluster without
  kubelets: the test reports how pods end.

A kind that is missing here is unknown. Its pod specs are found by their structure, so findings there only
warn; `workloads` in `webhook.yaml` adds it ([configuration](configuration.md)).
"""


def page() -> str:
    """The content of kinds.md."""
    kinds = sorted(known_workloads(), key=lambda each: (each.api_group, each.kind))
    whole = [each for each in kinds if not each.unread]
    partly = [each for each in kinds if each.unread and _is_read(each)]
    not_read = [each for each in kinds if each.unread and not _is_read(each)]
    return "\n".join(
        [
            _INTRO,
            "## Read completely\n",
            *_table(whole, unread=False),
            "## Read in part\n",
            "The rest of the object is read. The reason is named if an object has such a field.\n",
            *_table(partly, unread=True),
            "## Not read\n",
            "These objects have pods, but name them only in other objects or as text.\n",
            *_table(not_read, unread=True),
            "## Without pods\n",
            *_without_pods(),
            "## Tried\n",
            *_tried(),
        ]
    )


def _is_read(kind: Workload) -> bool:
    return bool(kind.templates or kind.specs or kind.containers or kind.composed or kind.objects)


def _is_assembled(kind: Workload) -> bool:
    return bool(kind.containers or kind.composed or kind.overrides or kind.completed_by)


def _table(kinds: list[Workload], *, unread: bool) -> Iterator[str]:
    heads = ["kind", "API group", "assembled", *(["not read"] if unread else []), "retries and ends", "tried"]
    yield table_row(*heads)
    yield "|---" * len(heads) + "|"
    for kind in kinds:
        lives = known_lifecycles().get(kind.group_kind, ())
        reasons = dict.fromkeys(f"`{each.path}`: {each.why}" for each in kind.unread)
        yield table_row(
            kind.kind,
            kind.api_group or "core",
            "yes" if _is_assembled(kind) else "",
            *([_first(list(reasons))] if unread else []),
            "; ".join(dict.fromkeys(version for life in lives for version in life.versions)),
            "; ".join(life.tried.release for life in lives if life.tried is not None),
        )
    yield ""


def _first(reasons: list[str]) -> str:
    """The first reasons, and how many more there are."""
    shown = "; ".join(reasons[:_SHOWN])
    return f"{shown}; {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else shown


_SHOWN: Final = 2


def _without_pods() -> Iterator[str]:
    yield "Kinds of Kubernetes itself are not listed.\n"
    yield table_row("API group", "kinds")
    yield "|---|---|"
    kinds = sorted(known_without_pods(), key=lambda each: (each.group, each.kind))
    for group, members in groupby(kinds, key=lambda each: each.group):
        yield table_row(group or "core", ", ".join(each.kind for each in members))
    yield ""


def _tried() -> Iterator[str]:
    yield "Each experiment compares the retries, evictions and ends of the table with the controller's.\n"
    yield table_row("kind", "release", "experiment", "what else it showed")
    yield "|---|---|---|---|"
    lives = [life for each in known_lifecycles().values() for life in each if life.tried is not None]
    for life in sorted(lives, key=lambda each: (each.api_group, each.kind)):
        tried = life.tried
        if tried is not None:
            shows = "; ".join(tried.shows)
            yield table_row(_name(life), tried.release, f"`{tried.by}`, {tried.when}", shows)


def _name(life: Lifecycle) -> str:
    versions = f" ({', '.join(life.api_versions)})" if life.api_versions else ""
    return f"{life.kind}{versions}"
