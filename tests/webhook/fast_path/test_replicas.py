"""An answer that is found by the bytes of a review is the engine's own, for any bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks._reviews import Workloads
from policies.core.facts import Cluster, NoCluster
from policies.core.finding import Finding
from policies.core.resources import Resource
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json, text
from tests.webhook.fast_path.test_memo import (
    DECIDE,
    POLICIES,
    SUFFIX,
    World,
    allocated,
    counted,
    planted,
    rendered,
    volume_of,
    with_services,
)
from webhook.admission import engine
from webhook.admission.answer import render
from webhook.admission.canonical import CONSTANT, CONSTANTS, Canonical
from webhook.admission.configuration import Config
from webhook.admission.envelope import BadReview, Request, parse
from webhook.admission.messages import respond
from webhook.admission.review import Review
from webhook.config.load import load
from webhook.fast_path import replicas
from webhook.fast_path.memo import summary
from webhook.fast_path.replicas import MAX_FORMS, MAX_HOLES, MAX_VALUES, Form


def written(request: Request, **fields: Any) -> bytes:
    """A review as an API server writes it."""
    kind = {"group": request.kind.group, "version": "v1", "kind": request.kind.kind}
    return orjson.dumps(
        {
            "kind": "AdmissionReview",
            "apiVersion": "admission.k8s.io/v1",
            "request": {
                "uid": request.uid,
                "kind": kind,
                "resource": {"group": request.kind.group, "version": "v1", "resource": request.resource},
                "requestKind": kind,
                "subResource": request.subresource,
                "name": request.name,
                "namespace": request.namespace,
                "operation": request.operation,
                "userInfo": {"username": request.username, "groups": request.groups},
                "object": request.object,
                "oldObject": request.old_object,
                "dryRun": request.dry_run,
                **fields,
            },
        }
    )


class Caller:
    """Posts reviews as the server takes them: a body is read where its bytes are not known."""

    def __init__(self, config: Config | None = None, cluster: Cluster | None = None, **memo: Any) -> None:
        self.memo, self.counts = counted(**memo)
        self.config, self.cluster = config or load({}), cluster or NoCluster()
        self.recalled = 0

    def agrees(self, endpoint: str, body: bytes) -> bool:
        """Post a body, and hold the answer against the engine's; whether the body was known by its bytes."""
        known = self.memo.recall(endpoint, body, self.config, self.cluster)
        if known is None:
            self.read(endpoint, body)
            return False
        request = parse(body)  # raises where no answer should have been given
        decision = DECIDE[endpoint](Review(request, self.config, self.cluster))
        assert known.body == render(request.uid, respond(decision))
        assert known.uid == request.uid
        assert isinstance(known.note, Noted)
        assert known.note.decision == summary(decision)
        assert (known.name or known.note.name) == named(request)
        assert known.note.about == about(request)
        self.recalled += 1
        return True

    def read(self, endpoint: str, body: bytes) -> None:
        request = parse(body)
        decide = engine.mutate if endpoint == "mutate" else engine.validate
        answer = self.memo.answer(endpoint, request, self.config, self.cluster, decide)
        decision = DECIDE[endpoint](Review(request, self.config, self.cluster))
        assert rendered(request, answer) == render(request.uid, respond(decision))
        if answer.remember is not None:
            answer.remember(body, Noted(request, summary(decision)))


class Noted:
    def __init__(self, request: Request, decision: object) -> None:
        self.decision, self.name, self.about = decision, named(request), about(request)

    def record_again(self, uid: str, name: str) -> None:
        raise AssertionError("no journal is in use")


def named(request: Request) -> str:
    return request.name or text(request.object, "metadata", "name")


def about(request: Request) -> tuple[object, ...]:
    """The log line and the counts of a request, but its uid and name."""
    return request.operation, request.kind, request.namespace, request.username, request.dry_run


