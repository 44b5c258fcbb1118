"""The memo answers as the engine does, byte for byte, for any request and any change of the cluster.

A few seeds are tried here; `make differential` tries new ones for as long as it is given.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks._reviews import Stream, Workloads
from policies.containers.commands import clear_cache
from policies.core import registry
from policies.core.contracts import Rule
from policies.core.facts import Cluster, Facts, NoCluster
from policies.core.finding import Finding
from policies.core.resources import Resource
from policies.core.target import Target
from policies.kube.group_kinds import POD, GroupKind, kind_of
from policies.kube.json import Json, mapping, replaced, text
from policies.kube.names import listed
from policies.kube.yaml_text import BadDocument, load_all
from webhook.admission import engine
from webhook.admission.answer import Answer, prepared, render
from webhook.admission.canonical import Canonical
from webhook.admission.configuration import Config
from webhook.admission.decision import Decision
from webhook.admission.engine import Decide
from webhook.admission.envelope import Request, parse
from webhook.admission.messages import respond
from webhook.admission.review import Review
from webhook.config.load import load
from webhook.fast_path.memo import DEFAULT_BYTES, Memo, summary
from webhook.kube.caches import ClusterCache

TESTS = Path(__file__).parents[2]
DECIDE = {"mutate": engine.mutate, "validate": engine.validate}
USERS = ("system:serviceaccount:kube-system:replicaset-controller", "ada", "")
POLICIES: tuple[dict[str, str], ...] = (
    {},
    {"rules.yaml": "profile: strict"},
    {"rules.yaml": "profile: observe"},
    {"webhook.yaml": "overrides: [{namespaceSelector: {matchLabels: {team: a}}, profile: strict}]"},
)
SUFFIX = "bcdfghjklmnpqrstvwxz2456789"


# --- a world of objects, replicas and facts ---------------------------------------------------------------


@cache
def corpus() -> tuple[Json, ...]:
    """Every object of the golden cases, the facts of a cluster included."""
    found = []
    for path in sorted(TESTS.rglob("*.yaml")):
        try:
            documents = load_all(path.read_text())
        except BadDocument:
            continue
        found += [doc for doc in documents if isinstance(doc, dict) and text(doc, "kind")]
    return tuple(found)


@cache
def judged() -> tuple[Json, ...]:
    kinds = {kind for policy in registry.mutators().values() for kind in policy.kinds}
    kinds |= {kind for rule in registry.rules().values() for kind in rule.kinds or ()}
    kinds |= set(Config().workloads)
    return tuple(obj for obj in corpus() if kind_of(obj) in kinds)


class World:
    """A cluster that changes, and the requests to the webhook meanwhile."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cluster = ClusterCache()
        self._stores = [store for _, _, store in self.cluster.sources]
        self._facts = {
            store.kind: [obj for obj in corpus() if obj["kind"] == store.kind and _is_named(obj)]
            for store in self._stores
        }
        for store in self._stores:
            store.begin()
            store.commit()
        for _ in range(60):
            self.change()
        self._pool = self.chance.sample(judged(), 30)
        self._seeds = range(40)

    def change(self) -> None:
        """One object of the cluster comes, changes or goes; now and then a resource may no longer be read."""
        store = self.chance.choice(self._stores)
        known = self._facts[store.kind]
        if not known or self.chance.random() < 0.05:
            store.begin()
            store.commit()
            return
        obj = self.chance.choice(known)
        if store.kind != "Node":
            obj = replaced(obj, ("metadata", "namespace"), "default")
        if self.chance.random() < 0.3:
            store.remove(obj)
            return
        team = self.chance.choice("ab")
        store.put(replaced(obj, ("metadata", "labels", "team"), team))

    def request(self) -> Request:
        """A replica of one of a few objects, as one of a few accounts sends it.

        The sender and the request depend on one of a few seeds, so that they repeat; the values of each
        replica do not.
        """
        drawn = random.Random(self.chance.choice(self._seeds))
        obj = self.replica(drawn.choice(self._pool), drawn)
        update = drawn.random() < 0.25
        old = self.replica(drawn.choice(self._pool), drawn) if update else None
        return Request(
            uid=self._uid(),
            kind=kind_of(obj),
            operation="UPDATE" if update else "CREATE",
            namespace=text(obj, "metadata", "namespace") or "default",
            name=text(obj, "metadata", "name") if drawn.random() < 0.5 else "",
            object=obj,
            old_object=drawn.choice((old, obj)) if update else None,
            username=drawn.choice(USERS),
            dry_run=drawn.random() < 0.1,
        )

    def replica(self, obj: Json, drawn: random.Random) -> Json:
        """The object with what the API server gives to each one."""
        chance = self.chance
        second = f"2026-01-05T09:30:{chance.randrange(60):02}Z"
        own = {
            "creationTimestamp": second,
            "resourceVersion": str(chance.randrange(10**6)),
            "managedFields": [{"manager": "m", "time": second}],
            **({"uid": self._uid()} if drawn.random() < 0.9 else {}),
        }
        metadata = {**mapping(obj, "metadata"), **own}
        if kind_of(obj) == POD and drawn.random() < 0.7:
            prefix = text(metadata, "generateName") or "web-7c9d8-"
            metadata |= {"generateName": prefix, "name": prefix + self._text()}
        obj = {**obj, "metadata": metadata}
        if kind_of(obj) == POD and drawn.random() < 0.5:
            obj = _with_token(obj, f"kube-api-access-{self._text()}")
        if kind_of(obj) == POD and drawn.random() < 0.2:
            obj = _strange(obj, metadata.get("name") or "web", drawn)
        return obj

    def _text(self) -> str:
        """A random end of a name; a few come again and again."""
        if self.chance.random() < 0.3:
            return self.chance.choice(("bcdfg", "zzzzz", "99999"))
        return "".join(self.chance.choices(SUFFIX, k=5))

    def _uid(self) -> str:
        return f"{self.chance.getrandbits(64):016x}"


