"""A memo of decisions: equal requests with the same facts are decided once.

Law: an answer of the memo equals the engine's, byte for byte. A decision is a pure function of the request,
the configuration and the listings that it consulted. Replicas of one pod template differ only in fields that
do not affect a decision: uid, times, random name suffixes. Constants replace these before the engine sees a
request, whether or not the answer is remembered; the text in this canonical form is the key. An entry is
valid while all listings that it consulted are current.

An answer that contains a constant, or a part of one, is not remembered: the engine decides each of these
requests in its original form. Decisions with a failed policy are not remembered either. A value that also
occurs elsewhere in the request is not replaced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Final
from weakref import ReferenceType, ref

from msgspec import Struct, field
from msgspec.structs import replace

from policies.core.facts import Cluster
from policies.core.finding import Finding
from policies.core.listing import Listing
from policies.core.reasons import NO_REASONS
from policies.core.resources import Resource
from webhook.admission.answer import Answer, Note, Prepared, Recalled, Response, prepared
from webhook.admission.canonical import Canonical, name_of_replica, shows_constants
from webhook.admission.configuration import Config
from webhook.admission.decision import Decision
from webhook.admission.engine import Decide
from webhook.admission.envelope import Request
from webhook.admission.messages import respond
from webhook.admission.review import Review
from webhook.fast_path.replicas import Bodies, Form, Own, Place
from webhook.fast_path.sizes import LARGEST, SLOT, held, trimmed

DEFAULT_BYTES: Final = 16 * 1024 * 1024
ATTEMPTS: Final = 4
"""Forms that an entry may have, and attempts to add one until a body has been recognised by its bytes."""


class Memo:
    """The answers of one process; the least recently used is evicted first."""

    def __init__(
        self,
        limit: int = DEFAULT_BYTES,
        count: Callable[[str], None] = lambda _: None,
        shared: tuple[type, ...] = (),
    ) -> None:
        """`limit`: bytes of all entries, 0 to remember nothing. `count` is called with `hit`, `miss` and
        `evicted`. `shared`: types of objects in a note (see `Recalled`) that belong to others."""
        self._limit, self._count, self._shared = limit, count, shared
        self._entries: dict[tuple[str, bytes], _Entry] = {}
        self._bodies: Bodies[_Replicas] = Bodies()
        self._config: Config | None = None
        self.bytes = 0
        """The measured size of all entries."""

    def __len__(self) -> int:
        return len(self._entries)

    def recall(self, endpoint: str, body: bytes, config: Config, cluster: Cluster) -> Recalled | None:
        """The answer to a body that is recognised by its bytes as another replica; None if it must be parsed.

        It equals that of `answer`, byte for byte.
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
        entry.attempts = ATTEMPTS
        self._entries[entry.key] = self._entries.pop(entry.key)
        self._count("hit")
        return replicas.recalled(own)

    def answer(
        self, endpoint: str, request: Request, config: Config, cluster: Cluster, decide: Decide
    ) -> Answer:
        """The answer of `decide` to a request.

        On a hit, `response` and `decision` are summaries for the log and the metrics; the object, patches and
        sentences are only in `ready`.
        """
        canonical = Canonical.of(request) if self._limit else None
        if canonical is None:
            return _decided(request, config, cluster, decide)
        if config is not self._config:
            self._entries.clear()
            self._bodies.clear()
            self._config, self.bytes = config, 0
        key = (endpoint, canonical.text)
        entry = self._entries.pop(key, None)
        if entry is not None and _current(entry.consulted, cluster):
            self._entries[entry.key] = entry
            if entry.ready is None:
                self._count("miss")
                return _decided(request, config, cluster, decide)
            self._count("hit")
            remember = partial(self._add_form, entry, request, canonical) if entry.attempts else None
            return Answer(entry.response, entry.summary, entry.ready, remember)
        if entry is not None:
            self._remove(entry)
        self._count("miss")
        recorder = _Recorder(cluster)
        decision = decide(Review(canonical.request(), config, recorder))
        response = respond(decision)  # it may consult listings, too
        if shows_constants(response):
            self._remember(_Entry.of(key, None, recorder.consulted()))
            return _decided(request, config, cluster, decide)
        ready = prepared(response)
        if not decision.crashes:
            self._remember(_Entry.of(key, (decision, response, ready), recorder.consulted()))
        return Answer(response, decision, ready)

    def _remember(self, entry: _Entry) -> None:
        if entry.size > self._limit // LARGEST:
            return
        self._entries[entry.key] = entry
        self.bytes += entry.size
        self._evict()

    def _evict(self) -> None:
        while self.bytes > self._limit:
            self._remove(self._entries.pop(next(iter(self._entries))))
            self._count("evicted")

    def _add_form(
        self, entry: _Entry, request: Request, canonical: Canonical, body: bytes, note: Note
    ) -> None:
        """Recognise the replicas of this body by their bytes from now on."""
        if self._entries.get(entry.key) is not entry:
            return
        entry.attempts -= 1
        form = Form.of(body, request, canonical)
        if form is None:
            return
        replicas = _Replicas(entry, canonical.name, note)
        size = SLOT + held(form, form.key(entry.key[0], body), canonical.name, note, shared=self._shared)
        if entry.size + size > self._limit // LARGEST:
            return
        place = self._bodies.add(entry.key[0], body, form, replicas)
        if place is None:
            return
        if len(entry.places) >= ATTEMPTS:
            oldest = next(iter(entry.places))
            self._bodies.remove(oldest)
            freed = entry.places.pop(oldest)
        else:
            freed = 0
        entry.places[place] = size
        entry.size += size - freed
        self.bytes += size - freed
        self._evict()

    def _remove(self, entry: _Entry) -> None:
        for place in entry.places:
            self._bodies.remove(place)
        self.bytes -= entry.size


