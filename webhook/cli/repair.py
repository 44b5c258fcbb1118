"""`chassis scan --missed --repair`: restart workloads one by one, as `kubectl rollout restart` does.

Law: only kinds that replace their pods by themselves are restarted, only if they are ready and their
PodDisruptionBudgets allow as many pods down as their rollout takes; the first failure ends it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Final

from policies.core.facts import Cluster
from policies.kube.group_kinds import GroupKind, kind_of
from policies.kube.json import Json, dig, integer, mapping, maps, text
from policies.kube.metadata import labels_of
from policies.kube.selectors import matches
from policies.kube.times import moment_of
from policies.rollouts.rollouts import count_of, replicas_of, rolling_update
from webhook.admission.configuration import Config
from webhook.admission.missed import missed, runs
from webhook.cli.connection import Wait
from webhook.cli.missed import RESTARTED, Looking, Report, Row, print_report, way_of
from webhook.cli.tell import agreed, tell
from webhook.errors import UserError
from webhook.kube import paths
from webhook.kube.api import ApiServer
from webhook.kube.calls import STRATEGIC_MERGE
from webhook.kube.errors import ApiError

RESTARTED_AT: Final = "kubectl.kubernetes.io/restartedAt"
"""The annotation by which `kubectl rollout restart` makes a new pod template."""
POLL_SECONDS: Final = 2.0
LONGEST_SECONDS: Final = 2 * 3600.0
"""A rollout that is not complete by then has failed."""


class Failed(Exception):
    """A restart that did not come to its end; in one sentence."""


# --- the command -----------------------------------------------------------------------------------


def scan_missed(
    api: ApiServer,
    wait: Wait,
    namespace: str,
    config: Config,
    cluster: Cluster,
    where: str | None,
    output: str,
    *,
    repair: bool,
    yes: bool,
) -> int:
    """Print what was missed and, if asked to, repair it; how many pods are missed at the end."""
    looking: Looking = wait(Looking.prepare(api, namespace, config, cluster, where))
    report: Report = wait(looking.report())
    if not repair:
        print_report(report, output)
        return report.missed
    if output == "json" and not yes:
        raise UserError("--repair with -o json asks nothing: add --yes")
    if output != "json":
        print_report(report, output, hint=False)
    restarted = repair_rows(api, wait, looking, [row for row in report.rows if row.counts], yes=yes)
    if restarted:
        report = wait(looking.report())
    if restarted or output == "json":
        print_report(report, output, hint=False)
    return report.missed


def repair_rows(api: ApiServer, wait: Wait, looking: Looking, rows: Sequence[Row], *, yes: bool) -> bool:
    """Restart what can be restarted; whether anything was. UserError if nobody can be asked."""
    tops = {text(row.top, "metadata", "uid"): row.top for row in rows if way_of(row) == RESTARTED}
    if not tops:
        tell("nothing that was missed can be restarted")
        return False
    if not yes and not _agreed(len(tops)):
        tell("nothing was restarted")
        return False
    done = 0
    for top in tops.values():
        title = f"{kind_of(top).kind} {text(top, 'metadata', 'namespace')}/{text(top, 'metadata', 'name')}"
        try:
            skipped = wait(restart(api, looking, top))
        except (Failed, ApiError) as error:
            tell(f"{title}: {error}; stopped after {done} of {len(tops)} workloads")
            return True
        if skipped:
            tell(f"{title}: not restarted: {skipped}")
        else:
            done += 1
            tell(f"{title}: restarted and ready ({done} of {len(tops)})")
    return True


def _agreed(count: int) -> bool:
    if not sys.stdin.isatty():
        raise UserError("--repair asks first, and there is nobody to ask: add --yes")
    return agreed(f"Restart {'1 workload' if count == 1 else f'{count} workloads, one after the other'}?")


async def restart(api: ApiServer, looking: Looking, top: Json, *, longest: float = LONGEST_SECONDS) -> str:
    """Restart one workload and wait until its pods are replaced and ready; why not, if it was not restarted.

    Raises Failed if it does not get ready, or if its new pods lack the same.
    """
    kind, namespace, name = kind_of(top), text(top, "metadata", "namespace"), text(top, "metadata", "name")
    path = paths.one("apps/v1", kind.resource, name, namespace)
    now = await api.get(path)
    if now is None or text(now, "metadata", "uid") != text(top, "metadata", "uid"):
        return "it is gone"
    now = {"apiVersion": "apps/v1", "kind": kind.kind, **now}
    if not _complete(now):
        return "it is not ready now, or a rollout is under way"
    blocked = await _blocked(api, now)
    if blocked:
        return blocked
    template = {"metadata": {"annotations": {RESTARTED_AT: moment_of(time.time())}}}
    version = {"resourceVersion": text(now, "metadata", "resourceVersion")}
    body = {"metadata": version, "spec": {"template": template}}
    if not await api.unless_conflict("PATCH", path, body, STRATEGIC_MERGE):
        return "it was changed at the same moment"
    await _until_ready(api, path, kind, longest)
    await _verify(api, looking, now)
    return ""


async def _until_ready(api: ApiServer, path: str, kind: GroupKind, longest: float) -> None:
    ends = time.monotonic() + longest
    while True:
        obj = await api.get(path)
        if obj is None:
            raise Failed("it was deleted while it was restarted")
        obj = {"kind": kind.kind, "apiVersion": "apps/v1", **obj}
        if _complete(obj):
            return
        for condition in maps(obj, "status", "conditions"):
            if condition.get("reason") == "ProgressDeadlineExceeded" and _observed(obj):
                raise Failed("its new pods did not get ready in time (ProgressDeadlineExceeded)")
        if time.monotonic() > ends:
            raise Failed(f"its new pods are not ready after {longest / 60:.0f} min")
        await asyncio.sleep(POLL_SECONDS)


async def _verify(api: ApiServer, looking: Looking, top: Json) -> None:
    """Raises Failed if a new pod lacks what the restart was for: then restarts do not help."""
    selector = mapping(top, "spec", "selector")
    path = paths.collection("v1", "pods", text(top, "metadata", "namespace"))
    async for item in api.objects(path):
        pod = {"apiVersion": "v1", "kind": "Pod", **item}
        if not matches(selector, labels_of(pod)) or not runs(pod):
            continue
        if missed(pod, looking.config, looking.cluster) is not None:
            name = text(pod, "metadata", "name")
            raise Failed(f"its new pod {name} was not changed by the webhook either")


def _observed(obj: Json) -> bool:
    return integer(obj, "status", "observedGeneration", default=0) >= integer(
        obj, "metadata", "generation", default=0
    )


def _complete(obj: Json) -> bool:
    """Whether all pods are of the present template and ready, and none of another one is left."""
    if not _observed(obj):
        return False
    status = mapping(obj, "status")
    if kind_of(obj).kind == "DaemonSet":
        wanted = integer(status, "desiredNumberScheduled", default=0)
        return (
            integer(status, "updatedNumberScheduled", default=0)
            == integer(status, "numberAvailable", default=0)
            == wanted
        )
    wanted = integer(obj, "spec", "replicas", default=1)
    counts = [integer(status, name, default=0) for name in ("replicas", "updatedReplicas", "readyReplicas")]
    if kind_of(obj).kind == "Deployment":
        counts.append(integer(status, "availableReplicas", default=0))
    elif text(status, "updateRevision") != text(status, "currentRevision"):
        return False
    return all(count == wanted for count in counts)


# --- budgets ---------------------------------------------------------------------------------------


async def _blocked(api: ApiServer, top: Json) -> str:
    """Why a PodDisruptionBudget does not allow the restart; empty if none forbids it."""
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
            return f"PodDisruptionBudget {name} allows {allowed} pods down, and its rollout takes {down}"
    return ""


def down_at_once(top: Json) -> int:
    """How many pods a rollout of the workload may take down at the same time."""
    kind, replicas = kind_of(top).kind, replicas_of(top)
    if kind == "Deployment":
        rolling = rolling_update(top)
        return replicas if rolling is None else rolling.unavailable
    if kind == "DaemonSet":
        replicas = integer(top, "status", "desiredNumberScheduled", default=0)
    steps = mapping(top, "spec", "updateStrategy", "rollingUpdate")
    most = count_of(steps.get("maxUnavailable", 1), replicas, up=kind == "DaemonSet")
    return replicas if most is None else most if kind == "DaemonSet" else max(1, most)
