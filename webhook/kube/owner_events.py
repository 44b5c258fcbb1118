"""Findings as Events on the owners of pods, if the owner's kind is not in the table of workloads.

Pods of known workloads are judged by the workload's template, where a person sees the warnings. An owner of
an unknown kind has no known template, and the warnings about its pods go to an operator, which drops them.

Law: a review is only a hint. Any client that reaches the port can send one, so the pod is read from the API
server and judged again, and its owner is the one of that pod. The Event is in the pod's namespace. No answer
waits for this: a hint goes into a bounded queue, or is dropped and counted, and one task processes the queue
at a limited rate. A failed hint is not retried: the next pod has the same finding.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import structlog

from policies.core.facts import Cluster
from policies.core.mode import Mode
from policies.kube.group_kinds import POD, kind_of
from policies.kube.json import Json, text
from policies.kube.names import is_api_version, is_kind, is_subdomain
from webhook.admission import engine
from webhook.admission.configuration import Config
from webhook.admission.decision import Decision, Result
from webhook.admission.envelope import Request
from webhook.admission.messages import sentence
from webhook.admission.replacements import owner_behind
from webhook.kube import events, paths
from webhook.kube.calls import Calls
from webhook.kube.errors import ApiError, is_missing_right
from webhook.kube.rate_limit import Clock, RateLimit, Sleep

log = structlog.get_logger()

REASON: Final = "ChassisFinding"
SETTLE_SECONDS: Final = 5.0
"""The delay until the pod is read: other webhooks and quotas follow the answer."""
QUEUED: Final = 100
REMEMBERED: Final = 1000
"""The number of remembered owners and rules with an Event."""
REPEAT_SECONDS: Final = 3600.0
"""The interval of Events for the same owner and rule."""
BURST: Final = 20
"""The number of calls at once, and per minute."""
MAX_UID_LENGTH: Final = 64

OwnerRule = tuple[str, str]
"""The owner's uid and a rule."""


@dataclass(frozen=True, slots=True)
class _Hint:
    """A pod that probably has findings."""

    request: Request
    """The review, without its objects."""
    uid: str
    owner: str
    due: float
    reported: frozenset[OwnerRule]


class OwnerEvents:
    """Writes the Events of one serving process."""

    def __init__(
        self,
        api: Calls,
        config: Callable[[], Config],
        cluster: Cluster,
        count: Callable[[str], None],
        *,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`count` is called with `written`, `failed` and `dropped`."""
        self._api, self._config, self._cluster, self._count = api, config, cluster, count
        self._clock, self._sleep = clock, sleep
        self._queue: asyncio.Queue[_Hint] = asyncio.Queue(QUEUED)
        self._pending: set[OwnerRule] = set()
        self._reported: OrderedDict[OwnerRule, float] = OrderedDict()
        self._limit = RateLimit(BURST, BURST, clock, sleep)
        self._disabled = False

    def notice(self, request: Request, decision: Decision) -> None:
        """Queue a pod whose warnings no person sees. Does not wait, and does not use the network."""
        if self._disabled or request.dry_run or not decision.owned or request.operation != "CREATE":
            return
        owner = _owner_of_unknown_kind(request, self._config())
        if owner is None:
            return
        uid = text(owner, "uid")
        reported = frozenset((uid, result.rule) for result in _warned(decision.results))
        new = {each for each in reported if each not in self._pending and not self._is_known(each)}
        if not new:
            return
        name, pod_uid = (text(request.object, "metadata", field) for field in ("name", "uid"))
        review = replace(request, name=name, object=None, old_object=None)
        hint = _Hint(review, pod_uid, uid, self._clock() + SETTLE_SECONDS, frozenset(new))
        try:
            self._queue.put_nowait(hint)
        except asyncio.QueueFull:
            self._count("dropped")
        else:
            self._pending |= new

    async def run(self) -> None:
        while True:
            hint = await self._queue.get()
            try:
                if not self._disabled:
                    await self._sleep(max(hint.due - self._clock(), 0))
                    await self._process(hint)
            finally:
                self._pending -= hint.reported

    async def _process(self, hint: _Hint) -> None:
        namespace = hint.request.namespace
        try:
            path = paths.one("v1", "pods", hint.request.name, namespace)
            await self._limit.take()
            pod = await self._api.get(path)
        except ApiError as error:
            self._failed(error, f"get Pods in the namespace {namespace}")
            return
        request = replace(hint.request, object=pod)
        config = self._config()
        owner = _owner_of_unknown_kind(request, config)
        if owner is None or text(owner, "uid") != hint.owner or text(pod, "metadata", "uid") != hint.uid:
            self._count("dropped")
            return
        for result in _warned(engine.validate(request, config, self._cluster).results):
            if not self._is_known((hint.owner, result.rule)):
                await self._report(owner, namespace, result)
            if self._disabled:
                return

    async def _report(self, owner: Json, namespace: str, result: Result) -> None:
        regarding = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "metadata": {"namespace": namespace, "name": owner["name"], "uid": owner["uid"]},
        }
        await self._limit.take()
        try:
            await events.record(self._api, regarding, REASON, f"In a pod of it: {sentence(result)}")
        except ApiError as error:
            self._failed(error, f"create and patch Events in the namespace {namespace}")
            return
        self._count("written")
        reported = owner["uid"], result.rule
        self._reported[reported] = self._clock()
        self._reported.move_to_end(reported)
        if len(self._reported) > REMEMBERED:
            self._reported.popitem(last=False)

    def _is_known(self, reported: OwnerRule) -> bool:
        at = self._reported.get(reported)
        return at is not None and self._clock() - at < REPEAT_SECONDS

    def _failed(self, error: ApiError, right: str) -> None:
        self._count("failed")
        if is_missing_right(error):
            self._disabled = True
            log.error(
                "no Events on owners until the next start: a right is missing, see the component events",
                missing=right,
                error=str(error),
            )
        else:
            log.debug("event not written", error=str(error))


def _owner_of_unknown_kind(request: Request, config: Config) -> Json | None:
    """The owner of a pod, if its kind is not in the table and a controller's account created the pod.

    None for an owner that an Event cannot name.
    """
    owner = owner_behind(request, config.webhook.controllers) if request.username else None
    if owner is None or kind_of(request.object or {}) != POD or not engine.in_scope(request, config):
        return None
    if kind_of(owner) in config.workloads or not 0 < len(text(owner, "uid")) <= MAX_UID_LENGTH:
        return None
    named = is_api_version(text(owner, "apiVersion")) and is_kind(text(owner, "kind"))
    return owner if named and is_subdomain(text(owner, "name")) else None


def _warned(results: Iterable[Result]) -> list[Result]:
    """The findings that are warnings, one for each rule."""
    first = {
        result.rule: result
        for result in reversed(list(results))
        if result.exempted is None and result.mode is Mode.WARN
    }
    return [first[rule] for rule in reversed(first)]
