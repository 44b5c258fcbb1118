"""A created pod next to Kyverno, the API server's own policies and a webhook in Go: CPU, latency, memory.

The same job for all of them: probes and a preStop hook for containers that have none, and six checks. One
client creates pods through a real kube-apiserver at a rate. Each webhook has its own namespace, and they take
turns. Kyverno is built from its Go module, runs outside of the cluster with the manifests of its own release,
and has its policies once as ClusterPolicies and once in CEL; while it has the one, it has not the other.

Writes its section of docs/benchmarks.md and the raw numbers into benchmarks/peers/against_kyverno.json, those
after each measurement. One that does not end within PATIENCE seconds is left out.
Environment: ROUNDS, SECONDS of each measurement, RATES (pods a second), OTHERS (numbers of policies of other
teams), WITHOUT=kyverno,go (do not build those), RAW=1 (measure nothing: write the page from the raw numbers
of a run with the same RATES, OTHERS and WITHOUT). A measurement takes about SECONDS and 4 more. The defaults
make 106 of them, a quarter of an hour; ROUNDS=2 SECONDS=5 RATES=20,200 OTHERS=100 makes 68, ten minutes;
ROUNDS=5 SECONDS=10 is the long run.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
import yaml

from benchmarks import _load as load
from benchmarks import _peer
from benchmarks._page import PEERS, filled, machine, put, spread
from benchmarks._reviews import Workloads
from policies.kube.json import Json
from tests.e2e.api import ApiError
from tests.e2e.binaries import TABLE, binary, module_directory
from tests.e2e.controlplane import HOST, ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.processes import Process, free_port

RAW = PEERS / "against_kyverno.json"
ROUNDS = int(os.environ.get("ROUNDS", "2"))
SECONDS = float(os.environ.get("SECONDS", "4"))
RATES = [int(each) for each in os.environ.get("RATES", "20,200,1000").split(",")]
OTHERS = [int(each) for each in os.environ.get("OTHERS", "1,10,100").split(",")]
OTHERS_RATE = 200
SEEN = (0.0, 0.9)
PATIENCE = 60.0
"""Seconds that a measurement may take longer than SECONDS."""
SETTLED = 5.0
"""Seconds at most that work which follows an answer (reports, events) is waited for, and counted."""

NONE, POLICIES, GO, OURS = "no admission", "admission policies", "Go webhook", "ML Chassis"
CLASSIC, CEL = "Kyverno, ClusterPolicy", "Kyverno, CEL policies"
NAMESPACES = {
    NONE: "bench-none", POLICIES: "bench-policies", GO: "bench-go", OURS: "bench-ours",
    CLASSIC: "bench-kyverno", CEL: "bench-kyverno",
}  # fmt: skip
WITHOUT = {each for each in os.environ.get("WITHOUT", "").split(",") if each}
WITH_KYVERNO, WITH_GO = "kyverno" not in WITHOUT, "go" not in WITHOUT
COMMON = (NONE, POLICIES, *([GO] if WITH_GO else []), OURS)
PHASES = {CLASSIC: (*COMMON, CLASSIC), CEL: (OURS, CEL)} if WITH_KYVERNO else {"": COMMON}
"""What takes turns while Kyverno has these policies."""
CONTROLLER = ("kube-system", "replicaset-controller")
KYVERNO, ACCOUNT = "kyverno", "kyverno-admission-controller"
LEFT_OUT = "\n**Left out of this run** (`WITHOUT={}`).\n"
GO_MEMORY = f"{384 * 9 // 10}MiB"
"""Kyverno's use of the memory limit in its own manifests: nine tenths of it."""


@dataclass(frozen=True)
class Measured:
    """One way at one rate for a few seconds."""

    def __str__(self) -> str:
        return (
            f"{self.way:<24}{self.rate:>5}/s seen {self.seen:.0%} others {self.others:<3} "
            f"reached {self.reached:>5.0f}/s  {self.webhook_ms:>6.2f} ms + {self.server_ms:>6.2f} ms  "
            f"p50 {self.p50_ms:>6.1f} p99 {self.p99_ms:>6.1f} ms  {self.pss_mib:.0f} MiB"
        )

    way: str
    policies: str
    """The form of Kyverno's policies meanwhile."""
    round: int
    others: int
    seen: float
    rate: int
    created: int
    reached: float
    """Pods a second."""
    webhook_ms: float
    """CPU of the webhook's processes for a pod."""
    server_ms: float
    """CPU of kube-apiserver and etcd for a pod."""
    p50_ms: float
    p99_ms: float
    rss_mib: float
    pss_mib: float