# --- the proof ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_a_request_found_by_its_bytes_gets_the_engines_answer(seed: int) -> None:
    world = World(seed)
    caller = Caller(load(world.chance.choice(POLICIES)), world.cluster)
    for _ in range(600):
        if world.chance.random() < 0.02:
            world.change()
        if world.chance.random() < 0.005:
            caller.config = load(world.chance.choice(POLICIES))
        caller.agrees(world.chance.choice(("mutate", "validate")), written(world.request()))
    assert caller.recalled > 50


PREFIX = "web-7c9d8-"


def pod(chance: random.Random, **metadata: Any) -> Request:
    """A pod as its ReplicaSet makes it, named, with a token; `metadata` on top."""
    name = PREFIX + "".join(chance.choices(SUFFIX, k=5))
    token = "kube-api-access-" + "".join(chance.choices(SUFFIX, k=5))
    uid, second = f"{chance.getrandbits(128):032x}", f"2026-01-05T09:30:{chance.randrange(60):02}Z"
    mount = {"name": token, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    obj: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "generateName": PREFIX,
            "namespace": "ml",
            "uid": uid,
            "creationTimestamp": second,
            "ownerReferences": [{"kind": "ReplicaSet", "name": "web-7c9d8", "uid": "an-owner"}],
            "managedFields": [{"manager": "m", "time": second, "fieldsV1": {"f:spec": {}}}],
            **metadata,
        },
        "spec": {
            "containers": [{"name": "web", "image": "vllm/vllm-openai:v0.8.0", "volumeMounts": [mount]}],
            "volumes": [{"name": token, "projected": {"sources": []}}],
        },
    }
    return Request(
        f"{chance.getrandbits(128):032x}", kind_of(obj), "CREATE", "ml", name, object=obj, username="ada"
    )


def known(chance: random.Random, config: Config | None = None, endpoint: str = "validate") -> Caller:
    """A caller who has posted two replicas, so that others are known by their bytes."""
    caller = Caller(config)
    for _ in range(2):
        assert not caller.agrees(endpoint, written(pod(chance)))
    return caller


def test_every_further_replica_is_found_by_its_bytes() -> None:
    chance = random.Random(1)
    for endpoint in DECIDE:
        caller = known(chance, endpoint=endpoint)
        assert all(caller.agrees(endpoint, written(pod(chance))) for _ in range(50))
        assert caller.counts == {"miss": 1, "hit": 51}


def test_pods_as_replica_sets_make_them_and_deployments_sent_again_are_found_by_their_bytes() -> None:
    for stream in (Workloads(3).pods(60, 1), Workloads(3).deployments(60, 1)):
        caller = Caller()
        for body in [*stream.known, *stream.known]:
            assert not caller.agrees("validate", body)
        assert all(caller.agrees("validate", body) for body in stream.measured)


def test_replicas_in_whose_answers_their_own_names_are_have_no_form() -> None:
    config = planted(lambda target, _: [Finding("spec", f"Pod {target.name} is here.", volume_of(target))])
    chance, caller = random.Random(2), Caller(config)
    for _ in range(6):
        assert not caller.agrees("validate", written(pod(chance)))
    assert len(caller.memo._bodies) == 0


def test_what_api_servers_escape_is_found_by_its_bytes() -> None:
    chance, caller = random.Random(17), Caller()
    for number in range(4):
        body = _with(pod(chance), "metadata", "labels", value={"a": "b && c > d < e"})
        for char in b"&<>":
            body = body.replace(bytes([char]), b"\\u%04x" % char)
        assert caller.agrees("validate", body) is (number > 1)


def test_an_update_is_found_by_its_bytes() -> None:
    chance, caller = random.Random(3), Caller()
    for number in range(5):
        new = pod(chance, labels={"a": "b"}, resourceVersion=str(chance.randrange(10**5, 10**6)))
        old = {**(new.object or {}), "metadata": {**mapped(new), "labels": {}}}
        request = Request(
            new.uid, new.kind, "UPDATE", "ml", new.name, object=new.object, old_object=old, username="ada"
        )
        assert caller.agrees("validate", written(request)) is (number > 1)


