"""A memo of decisions: equal requests with the same facts are decided once.

Law: an answer from the memo is the engine's own, byte for byte. A decision is a pure function of the request,
the configuration and the listings of the cluster that it consulted. Replicas of one pod template differ only
in fields without meaning for a decision: uid, times, the random ends of their names. Before the engine sees a
request these are replaced by constants, whether or not the answer is remembered, and the request's text in
that form is the key: two requests with one key are one request to the engine. An entry keeps which listings
were consulted and counts while each of them is still the current one.

An answer is remembered only if it has none of the constants in it, nor a part of one: it is checked when the
entry is made. If it has, the engine decides each of these requests as it came. A decision with a failed
policy is not remembered, and a value that is also elsewhere in the request is not replaced.

What becomes of the pods of a workload is remembered by itself: it follows from the pod, as for Pods, and a
workload with other replicas or annotations mostly has the template that it had before. What rules find is
not: it may rest on all of the object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final
from weakref import ReferenceType, ref

import orjson

from policies.core.facts import Cluster
from policies.core.finding import Finding
from policies.core.listing import Listing
from policies.core.pod_view import PodView
from policies.core.reasons import UNREAD
from policies.core.resources import Resource
from policies.core.target import PodTemplate
from webhook.admission.canonical import Canonical, own_name, shows_constants
from webhook.admission.configuration import Config
from webhook.admission.context import Context
from webhook.admission.decision import Decision
from webhook.admission.envelope import Prepared, Request, Response, prepared
from webhook.admission.messages import Answer, Recalled, respond
from webhook.admission.mutation import fold_template
from webhook.fast_path.replicas import Bodies, Form, Own, Place
from webhook.fast_path.sizes import held

Decide = Callable[[Request, Config, Cluster], Decision]
Consulted = tuple[tuple[Resource, str | None, "ReferenceType[Listing] | None"], ...]
"""The listings that a decision rests on; None where a resource was not known."""

DEFAULT_BYTES: Final = 16 * 1024 * 1024
_SLOT: Final = 256
"""Bytes that the tables themselves take for an entry."""
_LARGEST: Final = 16
"""One entry may have this part of the memo."""
_FOLDS: Final = 4
"""The pods of workloads may have this part of it."""
LESSONS: Final = 4
"""How many forms of a review are known by their bytes, and how many more are tried until one is met again."""


class Memo:
    """The answers of one process, the least recently used given up first."""

    def __init__(
        self,
        limit: int = DEFAULT_BYTES,
        count: Callable[[str], None] = lambda _: None,
        shared: tuple[type, ...] = (),
    ) -> None:
        """`limit`: bytes that all entries together may take, 0 to remember nothing. `count` is called with
        `hit`, `miss` and `evicted`. `shared`: types of which a note (see `Recalled`) has objects that others
        hold, too."""
        self.folds = Folds(limit // _FOLDS)
        """What becomes of the pods of workloads; its bytes are of `limit` too."""
        self._limit, self._count, self._shared = limit - limit // _FOLDS, count, shared
        self._entries: dict[tuple[str, bytes], _Entry] = {}
        self._bodies: Bodies[_Replicas] = Bodies()
        self._config: Config | None = None
        self.bytes = 0
        """What the entries take, as measured."""

    def __len__(self) -> int:
        return len(self._entries)

    def recall(self, endpoint: str, body: bytes, config: Config, cluster: Cluster) -> Recalled | None:
        """The answer to a body, found by its bytes as that of another replica; None if it has to be read.

        It is what `answer` would give, to the byte.
        """
        if config is not self._config:
            return None
        found = self._bodies.find(endpoint, body)
        if found is None:
            return None
        replicas, own = found
        entry = replicas.entry
        if not _current(entry.consulted, cluster):
            return None
        entry.lessons = LESSONS
        self._entries[entry.key] = self._entries.pop(entry.key)
        self._count("hit")
        return replicas.recalled(own)

    def answer(
        self, endpoint: str, request: Request, config: Config, cluster: Cluster, decide: Decide
    ) -> Answer:
        """What `decide` decides of a request, in words.

        The decision in the answer is the outline that is counted and logged, and the response contains no
        more than its outcome: object, patches and sentences are in `ready` only.
        """
        canonical = Canonical.of(request) if self._limit else None
        if canonical is None:
            return _decided(request, config, cluster, decide)
        if config is not self._config:
            self._forget_all()
            self._config = config
        key = (endpoint, canonical.text)
        entry = self._entries.pop(key, None)
        if entry is not None and _current(entry.consulted, cluster):
            self._entries[entry.key] = entry
            if entry.ready is None:
                self._count("miss")
                return _decided(request, config, cluster, decide)
            self._count("hit")
            learn = partial(self._learn, entry, request, canonical) if entry.lessons else None
            return Answer(entry.response, entry.outline, entry.ready, learn)
        if entry is not None:
            self._give_up(entry)
        self._count("miss")
        recorded = _Recorded(cluster)
        decision = decide(canonical.request(), config, recorded)
        response = respond(decision)  # before the listings are looked at: words may be made of them, too
        self.folds.measure()
        if shows_constants(response):
            self._remember(_Entry.of(key, None, recorded.consulted()))
            return _decided(request, config, cluster, decide)
        ready = prepared(response)
        if not decision.crashes:
            self._remember(_Entry.of(key, (decision, response, ready), recorded.consulted()))
        return Answer(response, decision, ready)

    def _remember(self, entry: _Entry) -> None:
        if entry.size > self._limit // _LARGEST:
            return
        self._entries[entry.key] = entry
        self.bytes += entry.size
        self._fit()

    def _fit(self) -> None:
        while self.bytes > self._limit:
            self._give_up(self._entries.pop(next(iter(self._entries))))
            self._count("evicted")

    def _learn(
        self, entry: _Entry, request: Request, canonical: Canonical, body: bytes, note: object
    ) -> None:
        """Know the replicas of what a body reviews by their bytes from now on."""
        if self._entries.get(entry.key) is not entry:
            return
        entry.lessons -= 1
        form = Form.of(body, request, canonical)
        if form is None:
            return
        replicas = _Replicas(entry, canonical.name, note)
        size = _SLOT + held(form, form.key(entry.key[0], body), canonical.name, note, shared=self._shared)
        if entry.size + size > self._limit // _LARGEST:
            return
        place = self._bodies.keep(entry.key[0], body, form, replicas)
        if place is None:
            return
        if len(entry.places) >= LESSONS:
            self._unlearn(entry, next(iter(entry.places)))
        entry.places[place] = size
        entry.size += size
        self.bytes += size
        self._fit()

    def _unlearn(self, entry: _Entry, place: Place) -> None:
        self._bodies.give_up(place)
        size = entry.places.pop(place)
        entry.size -= size
        self.bytes -= size

    def _give_up(self, entry: _Entry) -> None:
        for place in entry.places:
            self._bodies.give_up(place)
        self.bytes -= entry.size

    def _forget_all(self) -> None:
        self._entries.clear()
        self._bodies.clear()
        self.bytes = 0


# --- entries -----------------------------------------------------------------------------------------------


def _decided(request: Request, config: Config, cluster: Cluster, decide: Decide) -> Answer:
    """What the engine decides of a request as it came."""
    decision = decide(request, config, cluster)
    return Answer(respond(decision), decision)


@dataclass(slots=True)
class _Entry:
    key: tuple[str, bytes]
    """The endpoint, and the request in its canonical form."""
    response: Response
    """The outcome of the answer to the canonical request."""
    ready: Prepared | None
    """The answer; None if it contains values of only one replica, so that the engine decides about each."""
    outline: Decision
    consulted: Consulted
    size: int = 0
    places: dict[Place, int] = field(default_factory=dict)
    """Where its replicas are known by their bytes, each with its size."""
    lessons: int = LESSONS
    """How often that may be tried until one is found so."""

    @classmethod
    def of(
        cls,
        key: tuple[str, bytes],
        answered: tuple[Decision, Response, Prepared] | None,
        consulted: Consulted,
    ) -> _Entry:
        endpoint, written = key
        decision, response, ready = answered or (_NOTHING, Response(), None)
        entry = cls((endpoint, _trimmed(written)), _outcome(response), ready, outline(decision), consulted)
        entry.size = _SLOT + held(entry)
        return entry


_NOTHING: Final = Decision({})
_PATCHED: Final = ({"op": "add"},)


def _outcome(response: Response) -> Response:
    """A response of the same outcome without sentences."""
    return Response(
        response.status and replace(response.status, message=""),
        _PATCHED if response.patch else (),
        ("",) if response.warnings else (),
    )


@dataclass(frozen=True, slots=True)
class _Replicas:
    """The replicas of a pod template, or the retries of a review, as one caller writes them."""

    entry: _Entry
    name: bytes
    """The name of one of them, where it is not the same in all."""
    note: object

    def recalled(self, own: Own) -> Recalled:
        uid, ready = own.uid.decode(), self.entry.ready
        assert ready is not None
        return Recalled(uid, ready.to(uid), own_name(self.name, own.name_end).decode(), self.note)


def _trimmed(written: bytes) -> bytes:
    """A copy of exact size: orjson's may hold several times as much memory."""
    return bytes(memoryview(written))