# --- entries -----------------------------------------------------------------------------------------------

Consulted = tuple[tuple[Resource, str | None, "ReferenceType[Listing] | None"], ...]
"""The listings that a decision depends on; None for an unknown resource."""


def _current(consulted: Consulted, cluster: Cluster) -> bool:
    """Whether the listings are still the current ones."""
    for resource, namespace, known in consulted:
        found = cluster.listing(resource, namespace)
        if found is None:
            if known is not None:
                return False
        elif known is None or known() is not found:
            return False
    return True


class _Recorder:
    """A cluster for one decision. It records the consulted listings."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._listings: dict[tuple[Resource, str | None], Listing | None] = {}

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        found = self._listings[resource, namespace] = self._cluster.listing(resource, namespace)
        return found

    def consulted(self) -> Consulted:
        return tuple(
            (resource, namespace, None if found is None else ref(found))
            for (resource, namespace), found in self._listings.items()
        )


def _decided(request: Request, config: Config, cluster: Cluster, decide: Decide) -> Answer:
    """The engine's answer to a request in its original form."""
    decision = decide(Review(request, config, cluster))
    return Answer(respond(decision), decision)


class _Entry(Struct):
    key: tuple[str, bytes]
    """The endpoint, and the request in its canonical form."""
    response: Response
    """The outcome of the answer to the canonical request."""
    ready: Prepared | None
    """The answer; None if it depends on values of one replica, so that the engine decides each request."""
    summary: Decision
    consulted: Consulted
    size: int = 0
    places: dict[Place, int] = field(default_factory=dict)
    """Where `Bodies` keeps its replicas, each with its size."""
    attempts: int = ATTEMPTS
    """Remaining attempts to add a form."""

    @classmethod
    def of(
        cls,
        key: tuple[str, bytes],
        answered: tuple[Decision, Response, Prepared] | None,
        consulted: Consulted,
    ) -> _Entry:
        endpoint, written = key
        decision, response, ready = answered or (_NOTHING, Response(), None)
        entry = cls((endpoint, trimmed(written)), _outcome(response), ready, summary(decision), consulted)
        entry.size = SLOT + held(entry)
        return entry


_NOTHING: Final = Decision({})
_PATCHED: Final = ({"op": "add"},)


def _outcome(response: Response) -> Response:
    """A response with the same outcome and without texts."""
    return Response(
        response.status and replace(response.status, message=""),
        _PATCHED if response.patch else (),
        ("",) if response.warnings else (),
    )


class _Replicas(Struct, frozen=True):
    """The replicas of a pod template, or the retries of a review, in the form of one caller."""

    entry: _Entry
    name: bytes
    """The name of one replica; empty if all have the same name."""
    note: Note

    def recalled(self, own: Own) -> Recalled:
        uid, ready = own.uid.decode(), self.entry.ready
        assert ready is not None
        return Recalled(uid, ready.to(uid), name_of_replica(self.name, own.name_end).decode(), self.note)


_NO_TEXT: Final = Finding("", "", "")


def summary(decision: Decision) -> Decision:
    """The parts of a decision that are counted and logged, without objects and texts."""
    return Decision(
        {},
        changes=tuple(
            dataclasses.replace(change, patch=(), before={}, reasons=NO_REASONS, known=frozenset())
            for change in decision.changes
        ),
        results=tuple(replace(result, finding=_NO_TEXT) for result in decision.results),
        crashes=decision.crashes,
        owned=decision.owned,
        coverage=decision.coverage,
    )
