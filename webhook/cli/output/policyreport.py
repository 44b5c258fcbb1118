"""The findings of a scan as PolicyReports, which Kyverno, Policy Reporter and their dashboards read.

Source: the API wgpolicyk8s.io/v1alpha2 of the Kubernetes Policy Working Group, and its successor
openreports.io/v1alpha1 with the same fields. Only reports with our label are changed, and only in the version
that was last read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
from msgspec import Struct, field

from policies.core.finding import Mode
from policies.kube.json import Json, text
from webhook.admission import messages
from webhook.cli.reviewed import Reviewed
from webhook.config.load import rules
from webhook.errors import UserError
from webhook.kube import paths
from webhook.kube.api import ApiServer
from webhook.kube.calls import ApiError


class Reports(Struct, frozen=True):
    """One of the two APIs for reports."""

    api_version: str
    kind: str
    """The kind in a namespace; the cluster-scoped kind has the prefix `Cluster`."""
    plural: str

    @property
    def group(self) -> str:
        return self.api_version.partition("/")[0]

    def path_of(self, namespace: str, name: str) -> str:
        """The path of one report; an empty namespace means cluster-scoped."""
        plural = self.plural if namespace else f"cluster{self.plural}"
        return paths.one(self.api_version, plural, name, namespace)

    def collection(self, namespace: str | None) -> str:
        """The path of the reports in a namespace, of the cluster-scoped ones (empty), or of all others
        (None)."""
        if namespace == "":
            return paths.collection(self.api_version, f"cluster{self.plural}")
        return paths.collection(self.api_version, self.plural, namespace or "")


OPEN_REPORTS: Final = Reports("openreports.io/v1alpha1", "Report", "reports")
POLICY_REPORTS: Final = Reports("wgpolicyk8s.io/v1alpha2", "PolicyReport", "policyreports")
APIS: Final = (OPEN_REPORTS, POLICY_REPORTS)
"""The preferred API first."""

NAME: Final = "mlchassis"
COVERAGE: Final = "coverage"
"""The policy of results about unread parts."""
OWN: Final = {"app.kubernetes.io/managed-by": NAME}
SELECTOR: Final = ",".join(f"{label}={value}" for label, value in OWN.items())

MAX_RESULTS: Final = 500
"""Results in one report; a namespace with more gets several, because etcd limits an object to 1.5 MB."""
MAX_MESSAGE_LENGTH: Final = 1024
ATTEMPTS: Final = 5
"""How often a namespace's reports are read again if another scan writes them at the same time."""

_RESULTS: Final[Mapping[Mode, tuple[str, str]]] = {
    Mode.ENFORCE: ("fail", "high"),
    Mode.WARN: ("warn", "medium"),
    Mode.AUDIT: ("warn", "low"),
}
"""Result and severity of a finding by its mode. Old CRDs have only these three severities."""


# --- results ---------------------------------------------------------------------------------------


class ReportResults:
    """The results of a scan by namespace; empty for cluster-scoped objects."""

    def __init__(self, now: float) -> None:
        """`now` in seconds since the epoch."""
        self._timestamp = {"seconds": int(now), "nanos": 0}
        self.by_namespace: dict[str, list[Json]] = {}

    def collect(self, reviews: Iterable[Reviewed]) -> Iterator[Reviewed]:
        """Keep the results of reviews while they are passed on."""
        for review in reviews:
            for result in results_of(review):
                found = self.by_namespace.setdefault(review.document.namespace, [])
                found.append({**result, "timestamp": self._timestamp})
            yield review


def results_of(review: Reviewed) -> Iterator[Json]:
    """A result for each finding, for each change that a running object lacks, and for each failed rule."""
    obj = review.document.obj
    resource = {"apiVersion": text(obj, "apiVersion"), "kind": text(obj, "kind")}
    resource |= {key: text(obj, "metadata", key) for key in ("namespace", "name", "uid")}
    resources = [{key: value for key, value in resource.items() if value}]
    for each in review.decision.results:
        result, severity = _RESULTS[each.mode]
        properties = {"path": each.finding.path, "mode": each.mode.value}
        if each.exempted is not None:
            result, properties["exempted"] = "skip", each.exempted
        message = f"{each.finding.message} {each.finding.hint}"
        yield _result(each.rule, result, message, resources, severity=severity, properties=properties)
    for change in review.changes:
        result, severity = _RESULTS[change.mode]
        properties = {"mode": change.mode.value}
        message = f"{messages.describe(change)}."
        yield _result(change.mutator, result, message, resources, severity=severity, properties=properties)
    if review.unread:
        yield _result(COVERAGE, "skip", review.unread, resources, severity="low")
    for crash in review.decision.distinct_crashes:
        yield _result(crash.id, "error", f"It failed on this object: {crash.error}", resources)


def _result(name: str, result: str, message: str, resources: list[Json], **more: Any) -> Json:
    rule = rules().get(name)
    return {
        "source": NAME,
        "policy": name,
        "rule": name,
        "category": rule.document.family.value if rule else "policy",
        "result": result,
        "scored": result == "fail",
        "message": " ".join(message.split())[:MAX_MESSAGE_LENGTH],
        "resources": resources,
        **more,
    }


# --- reports ---------------------------------------------------------------------------------------


class Written(Struct):
    """The paths of the reports by the result of the write."""

    written: set[str] = field(default_factory=set)
    unchanged: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return (
            f"PolicyReports: {len(self.written)} written, {len(self.unchanged)} unchanged, "
            f"{len(self.removed)} removed"
        )