def mapped(request: Request) -> Json:
    assert request.object is not None
    metadata: Json = request.object["metadata"]
    return metadata


# --- hostile bytes -----------------------------------------------------------------------------------------

FILLINGS = (
    b'"',
    b"\\",
    b'","name":"',
    b'","uid":"',
    b"\\u0041",
    b"\x00",
    b"\xff",
    "é".encode(),
    b"0",
    b"a",
    b"Z",
    b":",
    b'"}',
    b" ",
    CONSTANT,
    b"kube-",
)


@given(
    seed=st.integers(0, 2**32),
    edits=st.lists(
        st.tuples(st.integers(0, 10**6), st.sampled_from(FILLINGS), st.booleans()), min_size=1, max_size=4
    ),
    in_holes=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_a_body_with_changed_bytes_is_answered_by_its_content(
    seed: int, edits: list[tuple[int, bytes, bool]], in_holes: bool
) -> None:
    chance = random.Random(seed)
    body = bytearray(written(pod(chance)))
    request = parse(bytes(body))
    canonical = Canonical.of(request)
    assert canonical is not None
    form = Form.of(bytes(body), request, canonical)
    assert form is not None
    for place, filling, keeps_length in edits:
        hole = form.holes[place % len(form.holes)]
        at = hole.start + place % (hole.end - hole.start) if in_holes else place % len(body)
        body[at : at + len(filling) * keeps_length] = filling
    assert_answered_as_read(some_caller(), bytes(body))


@cache
def some_caller() -> Caller:
    return known(random.Random(9))


def assert_answered_as_read(caller: Caller, body: bytes) -> None:
    answer = caller.memo.recall("validate", body, caller.config, caller.cluster)
    if answer is not None:
        request = parse(body)
        decision = engine.validate(Review(request, caller.config, caller.cluster))
        assert answer.body == render(request.uid, respond(decision))
        assert isinstance(answer.note, Noted)
        assert (answer.name or answer.note.name) == named(request)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_any_two_reviews_of_one_form_are_equal(data: st.DataObject) -> None:
    """A form is made of one body and holds for all: objects with a replica's own values in odd places, and
    other replicas with anything in those."""
    seed = data.draw(st.integers(0, 2**32))
    first, second, third = (random.Random(seed + number) for number in range(3))
    makes = data.draw(st.sampled_from(sorted(ODD)))
    caller, compared = Caller(COMPARED), ODD[makes]
    for chance in (first, first):
        accepted(caller, compared(pod(chance)))
    for chance in (second, third):
        accepted(caller, compared(pod(chance)))
        filled = bytearray(compared(pod(chance)))
        for forms in caller.memo._bodies._forms.values():
            for form in forms:
                hole = data.draw(st.sampled_from(form.holes))
                size = hole.end - hole.start
                text = data.draw(st.text(SUFFIX + "01:Z.-", min_size=size, max_size=size))
                filled[hole.start : hole.end] = text.encode()
        accepted(caller, bytes(filled))


def accepted(caller: Caller, body: bytes) -> None:
    try:
        parse(body)
    except BadReview:
        assert caller.memo.recall("validate", body, caller.config, caller.cluster) is None
    else:
        caller.agrees("validate", body)


def _everything(target: Any, _: object) -> list[Finding]:
    """All of an object that a policy may look at."""
    obj = target.obj
    kept = {**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k not in CONSTANTS}}
    return [Finding("spec", orjson.dumps(kept).decode()[:3000], "")]


COMPARED = planted(_everything)


def _with(request: Request, *path: str, value: Any, **fields: Any) -> bytes:
    """The review with something else in its object, or with other fields."""
    obj = orjson.loads(orjson.dumps(request.object))
    if path:
        place = obj
        for step in path[:-1]:
            place = place.setdefault(step, {})
        place[path[-1]] = value
    return written(request, object=obj, **fields)


def _token(request: Request) -> str:
    return text(request.object, "spec", "volumes", 0, "name")


