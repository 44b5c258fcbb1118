"""What a scan finds, as PolicyReports: the objects that Kyverno, Policy Reporter and their dashboards read.

Source: the API wgpolicyk8s.io/v1alpha2 of the Kubernetes Policy Working Group, and openreports.io/v1alpha1,
which takes its place with the same fields. Law: only our own reports, recognised by their label, are changed,
and only in the version that was last read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from policies.core.mode import Mode
from policies.kube.json import Json, text
from webhook.admission import messages as answer
from webhook.cli.output.review import Review
from webhook.config.load import rules
from webhook.errors import UserError
from webhook.kube import paths
from webhook.kube.api import ApiServer
from webhook.kube.errors import ApiError


@dataclass(frozen=True, slots=True)
class Reports:
    """One of the two APIs that reports are written in."""

    api_version: str
    kind: str
    """Of the reports in a namespace; the other kind is the same with `Cluster` before it."""
    plural: str

    @property
    def group(self) -> str:
        return self.api_version.partition("/")[0]

    def path_of(self, place: str, name: str) -> str:
        """The path of one report, of a namespace or of objects in none (empty)."""
        return paths.one(self.api_version, self.plural if place else f"cluster{self.plural}", name, place)

    def collection(self, place: str | None) -> str:
        """The path of the reports of one namespace, of objects in none (empty), or of all of them (None)."""
        if place == "":
            return paths.collection(self.api_version, f"cluster{self.plural}")
        return paths.collection(self.api_version, self.plural, place or "")


OPEN_REPORTS: Final = Reports("openreports.io/v1alpha1", "Report", "reports")
POLICY_REPORTS: Final = Reports("wgpolicyk8s.io/v1alpha2", "PolicyReport", "policyreports")
APIS: Final = (OPEN_REPORTS, POLICY_REPORTS)
"""The newer one first: it is taken where a cluster serves both."""

NAME: Final = "mlchassis"
COVERAGE: Final = "coverage"
"""The policy of the results that name unread parts."""
OWN: Final = {"app.kubernetes.io/managed-by": NAME}
SELECTOR: Final = ",".join(f"{label}={value}" for label, value in OWN.items())

MOST_RESULTS: Final = 500
"""Results of one report; a namespace with more gets further reports, for etcd takes 1.5 MB an object."""
LONGEST_MESSAGE: Final = 1024
ATTEMPTS: Final = 5
"""How often a namespace's reports are read again when another scan writes them at the same time."""

_RESULTS: Final[Mapping[Mode, tuple[str, str]]] = {
    Mode.ENFORCE: ("fail", "high"),
    Mode.WARN: ("warn", "medium"),
    Mode.AUDIT: ("warn", "low"),
}
"""Result and severity of a finding by its mode. An older CRD knows only these three severities."""


# --- results ---------------------------------------------------------------------------------------


class Results:
    """The results of a scan by namespace; those of objects in none under the empty name."""

    def __init__(self, now: float) -> None:
        """`now` in seconds since the epoch."""
        self._timestamp = {"seconds": int(now), "nanos": 0}
        self.by_namespace: dict[str, list[Json]] = {}

    def seeing(self, reviews: Iterable[Review]) -> Iterator[Review]:
        """The reviews themselves, once their results are taken down."""
        for review in reviews:
            for result in results_of(review):
                found = self.by_namespace.setdefault(review.document.namespace, [])
                found.append({**result, "timestamp": self._timestamp})
            yield review


def results_of(review: Review) -> Iterator[Json]:
    """One result for each finding, change that a running object lacks, and rule that failed."""
    obj = review.document.obj
    place = {"apiVersion": text(obj, "apiVersion"), "kind": text(obj, "kind")}
    place |= {key: text(obj, "metadata", key) for key in ("namespace", "name", "uid")}
    resources = [{key: value for key, value in place.items() if value}]
    for result in review.decision.results:
        outcome, severity = _RESULTS[result.mode]
        properties = {"path": result.finding.path, "mode": result.mode.value}
        if result.exempted is not None:
            outcome, properties["exempted"] = "skip", result.exempted
        message = f"{result.finding.message} {result.finding.hint}"
        yield _result(result.rule, outcome, message, resources, severity=severity, properties=properties)
    for change in review.changes:
        outcome, severity = _RESULTS[change.mode]
        properties = {"mode": change.mode.value}
        message = f"{answer.describe(change)}."
        yield _result(change.policy, outcome, message, resources, severity=severity, properties=properties)
    if review.unread:
        yield _result(COVERAGE, "skip", review.unread, resources, severity="low")
    for crash in review.decision.crashes:
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
        "message": " ".join(message.split())[:LONGEST_MESSAGE],
        "resources": resources,
        **more,
    }


# --- reports ---------------------------------------------------------------------------------------


@dataclass
class Written:
    """What became of the reports, by their paths."""

    written: set[str] = field(default_factory=set)
    unchanged: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return (
            f"PolicyReports: {len(self.written)} written, {len(self.unchanged)} unchanged, "
            f"{len(self.removed)} removed"
        )


async def served(api: ApiServer, group: str = "") -> list[Reports]:
    """The APIs that the cluster serves, the one to write in first: that of the group, if one is given.

    UserError if the cluster does not serve it, or none.
    """
    found = [each for each in APIS if await _is_served(api, each)]
    found.sort(key=lambda each: each.group != group)
    if not found or (group and found[0].group != group):
        missing = " or ".join(each.api_version for each in APIS if group in ("", each.group))
        raise UserError(
            f"--report: the cluster has no PolicyReports ({missing}): install their two CRDs first"
        )
    return found