def _strange(pod: Json, name: str, drawn: random.Random) -> Json:
    """A pod in which a replaced value, or its replacement, is also elsewhere."""
    prefix = name[:-5]
    places: tuple[tuple[tuple[str | int, ...], Any], ...] = (
        (("metadata", "labels", "pod"), name),
        (("metadata", "annotations", "mlchassis.dev/health-path." + name), "/health"),
        (("metadata", "annotations", "mlchassis.dev/expected-start"), f"{prefix}00000"),
        (("metadata", "name"), f"{prefix}00000"),
        (("metadata", "annotations", "mlchassis.dev/health-port"), "kube-api-access-00000"),
        (("spec", "volumes"), [{"name": "kube-api-access-00000"}, {"name": "kube-api-access-bcdfg"}]),
        (("metadata", "annotations", "mlchassis.dev/exempt"), f"liveness-missing={name}"),
    )
    return replaced(pod, *drawn.choice(places))


def _is_named(obj: Json) -> bool:
    return bool(text(obj, "metadata", "name"))


def _with_token(pod: Json, name: str) -> Json:
    """The pod with the volume of its service account's token in front of its others."""
    spec = mapping(pod, "spec")
    containers = spec.get("containers")
    if not isinstance(containers, list) or not all(isinstance(each, dict) for each in containers):
        return pod
    volumes = spec.get("volumes")
    mount = {"name": name, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    mounted = [{**each, "volumeMounts": [*(each.get("volumeMounts") or []), mount]} for each in containers]
    token = {"name": name, "projected": {"sources": []}}
    volumes = [*(volumes if isinstance(volumes, list) else []), token]
    return {**pod, "spec": {**spec, "containers": mounted, "volumes": volumes}}


def counted(limit: int = DEFAULT_BYTES) -> tuple[Memo, Counter[str]]:
    """A memo and the outcomes that it counts."""
    counts = Counter[str]()
    return Memo(limit, lambda outcome: counts.update([outcome])), counts


def with_services() -> tuple[ClusterCache, Any]:
    """A cluster that knows its Services, of which there are none yet."""
    cluster = ClusterCache()
    (services,) = (store for _, _, store in cluster.sources if store.kind == "Service")
    services.begin()
    services.commit()
    return cluster, services


@contextmanager
def allocated() -> Iterator[Callable[[], int]]:
    """Traces allocations. Returns the bytes since its last call, or since the start, that are still there."""
    before = 0

    def since() -> int:
        nonlocal before
        gc.collect()
        earlier, before = before, tracemalloc.get_traced_memory()[0]
        return before - earlier

    gc.collect()
    gc.freeze()  # what was there before is not gone through for each count
    tracemalloc.start()
    try:
        yield since
    finally:
        tracemalloc.stop()


# --- the proof ---------------------------------------------------------------------------------------------


def assert_agrees(memo: Memo, endpoint: str, request: Request, config: Config, cluster: Cluster) -> None:
    """The memo's answer, with its counts and log lines, is the engine's on the request as it came."""
    decide: Decide = engine.mutate if endpoint == "mutate" else engine.validate
    answer = memo.answer(endpoint, request, config, cluster, decide)
    decision = DECIDE[endpoint](Review(request, config, cluster))
    assert rendered(request, answer) == render(request.uid, respond(decision))
    assert answer.decision is not None
    assert summary(answer.decision) == summary(decision)


def rendered(request: Request, answer: Answer) -> bytes:
    """As the server does it."""
    return (answer.ready or prepared(answer.response)).to(request.uid)


@pytest.mark.parametrize("seed", range(2))
def test_an_answer_of_the_memo_is_the_engines(seed: int) -> None:
    world = World(seed)
    memo, counts = counted()
    config = load(world.chance.choice(POLICIES))
    for _ in range(400):
        if world.chance.random() < 0.03:
            world.change()
        if world.chance.random() < 0.01:
            config = load(world.chance.choice(POLICIES))
        endpoint = world.chance.choice(("mutate", "validate"))
        assert_agrees(memo, endpoint, world.request(), config, world.cluster)
    assert counts["hit"] > 50
    assert counts["miss"] > 50


def test_replicas_whose_answers_have_their_own_names_in_them_are_each_decided() -> None:
    memo, counts = counted()
    config = planted(lambda target, _: [Finding("spec", f"Pod {target.name} is here.", volume_of(target))])
    for end in ("bcdfg", "zzzzz", "24567"):
        pod = _with_token(
            {**BARE, "metadata": {**BARE["metadata"], "name": f"web-{end}"}}, f"kube-api-access-{end}"
        )
        request = created(pod)
        assert_agrees(memo, "validate", request, config, NoCluster())
        answer = memo.answer("validate", request, config, NoCluster(), engine.validate)
        assert f"Pod web-{end} is here. kube-api-access-{end}" in rendered(request, answer).decode()
    assert counts == {"miss": 6}
    assert len(memo) == 1, "which is known to be so"


@pytest.mark.parametrize(
    "elsewhere",
    [
        "web-bcdfg",
        "web-00000",
        "before web-bcdfg after",
        "kube-api-access-bcdfg",
        "a kube-api-access-bcdfg",
        "kube-api-access-mmmmmm",
    ],
)
def test_a_value_that_is_elsewhere_too_is_not_replaced(elsewhere: str) -> None:
    """A rule may compare what it finds in two places."""

    def compared(target: Target, facts: Facts) -> list[Finding]:
        own = text(target.obj, "metadata", "labels", "own")
        volume = volume_of(target)
        return said((target.name == own, target.name in own, volume == own, volume in own, own < volume))

    config, memo = planted(compared), Memo()
    metadata = {**BARE["metadata"], "labels": {"own": elsewhere}}
    for end in ("bcdfg", "zzzzz"):
        pod = _with_token({**BARE, "metadata": {**metadata, "name": f"web-{end}"}}, f"kube-api-access-{end}")
        assert_agrees(memo, "validate", created(pod), config, NoCluster())


def volume_of(target: Target) -> str:
    return text(target.obj, "spec", "volumes", 0, "name")


# --- the proof can fail ------------------------------------------------------------------------------------

BARE: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "web-", "name": "web-bcdfg", "uid": "a", "namespace": "default"},
    "spec": {"containers": [{"name": "web", "image": "nginx"}]},
}
WORLD = {"temperature": 20}
"""Something that a policy must not read."""