_UNSAID: Final = Finding("", "", "")


def outline(decision: Decision) -> Decision:
    """The parts of a decision that are counted and logged, without its objects and sentences."""
    return Decision(
        {},
        changes=tuple(
            replace(change, patch=(), before={}, why=UNREAD, known=frozenset()) for change in decision.changes
        ),
        results=tuple(replace(result, finding=_UNSAID) for result in decision.results),
        crashes=decision.crashes,
        owned=decision.owned,
        coverage=decision.coverage,
    )


class Folds:
    """What becomes of the pods of workloads: a `webhook.admission.mutation.Folding`."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes that all entries together may take, 0 to remember nothing."""
        self._limit = limit
        self._entries: dict[bytes, _Fold] = {}
        self._new: list[bytes] = []
        """Those whose size is not known yet."""
        self._config: Config | None = None
        self.bytes = 0
        """What the entries take, as measured."""
        self.hits = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __call__(self, template: PodTemplate, context: Context) -> tuple[Decision, PodView]:
        cluster = context.facts.cluster
        if not self._limit or not isinstance(cluster, _Recorded):
            return fold_template(template, context)
        if context.config is not self._config:
            self._entries.clear()
            self._new.clear()
            self._config, self.bytes = context.config, 0
        try:
            key = orjson.dumps([context.namespace, template.pod])
        except orjson.JSONEncodeError:
            return fold_template(template, context)
        known = self._entries.pop(key, None)
        if known is not None and _current(known.consulted, cluster):  # which notes them for this answer, too
            self._entries[key] = known
            self.hits += 1
            return known.answer(template)
        if known is not None:
            self.bytes -= known.size
        folded, view = fold_template(template, context)
        if not folded.crashes:
            # All that was consulted until now: values computed from it may have been used again here.
            self._remember(_trimmed(key), _Fold.of(template, folded, view, cluster.consulted()))
        return folded, view

    def _remember(self, key: bytes, entry: _Fold) -> None:
        self._entries[key] = entry
        self._new.append(key)

    def measure(self) -> None:
        """Keep to the limit. Must be called once a review is answered: what its rules have read of a pod is
        kept with the pod, so that it has its size only then."""
        while self._new:
            key = self._new.pop()
            entry = self._entries.get(key)
            if entry is None:
                continue
            entry.size = _SLOT + held(key, entry)
            if entry.size > self._limit // _LARGEST:
                del self._entries[key]
            else:
                self.bytes += entry.size
        while self.bytes > self._limit:
            self.bytes -= self._entries.pop(next(iter(self._entries))).size