# --- the cluster -------------------------------------------------------------------------------------------


class Cluster:
    """A control plane with all of them in it."""

    def __init__(self, control_plane: ControlPlane, scratch: Path, stack: ExitStack) -> None:
        self.control_plane, self.api = control_plane, control_plane.api
        self._scratch, self._stack = scratch, stack
        self._kyverno: Process | None = None
        self._go: Process | None = None
        self._chassis = Chassis(control_plane)

    def start(self, peer: Path | None) -> None:
        for way, namespace in NAMESPACES.items():
            if not self.api.exists("namespaces", namespace):
                labels = {} if way == OURS else {"mlchassis.dev/admission": "disabled"}
                self.control_plane.create_namespace(namespace, labels)
        if WITH_KYVERNO:
            self._start_kyverno()
        self._chassis.install()
        self._chassis.start()
        self._stack.callback(self._chassis.stop)
        if peer is not None:
            self._start_go(peer)
        _apply(self.control_plane, [*_admission_policies()])
        self._until_mutated(POLICIES)
        # No controller collects pods without an owner or schedules them: that would be CPU, too.
        self.control_plane.end("kube-scheduler", "kube-controller-manager", "kwok")

    def processes(self, way: str) -> list[int]:
        """The processes of a way's webhook."""
        if way == OURS:
            return load.family(self._chassis.process.pid)
        found = self._go if way == GO else self._kyverno if way in PHASES else None
        return [] if found is None else load.family(found.pid)

    def control_planes(self) -> list[int]:
        """kube-apiserver and etcd."""
        return self.control_plane.process_ids("kube-apiserver", "etcd")

    def clear(self) -> None:
        """Delete the pods, and the reports that Kyverno's other controllers would have taken away."""
        for namespace in set(NAMESPACES.values()):
            self.api.request("DELETE", f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")
        if not WITH_KYVERNO:
            return
        reports = f"/apis/reports.kyverno.io/v1/namespaces/{NAMESPACES[CLASSIC]}/ephemeralreports"
        self.api.request("DELETE", reports)

    # Kyverno

    def _start_kyverno(self) -> None:
        manifests = module_directory("kyverno") / "config" / "install-latest-testing.yaml"
        documents = [each for each in yaml.load_all(manifests.read_text(), yaml.CSafeLoader) if each]
        (deployment,) = (
            each for each in documents if each["kind"] == "Deployment" and each["metadata"]["name"] == ACCOUNT
        )
        for each in documents:
            if each["kind"] == "Deployment":
                each["spec"]["replicas"] = 0  # the one process below is all that runs
            if each["kind"] == "ConfigMap" and each["metadata"]["name"] == KYVERNO:
                selector = {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACES[CLASSIC]}}
                each["data"]["webhooks"] = json.dumps({"namespaceSelector": selector})
        first = [each for each in documents if each["kind"] in ("Namespace", "CustomResourceDefinition")]
        _apply(self.control_plane, first)
        _apply(self.control_plane, [each for each in documents if each not in first])
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        port = free_port()
        arguments = [
            *container["args"],
            # The last word wins.
            f"--kubeconfig={self.control_plane.service_account(KYVERNO, ACCOUNT)}",
            f"--serverIP={HOST}:{port}",
            f"--webhookServerHost={HOST}",
            f"--webhookServerPort={port}",
            f"--metricsHost={HOST}",
            f"--metricsPort={free_port()}",
            "--controllerRuntimeMetricsAddress=0",
        ]
        environment = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        environment |= {"KYVERNO_NAMESPACE": KYVERNO, "KYVERNO_POD_NAME": f"{ACCOUNT}-0"}
        inherited = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
        self._kyverno = Process(
            "kyverno",
            [binary("kyverno"), *arguments],
            self.control_plane.logs / "kyverno.log",
            inherited | environment | {"GOMEMLIMIT": GO_MEMORY},
        )
        self._stack.callback(self._kyverno.kill)

    @contextmanager
    def kyverno_policies(self, form: str) -> Iterator[None]:
        """Kyverno with the job in one form, and admission of pods by it; None if it was left out."""
        if not form:
            yield
            return
        policies = [*(_cluster_policies() if form == CLASSIC else _cel_policies())]
        self._until_accepted(policies)
        self._until_mutated(form)
        yield
        _delete(self.control_plane, policies)

    def _until_accepted(self, objects: list[Json]) -> None:
        """Apply them: Kyverno's webhooks for its own kinds may need a while."""
        deadline = time.monotonic() + 180
        while True:
            try:
                _apply(self.control_plane, objects)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)
            else:
                return

    # The peer in Go

    def _start_go(self, peer: Path) -> None:
        ca = _peer.certify(self._scratch)
        self._go, url = _peer.started(peer, self._scratch, self._stack)
        _peer.register(self.api, url, ca, "go.example.com", NAMESPACES[GO])

    # The policies of other teams

    @contextmanager
    def others(self, count: int, form: str) -> Iterator[None]:
        """So many policies of other teams, for pods with another label, in each way that has policies."""
        objects = [*(_others(count, form) if form else ()), *_other_admission_policies(count)]
        self._until_accepted(objects)
        overrides = [
            {"objectSelector": {"matchLabels": {"team": f"team-{number}"}}, "profile": "strict"}
            for number in range(count)
        ]
        before = self._chassis.policy_with()
        changed = self._chassis.policy_with(webhook=yaml.safe_dump({"overrides": overrides}))
        self.control_plane.apply(changed)
        for way in (POLICIES, OURS, *([form] if form else ())):
            self._until_mutated(way)
        if form:
            self._until_registered(count, form)
        yield
        self.control_plane.apply(before)
        _delete(self.control_plane, objects)

    def _until_registered(self, count: int, form: str) -> None:
        """Wait until Kyverno uses the objects that were applied last."""
        kind = "clusterpolicies.kyverno.io" if form == CLASSIC else "validatingpolicies.policies.kyverno.io"
        self.api.wait_for(
            kind,
            lambda items: len(items) > count and all(map(_is_ready, items)),
            timeout=180,
        )

    def _until_mutated(self, way: str) -> None:
        """Until a pod of this way's namespace gets its probes."""
        known, _ = Workloads(0).replicas(1, 0)
        deadline, namespace = time.monotonic() + 180, NAMESPACES[way]
        while True:
            with suppress(ApiError):
                pod = {**known[0], "metadata": {**known[0]["metadata"], "namespace": namespace}}
                created = self.api.create(pod, namespace, dry_run=True).body
                if all("startupProbe" in each for each in created["spec"]["containers"]):
                    return
            if time.monotonic() > deadline:
                raise SystemExit(f"{way}: no pod was changed within 180 s")
            time.sleep(0.5)


