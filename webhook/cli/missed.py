"""`chassis scan --missed`: running pods that differ from the result of admission now, and why.

`webhook.admission.missed` decides about each pod; this module groups them by workload. It changes nothing.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from policies.core.facts import Cluster
from policies.kube.group_kinds import DAEMON_SET, DEPLOYMENT, POD, STATEFUL_SET, kind_of
from policies.kube.json import Json, maps, text
from policies.kube.names import plural
from policies.kube.objects.kinds import type_of
from policies.kube.objects.metadata import Object, ObjectMeta
from policies.kube.objects.reading import read
from policies.kube.objects.workloads import DaemonSet, Deployment, StatefulSet
from webhook.admission.configuration import Config
from webhook.admission.missed import Difference, Missed, excluded, missed, runs
from webhook.admission.printable import printable
from webhook.cli.owners import Owners
from webhook.cli.terminal import as_json, print_note
from webhook.config.location import CONFIG_MAP, INSTALLED, config_map
from webhook.kube import paths
from webhook.kube.api import ADMISSION_REGISTRATION, ApiServer
from webhook.kube.calls import ApiError
from webhook.kube.discovery import served
from webhook.kube.leader_election import LAPSED_SECONDS, NAME, Outage, outages_in
from webhook.kube.times import LEASES, moment_of, renewed_at, seconds_of

_VERBS: Final = {
    Difference.LACKS: "lacks",
    Difference.EARLIER: "differs in",
    Difference.EXEMPTED: "does not get",
}
REGISTRATION: Final = "chassis.mlchassis.dev"
SILENT_SECONDS: Final = 60.0
"""If the Lease was not renewed for longer, the webhook is down now."""
RENEWED_SECONDS: Final = 10.0
"""The longest time between the last renewal of the Lease and a crash of the webhook."""
REACHED_SECONDS: Final = 15.0
"""The longest time from the readiness of a replica until the API server reaches it."""
RESTARTABLE: Final = (DEPLOYMENT, STATEFUL_SET, DAEMON_SET)
"""The kinds that `kubectl rollout restart` knows."""
_OF_APPS: Final = ("ReplicaSet", *(each.kind for each in RESTARTABLE))
RESTARTED: Final = "restarted by --repair"


class WebhookHistory(Struct, frozen=True):
    """When the webhook was installed and down; times in seconds since the epoch."""

    installed: float | None = None
    outages: Sequence[Outage] = ()
    edited: float | None = None
    """The last edit of the policy."""
    seen: float | None = None
    """When a replica of the webhook was last known to be ready."""

    def why(self, created: float | None) -> str:
        """Why a pod that was created at this time lacks fields that the policy adds."""
        if created is None:
            return "its creation time is unknown"
        if self.installed is not None and created < self.installed:
            return f"created before the webhook was installed ({moment_of(self.installed)})"
        for outage in self.outages:
            if outage.covers(created, RENEWED_SECONDS, REACHED_SECONDS):
                span = f"{moment_of(outage.begin)} to {moment_of(outage.end)}"
                return f"created while the webhook was down ({span})"
        if self.seen is not None and created > self.seen:
            return (
                f"created after a replica was last known to be ready ({moment_of(self.seen)}); the webhook "
                "may be down"
            )
        if self.edited is not None and created < self.edited:
            return f"created before the policy was last edited ({moment_of(self.edited)})"
        return (
            "created while no outage of the webhook is recorded: a call failed open, the webhook was down "
            f"for less than {LAPSED_SECONDS:.0f} s, or the cluster has changed since"
        )


class MissedWorkload(Struct):
    """The differing pods of one workload with one reason, or one pod without a workload."""

    top: Json
    """The workload, or the pod."""
    metadata: ObjectMeta
    difference: Difference
    why: str
    pods: list[str] = field(default_factory=list)
    fields: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The differing fields, by policy."""
    held_back: str = ""
    """Why the workload cannot be restarted now; empty if it can, or if nobody looked."""

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def title(self) -> str:
        return f"{kind_of(self.top).kind} {self.namespace}/{self.name}"

    @property
    def missed(self) -> bool:
        """False if an exemption is the reason."""
        return self.difference is not Difference.EXEMPTED

    def add(self, pod: Json, found: Missed) -> None:
        self.pods.append(read(pod, Object).name)
        for policy, fields in found.fields.items():
            self.fields[policy] = tuple(dict.fromkeys((*self.fields.get(policy, ()), *fields)))

    @property
    def repair(self) -> str:
        """RESTARTED, or why `--repair` does not restart the workload."""
        if self.listed_only or not self.held_back:
            return self.listed_only or RESTARTED
        return f"not restarted by --repair now: {self.held_back}"

    @property
    def listed_only(self) -> str:
        """Why `--repair` never restarts such a workload; empty if it does."""
        kind, owner = kind_of(self.top), self.metadata.controller
        if owner is not None and owner.kind in _OF_APPS and owner.api_version == "apps/v1":
            named = f"{owner.kind} {owner.name}"
            return f"listed only: it names {named} as its owner, which doesn't exist or doesn't own it"
        if owner is not None:
            return f"listed only: restart it through its owner, {owner.kind} {owner.name}"
        if kind == POD:
            return "listed only: the pod has no controller; delete it and create it again"
        if kind.kind in ("Job", "CronJob"):
            return "listed only: Jobs are not restarted; the policy applies to the next run"
        if kind.kind in ("ReplicaSet", "ReplicationController"):
            return "listed only: delete its pods one by one, and it creates new ones"
        if kind not in RESTARTABLE:
            return f"listed only: restart it as its operator documents for {kind.kind}"
        if self.metadata.deletion_timestamp is not None:
            return "listed only: it is being deleted"
        match read(self.top, type_of(kind)):
            case Deployment(spec=spec) if spec.paused:
                return "listed only: its rollout is paused"
            case DaemonSet(spec=spec) | StatefulSet(spec=spec) if spec.update_strategy.type == "OnDelete":
                return "listed only: its updateStrategy is OnDelete; delete its pods one by one"
        return ""

    def record(self) -> Json:
        """The element of `-o json`."""
        return {
            "kind": kind_of(self.top).kind,
            "namespace": self.namespace,
            "name": self.name,
            "how": self.difference.value,
            "why": self.why,
            "pods": self.pods,
            "fields": {policy: list(found) for policy, found in self.fields.items()},
            "repair": self.repair,
        }

    def lines(self) -> Iterator[str]:
        """The lines of the text output."""
        names = ", ".join(self.pods[:3]) + (", ..." if len(self.pods) > 3 else "")
        yield f"{self.title}: {plural(len(self.pods), 'pod')} ({names}), {self.why}"
        verb = _VERBS[self.difference]
        for policy, fields in self.fields.items():
            yield f"  {verb} {', '.join(fields)} ({policy})"
        if self.missed:
            yield f"  {self.repair}"


