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
from policies.kube.group_kinds import DAEMON_SET, DEPLOYMENT, POD, STATEFUL_SET, GroupKind, kind_of
from policies.kube.json import Json
from policies.kube.objects.metadata import Condition, IntOrString, Object, Part
from policies.kube.objects.pods import PodState
from policies.kube.objects.reading import read
from policies.kube.objects.scaling import PodDisruptionBudget
from policies.kube.objects.workloads import PodController, PodControllerSpec, UpdateStrategy
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


class _Status(Part):
    """Of a Deployment or StatefulSet, and of a DaemonSet, whose numbers have other names."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    current_revision: str = ""
    update_revision: str = ""
    desired_number_scheduled: int = 0
    updated_number_scheduled: int = 0
    number_available: int = 0
    conditions: tuple[Condition, ...] = ()


class _Spec(PodControllerSpec):
    replicas: int = 1
    update_strategy: UpdateStrategy = UpdateStrategy()


class _Workload(PodController):
    """A workload of one of the kinds that are restarted."""

    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def is_observed(self) -> bool:
        """Whether its controller has seen the present spec."""
        return self.status.observed_generation >= self.metadata.generation

    @property
    def is_complete(self) -> bool:
        """Whether all pods have the present template and are ready, and no other pod is left."""
        status, kind = self.status, self.group_kind
        if not self.is_observed:
            return False
        if kind == DAEMON_SET:
            return (
                status.desired_number_scheduled == status.updated_number_scheduled == status.number_available
            )
        if kind == STATEFUL_SET and status.update_revision != status.current_revision:
            return False
        counts = [status.replicas, status.updated_replicas, status.ready_replicas]
        if kind == DEPLOYMENT:
            counts.append(status.available_replicas)
        return all(count == self.spec.replicas for count in counts)


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
        scope = f"-n {namespace}" if namespace else "-A"
        report.print(args.output, repair=f"chassis scan {scope} --missed --repair")
        return report.missed_pods
    if args.output == "json" and not args.yes:
        raise UserError("--repair with -o json can't ask for confirmation; add --yes")
    if args.output != "json":
        report.print(args.output)
    restarted = _repair(api, wait, config, cluster, report, yes=args.yes)
    if restarted:
        report = wait(find_missed(api, namespace, config, cluster, history))
        wait(_find_held_back(api, report))
    if restarted or args.output == "json":
        report.print(args.output)
    return report.missed_pods


def _repair(
    api: ApiServer, wait: Wait, config: Config, cluster: Cluster, report: MissedReport, *, yes: bool
) -> bool:
    """Restart the workloads; whether any restart began. UserError if there is no terminal for the
    question."""
    rows = [row for row in report.rows if row.missed and not row.listed_only]
    workloads = {row.metadata.uid: row for row in rows}
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
    kind, known = kind_of(top), read(top, Object).metadata
    path = paths.one("apps/v1", kind.resource, known.name, known.namespace)
    found = await _read(api, path, kind)
    if found is None or found[1].metadata.uid != known.uid:
        return "it no longer exists"
    now, workload = found
    held_back = await _held_back(api, now)
    if held_back:
        return held_back
    template = {"metadata": {"annotations": {RESTARTED_AT: moment_of(time.time())}}}
    version = {"resourceVersion": workload.metadata.resource_version}
    body = {"metadata": version, "spec": {"template": template}}
    if not await api.unless_conflict("PATCH", path, body, STRATEGIC_MERGE):
        return "it was changed at the same time"
    await _until_ready(api, path, kind)
    await _verify(api, config, cluster, workload)
    return ""


async def _read(api: ApiServer, path: str, kind: GroupKind) -> tuple[Json, _Workload] | None:
    """A workload as JSON and as a type; None if it does not exist."""
    found = await api.get(path)
    if found is None:
        return None
    obj = {"kind": kind.kind, "apiVersion": "apps/v1", **found}
    return obj, read(obj, _Workload)


async def _until_ready(api: ApiServer, path: str, kind: GroupKind) -> None:
    deadline = time.monotonic() + MAX_ROLLOUT_SECONDS
    while True:
        found = await _read(api, path, kind)
        if found is None:
            raise RestartError("it was deleted while it was being restarted")
        _, workload = found
        if workload.is_complete:
            return
        for condition in workload.status.conditions:
            if condition.reason == "ProgressDeadlineExceeded" and workload.is_observed:
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
    if not read(top, _Workload).is_complete:
        return "it isn't ready now, or a rollout is in progress"
    return await _blocked(api, top)


async def _verify(api: ApiServer, config: Config, cluster: Cluster, workload: _Workload) -> None:
    """Raise StillMissedError if a new pod is missed too: then further restarts do not help."""
    owners = Owners(api, await served(api, (POD, *config.workloads)))
    path = paths.collection("v1", "pods", workload.metadata.namespace)
    async for item in api.objects(path):
        pod = {"apiVersion": "v1", "kind": "Pod", **item}
        known = read(pod, PodState).metadata
        if not workload.selects(known.labels) or not runs(pod):
            continue
        above = await owners.above(pod)
        if not above or read(above[-1], Object).metadata.uid != workload.metadata.uid:
            continue  # anybody may create a pod with these labels
        if missed(pod, config, cluster) is not None:
            raise StillMissedError(f"the webhook didn't change its new pod {known.name} either")


# --- budgets ---------------------------------------------------------------------------------------


async def _blocked(api: ApiServer, top: Json) -> str:
    """Why a PodDisruptionBudget does not allow the restart; empty if all allow it."""
    workload = read(top, _Workload)
    path = paths.collection("policy/v1", "poddisruptionbudgets", workload.metadata.namespace)
    down = down_at_once(top)
    async for found in api.objects(path):
        budget = read(found, PodDisruptionBudget)
        allowed = budget.status.disruptions_allowed
        if budget.selects(workload.spec.template.metadata.labels) and down > allowed:
            return (
                f"PodDisruptionBudget {budget.name} allows {allowed} unavailable pods, but its rollout takes "
                f"{down} down"
            )
    return ""


def down_at_once(top: Json) -> int:
    """The most pods that a rollout of the workload takes down at the same time."""
    workload = read(top, _Workload)
    kind, replicas = workload.group_kind, workload.spec.replicas
    if kind == DEPLOYMENT:
        rolling = rolling_update(Target(top, kind), replicas)
        return replicas if rolling is None else rolling.unavailable
    if kind == DAEMON_SET:
        replicas = workload.status.desired_number_scheduled
    steps = workload.spec.update_strategy.rolling_update
    unavailable: IntOrString = 1 if steps.max_unavailable is None else steps.max_unavailable
    most = count_of(unavailable, replicas, up=kind == DAEMON_SET)
    return replicas if most is None else most if kind == DAEMON_SET else max(1, most)