UNPROVABLE: Mapping[str, Any] = {
    "the name elsewhere": lambda it: _with(it, "metadata", "labels", "pod", value=it.name),
    "another pod's name elsewhere": lambda it: _with(it, "metadata", "labels", "pod", value=PREFIX + "bcdfg"),
    "the uid elsewhere": lambda it: _with(it, "metadata", "labels", "uid", value=mapped(it)["uid"]),
    "an own uid elsewhere": lambda it: _with(it, "spec", "a", value={"uid": mapped(it)["uid"]}),
    "a time elsewhere": lambda it: _with(it, "spec", "a", value={"time": mapped(it)["creationTimestamp"]}),
    "the token as a key": lambda it: _with(it, "spec", "a", value={_token(it): 1}),
    "the token as a key of what nobody reads": lambda it: written(
        it, options={_token(it): 1, "kube-api-access-bcdfg": 2}
    ),
    "a key that is equal to another's token": lambda it: written(it, options={_token(it): 1, "x": 2}).replace(
        b'"x":2', b'"kube-api-acces\\u0073-bcdfg":2'
    ),
    "one uid twice": lambda it: _with(it, "metadata", "uid", value=it.uid),
    "the uid of the request elsewhere": lambda it: _with(it, "spec", "a", value={"uid": it.uid}),
    "the uid of the request escaped, and elsewhere": lambda it: written(it, options={"uid": it.uid}).replace(
        f'"uid":"{it.uid[0]}'.encode(), f'"uid":"\\u{ord(it.uid[0]):04x}'.encode(), 1
    ),
    "the token as the namespace": lambda it: written(it, namespace=_token(it)),
    "the token as the name": lambda it: written(it, name=_token(it)),
    "an escaped name": lambda it: written(it).replace(b'"name":"web-7c9d8-', b'"name":"\\u0077eb-7c9d8-', 1),
    "an escaped name in the request": lambda it: written(it).replace(b'"name":"w', b'"name":"\\u0077', 1),
    "an escaped uid": lambda it: _with(it, "spec", "a", value=mapped(it)["uid"]).replace(
        b'"uid":"%s' % mapped(it)["uid"][:1].encode(), b'"uid":"\\u%04x' % ord(mapped(it)["uid"][0])
    ),
    "an escaped token": lambda it: _with(it, "spec", "a", value=_token(it)).replace(
        b'"name":"kube', b'"name":"\\u006bube', 1
    ),
    "an escaped key": lambda it: written(it).replace(b'"uid":"', b'"u\\u0069d":"'),
}
ODD: Mapping[str, Any] = {
    **UNPROVABLE,
    "nothing": written,
    "the token elsewhere": lambda it: _with(it, "spec", "a", value="kube-api-access-bcdfg"),
    "the token as the account": lambda it: written(it, userInfo={"username": _token(it), "groups": []}),
    "no name in the request": lambda it: written(it, name=""),
    "constants": lambda it: _with(it, "metadata", "uid", value=CONSTANTS["uid"]),
    "the constant's name": lambda it: _with(it, "metadata", "name", value=f"{PREFIX}00000"),
    "managed fields of text": lambda it: _with(it, "metadata", "managedFields", value="a"),
    "no managed fields": lambda it: _with(it, "metadata", "managedFields", value=[]),
    "a uid that is no text": lambda it: _with(it, "metadata", "uid", value=3),
    "an empty uid": lambda it: _with(it, "metadata", "uid", value=""),
    "a key twice": lambda it: written(it).replace(b'"namespace":', b'"uid":"a","namespace":', 1),
    "white space": lambda it: written(it).replace(b'":"', b'": "'),
    "a review in text": lambda it: _with(it, "metadata", "annotations", "a", value=written(it).decode()),
    "a name in text": lambda it: _with(it, "metadata", "annotations", "a", value=f'"name":"{it.name}"'),
    "a token in text": lambda it: _with(it, "metadata", "annotations", "a", value=f'x"{_token(it)}'),
    "a prefix that is a token's": lambda it: _with(
        it, "metadata", "generateName", value="kube-api-access-"
    ).replace(it.name.encode(), b"kube-api-access-" + it.name[-5:].encode()),
}