class MissedReport(Struct, frozen=True):
    """The workloads with differing pods, and how many pods were compared or excluded."""

    rows: Sequence[MissedWorkload]
    pods: int
    """Running pods that were compared."""
    excluded: Mapping[str, int]
    """Running pods in namespaces or with labels that admission excludes, by namespace."""
    history: WebhookHistory

    @property
    def missed_pods(self) -> int:
        return sum(len(row.pods) for row in self.rows if row.missed)

    def print(self, output: str, *, repair: str = "") -> None:
        """Print the report as text or JSON; `repair`: the command to name if it can restart workloads."""
        if output == "json":
            sys.stdout.write(as_json(self._record()))
        else:
            sys.stdout.writelines(f"{printable(line)}\n" for line in self._lines(repair))

    def _record(self) -> Json:
        installed, outages = self.history.installed, self.history.outages
        return {
            "missed": [row.record() for row in self.rows],
            "pods": self.pods,
            "missedPods": self.missed_pods,
            "excludedPods": dict(sorted(self.excluded.items())),
            "installed": None if installed is None else moment_of(installed),
            "outages": [[moment_of(each.begin), moment_of(each.end)] for each in outages],
        }

    def _lines(self, repair: str) -> Iterator[str]:
        for row in self.rows:
            yield from row.lines()
        if self.rows:
            yield ""
        if self.excluded:
            total = sum(self.excluded.values())
            names = ", ".join(f"{name} ({count})" for name, count in sorted(self.excluded.items())[:10])
            more = ", ..." if len(self.excluded) > 10 else ""
            yield f"excluded from admission: {total} pods in {names}{more}"
        workloads = plural(sum(row.missed for row in self.rows), "workload")
        found = f"{self.missed_pods} missed, of {workloads}" if self.missed_pods else "none missed"
        yield f"{plural(self.pods, 'running pod')}, {found}"
        restartable = sum(row.missed and row.repair == RESTARTED for row in self.rows)
        if repair and restartable:
            yield f"`{repair}` restarts {restartable} of them, one after another"