def _apply(control_plane: ControlPlane, objects: Sequence[Json]) -> None:
    # On the server: the definitions of Kyverno are too long for the annotation of client-side apply.
    _kubectl(control_plane, ("apply", "--server-side", "--force-conflicts"), objects)


def _delete(control_plane: ControlPlane, objects: Sequence[Json]) -> None:
    _kubectl(control_plane, ("delete", "--wait"), objects)


def _kubectl(control_plane: ControlPlane, verb: Sequence[str], objects: Sequence[Json]) -> None:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    control_plane.kubectl(*verb, "-f", "-", stdin=text, timeout=600)


def _is_ready(policy: Json) -> bool:
    status = policy.get("status", {})
    status = status.get("conditionStatus", status)
    ready = status.get("ready")
    if ready is not None:
        return bool(ready)
    return any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ()))


def _cluster_policies() -> Iterator[Json]:
    yield from yaml.safe_load_all((PEERS / "kyverno" / "cluster-policies.yaml").read_text())


def _admission_policies() -> Iterator[Json]:
    """The API server's policies with their bindings, for their namespace."""
    for policy in yaml.safe_load_all((PEERS / "kyverno" / "admission-policies.yaml").read_text()):
        yield policy
        selector = {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACES[POLICIES]}}
        yield _binding(policy, {"namespaceSelector": selector})


