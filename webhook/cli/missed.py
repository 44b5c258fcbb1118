"""`chassis scan --missed`: running pods that differ from what admission would make now, and why.

Law: without --repair nothing is changed; nothing is decided here (`webhook.admission.missed` does).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from policies.core.facts import Cluster
from policies.kube.group_kinds import DAEMON_SET, DEPLOYMENT, POD, STATEFUL_SET, kind_of
from policies.kube.json import Json, dig, maps, text
from policies.kube.metadata import controller
from policies.kube.printable import printable
from policies.kube.times import moment_of, seconds_of
from webhook.admission.configuration import Config
from webhook.admission.missed import How, Missed, excluded, missed, runs
from webhook.cli.output.plain import as_json, plural
from webhook.cli.owners import Owners
from webhook.cli.tell import tell
from webhook.config.location import CONFIG_MAP, INSTALLED, config_map
from webhook.kube import paths
from webhook.kube.api import ADMISSION_REGISTRATION, ApiServer
from webhook.kube.discovery import Collection, served
from webhook.kube.errors import ApiError
from webhook.kube.leases import LEASES, renewed_at
from webhook.kube.uptime import NAME, Outage, outages_in

REGISTRATION: Final = "chassis.mlchassis.dev"
SILENT_SECONDS: Final = 60.0
"""A Lease that was not renewed for so long shows that the webhook is down now."""
RENEWED_SECONDS: Final = 10.0
"""The webhook may have died so long after it last renewed its Lease."""
REACHED_SECONDS: Final = 15.0
"""The API server may reach a replica so long after it is ready."""


@dataclass(frozen=True, slots=True)
class History:
    """When the webhook could see what was made; times in seconds since the epoch."""

    installed: float | None = None
    outages: Sequence[Outage] = ()
    edited: float | None = None
    """When the policy was last edited."""

    def why(self, created: float | None) -> str:
        """Why a pod that was made then lacks what the policy gives."""
        if created is None:
            return "its time of creation is unknown"
        if self.installed is not None and created < self.installed:
            return f"made before the webhook was installed ({moment_of(self.installed)})"
        for outage in self.outages:
            if outage.covers(created, RENEWED_SECONDS, REACHED_SECONDS):
                span = f"{moment_of(outage.begin)} to {moment_of(outage.end)}"
                return f"made while the webhook was down ({span})"
        if self.edited is not None and created < self.edited:
            return f"made before the policy was last edited ({moment_of(self.edited)})"
        return "made while the webhook ran: a call failed open, or the cluster has changed since"


@dataclass(slots=True)
class Row:
    """What was missed of one workload, or of a pod that none has made."""

    top: Json
    how: How
    why: str
    chain: Sequence[Json] = ()
    """The owners of its pods, the nearest one first."""
    pods: list[str] = field(default_factory=list)
    fields: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        return text(self.top, "metadata", "namespace")

    @property
    def title(self) -> str:
        return f"{kind_of(self.top).kind} {self.namespace}/{text(self.top, 'metadata', 'name')}"

    @property
    def counts(self) -> bool:
        """Whether it is missed: an exemption is a person's choice."""
        return self.how is not How.EXEMPTED

    def record(self, repair: str) -> Json:
        """As in `-o json`."""
        return {
            "kind": kind_of(self.top).kind,
            "namespace": self.namespace,
            "name": text(self.top, "metadata", "name"),
            "how": self.how.value,
            "why": self.why,
            "pods": self.pods,
            "fields": {policy: list(found) for policy, found in self.fields.items()},
            "repair": repair,
        }


@dataclass(slots=True)
class Report:
    """Everything that was missed, and how much was not looked at."""

    rows: list[Row]
    pods: int
    """Running pods that were looked at."""
    excluded: Mapping[str, int]
    """Running pods of namespaces, or with labels, that admission leaves alone; by namespace."""
    history: History

    @property
    def missed(self) -> int:
        return sum(len(row.pods) for row in self.rows if row.counts)


@dataclass(frozen=True, slots=True)
class Looking:
    """What is needed to look at the pods of a cluster."""

    api: ApiServer
    namespace: str
    config: Config
    cluster: Cluster
    known: Sequence[Collection]
    history: History

    @classmethod
    async def prepare(
        cls, api: ApiServer, namespace: str, config: Config, cluster: Cluster, where: str | None
    ) -> Looking:
        """Read the webhook's history. `where`: as in `--policy`."""
        known = await served(api, (POD, *config.workloads))
        return cls(api, namespace, config, cluster, known, await history_of(api, where))

    async def report(self) -> Report:
        """Look at every running pod, page by page. ApiError if they can't be listed."""
        rows: dict[tuple[str, str, str], Row] = {}
        left_alone: Counter[str] = Counter()
        owners, looked = Owners(self.api, self.known), 0
        path = paths.collection("v1", "pods", self.namespace)
        async for item in self.api.objects(path):
            pod = {"apiVersion": "v1", "kind": "Pod", **item}
            if not runs(pod):
                continue
            if excluded(pod, self.config, self.cluster):
                left_alone[text(pod, "metadata", "namespace")] += 1
                continue
            looked += 1
            found = missed(pod, self.config, self.cluster)
            if found is not None:
                chain = await owners.above(pod)
                self._add(rows, pod, chain, found)
        ordered = sorted(rows.values(), key=lambda row: (not row.counts, row.namespace, row.title))
        return Report(ordered, looked, left_alone, self.history)

    def _add(
        self, rows: dict[tuple[str, str, str], Row], pod: Json, chain: Sequence[Json], found: Missed
    ) -> None:
        top = chain[-1] if chain else pod
        why = self._why(pod, found)
        key = text(top, "metadata", "uid") or text(top, "metadata", "name"), found.how, why
        row = rows.setdefault(key, Row(top, found.how, why, chain))
        row.pods.append(text(pod, "metadata", "name"))
        for policy, paths_ in found.fields.items():
            row.fields[policy] = tuple(dict.fromkeys((*row.fields.get(policy, ()), *paths_)))

    def _why(self, pod: Json, found: Missed) -> str:
        if found.how is How.EXEMPTED:
            return "exempted by its annotation"
        if found.digest:
            return f"made under another policy ({found.digest})"
        return self.history.why(seconds_of(text(pod, "metadata", "creationTimestamp")))