def created(pod: Json, uid: str = "1") -> Request:
    return Request(uid, POD, "CREATE", "default", object=pod, username="ada")


def planted(check: Callable[[Target, Facts], list[Finding]]) -> Config:
    """A configuration with one more rule."""
    load_document = registry.rules()["liveness-missing"].load
    return replace(load({}), own_rules={"planted": Rule("planted", check, (POD,), load_document)})


def said(value: object) -> list[Finding]:
    return [Finding("spec", f"It is {value}.", "")]


HIDDEN = ClusterCache()

UNDECLARED: dict[str, Callable[[Target, Facts], list[Finding]]] = {
    "the clock": lambda target, facts: said(time.perf_counter_ns()),
    "the environment": lambda target, facts: said(os.environ.get("TEMPERATURE")),
    "a variable": lambda target, facts: said(WORLD["temperature"]),
    "chance": lambda target, facts: said(random.random()),
    "a cluster of its own": lambda target, facts: said(len(HIDDEN.listing(Resource.SERVICES) or ())),
    "the object's uid": lambda target, facts: said(text(target.obj, "metadata", "uid") == "b"),
    "when the object was made": lambda target, facts: said(
        text(target.obj, "metadata", "creationTimestamp").endswith("1Z")
    ),
    "managed fields": lambda target, facts: said("b" in target.obj["metadata"]["managedFields"][0]),
    "the random end of a name": lambda target, facts: said(target.name[-5:] == "zzzzz"),
    "how a name sorts": lambda target, facts: said(sorted([target.name, "web-mmmmm"]).index(target.name)),
}