@dataclass(slots=True)
class _Fold:
    folded: Decision
    view: PodView
    unchanged: bool
    """Whether the pod is left as it is."""
    consulted: Consulted
    size: int = 0

    @classmethod
    def of(cls, template: PodTemplate, folded: Decision, view: PodView, consulted: Consulted) -> _Fold:
        changes = tuple(replace(change, why=change.why.settled()) for change in folded.changes)
        unchanged = folded.object is template.pod
        return cls(replace(folded, changes=changes), view, unchanged, consulted)

    def answer(self, template: PodTemplate) -> tuple[Decision, PodView]:
        if self.unchanged:
            return replace(self.folded, object=template.pod), template.view
        return self.folded, self.view


class _Recorded:
    """A cluster that keeps which of its listings were asked for."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._asked: dict[tuple[Resource, str | None], Listing | None] = {}

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        found = self._asked[resource, namespace] = self._cluster.listing(resource, namespace)
        return found

    def consulted(self) -> Consulted:
        return tuple(
            (resource, namespace, None if found is None else ref(found))
            for (resource, namespace), found in self._asked.items()
        )


def _current(consulted: Consulted, cluster: Cluster) -> bool:
    for resource, namespace, known in consulted:
        found = cluster.listing(resource, namespace)
        if found is None:
            if known is not None:
                return False
        elif known is None or known() is not found:
            return False
    return True
