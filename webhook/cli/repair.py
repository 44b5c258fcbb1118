"""`chassis scan --missed --repair`: restart workloads one by one, as `kubectl rollout restart` does.

Only kinds that replace their pods themselves are restarted, and only if they are ready and their
PodDisruptionBudgets allow as many pods down as their rollout takes. A failure does not end the repair of
other workloads. If the webhook does not change the new pods either, further restarts in that namespace are
left out; if this happens in two namespaces in a row, the command ends.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import Final

from policies.core.facts import Cluster
from policies.core.target import Target
from policies.kube.group_kinds import POD, GroupKind, kind_of
from policies.kube.json import Json, dig, integer, mapping, maps, text
from policies.kube.metadata import labels_of, matches
from policies.rollouts.rollouts import count_of, rolling_update
from webhook.admission.configuration import Config
from webhook.admission.missed import missed, runs
from webhook.cli.cluster_facts import read_facts
from webhook.cli.connection import Wait
from webhook.cli.missed import MissedReport, WebhookHistory, find_missed, history_of
from webhook.cli.owners import Owners
from webhook.cli.terminal import confirmed, print_note
from webhook.errors import UserError
from webhook.kube import paths
from webhook.kube.api import ApiServer
from webhook.kube.calls import STRATEGIC_MERGE, ApiError
from webhook.kube.discovery import served
from webhook.kube.times import moment_of

RESTARTED_AT: Final = "kubectl.kubernetes.io/restartedAt"
"""The annotation by which `kubectl rollout restart` changes the pod template."""
POLL_SECONDS: Final = 2.0
MAX_STILL_MISSED: Final = 2
"""After new pods in so many namespaces in a row were not changed either, no further workload is restarted."""
MAX_ROLLOUT_SECONDS: Final = 2 * 3600.0
"""A rollout that takes longer has failed."""


class RestartError(Exception):
    """A restart failed; the message is one sentence."""


class StillMissedError(RestartError):
    """The webhook did not change the new pods either."""


# --- the command -----------------------------------------------------------------------------------


def scan_missed(api: ApiServer, wait: Wait, namespace: str, config: Config, args: argparse.Namespace) -> int:
    """Print the missed pods and restart their workloads with `--repair`; the number of pods still missed."""
    cluster, unknown = wait(read_facts(api, namespace))
    if unknown:
        print_note(f"unknown to the policies, because you may not read them: {', '.join(unknown)}")
    history: WebhookHistory = wait(history_of(api, args.policy))
    report: MissedReport = wait(find_missed(api, namespace, config, cluster, history))
    wait(_find_held_back(api, report))
    if not args.repair:
        report.print(args.output)
        return report.missed_pods
    if args.output == "json" and not args.yes:
        raise UserError("--repair with -o json can't ask for confirmation; add --yes")
    if args.output != "json":
        report.print(args.output, hint=False)
    restarted = _repair(api, wait, config, cluster, report, yes=args.yes)
    if restarted:
        report = wait(find_missed(api, namespace, config, cluster, history))
        wait(_find_held_back(api, report))
    if restarted or args.output == "json":
        report.print(args.output, hint=False)
    return report.missed_pods


def _repair(
    api: ApiServer, wait: Wait, config: Config, cluster: Cluster, report: MissedReport, *, yes: bool
) -> bool:
    """Restart the workloads; whether any restart began. UserError if there is no terminal for the
    question."""
    rows = [row for row in report.rows if row.missed and not row.listed_only]
    workloads = {text(row.top, "metadata", "uid"): row for row in rows}
    if not workloads:
        print_note("none of the missed workloads can be restarted")
        return False
    if not yes and not sys.stdin.isatty():
        raise UserError("--repair asks for confirmation, but standard input isn't a terminal; add --yes")
    count = len(workloads)
    number = "1 workload" if count == 1 else f"{count} workloads, one after another"
    if not yes and not confirmed(f"Restart {number}?"):
        print_note("nothing was restarted")
        return False
    done, began = 0, False
    still_missed: list[str] = []
    for row in workloads.values():
        if row.namespace in still_missed:
            print_note(f"{row.title}: not restarted, because new pods in its namespace aren't changed either")
            continue
        try:
            skipped = wait(restart(api, config, cluster, row.top))
        except StillMissedError as error:
            print_note(f"{row.title}: {error}")
            began = True
            still_missed.append(row.namespace)
            if len(still_missed) == MAX_STILL_MISSED:
                print_note(
                    f"stopped after {done} of {count} workloads; check whether the API server calls the "
                    "webhook at all"
                )
                return True
            continue
        except (RestartError, ApiError) as error:
            print_note(f"{row.title}: {error}")
            began = True
            continue
        if skipped:
            print_note(f"{row.title}: not restarted: {skipped}")
        else:
            done += 1
            began = True
            still_missed.clear()
            print_note(f"{row.title}: restarted and ready ({done} of {count})")
    return began


async def restart(api: ApiServer, config: Config, cluster: Cluster, top: Json) -> str:
    """Restart one workload and wait until its pods are replaced and ready; the reason if it is skipped.

    Raises:
        RestartError: the workload does not become ready, or (StillMissedError) a new pod differs in the same
            way.
    """
    kind, namespace, name = kind_of(top), text(top, "metadata", "namespace"), text(top, "metadata", "name")
    path = paths.one("apps/v1", kind.resource, name, namespace)
    now = await api.get(path)
    if now is None or text(now, "metadata", "uid") != text(top, "metadata", "uid"):
        return "it no longer exists"
    now = {"apiVersion": "apps/v1", "kind": kind.kind, **now}
    held_back = await _held_back(api, now)
    if held_back:
        return held_back
    template = {"metadata": {"annotations": {RESTARTED_AT: moment_of(time.time())}}}
    version = {"resourceVersion": text(now, "metadata", "resourceVersion")}
    body = {"metadata": version, "spec": {"template": template}}
    if not await api.unless_conflict("PATCH", path, body, STRATEGIC_MERGE):
        return "it was changed at the same time"
    await _until_ready(api, path, kind)
    await _verify(api, config, cluster, now)
    return ""


async def _until_ready(api: ApiServer, path: str, kind: GroupKind) -> None:
    deadline = time.monotonic() + MAX_ROLLOUT_SECONDS
    while True:
        obj = await api.get(path)
        if obj is None:
            raise RestartError("it was deleted while it was being restarted")
        obj = {"kind": kind.kind, "apiVersion": "apps/v1", **obj}
        if _complete(obj):
            return
        for condition in maps(obj, "status", "conditions"):
            if condition.get("reason") == "ProgressDeadlineExceeded" and _observed(obj):
                raise RestartError("its new pods didn't become ready in time (ProgressDeadlineExceeded)")
        if time.monotonic() > deadline:
            raise RestartError(f"its new pods aren't ready after {MAX_ROLLOUT_SECONDS / 60:.0f} min")
        await asyncio.sleep(POLL_SECONDS)


async def _find_held_back(api: ApiServer, report: MissedReport) -> None:
    """Note which workloads cannot be restarted now, as far as the user may read their budgets."""
    for row in report.rows:
        if row.missed and not row.listed_only:
            try:
                row.held_back = await _held_back(api, row.top)
            except ApiError as error:
                if error.status not in (401, 403):
                    raise


async def _held_back(api: ApiServer, top: Json) -> str:
    """Why the workload cannot be restarted now; empty if it can."""
    if not _complete(top):
        return "it isn't ready now, or a rollout is in progress"
    return await _blocked(api, top)


async def _verify(api: ApiServer, config: Config, cluster: Cluster, top: Json) -> None:
    """Raise StillMissedError if a new pod is missed too: then further restarts do not help."""
    owners = Owners(api, await served(api, (POD, *config.workloads)))
    selector = mapping(top, "spec", "selector")
    path = paths.collection("v1", "pods", text(top, "metadata", "namespace"))
    async for item in api.objects(path):
        pod = {"apiVersion": "v1", "kind": "Pod", **item}
        if not matches(selector, labels_of(pod)) or not runs(pod):
            continue
        above = await owners.above(pod)
        if not above or text(above[-1], "metadata", "uid") != text(top, "metadata", "uid"):
            continue  # anybody may create a pod with these labels
        if missed(pod, config, cluster) is not None:
            name = text(pod, "metadata", "name")
            raise StillMissedError(f"the webhook didn't change its new pod {name} either")


def _observed(obj: Json) -> bool:
    return integer(obj, "status", "observedGeneration", default=0) >= integer(
        obj, "metadata", "generation", default=0
    )


def _complete(obj: Json) -> bool:
    """Whether all pods have the present template and are ready, and no other pod is left."""
    if not _observed(obj):
        return False
    status = mapping(obj, "status")
    if kind_of(obj).kind == "DaemonSet":
        names = ("desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable")
        return len({integer(status, name, default=0) for name in names}) == 1
    wanted = integer(obj, "spec", "replicas", default=1)
    counts = [integer(status, name, default=0) for name in ("replicas", "updatedReplicas", "readyReplicas")]
    if kind_of(obj).kind == "Deployment":
        counts.append(integer(status, "availableReplicas", default=0))
    elif text(status, "updateRevision") != text(status, "currentRevision"):
        return False
    return all(count == wanted for count in counts)


# --- budgets ---------------------------------------------------------------------------------------


async def _blocked(api: ApiServer, top: Json) -> str:
    """Why a PodDisruptionBudget does not allow the restart; empty if all allow it."""
    labels = mapping(top, "spec", "template", "metadata", "labels")
    path = paths.collection("policy/v1", "poddisruptionbudgets", text(top, "metadata", "namespace"))
    down = down_at_once(top)
    async for budget in api.objects(path):
        selector = dig(budget, "spec", "selector")
        if selector is None or not matches(selector, labels):
            continue
        allowed = integer(budget, "status", "disruptionsAllowed", default=0)
        if down > allowed:
            name = text(budget, "metadata", "name")
            return (
                f"PodDisruptionBudget {name} allows {allowed} unavailable pods, but its rollout takes "
                f"{down} down"
            )
    return ""


def down_at_once(top: Json) -> int:
    """The most pods that a rollout of the workload takes down at the same time."""
    target = Target(top, kind_of(top))
    kind, replicas = target.kind.kind, target.replicas
    if kind == "Deployment":
        rolling = rolling_update(target, replicas)
        return replicas if rolling is None else rolling.unavailable
    if kind == "DaemonSet":
        replicas = integer(top, "status", "desiredNumberScheduled", default=0)
    steps = mapping(top, "spec", "updateStrategy", "rollingUpdate")
    most = count_of(steps.get("maxUnavailable", 1), replicas, up=kind == "DaemonSet")
    return replicas if most is None else most if kind == "DaemonSet" else max(1, most)