SHOWN: dict[str, Callable[[Json], object]] = {
    "its uid": lambda pod: pod["metadata"]["uid"],
    "a part of its uid": lambda pod: pod["metadata"]["uid"][:12],
    "when it was made": lambda pod: pod["metadata"]["creationTimestamp"],
    "the day on which it was made": lambda pod: pod["metadata"]["creationTimestamp"][:10],
    "its version": lambda pod: pod["metadata"]["resourceVersion"],
    "its managed fields": lambda pod: pod["metadata"]["managedFields"],
    "its name": lambda pod: pod["metadata"]["name"],
    "its name in capitals": lambda pod: pod["metadata"]["name"].upper(),
    "its name cut off": lambda pod: pod["metadata"]["name"][:-2],
    "its name in a list": lambda pod: listed(["w" * 75 + pod["metadata"]["name"]]),
    "the random end of its name": lambda pod: pod["metadata"]["name"][-5:],
    "a part of the end": lambda pod: pod["metadata"]["name"][-4:-1],
    "the token's volume": lambda pod: pod["spec"]["volumes"][0]["name"],
    "the token's volume cut off": lambda pod: pod["spec"]["volumes"][0]["name"][:-1],
}


@pytest.mark.parametrize("what", SHOWN)
def test_a_replicas_own_values_in_an_answer_are_right(what: str) -> None:
    """The law of the memo is checked when an entry is made, not assumed."""
    show, memo = SHOWN[what], Memo()
    config = planted(lambda target, _: said(show(target.obj)))
    for number, end in enumerate(("bcdfg", "zzzzz", "24567")):
        own = {
            "name": f"web-{end}",
            "uid": f"7e0c3d64-54e5-4a8c-9d0a-3f2f7a9d5a1{number}",
            "creationTimestamp": f"2026-01-0{number + 1}T09:30:00Z",
            "resourceVersion": f"{number}",
            "managedFields": [{"manager": f"{number}"}],
        }
        pod = _with_token({**BARE, "metadata": {**BARE["metadata"], **own}}, f"kube-api-access-{end}")
        for _ in range(3):
            assert_agrees(memo, "validate", created(pod), config, NoCluster())