def _binding(policy: Json, resources: Json) -> Json:
    spec: Json = {"policyName": policy["metadata"]["name"], "matchResources": resources}
    if policy["kind"] == "ValidatingAdmissionPolicy":
        spec["validationActions"] = ["Deny"]
    return {
        "apiVersion": policy["apiVersion"],
        "kind": f"{policy['kind']}Binding",
        "metadata": policy["metadata"],
        "spec": spec,
    }


def _cel_policies() -> Iterator[Json]:
    """The same expressions as Kyverno's kinds."""
    for policy in yaml.safe_load_all((PEERS / "kyverno" / "admission-policies.yaml").read_text()):
        selector = {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACES[CEL]}}
        spec = {
            **policy["spec"],
            "matchConstraints": policy["spec"]["matchConstraints"] | {"namespaceSelector": selector},
        }
        if policy["kind"] == "ValidatingAdmissionPolicy":
            spec["validationActions"] = ["Deny"]
        yield {
            "apiVersion": "policies.kyverno.io/v1",
            "kind": policy["kind"].replace("Admission", ""),
            "metadata": policy["metadata"],
            "spec": spec,
        }


def _others(count: int, form: str) -> Iterator[Json]:
    """Kyverno's policies of other teams."""
    for number in range(count):
        selector = {"matchLabels": {"team": f"team-{number}"}}
        metadata = {"name": f"other-{number}"}
        if form == CLASSIC:
            pods = {"kinds": ["Pod"], "operations": ["CREATE", "UPDATE"], "selector": selector}
            rule = {
                "name": "image",
                "match": {"any": [{"resources": pods}]},
                "validate": {
                    "failureAction": "Enforce",
                    "message": "the image is not from the team's registry",
                    "pattern": {"spec": {"containers": [{"image": f"registry-{number}.example/*"}]}},
                },
            }
            spec: Json = {"background": False, "rules": [rule]}
            yield {"apiVersion": "kyverno.io/v1", "kind": "ClusterPolicy", "metadata": metadata, "spec": spec}
        else:
            spec = _image_check(number) | {"validationActions": ["Deny"]}
            yield {
                "apiVersion": "policies.kyverno.io/v1",
                "kind": "ValidatingPolicy",
                "metadata": metadata,
                "spec": spec,
            }


def _other_admission_policies(count: int) -> Iterator[Json]:
    for number in range(count):
        policy: Json = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": f"other-{number}"},
            "spec": _image_check(number),
        }
        yield policy
        yield _binding(policy, {})


def _image_check(number: int) -> Json:
    pods = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["pods"],
    }
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [pods],
            "objectSelector": {"matchLabels": {"team": f"team-{number}"}},
        },
        "validations": [
            {
                "message": "the image is not from the team's registry",
                "expression": "object.spec.containers.all(c, "
                f'c.image.startsWith("registry-{number}.example/"))',
            }
        ],
    }


# --- measuring ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """What each way is measured with."""

    policies: str
    round: int
    others: int
    seen: float
    rate: int