async def served(api: ApiServer, group: str = "") -> list[Reports]:
    """The APIs that the cluster serves, with the one of the group first.

    Raises:
        UserError: the cluster does not serve the group's API, or none of them.
    """
    found = [each for each in APIS if await _is_served(api, each)]
    found.sort(key=lambda each: each.group != group)
    if not found or (group and found[0].group != group):
        missing = " or ".join(each.api_version for each in APIS if group in ("", each.group))
        raise UserError(
            f"--report: the cluster has no PolicyReports ({missing}); install their two CRDs first"
        )
    return found


async def _is_served(api: ApiServer, reports: Reports) -> bool:
    answered = await api.get(paths.root(reports.api_version)) or {}
    kinds = {resource["kind"] for resource in answered.get("resources") or ()}
    return kinds >= {reports.kind, f"Cluster{reports.kind}"}


async def write(api: ApiServer, namespace: str, results: ReportResults, served: Sequence[Reports]) -> Written:
    """Write the findings into our reports of a namespace, or of all (empty), in the first of the APIs.

    The reports in the other API are removed, so that no finding counts twice. UserError if a write fails.
    """
    first, *others = served
    try:
        written = await _write(api, namespace, results.by_namespace, first)
        for other in others:
            written.removed |= (await _write(api, namespace, {}, other)).removed
    except ApiError as error:
        raise UserError(f"--report: the PolicyReports can't be written: {error}") from error
    return written


async def _write(
    api: ApiServer, namespace: str, results: Mapping[str, list[Json]], reports: Reports
) -> Written:
    writer = _Writer(api, reports)
    known = await writer.known(*([namespace] if namespace else ["", None]))
    for each in [namespace] if namespace else sorted({*results, *known}):
        await writer.replace(each, results.get(each, []), known.get(each, {}))
    return writer.done


class _Writer:
    def __init__(self, api: ApiServer, reports: Reports) -> None:
        self._api = api
        self._reports = reports
        self.done = Written()

    async def known(self, *namespaces: str | None) -> dict[str, dict[str, Json]]:
        """Our present reports, by namespace and name."""
        found: dict[str, dict[str, Json]] = {}
        for namespace in namespaces:
            path = self._reports.collection(namespace)
            async for page, _ in self._api.pages(path, {"labelSelector": SELECTOR}):
                for report in page:
                    metadata = report["metadata"]
                    found.setdefault(metadata.get("namespace", ""), {})[metadata["name"]] = report
        return found

    async def replace(self, namespace: str, results: list[Json], known: Mapping[str, Json]) -> None:
        """Write these results into our reports of one namespace, and remove reports without results."""
        for _ in range(ATTEMPTS):
            wanted = _reports(self._reports, namespace, results, known)
            try:
                written = [
                    await self._write(namespace, name, wanted[name], known.get(name)) for name in wanted
                ]
                removed = [await self._remove(namespace, known[name]) for name in known if name not in wanted]
            except ApiError as error:
                if error.status == 404 or "is being terminated" in error.message:
                    return  # the namespace is being deleted
                raise
            if all(written) and all(removed):
                return
            known = (await self.known(namespace)).get(namespace, {})
        raise UserError(
            f"--report: {self._reports.collection(namespace)}/{NAME} belongs to another program, or "
            "another scan is writing it at the same time"
        )

    async def _write(self, namespace: str, name: str, report: Json, known: Json | None) -> bool:
        """Create or replace a report; False on a conflict with another writer."""
        path = self._reports.path_of(namespace, name)
        if known is not None and report["results"] == known.get("results"):
            self.done.unchanged.add(path)
            return True
        if known is None:
            done = await self._api.unless_conflict("POST", self._reports.collection(namespace), report)
        else:
            merged = {**known, "summary": report["summary"], "results": report["results"]}
            done = await self._api.unless_conflict("PUT", path, merged)
        if done:
            self.done.written.add(path)
        return done

    async def _remove(self, namespace: str, known: Json) -> bool:
        """Delete a report; False on a conflict with another writer."""
        metadata = known["metadata"]
        path = self._reports.path_of(namespace, metadata["name"])
        unchanged = {"preconditions": {"resourceVersion": metadata["resourceVersion"]}}
        try:
            await self._api.call("DELETE", path, body=unchanged)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return error.status == 404
        self.done.removed.add(path)
        return True


def _reports(api: Reports, namespace: str, results: list[Json], known: Mapping[str, Json]) -> dict[str, Json]:
    """The reports of these results, by name; none if there are no results.

    A result that a present report has keeps its time.
    """
    present = (result for report in known.values() for result in report.get("results") or ())
    times = {_key(result): result.get("timestamp") for result in present}
    ordered = sorted(results, key=_key)
    timed = [{**result, "timestamp": times.get(_key(result)) or result["timestamp"]} for result in ordered]
    chunks = [timed[start : start + MAX_RESULTS] for start in range(0, len(timed), MAX_RESULTS)]
    names = [NAME if number == 1 else f"{NAME}-{number}" for number in range(1, len(chunks) + 1)]
    return {name: _report(api, namespace, name, chunk) for name, chunk in zip(names, chunks, strict=True)}


def _key(result: Json) -> bytes:
    """A sort key: kind, name and rule, then the other fields without the time."""
    first = [text(result, "resources", 0, "kind"), text(result, "resources", 0, "name"), text(result, "rule")]
    rest = {key: value for key, value in result.items() if key != "timestamp"}
    return orjson.dumps([*first, rest], option=orjson.OPT_SORT_KEYS)


def _report(api: Reports, namespace: str, name: str, results: list[Json]) -> Json:
    counts = Counter(result["result"] for result in results)
    return {
        "apiVersion": api.api_version,
        "kind": api.kind if namespace else f"Cluster{api.kind}",
        "metadata": {"name": name, "labels": OWN, **({"namespace": namespace} if namespace else {})},
        "summary": {result: counts[result] for result in ("pass", "fail", "warn", "error", "skip")},
        "results": results,
    }