@pytest.mark.parametrize("what", UNDECLARED)
def test_a_policy_that_reads_what_it_did_not_declare_fails_the_proof(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memo, config = Memo(), planted(UNDECLARED[what])
    replicas = [
        {
            "name": "web-bcdfg",
            "uid": "a",
            "creationTimestamp": "2026-01-05T09:30:00Z",
            "managedFields": [{"a": 1}],
        },
        {
            "name": "web-zzzzz",
            "uid": "b",
            "creationTimestamp": "2026-01-05T09:30:01Z",
            "managedFields": [{"b": 1}],
        },
    ]
    _, _, services = HIDDEN.sources[0]
    services.begin()
    services.commit()

    def ask() -> None:
        for number, own in enumerate(replicas):
            monkeypatch.setenv("TEMPERATURE", str(number))
            monkeypatch.setitem(WORLD, "temperature", number)
            services.put({"metadata": {"name": f"{number}"}})
            pod = {**BARE, "metadata": {**BARE["metadata"], **own}}
            assert_agrees(memo, "validate", created(pod), config, NoCluster())

    with pytest.raises(AssertionError):
        ask()


def test_a_workload_is_found_by_its_name_in_the_cluster() -> None:
    """Its name ends as the API server makes them; a rule asks whether a workload in the cluster is itself."""
    cluster = ClusterCache()
    [workloads] = [store for _, _, store in cluster.sources if store.kind == "Deployment"]
    workloads.begin()
    workloads.commit()

    def itself(target: Target, facts: Facts) -> list[Finding]:
        names = [text(each, "metadata", "name") for each in facts.listing(Resource.WORKLOADS) or ()]
        return said(target.name in names)

    load_document, kind = registry.rules()["liveness-missing"].load, GroupKind("apps", "Deployment")
    config = replace(load({}), own_rules={"planted": Rule("planted", itself, (kind,), load_document)})
    memo = Memo()
    for end in ("bcdfg", "zzzzz"):
        metadata = {"name": f"web-{end}", "generateName": "web-", "namespace": "default"}
        spec = {"template": BARE}
        obj = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
        workloads.put(obj)
        request = Request("1", kind, "UPDATE", "default", f"web-{end}", object=obj, old_object=obj)
        for _ in range(2):
            assert_agrees(memo, "validate", request, config, cluster)


def test_a_policy_that_reads_declared_fields_passes_the_proof() -> None:
    cluster, services = with_services()
    memo, config = Memo(), planted(lambda _, facts: said(len(facts.listing(Resource.SERVICES) or ())))
    for number in range(20):
        if number % 3 == 0:
            services.put({"metadata": {"name": f"{number}", "namespace": "default"}})
        assert_agrees(memo, "validate", created(BARE), config, cluster)


# --- the key -----------------------------------------------------------------------------------------------


def test_every_field_of_a_request_but_its_uid_is_part_of_the_key() -> None:
    request = created(BARE)
    other: dict[str, object] = {
        "kind": GroupKind("a", "B"),
        "operation": "UPDATE",
        "namespace": "other",
        "name": "other",
        "subresource": "status",
        "resource": "others",
        "object": {**BARE, "apiVersion": "v2"},
        "old_object": BARE,
        "dry_run": True,
        "username": "bob",
        "groups": ("others",),
    }
    assert set(other) == {field.name for field in fields(Request)} - {"uid", "cache"}
    keys = [Canonical.of(replace(request, **{name: value})) for name, value in other.items()]  # type: ignore[arg-type]
    texts = {canonical.text for canonical in keys if canonical} | {_text(request)}
    assert len(texts) == len(other) + 1
    assert _text(replace(request, uid="2")) == _text(request)


def _text(request: Request) -> bytes:
    canonical = Canonical.of(request)
    assert canonical is not None
    return canonical.text


def test_the_canonical_request_is_the_request_without_a_replacement() -> None:
    pod = {key: value for key, value in BARE.items() if key != "metadata"} | {"metadata": {"name": "web"}}
    request = Request("1", POD, "UPDATE", "ml", "web", "", "pods", pod, BARE, True, "ada", ("a", "b"))
    canonical = Canonical.of(replace(request, old_object=pod))
    assert canonical is not None
    assert canonical.request() == replace(request, uid="", old_object=pod)


def test_replicas_of_one_pod_template_have_one_key_and_other_pods_another() -> None:
    stream = Workloads(1).pods(200, 1.0)
    keys = {_text(parse(review)) for review in (*stream.known, *stream.measured)}
    assert len(keys) == len(stream.known)
    assert len({_text(parse(review)) for review in Workloads(1).pods(50, 0).measured}) == 50


# --- entries -----------------------------------------------------------------------------------------------


def distinct(count: int) -> Iterator[Request]:
    for number in range(count):
        yield created(replaced(BARE, ("spec", "containers", 0, "image"), f"image-{number}"))


def pods() -> Stream:
    return Workloads(1).pods(150, 0)


def deployments() -> Stream:
    return Workloads(1).deployments(60, 0)


@pytest.mark.parametrize(
    ("endpoint", "make", "limit"), [("mutate", pods, 2**18), ("validate", deployments, 2**19)]
)
def test_the_memo_takes_no_more_memory_than_it_may(
    endpoint: str, make: Callable[[], Stream], limit: int
) -> None:
    config = load({})
    memo, counts = counted(limit)
    requests = [parse(review) for review in make().measured]
    with allocated() as since:
        for request in requests:  # what the policies keep for themselves they keep now
            Memo(1).answer(endpoint, request, config, NoCluster(), DECIDE[endpoint])
        since()
        for request in requests:
            memo.answer(endpoint, request, config, NoCluster(), DECIDE[endpoint])
            assert 0 <= memo.bytes <= limit
        assert since() < 1.2 * limit
    assert counts["evicted"] > 20
    assert len(memo) > 10


def of_pod(pod: Json, kind: str = "Deployment") -> Request:
    """The creation of a pod, or of a Deployment of it."""
    if kind == "Pod":
        return created(pod)
    obj = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "a"}, "spec": {"template": pod}}
    return Request("1", kind_of(obj), "CREATE", "default", "a", object=obj, username="ada")


