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
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from policies.core.facts import Cluster
from policies.core.finding import Finding
from policies.core.reasons import UNREAD
from webhook.admission.canonical import Canonical, own_name, shows_constants
from webhook.admission.configuration import Config
from webhook.admission.decision import Decision
from webhook.admission.envelope import Prepared, Request, Response, prepared
from webhook.admission.messages import Answer, Recalled, respond
from webhook.fast_path.consulted import Consulted, current
from webhook.fast_path.folds import Folds, Recorded
from webhook.fast_path.replicas import Bodies, Form, Own, Place
from webhook.fast_path.sizes import LARGEST, SLOT, held, trimmed

Decide = Callable[[Request, Config, Cluster], Decision]

DEFAULT_BYTES: Final = 16 * 1024 * 1024
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
        if not current(entry.consulted, cluster):
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
        if entry is not None and current(entry.consulted, cluster):
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
        recorded = Recorded(cluster, self.folds)
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
        if entry.size > self._limit // LARGEST:
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
        size = SLOT + held(form, form.key(entry.key[0], body), canonical.name, note, shared=self._shared)
        if entry.size + size > self._limit // LARGEST:
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
        entry = cls((endpoint, trimmed(written)), _outcome(response), ready, outline(decision), consulted)
        entry.size = SLOT + held(entry)
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