async def history_of(api: ApiServer, where: str | None) -> History:
    """When the webhook was installed and down, and the policy edited, as far as that may be read."""
    policy = where or INSTALLED
    namespace, name = config_map(policy if policy.startswith(CONFIG_MAP) else INSTALLED)
    registered = paths.one(ADMISSION_REGISTRATION, "mutatingwebhookconfigurations", REGISTRATION)
    registration = await _readable(api, registered, "when the webhook was installed")
    lease = await _readable(api, paths.one(LEASES, "leases", NAME, namespace), "when the webhook was down")
    edited: float | None = None
    if policy.startswith(CONFIG_MAP):
        kept = await _readable(
            api, paths.one("v1", "configmaps", name, namespace), "when the policy was edited"
        )
        times = [
            seconds_of(text(entry, "time"))
            for entry in maps(kept or {}, "metadata", "managedFields")
            if "f:data" in (entry.get("fieldsV1") or {})
        ]
        edited = max((each for each in times if each is not None), default=None)
    outages = list(outages_in(lease or {}))
    last = renewed_at(lease or {})
    if last is not None and api.now() - last > SILENT_SECONDS:
        tell(f"no replica of the webhook has been ready since {moment_of(last)}")
        outages.append(Outage(last, api.now()))
    installed = seconds_of(text(registration or {}, "metadata", "creationTimestamp"))
    return History(installed, outages, edited)


async def _readable(api: ApiServer, path: str, what: str) -> Json | None:
    try:
        return await api.get(path)
    except ApiError as error:
        if error.status not in (401, 403):
            raise
        tell(f"not known, since you may not read it: {what}")
        return None


# --- how it is repaired ---------------------------------------------------------------------------

RESTARTABLE: Final = (DEPLOYMENT, STATEFUL_SET, DAEMON_SET)
"""The kinds that `kubectl rollout restart` knows."""


RESTARTED: Final = "restarted by --repair"


def way_of(row: Row) -> str:
    """How the workload can be repaired: RESTARTED, or why it is listed only."""
    top, kind = row.top, kind_of(row.top)
    owner = controller(top)
    if owner is not None:
        return f"listed only: restart it by its owner, {text(owner, 'kind')} {text(owner, 'name')}"
    if kind == POD:
        return "listed only: a pod without a controller; create it again"
    if kind.kind in ("Job", "CronJob"):
        return "listed only: a Job is not restarted; its next run is made by the policy"
    if kind not in RESTARTABLE:
        return f"listed only: restart it as its operator documents for {kind.kind}"
    if dig(top, "metadata", "deletionTimestamp"):
        return "listed only: it is being deleted"
    if dig(top, "spec", "paused") is True:
        return "listed only: its rollout is paused"
    if text(top, "spec", "updateStrategy", "type") == "OnDelete":
        return "listed only: its updateStrategy is OnDelete; delete its pods one by one"
    return RESTARTED


# --- what is printed -------------------------------------------------------------------------------


def print_report(report: Report, output: str, *, hint: bool = True) -> None:
    """Print a report as text or JSON."""
    if output == "json":
        records = [row.record(way_of(row)) for row in report.rows]
        whole = {
            "missed": records,
            "pods": report.pods,
            "missedPods": report.missed,
            "excludedPods": dict(sorted(report.excluded.items())),
            "installed": None if report.history.installed is None else moment_of(report.history.installed),
            "outages": [[moment_of(each.begin), moment_of(each.end)] for each in report.history.outages],
        }
        sys.stdout.write(as_json(whole))
        return
    sys.stdout.writelines(f"{printable(line)}\n" for line in _lines(report, hint))


def _lines(report: Report, hint: bool) -> Iterator[str]:
    for row in report.rows:
        yield f"{row.title}: {_pods(row.pods)}, {row.why}"
        verb = {How.LACKS: "lacks", How.EARLIER: "differs in", How.EXEMPTED: "does not get"}[row.how]
        for policy, fields in row.fields.items():
            yield f"  {verb} {', '.join(fields)} ({policy})"
        if row.counts:
            yield f"  {way_of(row)}"
    if report.rows:
        yield ""
    if report.excluded:
        total = sum(report.excluded.values())
        names = ", ".join(f"{name} ({count})" for name, count in sorted(report.excluded.items())[:10])
        more = ", ..." if len(report.excluded) > 10 else ""
        yield f"excluded from admission: {total} pods in {names}{more}"
    workloads = plural(sum(row.counts for row in report.rows), "workload")
    found = f"{report.missed} missed, of {workloads}" if report.missed else "none missed"
    yield f"{plural(report.pods, 'running pod')}, {found}"
    restartable = sum(row.counts and way_of(row) == RESTARTED for row in report.rows)
    if hint and restartable:
        yield f"`chassis scan --missed --repair` restarts {restartable} of them, one after the other"


def _pods(names: Iterable[str]) -> str:
    listed = list(names)
    shown = ", ".join(listed[:3]) + (", ..." if len(listed) > 3 else "")
    return f"{plural(len(listed), 'pod')} ({shown})"