def serving(number: int, count: int) -> Json:
    containers = [
        {"name": f"c{each}", "image": "vllm/vllm-openai:v0.9", "ports": [{"containerPort": 8000 + each}]}
        for each in range(count)
    ]
    return {**BARE, "metadata": {"name": f"a{number}"}, "spec": {"containers": containers}}


def filled(number: int, **spec: Any) -> Json:
    labels = {"a": f"{number}"}
    return {
        **BARE,
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "a", "image": "b"}], **spec},
    }


def asking(number: int) -> Json:
    script = "; ".join(f"curl h{number}-{each} || exit 1" for each in range(150))
    return {"name": "a", "image": "b", "command": ["sh", "-c", script]}


COSTLY: dict[str, Callable[[int], Request]] = {
    "small pods": lambda number: of_pod(filled(number), "Pod"),
    "pods of servers": lambda number: of_pod(serving(number, 20), "Pod"),
    "Deployments of servers": lambda number: of_pod(serving(number, 20)),
    "empty lists": lambda number: of_pod(filled(number, x=[[] for _ in range(2000)])),
    "small maps": lambda number: of_pod(filled(number, x=[{"a": 1} for _ in range(2000)])),
    "commands": lambda number: of_pod(filled(number, containers=[asking(number)])),
    "benchmarks": lambda number: parse(Workloads(number).deployments(1, 0).measured[0]),
}


@pytest.mark.parametrize("what", COSTLY)
def test_an_entry_takes_no_more_memory_than_is_counted(what: str) -> None:
    """Also of objects that take many times as much memory as their JSON is long."""
    config, makes, count = load({"rules.yaml": "profile: strict"}), COSTLY[what], 5
    memo = Memo(2**30)
    requests = [makes(number) for number in range(count)]
    for request in requests:  # what the policies keep for themselves they keep now
        Memo(0).answer("validate", request, config, NoCluster(), engine.validate)
    texts = [Canonical.of(request) for request in requests]
    del requests
    with allocated() as since:
        for canonical in texts:
            assert canonical is not None
            memo.answer("validate", canonical.request(), config, NoCluster(), engine.validate)
        clear_cache()
        taken = since()
    assert len(memo) == count
    assert 0.5 * taken < memo.bytes
    assert taken < 1.1 * memo.bytes


def test_the_answer_that_was_asked_for_last_is_given_up_last() -> None:
    decided: list[str] = []

    def decide(review: Review) -> Decision:
        decided.append(text(review.object, "spec", "containers", 0, "image"))
        return engine.mutate(review)

    config = load({})
    requests = list(distinct(100))
    memo = Memo(150_000)
    for request in requests:
        memo.answer("mutate", request, config, NoCluster(), decide)
        memo.answer("mutate", requests[0], config, NoCluster(), decide)
    assert len(memo) < len(requests)
    assert decided.count("image-0") == 1