async def _is_served(api: ApiServer, reports: Reports) -> bool:
    answered = await api.get(paths.root(reports.api_version)) or {}
    kinds = {resource["kind"] for resource in answered.get("resources") or ()}
    return kinds >= {reports.kind, f"Cluster{reports.kind}"}


async def write(api: ApiServer, namespace: str, results: Results, served: Sequence[Reports]) -> Written:
    """Write the findings into our reports in a namespace, or in all (empty), in the first of the APIs.

    Reports in another API, from an earlier scan, are removed, so that no finding counts twice. UserError if
    that fails.
    """
    chosen, *others = served
    try:
        done = await _write(api, namespace, results.by_namespace, chosen)
        for other in others:
            done.removed |= (await _write(api, namespace, {}, other)).removed
    except ApiError as error:
        raise UserError(f"--report: the PolicyReports can't be written: {error}") from error
    return done


async def _write(
    api: ApiServer, namespace: str, results: Mapping[str, list[Json]], reports: Reports
) -> Written:
    writer = _Writer(api, reports)
    known = await writer.known(*([namespace] if namespace else _EVERYWHERE))
    for place in [namespace] if namespace else sorted({*results, *known}):
        await writer.replace(place, results.get(place, []), known.get(place, {}))
    return writer.done


_EVERYWHERE: Final = ("", None)
"""No namespace, and every one."""


class _Writer:
    def __init__(self, api: ApiServer, reports: Reports) -> None:
        self._api = api
        self._reports = reports
        self.done = Written()

    async def known(self, *places: str | None) -> dict[str, dict[str, Json]]:
        """Our reports as they are, by namespace and name."""
        found: dict[str, dict[str, Json]] = {}
        for place in places:
            async for page, _ in self._api.pages(
                self._reports.collection(place), {"labelSelector": SELECTOR}
            ):
                for report in page:
                    metadata = report["metadata"]
                    found.setdefault(metadata.get("namespace", ""), {})[metadata["name"]] = report
        return found

    async def replace(self, place: str, results: list[Json], known: Mapping[str, Json]) -> None:
        """Write these results into our reports of one namespace, and remove reports without results."""
        for _ in range(ATTEMPTS):
            wanted = _reports(self._reports, place, results, known)
            try:
                written = [await self._write(place, name, wanted[name], known.get(name)) for name in wanted]
                removed = [await self._remove(place, known[name]) for name in known if name not in wanted]
            except ApiError as error:
                if error.status == 404 or "is being terminated" in error.message:
                    return  # the namespace is going, or gone
                raise
            if all(written) and all(removed):
                return
            known = (await self.known(place)).get(place, {})
        raise UserError(
            f"--report: {self._reports.collection(place)}/{NAME} is another's, or written by others meanwhile"
        )

    async def _write(self, place: str, name: str, report: Json, known: Json | None) -> bool:
        """Create or replace a report; False if another writer came first."""
        path = self._reports.path_of(place, name)
        if known is not None and report["results"] == known.get("results"):
            self.done.unchanged.add(path)
            return True
        if known is None:
            good = await self._api.unless_conflict("POST", self._reports.collection(place), report)
        else:
            merged = {**known, "summary": report["summary"], "results": report["results"]}
            good = await self._api.unless_conflict("PUT", path, merged)
        if good:
            self.done.written.add(path)
        return good

    async def _remove(self, place: str, known: Json) -> bool:
        """Remove a report; False if it was changed meanwhile."""
        metadata = known["metadata"]
        path = self._reports.path_of(place, metadata["name"])
        unchanged = {"preconditions": {"resourceVersion": metadata["resourceVersion"]}}
        try:
            await self._api.call("DELETE", path, body=unchanged)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return error.status == 404
        self.done.removed.add(path)
        return True


def _reports(api: Reports, place: str, results: list[Json], known: Mapping[str, Json]) -> dict[str, Json]:
    """The reports of these results, by name; none if there are no results.

    A result that was there before keeps its time: that is when it was found.
    """
    times = {_key(result): result.get("timestamp") for old in known.values() for result in _results_in(old)}
    ordered = sorted(results, key=_key)
    timed = [{**result, "timestamp": times.get(_key(result)) or result["timestamp"]} for result in ordered]
    chunks = [timed[start : start + MOST_RESULTS] for start in range(0, len(timed), MOST_RESULTS)]
    names = [NAME if number == 1 else f"{NAME}-{number}" for number in range(1, len(chunks) + 1)]
    return {name: _report(api, place, name, chunk) for name, chunk in zip(names, chunks, strict=True)}


def _results_in(report: Json) -> list[Json]:
    return report.get("results") or []


def _key(result: Json) -> bytes:
    """A result without its time, in an order that people find things in."""
    first = [text(result, "resources", 0, "kind"), text(result, "resources", 0, "name"), text(result, "rule")]
    rest = {key: value for key, value in result.items() if key != "timestamp"}
    return orjson.dumps([*first, rest], option=orjson.OPT_SORT_KEYS)


def _report(api: Reports, place: str, name: str, results: list[Json]) -> Json:
    counts = Counter(result["result"] for result in results)
    return {
        "apiVersion": api.api_version,
        "kind": api.kind if place else f"Cluster{api.kind}",
        "metadata": {"name": name, "labels": OWN, **({"namespace": place} if place else {})},
        "summary": {result: counts[result] for result in ("pass", "fail", "warn", "error", "skip")},
        "results": results,
    }