@pytest.mark.parametrize("makes", sorted(ODD))
def test_replicas_of_odd_objects_are_answered_as_the_engine_answers(makes: str) -> None:
    for seed in range(2):
        chance, caller = random.Random(seed), Caller(COMPARED)
        for _ in range(12):
            accepted(caller, ODD[makes](pod(chance)))


@pytest.mark.parametrize("makes", UNPROVABLE)
def test_what_cannot_be_proved_has_no_form(makes: str) -> None:
    chance, caller = random.Random(4), Caller()
    for _ in range(6):
        accepted(caller, ODD[makes](pod(chance)))
    assert caller.recalled == len(caller.memo._bodies) == 0


ENDS = [("name", end) for end in ("00000", "01234", "aeiou", "ABCDE", "a.b-c")]
ENDS += [("token", end) for end in ("ABCDE", "a.b-c", "a:b:c")]


@pytest.mark.parametrize(("own", "end"), ENDS)
def test_an_end_that_is_not_made_at_random_is_read(own: str, end: str) -> None:
    chance = random.Random(13)
    caller = known(chance)
    request = pod(chance)
    assert caller.memo.recall("validate", written(request), caller.config, caller.cluster)
    name = request.name if own == "name" else _token(request)
    body = written(request).replace(name.encode(), f"{name[:-5]}{end}".encode())
    assert caller.memo.recall("validate", body, caller.config, caller.cluster) is None
    assert caller.agrees("validate", body) is False


def test_any_byte_distinguishes_two_workloads() -> None:
    """Each byte outside the holes counts."""
    caller, chance = known(random.Random(5)), random.Random(6)
    body = written(pod(chance))
    assert caller.agrees("validate", body)
    [(form, _)] = [pair for forms in caller.memo._bodies._forms.values() for pair in forms.items()]
    outside = set(range(len(body))) - {at for hole in form.holes for at in range(hole.start, hole.end)}
    for at in outside:
        other = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        assert caller.memo.recall("validate", other, caller.config, caller.cluster) is None


# --- entries -----------------------------------------------------------------------------------------------


def test_another_configuration_knows_no_body() -> None:
    chance = random.Random(7)
    caller = known(chance)
    caller.config = load({})
    assert not caller.agrees("validate", written(pod(chance)))
    assert not caller.agrees("validate", written(pod(chance)))
    assert caller.agrees("validate", written(pod(chance)))


def test_a_body_counts_while_the_listings_that_its_answer_rests_on_are_current() -> None:
    cluster, services = with_services()

    def said(_: object, facts: Any) -> list[Finding]:
        return [Finding("spec", f"There are {len(facts.listing(Resource.SERVICES) or ())}.", "")]

    caller, chance = Caller(planted(said), cluster), random.Random(8)
    for number in range(4):
        services.put({"metadata": {"name": f"{number}", "namespace": "ml"}})
        found = [caller.agrees("validate", written(pod(chance))) for _ in range(4)]
        assert found == [False, False, True, True]


def test_a_memo_of_nothing_knows_no_body() -> None:
    chance, caller = random.Random(16), Caller(limit=0)
    assert not any(caller.agrees("validate", written(pod(chance))) for _ in range(4))


def test_endpoints_are_kept_apart() -> None:
    chance = random.Random(10)
    caller = known(chance)
    body = written(pod(chance))
    assert caller.agrees("validate", body)
    assert caller.memo.recall("mutate", body, caller.config, caller.cluster) is None


def workload(number: int) -> Iterator[bytes]:
    """The replicas of a pod template; those of all are of one length."""
    chance = random.Random(number)
    while True:
        yield written(pod(chance, labels={"app": f"{number:06}"}))