async def find_missed(
    api: ApiServer, namespace: str, config: Config, cluster: Cluster, history: WebhookHistory
) -> MissedReport:
    """Compare every running pod, page by page. ApiError if they can't be listed."""
    rows: dict[tuple[str, Difference, str], MissedWorkload] = {}
    excluded_pods: Counter[str] = Counter()
    owners, compared = Owners(api, await served(api, (POD, *config.workloads))), 0
    async for item in api.objects(paths.collection("v1", "pods", namespace)):
        pod = {"apiVersion": "v1", "kind": "Pod", **item}
        if not runs(pod):
            continue
        if excluded(pod, config, cluster):
            excluded_pods[read(pod, Object).metadata.namespace] += 1
            continue
        compared += 1
        found = missed(pod, config, cluster)
        if found is not None:
            top = [pod, *await owners.above(pod)][-1]
            why = _why(pod, found, history)
            known = read(top, Object).metadata
            key = known.uid or known.name, found.difference, why
            rows.setdefault(key, MissedWorkload(top, known, found.difference, why)).add(pod, found)
    ordered = sorted(rows.values(), key=lambda row: (not row.missed, row.namespace, row.title))
    return MissedReport(ordered, compared, excluded_pods, history)


def _why(pod: Json, found: Missed, history: WebhookHistory) -> str:
    if found.difference is Difference.EXEMPTED:
        return "exempted by its annotation"
    if found.digest:
        return f"created under another policy ({found.digest})"
    return history.why(seconds_of(read(pod, Object).metadata.creation_timestamp))


async def history_of(api: ApiServer, where: str | None) -> WebhookHistory:
    """When the webhook was installed and down, and the policy edited, as far as the user may read that.

    `where`: as in `--policy`.
    """
    policy = where or INSTALLED
    namespace, name = config_map(policy if policy.startswith(CONFIG_MAP) else INSTALLED)
    registered = paths.one(ADMISSION_REGISTRATION, "mutatingwebhookconfigurations", REGISTRATION)
    registration = read(await _get_if_allowed(api, registered, "when the webhook was installed"), Object)
    lease = await _get_if_allowed(
        api, paths.one(LEASES, "leases", NAME, namespace), "when the webhook was down"
    )
    edited: float | None = None
    if policy.startswith(CONFIG_MAP):
        path = paths.one("v1", "configmaps", name, namespace)
        found = await _get_if_allowed(api, path, "when the policy was edited")
        times = [
            seconds_of(text(entry, "time"))
            for entry in maps(found, "metadata", "managedFields")
            if "f:data" in (entry.get("fieldsV1") or {})
        ]
        edited = max((each for each in times if each is not None), default=None)
    outages = list(outages_in(lease))
    last = renewed_at(lease)
    if last is not None and api.now() - last > SILENT_SECONDS:
        print_note(f"no replica of the webhook has been ready since {moment_of(last)}")
        outages.append(Outage(last, api.now()))
    return WebhookHistory(seconds_of(registration.metadata.creation_timestamp), outages, edited, last)


async def _get_if_allowed(api: ApiServer, path: str, purpose: str) -> Json:
    """An object; empty if it does not exist or the user may not read it."""
    try:
        return await api.get(path) or {}
    except ApiError as error:
        if error.status not in (401, 403):
            raise
        print_note(f"unknown, because you may not read it: {purpose}")
        return {}