def test_a_large_answer_does_not_drive_out_the_others() -> None:
    memo, config = Memo(200_000), load({})
    [small, large] = distinct(2)
    assert large.object is not None
    large = replace(large, object=replaced(large.object, ("metadata", "annotations", "a"), "x" * 100_000))
    for request in (small, large):
        memo.answer("mutate", request, config, NoCluster(), engine.mutate)
    assert len(memo) == 1


def test_another_configuration_is_another_memo() -> None:
    memo, counts = counted()
    for config in itertools.chain.from_iterable([load({})] * 2 for _ in range(2)):
        memo.answer("mutate", created(BARE), config, NoCluster(), engine.mutate)
    assert counts == {"miss": 2, "hit": 2}


def test_the_endpoints_answers_are_kept_apart() -> None:
    memo, config = Memo(), load({})
    for endpoint in ("mutate", "validate", "mutate", "validate"):
        assert_agrees(memo, endpoint, created(BARE), config, NoCluster())


def test_a_decision_in_which_a_policy_failed_is_not_remembered() -> None:
    def fail(target: Target, facts: Facts) -> list[Finding]:
        raise RuntimeError("a bug")

    memo, config = Memo(), planted(fail)
    for _ in range(2):
        answer = memo.answer("validate", created(BARE), config, NoCluster(), engine.validate)
        assert answer.decision is not None
        assert [crash.id for crash in answer.decision.crashes] == ["planted"]
    assert len(memo) == 0


def test_a_memo_of_nothing_remembers_nothing() -> None:
    memo, config = Memo(0), load({})
    for _ in range(2):
        assert_agrees(memo, "mutate", created(BARE), config, NoCluster())
    assert len(memo) == 0


def test_an_unused_listing_is_not_kept_by_the_memo() -> None:
    """A listing is current by identity, and the memo itself keeps it no longer than the caches do."""
    cluster, services = with_services()
    memo, counts = counted()
    config = planted(lambda _, facts: said(len(facts.listing(Resource.SERVICES) or ())))
    for number in range(5):
        services.put({"metadata": {"name": f"{number}", "namespace": "default"}})
        assert_agrees(memo, "validate", created(BARE), config, cluster)
        assert_agrees(memo, "validate", created(BARE), config, cluster)
    assert counts == {"miss": 5, "hit": 5}
    assert len(memo) == 1


@pytest.mark.parametrize("obj", [{}, {"metadata": None}, {"metadata": []}, {"metadata": {"name": 3}}])
def test_objects_that_no_api_server_would_send_are_answered(obj: Json) -> None:
    for endpoint in DECIDE:
        assert_agrees(Memo(), endpoint, created(obj), load({}), NoCluster())


def test_an_object_too_deep_to_be_written_is_left_to_the_engine() -> None:
    deep: Json = {}
    for _ in range(300):
        deep = {"a": deep}
    request = created(replaced(BARE, ("spec", "deep"), deep))
    with pytest.raises(orjson.JSONEncodeError):
        orjson.dumps(request.object)
    memo = Memo()
    assert_agrees(memo, "mutate", request, load({}), NoCluster())
    assert len(memo) == 0


# --- the pods of workloads ---------------------------------------------------------------------------------


@cache
def some_deployments() -> tuple[Request, ...]:
    return tuple(parse(review) for review in Workloads(7).deployments(30, 0).measured)


def rolled_out(request: Request, number: int) -> Request:
    """The same pod template in a workload with something else about it."""
    assert request.object is not None
    other = replaced(request.object, ("metadata", "annotations", "example.com/rollout"), str(number))
    if number % 2:
        other = replaced(other, ("spec", "replicas"), number)
    if number % 3:
        return replace(request, object=other)
    return replace(request, operation="UPDATE", object=other, old_object=request.object)


@pytest.mark.parametrize("seed", range(2))
def test_what_becomes_of_pods_is_the_engines_while_the_cluster_changes(seed: int) -> None:
    world, memo, config = World(seed), Memo(), load(POLICIES[seed % len(POLICIES)])
    for number in range(300):
        if number % 4 == 0:
            world.change()
        request = world.request()
        assert_agrees(memo, "validate", rolled_out(request, number % 11), config, world.cluster)