def test_the_bytes_of_bodies_are_of_the_memos_bytes() -> None:
    limit = 2**20
    caller = Caller(limit=limit)
    for replica in map(workload, range(40)):  # what the policies keep for themselves they keep now
        caller.read("mutate", next(replica))
    del caller
    caller = Caller(limit=limit)
    with allocated() as since:
        for replica in map(workload, range(60)):
            for _ in range(2):
                caller.read("mutate", next(replica))
                assert 0 <= caller.memo.bytes <= limit
        assert since() < 1.2 * limit
    assert caller.counts["evicted"] > 25
    assert len(caller.memo) == len(caller.memo._bodies) > 10
    caller.config = load({})
    caller.agrees("mutate", next(replica))
    assert len(caller.memo._bodies) == 0


def test_the_forms_of_a_body_are_counted_with_its_answer() -> None:
    caller, chance = Caller(), random.Random(15)
    caller.agrees("validate", written(pod(chance)))
    before, body = caller.memo.bytes, written(pod(chance))
    caller.agrees("validate", body)
    assert caller.memo.bytes > before + len(body)


def test_an_answer_that_is_found_by_bytes_is_given_up_last() -> None:
    caller = Caller(limit=1_200_000)
    first, *others = map(workload, range(120))
    for _ in range(2):
        caller.agrees("mutate", next(first))
    for replica in others:
        caller.agrees("mutate", next(replica))
        assert caller.agrees("mutate", next(first))
    assert caller.counts["evicted"] > 0


def test_one_review_in_many_forms_takes_little_of_the_memo() -> None:
    chance, caller = random.Random(11), Caller()
    sizes = []
    for number in range(30):
        caller.agrees("validate", written(pod(chance), options={"a": "b" * number}))
        sizes.append(len(caller.memo._bodies))
    assert max(sizes) < 5


def test_of_one_length_there_are_few_forms() -> None:
    caller = Caller()
    for number in range(30):
        chance = random.Random(number)
        for _ in range(3):
            rest = {"a": "b" * (30 - number)}
            body = _with(pod(chance), "metadata", "labels", value={"a": "b" * number}, options=rest)
            caller.agrees("validate", body)
    [forms] = [forms for forms in caller.memo._bodies._forms.values() if len(forms) > 1]
    assert len(forms) == MAX_FORMS


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The searched bytes, once for each search in a text and for each place found."""
    looked: list[bytes] = []
    starts = replicas._starts

    def counted(text: bytes, wanted: bytes) -> Iterator[int]:
        looked.append(wanted)
        for start in starts(text, wanted):
            looked.append(wanted)
            yield start

    monkeypatch.setattr(replicas, "_starts", counted)
    return looked


def test_a_form_costs_a_bounded_number_of_looks(looks: list[bytes]) -> None:
    times = [{"time": f"2026-01-05T09:{number // 60:02}:{number % 60:02}Z"} for number in range(3600)]
    for managed, form in ((times, False), (times[:1] * 3600, False), (times[: MAX_VALUES - 2], True)):
        looks.clear()
        request = pod(random.Random(12), managedFields=managed)
        canonical = Canonical.of(request)
        assert canonical is not None
        assert (Form.of(written(request), request, canonical) is not None) is form
        assert len(looks) <= 2 * (MAX_VALUES + 8)


@pytest.mark.parametrize(("often", "form"), [(1, True), (50, True), (1000, False)])
def test_a_prefix_that_is_everywhere_is_searched_a_bounded_number_of_times(
    often: int, form: bool, looks: list[bytes]
) -> None:
    request = pod(random.Random(12))
    assert request.object is not None
    prefix = request.object["metadata"]["generateName"]
    request.object["metadata"]["annotations"] = {"a": f"{prefix}AAAAA" * often}
    canonical = Canonical.of(request)
    assert canonical is not None
    assert (Form.of(written(request), request, canonical) is not None) is form
    assert len(looks) <= 2 * (MAX_HOLES + MAX_VALUES)