class Bench:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.found: list[Measured] = []
        self._headers = {
            "Host": "kubernetes",
            **cluster.control_plane.api_as_service_account(*CONTROLLER).headers,
        }

    def measure(self, ways: Sequence[str], task: Task) -> None:
        """Each way once, no way always the first."""
        turn = task.round % len(ways)
        for way in (*ways[turn:], *ways[:turn]):
            try:
                found = self._one(way, task)
            except TimeoutError:
                print(f"  {way:<24}{task.rate:>5}/s left out: it did not end", flush=True)
            else:
                self.found.append(found)
                _keep(self.found)
                print(f"  {found}", flush=True)
            self.cluster.clear()

    def _one(self, way: str, task: Task) -> Measured:
        namespace = NAMESPACES[way]
        known, pods = Workloads(task.round * 1000 + task.rate).replicas(
            max(round(task.rate * SECONDS * 1.3), 20), task.seen
        )
        path = f"api/v1/namespaces/{namespace}/pods"
        port = self.cluster.control_plane.port
        if task.seen:
            load.paced(port, path, self._headers, [_sent(each, namespace) for each in known], 100, PATIENCE)
        bodies = [_sent(each, namespace) for each in pods]
        webhook, server = self.cluster.processes(way), self.cluster.control_planes()
        load.settle([*webhook, *server], SETTLED)
        before = load.used(webhook), load.used(server)
        paced = load.paced(port, path, self._headers, bodies, task.rate, SECONDS, PATIENCE)
        load.settle([*webhook, *server], SETTLED)
        created = len(paced.latencies)
        mine, theirs = load.used(webhook) - before[0], load.used(server) - before[1]
        sizes = [load.memory(pid) for pid in webhook]
        return Measured(
            way, task.policies, task.round, task.others, task.seen, task.rate, created,
            round(created / paced.seconds, 1),
            round(mine / created * 1e3, 3),
            round(theirs / created * 1e3, 3),
            *(round(paced.latencies[created * each // 100] * 1e3, 2) for each in (50, 99)),
            *(round(sum(each[name] for each in sizes), 1) for name in ("Rss", "Pss")),
        )  # fmt: skip


def _sent(pod: Json, namespace: str) -> bytes:
    return orjson.dumps({**pod, "metadata": {**pod["metadata"], "namespace": namespace}})


def _about_run() -> Json:
    return {
        "rounds": ROUNDS,
        "seconds": SECONDS,
        "machine": machine(),
        "load": round(os.getloadavg()[2]),
    }


def _keep(found: Sequence[Measured]) -> None:
    """Write the raw numbers so far: a run that breaks off loses none."""
    raw = {
        "kyverno": TABLE["kyverno"].version if WITH_KYVERNO else None,
        "kube-apiserver": TABLE["kube-apiserver"].version,
        **_about_run(),
        "measured": [asdict(each) for each in found],
    }
    RAW.write_text(json.dumps(raw, indent=0) + "\n")


def _measured(cluster: Cluster) -> list[Measured]:
    bench = Bench(cluster)
    for form, ways in PHASES.items():
        with cluster.kyverno_policies(form):
            bench.measure(ways, Task(form, 0, 0, 0.9, 200))  # until all are warm
            bench.found = [each for each in bench.found if each.policies != form]
            for number in range(ROUNDS):
                for rate in RATES:
                    for seen in SEEN:
                        bench.measure(ways, Task(form, number, 0, seen, rate))
            for count in OTHERS:
                with cluster.others(count, form):
                    selected = [way for way in ways if way not in (NONE, GO)]
                    bench.measure(selected, Task(form, 0, count, 0.0, OTHERS_RATE))
    return bench.found


# --- the page ----------------------------------------------------------------------------------------------


def _cell(values: Sequence[float], digits: int = 1) -> str:
    return f"{statistics.median(values):,.{digits}f}" if values else "?"


def _ratios(found: Sequence[Measured], way: str, form: str, seen: float, rate: int) -> list[float]:
    """How many times our CPU the webhook of a way used, for each round, in rising order."""
    by_round = {each.round: each.webhook_ms for each in found if _is(each, OURS, form, 0, seen, rate)}
    return sorted(
        each.webhook_ms / by_round[each.round]
        for each in found
        if _is(each, way, form, 0, seen, rate) and each.round in by_round
    )


def _ratio(found: Sequence[Measured], way: str, form: str, seen: float, rate: int) -> str:
    ratios = _ratios(found, way, form, seen, rate)
    return spread(ratios, 1) if ratios else "?"


def _range(found: Sequence[Measured], way: str, seen: float) -> str:
    """The least and the greatest of the rates' ratios."""
    form = way if way in PHASES else next(iter(PHASES))
    by_rate = [ratios for rate in RATES if (ratios := _ratios(found, way, form, seen, rate))]
    medians = sorted(map(statistics.median, by_rate))
    ends = dict.fromkeys(f"{each:.1f}" for each in (*medians[:1], *medians[-1:]))
    return " to ".join(ends) or "?"


def _is(each: Measured, way: str, form: str, others: int, seen: float, rate: int) -> bool:
    return (each.way, each.policies, each.others, each.seen, each.rate) == (way, form, others, seen, rate)


def _rows(found: Sequence[Measured]) -> Iterator[str]:
    for seen in SEEN:
        for rate in RATES:
            for form, ways in PHASES.items():
                for way in ways:
                    some = [each for each in found if _is(each, way, form, 0, seen, rate)]
                    if form == CEL and way == OURS:
                        continue
                    webhook = way not in (NONE, POLICIES)
                    yield (
                        f"| {'90 % replicas' if seen else 'all new'} | {rate:,} | {way} "
                        f"| {_cell([each.reached for each in some], 0)} "
                        f"| {_cell([each.webhook_ms for each in some], 2) if webhook else ''} "
                        f"| {_ratio(found, way, form, seen, rate) if webhook and way != OURS else ''} "
                        f"| {_cell([each.server_ms for each in some], 2)} "
                        f"| {_cell([each.p50_ms for each in some])} "
                        f"| {_cell([each.p99_ms for each in some])} |"
                    )


def _others_rows(found: Sequence[Measured]) -> Iterator[str]:
    for form, ways in PHASES.items():
        for way in ways:
            if way in (NONE, GO) or (form == CEL and way == OURS):
                continue
            cells = []
            for count in (0, *OTHERS):
                some = [each for each in found if _is(each, way, form, count, 0.0, OTHERS_RATE)]
                cells.append(
                    f"{_cell([each.webhook_ms for each in some], 2) if way != POLICIES else '0'} + "
                    f"{_cell([each.server_ms for each in some], 2)}"
                )
            yield f"| {way} | {' | '.join(cells)} |"


def _memory_rows(found: Sequence[Measured]) -> Iterator[str]:
    for form, ways in PHASES.items():
        for way in ways:
            some = [each for each in found if (each.way, each.policies) == (way, form)]
            if way in (NONE, POLICIES) or (form == CEL and way == OURS) or not some:
                continue
            pss, rss = max(each.pss_mib for each in some), max(each.rss_mib for each in some)
            yield f"| {way} | {pss:.0f} | {rss:.0f} |"


def _page(found: Sequence[Measured], run: Json) -> str:
    """`run`: what `_about_run` was when these were measured."""
    return filled(
        "against_kyverno",
        rows="\n".join(_rows(found)),
        others="\n".join(_others_rows(found)),
        counts=" | ".join(f"{count}" for count in (0, *OTHERS)),
        line="|".join("---" for _ in (0, *OTHERS)),
        memory="\n".join(_memory_rows(found)),
        classic_new=_range(found, CLASSIC, 0.0),
        classic_seen=_range(found, CLASSIC, 0.9),
        cel_new=_range(found, CEL, 0.0),
        cel_seen=_range(found, CEL, 0.9),
        go_new=_range(found, GO, 0.0),
        go_seen=_range(found, GO, 0.9),
        kyverno=TABLE["kyverno"].version,
        absent=LEFT_OUT.format(",".join(sorted(WITHOUT))) if WITHOUT else "",
        rounds=run["rounds"],
        seconds=f"{run['seconds']:g}",
        others_rate=OTHERS_RATE,
        connections=load.CONNECTIONS,
        machine=run["machine"],
        load=run["load"],
    )


def main() -> None:
    if os.environ.get("RAW"):
        raw = json.loads(RAW.read_text())
        _put([Measured(**each) for each in raw["measured"]], raw)
        return
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        scratch = Path(directory)
        peer = _peer.built(scratch) if WITH_GO else None
        if WITH_GO and peer is None:
            raise SystemExit("Go is not there: install it, or leave out what it builds (WITHOUT=kyverno,go).")
        if WITH_KYVERNO:
            binary("kyverno")  # built before anything runs next to it
        control_plane = stack.enter_context(ControlPlane(scratch / "cluster"))
        cluster = Cluster(control_plane, scratch, stack)
        try:
            cluster.start(peer)
            found = _measured(cluster)
        except BaseException:
            log = control_plane.logs / "kyverno.log"
            print("\n".join(log.read_text().splitlines()[-30:]) if log.exists() else "")
            raise
    _put(found, _about_run())


def _put(found: Sequence[Measured], run: Json) -> None:
    page = _page(found, run)
    put("against_kyverno", page)
    print(page)


if __name__ == "__main__":
    main()
