"""The whole process: flags, endpoints over the real engine, and `chassis serve` from start to drain."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import platform
import resource
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import aiohttp
import pytest
import structlog
from msgspec.structs import replace

from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json
from policies.kube.yaml_text import load_all
from tests import forked
from tests.forked import Forked
from tests.hanging import HANGING
from tests.manifests import manifest
from tests.webhook.kube.apiserver import FakeApiServer, Silence, running, until
from tests.webhook.server.wired import POD, REVIEW, Wired
from webhook.admission.answer import Answer
from webhook.admission.decision import Crash
from webhook.admission.envelope import Request
from webhook.cli import main as cli
from webhook.errors import UserError
from webhook.server import admission_server as server
from webhook.server import pki, tls_reload
from webhook.server import server_flags as serve
from webhook.server.admission_server import listen
from webhook.server.journal import Journal
from webhook.server.metrics import MAX_PENDING, Metrics
from webhook.version import version

POLICY_PATH = "/api/v1/namespaces/mlchassis-system/configmaps"
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
CONFIGURATION = f"{MUTATING}/chassis.mlchassis.dev"
SECRET = "/api/v1/namespaces/mlchassis-system/secrets/mlchassis-tls"


# --- flags ---------------------------------------------------------------------------------------------


def flags(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    args = parser.parse_args(argv)
    serve.options_of(args)
    return args


def test_every_flag_has_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "POLICY": "/policy",
        "TLS_CERT": "/tls/tls.crt",
        "TLS_KEY": "/tls/tls.key",
        "TLS_CA": "/tls/ca.crt",
        "TLS_SECRET": "secret",
        "TLS_HOST": "a,b",
        "KUBECONFIG": "/kubeconfig",
        "FACTS": "/manifests",
        "NAMESPACE": "ns",
        "SERVICE": "svc",
        "WEBHOOK_CONFIGURATIONS": "name",
        "HOST": "127.0.0.1",
        "PORT": "9443",
        "WORKERS": "2",
        "MEMO": "16",
        "FAST_PATH": "off",
        "DRAIN_GRACE": "1.5",
        "DRAIN_PATIENCE": "3.5",
        "LOG_LEVEL": "debug",
        "LOG_FORMAT": "json",
    }
    for name, value in values.items():
        monkeypatch.setenv(f"CHASSIS_{name}", value)
    args = vars(flags())
    assert args.pop("self_signed") is False
    assert args.pop("tls_host") == ["a", "b"]
    assert {name.upper(): str(value) for name, value in args.items()} == {
        name: value for name, value in values.items() if name != "TLS_HOST"
    }


def test_a_flag_wins_over_its_variable_and_a_switch_can_be_set_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CHASSIS_PORT", "1")
    monkeypatch.setenv("CHASSIS_SELF_SIGNED", "true")
    args = flags("--port", "2")
    assert (args.port, args.self_signed) == (2, True)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ([], "choose one"),
        (["--tls-cert", "a"], "must be used together"),
        (["--tls-cert", "a", "--tls-key", "b", "--self-signed"], "choose one"),
        (["--self-signed", "--policy", "configmap:ns/name"], "needs a cluster"),
        (
            ["--self-signed", "--policy", "configmap:name", "--kubeconfig", "k"],
            "must be configmap:NAMESPACE/NAME",
        ),
        (["--self-signed", "--workers", "0"], "--workers must be"),
        (["--self-signed", "--memo", "-1"], "--memo must be"),
    ],
)
def test_flags_that_don_t_go_together_are_explained(
    argv: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(UserError, match=sentence):
        flags(*argv)


# --- endpoints over the real engine --------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain HTTP of `Wired` has none to wait for."""
    monkeypatch.setattr(server, "LAST_HANDSHAKES_SECONDS", 0)


async def test_a_change_is_answered_counted_and_logged_in_one_line() -> None:
    wired = Wired({})
    with structlog.testing.capture_logs() as lines:
        response = await wired.post("mutate")
    assert response["patchType"] == "JSONPatch"
    assert wired.metric("chassis_mutations_total", policy="standard-probes", mode="enforce") == 1
    (line,) = (line for line in lines if line["event"] == "changed")
    assert "standard-probes" in line["policies"]
    assert (line["kind"], line["namespace"], line["name"], line["user"]) == ("Pod", "ml", "vllm", "ada")
    assert (line["endpoint"], line["uid"], line["dryRun"]) == ("mutate", "1", False)


async def test_an_unchanged_object_is_not_logged() -> None:
    wired = Wired({"rules.yaml": "profile: observe"})
    with structlog.testing.capture_logs() as lines:
        response = await wired.post("mutate")
    assert "patch" not in response
    assert lines == []
    assert wired.metric("chassis_mutations_total", policy="standard-probes", mode="enforce") is None
    assert wired.metric("chassis_mutations_total", policy="standard-probes", mode="audit") == 1


async def test_a_denial_is_logged_with_its_rules_and_counted() -> None:
    wired = Wired({"rules.yaml": "profile: strict"})
    own_policy = manifest(
        "ConfigMap",
        "p",
        data={"rules.yaml": "profile: strickt"},
        namespace="mlchassis-system",
        labels={"mlchassis.dev/policy": "true"},
    )
    request = {
        **REVIEW["request"],
        "kind": {"group": "", "version": "v1", "kind": "ConfigMap"},
        "namespace": "mlchassis-system",
        "object": own_policy,
    }
    with structlog.testing.capture_logs() as lines:
        response = await wired.post("validate", {**REVIEW, "request": request})
    assert response["allowed"] is False
    (line,) = (line for line in lines if line["event"] == "denied")
    assert line["rules"] == ["policy-config-invalid"]
    labels = {"rule": "policy-config-invalid", "mode": "enforce"}
    assert wired.metric("chassis_findings_total", **labels) == 1
    assert wired.metric("chassis_namespace_findings_total", namespace="mlchassis-system", mode="enforce") == 1


def test_only_a_hundred_namespaces_have_separate_metrics() -> None:
    metrics = Metrics()
    for number in range(150):
        for namespace in (f"team-{number}", "team-0"):
            for counter in metrics.of_finding("a-rule", "warn", namespace):
                counter.inc()

    def found(namespace: str) -> float | None:
        labels = {"namespace": namespace, "mode": "warn"}
        return metrics.registry.get_sample_value("chassis_namespace_findings_total", labels)

    assert (found("team-0"), found("team-99"), found("team-100"), found("other")) == (151, 1, None, 50)


def test_the_metrics_include_the_tallies() -> None:
    metrics = Metrics(["Pod"])
    request = metrics.of_request("mutate", "changed", "Pod")
    tallies = [metrics.tally([request]), metrics.tally([request, metrics.of_mutation("a", "enforce")])]

    def read() -> tuple[float | None, float | None]:
        sample = metrics.registry.get_sample_value
        labels = {"endpoint": "mutate", "outcome": "changed", "kind": "Pod"}
        mutations = sample("chassis_mutations_total", {"policy": "a", "mode": "enforce"})
        return sample("chassis_admission_requests_total", labels), mutations

    for times in (1, 2, 3):
        for tally in tallies:
            tally.increment()
            tally.increment()
        if times == 2:
            assert b'chassis_mutations_total{mode="enforce",policy="a"} 4.0' in metrics.render()
        assert read() == (4 * times, 2 * times)


def test_tallies_do_not_pile_up_while_the_metrics_are_not_read() -> None:
    """Each answer that is given again has a tally, and answers come and go."""
    metrics = Metrics(["Pod"])
    for _ in range(10 * MAX_PENDING):
        tally = metrics.tally([metrics.of_request("mutate", "changed", "Pod")])
        tally.increment()
        tally.increment()
        assert len(metrics._pending) < MAX_PENDING
    labels = {"endpoint": "mutate", "outcome": "changed", "kind": "Pod"}
    sample = metrics.registry.get_sample_value
    assert sample("chassis_admission_requests_total", labels) == 20 * MAX_PENDING


async def test_an_exemption_is_counted_apart() -> None:
    metadata = {**POD["metadata"], "annotations": {"mlchassis.dev/exempt": "standard-probes=has its own"}}
    request = {**REVIEW["request"], "object": {**POD, "metadata": metadata}}
    wired = Wired({})
    await wired.post("mutate", {**REVIEW, "request": request})
    assert wired.metric("chassis_mutations_total", policy="standard-probes", mode="enforce") is None
    assert wired.metric("chassis_exemptions_total", rule="standard-probes") == 1


async def test_a_policy_that_crashes_is_counted_and_logged_with_its_trace() -> None:
    wired = Wired({})
    real: Callable[[Request, float], Answer] = wired.endpoints["validate"]  # type: ignore[assignment]

    def crashing(request: Request, deadline: float) -> Answer:
        answer = real(request, deadline)
        assert answer.decision is not None
        crash = Crash("some-rule", "KeyError: 'x'", "Traceback …")
        return replace(answer, decision=replace(answer.decision, crashes=(crash,)))

    wired.endpoints["validate"] = crashing
    with structlog.testing.capture_logs() as lines:
        assert (await wired.post("validate"))["allowed"] is True
    assert [line["trace"] for line in lines if line["event"] == "policy failed"] == ["Traceback …"]
    assert wired.metric("chassis_policy_errors_total", policy="some-rule") == 1


@pytest.mark.parametrize(
    ("on_error", "endpoint", "let_in"),
    [
        ("allow", "validate", True),
        ("deny", "validate", False),
        ("deny", "mutate", True),
        ("deny", "name", True),
    ],
)
def test_a_failure_of_the_whole_is_answered_by_on_error(on_error: str, endpoint: str, let_in: bool) -> None:
    wired = Wired({"webhook.yaml": f"onError: {on_error}"})
    response = wired.on_error(endpoint, Request("1", GroupKind("", "Pod"), "CREATE"))
    assert response.allowed is let_in
    assert let_in or (response.status is not None and response.status.code == 403)
    owned = {"metadata": {"ownerReferences": [{"kind": "ReplicaSet", "controller": True}]}}
    assert wired.on_error(endpoint, Request("1", GroupKind("", "Pod"), "CREATE", object=owned)).allowed


@pytest.mark.parametrize("endpoint", ["mutate", "validate", "name"])
@pytest.mark.parametrize(
    "pod",
    [
        {},
        {"metadata": "x", "spec": "y"},
        {"apiVersion": 1, "kind": [], "metadata": {"labels": [], "annotations": 5, "ownerReferences": {}}},
        {**POD, "spec": {"containers": {"a": 1}, "initContainers": [None, 1], "volumes": "v"}},
        {**POD, "spec": {"containers": [{"name": 5, "ports": 1, "command": {}, "env": [1], "image": []}]}},
        {**POD, "metadata": {"name": {}, "generateName": []}},
    ],
)
async def test_objects_that_no_api_server_would_send_are_answered(endpoint: str, pod: Json) -> None:
    request = {**REVIEW["request"], "object": pod}
    assert (await Wired({}).post(endpoint, {**REVIEW, "request": request}))["allowed"] is True


async def test_an_answer_that_can_t_be_recorded_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    wired = Wired({})
    monkeypatch.setattr(wired.metrics, "of_request", {}.__getitem__)
    with structlog.testing.capture_logs() as lines:
        assert "patch" in await wired.post("mutate")
    assert [line["event"] for line in lines] == ["answer not recorded"]


async def test_the_name_endpoint_does_not_change_other_pods() -> None:
    assert await Wired({}).post("name") == {"uid": "1", "allowed": True}


# --- chassis serve -------------------------------------------------------------------------------------


def test_no_review_reads_a_file_once_the_workers_are_forked() -> None:
    script = (
        "import argparse, sys\n"
        "from policies.core.facts import NoCluster\n"
        "from webhook.admission.engine import decide\n"
        "from webhook.admission.review import Review\n"
        "from webhook.config.load import load\n"
        "from webhook.manifests.files import read\n"
        "from webhook.server import worker\n"
        "documents = list(read(['examples']))\n"
        "worker._preload(argparse.Namespace(uses_cluster=False))\n"
        "opened = []\n"
        "sys.addaudithook(lambda event, args: opened.append(args[0]) if event == 'open' else None)\n"
        "for each in documents: decide(Review(each.request('CREATE', None), load({}), NoCluster()))\n"
        "print(len(documents), opened)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    count, opened = done.stdout.split(maxsplit=1)
    assert int(count) > 10
    assert opened.strip() == "[]"


@cache
def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # the default one reads the machine's CAs
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Served:
    """A `chassis serve` process and what it logs."""

    def __init__(self, child: asyncio.subprocess.Process | Forked) -> None:
        self.child = child
        self.lines: list[Json] = []
        self._new = asyncio.Condition()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.child.stderr is not None
        async for raw in self.child.stderr:
            try:
                self.lines.append(json.loads(raw))
            except ValueError:
                self.lines.append({"event": raw.decode()})
            async with self._new:
                self._new.notify_all()
        async with self._new:
            self._new.notify_all()

    async def logged(self, event: str, count: int = 1) -> Json:
        """The first line of that event, once there are `count` of them."""

        def found() -> list[Json]:
            lines = [line for line in self.lines if line["event"] == event]
            assert len(lines) >= count or not self._reader.done(), f"it ended: {self.lines}"
            return lines[: len(lines) >= count]

        async with asyncio.timeout(60), self._new:
            return (await self._new.wait_for(found))[0]

    async def stop(self) -> int:
        if self.child.returncode is None:
            self.child.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            status = await self.child.wait()
            await self._reader
        return status

    async def get(self, path: str) -> tuple[int, str]:
        port = (await self.logged("listening"))["port"]
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"https://127.0.0.1:{port}{path}", ssl=_unverified()) as answer,
        ):
            return answer.status, await answer.text()

    async def post(self, endpoint: str, review: Json | None = None) -> Json:
        """The response to a review (by default that of this file), over a new connection."""
        port = (await self.logged("listening"))["port"]
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"https://127.0.0.1:{port}/{endpoint}", json=review or REVIEW, ssl=_unverified()
            ) as answer,
        ):
            response: Json = (await answer.json())["response"]
            return response

    async def until(self, path: str, text: str) -> None:
        """Ask until the answer holds `text`, as a kubelet or a Prometheus would."""
        async with asyncio.timeout(60):
            while text not in (await self.get(path))[1]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)


CHASSIS = "import sys; from webhook.cli.main import main; sys.exit(main(sys.argv[1:]))"


@asynccontextmanager
async def served(*argv: str, program: str = CHASSIS, whole: bool = False) -> AsyncIterator[Served]:
    """A server; if `whole`, started as a separate program."""
    argv = (
        *("serve", "--host", "127.0.0.1", "--port", "0", "--log-format", "json", "--drain-grace", "0"),
        *argv,
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("CHASSIS_")}
    async with AsyncExitStack() as stack:
        it = Served(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "webhook.cli", *argv), stderr=asyncio.subprocess.PIPE, env=env
            )
            if whole
            else await stack.enter_async_context(forked.started(program, argv, env))
        )
        stack.push_async_callback(it.stop)
        yield it


async def test_it_serves_over_tls_becomes_ready_and_ends_with_0() -> None:
    async with served("--self-signed", whole=True) as chassis:
        await chassis.logged("certificate in force")
        await chassis.logged("policy in force")
        await chassis.until("/readyz", "ok")
        assert "chassis_policy_valid 1.0" in (await chassis.get("/metrics"))[1]
        assert await chassis.stop() == 0
    assert [line["event"] for line in chassis.lines][-2:] == ["draining", "stopped"]


async def test_in_a_cluster_it_shares_its_certificate_registers_it_and_follows_its_policy(
    tmp_path: Path,
) -> None:
    async with running() as fake:
        await fake.put(POLICY_PATH, {"metadata": {"name": "mlchassis-policy"}, "data": {}})
        entry = {"name": "mutate.mlchassis.dev", "clientConfig": {"service": {"name": "mlchassis"}}}
        await fake.put(MUTATING, {"metadata": {"name": "chassis.mlchassis.dev"}, "webhooks": [entry]})
        argv = [
            *("--self-signed", "--policy", "configmap:mlchassis-system/mlchassis-policy"),
            *("--kubeconfig", str(fake.kubeconfig(tmp_path)), "--namespace", "mlchassis-system"),
        ]
        async with served(*argv) as chassis:
            await chassis.logged("policy in force")
            await chassis.logged("caBundle written")
            bundle = fake.objects[CONFIGURATION]["webhooks"][0]["clientConfig"]["caBundle"]
            assert bundle == fake.objects[SECRET]["data"]["ca.crt"]
            await until(lambda: _lists(fake) >= 10)
            await chassis.until("/metrics", 'chassis_facts_synced{resource="services"} 1.0')


async def test_a_certificate_that_expired_with_its_ca_is_replaced_before_anything_is_served(
    tmp_path: Path,
) -> None:
    long_ago = datetime.now(UTC) - pki.CA_LIFETIME - timedelta(days=1)
    hosts = [*pki.service_hosts("mlchassis-system", "mlchassis"), "127.0.0.1"]
    ended = pki.issue(hosts, long_ago)
    metadata = {"namespace": "mlchassis-system", "name": "mlchassis-tls"}
    async with running() as fake:
        await fake.put(SECRET.rpartition("/")[0], tls_reload._to_secret(ended, {"metadata": metadata}))
        argv = ("--kubeconfig", str(fake.kubeconfig(tmp_path)), "--namespace", "mlchassis-system")
        async with served("--self-signed", *argv) as chassis:
            await chassis.until("/readyz", "ok")
            port = (await chassis.logged("listening"))["port"]
            ca = base64.b64decode(fake.objects[SECRET]["data"]["ca.crt"])
            trusting = ssl.create_default_context(cadata=ca.decode())
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)  # verifies
            writer.close()
            await writer.wait_closed()
    inforce = [line["until"] for line in chassis.lines if line["event"] == "certificate in force"]
    assert [datetime.fromisoformat(until) > datetime.now(UTC) for until in inforce] == [True]


async def test_it_is_not_ready_while_the_mounted_certificate_is_not_accepted(
    tmp_path: Path,
) -> None:
    def mount(bundle: pki.Bundle) -> None:
        (tmp_path / "tls.crt").write_bytes(bundle.certificate)
        (tmp_path / "tls.key").write_bytes(bundle.key)

    ended = pki.issue(["127.0.0.1"], datetime.now(UTC) - timedelta(days=100))
    mount(ended)
    files = ("--tls-cert", str(tmp_path / "tls.crt"), "--tls-key", str(tmp_path / "tls.key"))
    async with served(*files) as chassis:
        await chassis.logged("the certificate has expired")
        await chassis.logged("policy in force")
        status, why = await chassis.get("/readyz")
        assert (status, why) == (503, f"the serving certificate expired at {pki.expiry(ended).isoformat()}\n")
        assert (await chassis.get("/healthz"))[0] == 200, "a restart would not help"
        mount(pki.issue(["127.0.0.1"], datetime.now(UTC)))
        await chassis.until("/readyz", "ok")


async def test_a_failing_record_costs_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Journal, "record", fail)
    wired = Wired({})
    with structlog.testing.capture_logs() as lines:
        assert "patch" in await wired.post("mutate")
        assert (await wired.post("validate"))["allowed"]
    assert {line["event"] for line in lines if line["log_level"] == "error"} == {"answer not recorded"}


@pytest.mark.parametrize("silence", Silence)
async def test_silent_watches_hide_no_change_for_long(silence: Silence, tmp_path: Path) -> None:
    program = f"from webhook.kube import reflector; reflector.WATCH_SECONDS = 4; {CHASSIS}"
    async with running() as fake:
        await fake.put(POLICY_PATH, {"metadata": {"name": "mlchassis-policy"}, "data": {}})
        config = str(fake.kubeconfig(tmp_path))
        policy = "configmap:mlchassis-system/mlchassis-policy"
        argv = ("--self-signed", "--kubeconfig", config, "--policy", policy)
        async with served(*argv, program=program) as chassis:
            await chassis.logged("policy in force")
            await chassis.until("/metrics", 'chassis_facts_synced{resource="nodes"} 1.0')
            await chassis.until("/metrics", 'chassis_facts_synced{resource="namespaces"} 1.0')
            await until(lambda: len(fake._watches) >= 10)
            fake.silence = silence
            node = {"metadata": {"name": "n"}, "status": {"nodeInfo": {"kubeletVersion": "v1.28.15"}}}
            await fake.put("/api/v1/nodes", node)
            await fake.put(
                POLICY_PATH,
                {"metadata": {"name": "mlchassis-policy"}, "data": {"rules.yaml": "profile: strict"}},
            )
            await chassis.logged("oldest kubelet")
            await chassis.logged("policy in force", 2)


async def test_several_workers_log_the_oldest_kubelet_once(tmp_path: Path) -> None:
    async with running() as fake:
        for name, version in (("new", "v1.36.1"), ("old", "v1.28.15")):
            node = {"metadata": {"name": name}, "status": {"nodeInfo": {"kubeletVersion": version}}}
            await fake.put("/api/v1/nodes", node)
        kubeconfig = str(fake.kubeconfig(tmp_path))
        async with served("--self-signed", "--workers", "2", "--kubeconfig", kubeconfig) as chassis:
            line = await chassis.logged("oldest kubelet")
            assert (line["version"], line["node"]) == ("1.28", "old")
            await chassis.until("/metrics", "chassis_oldest_kubelet_minor 28.0")


def _lists(fake: FakeApiServer) -> int:
    return len({path for method, path in fake.requests if method == "GET" and path.count("/") <= 4})


async def test_no_review_is_lost_while_it_drains() -> None:
    """As an API server sees it, that has connections open and goes on sending until the endpoint is gone."""
    async with served("--self-signed", "--drain-grace", "1") as chassis:
        await chassis.until("/readyz", "ok")
        port = (await chassis.logged("listening"))["port"]
        url, clock = f"https://127.0.0.1:{port}/mutate", asyncio.get_running_loop().time
        connector = aiohttp.TCPConnector(ssl=_unverified())
        async with aiohttp.ClientSession(connector=connector) as session:

            async def answers(under_way: asyncio.Event) -> float:
                """When the first review, of those sent one after the other, was not answered."""
                while True:
                    try:
                        async with session.post(url, json=REVIEW) as answer:
                            assert (await answer.json())["response"]["patch"]
                            under_way.set()
                    except aiohttp.ClientConnectionError:
                        return clock()

            sending = [asyncio.Event() for _ in range(4)]
            callers = [asyncio.create_task(answers(each)) for each in sending]
            await asyncio.gather(*(each.wait() for each in sending))
            asked = clock()
            chassis.child.send_signal(signal.SIGTERM)
            for ended in await asyncio.gather(*callers):
                assert ended - asked > 0.9
        async with asyncio.timeout(60):  # not --drain-patience: no request is in flight any more
            assert await chassis.child.wait() == 0


async def test_it_serves_and_observes_while_the_api_server_is_away(tmp_path: Path) -> None:
    gone = FakeApiServer()
    gone.url = "http://127.0.0.1:1"
    argv = [
        *("--self-signed", "--policy", "configmap:mlchassis-system/mlchassis-policy"),
        *("--kubeconfig", str(gone.kubeconfig(tmp_path))),
    ]
    async with served(*argv) as chassis:
        assert await chassis.get("/healthz") == (200, "ok\n")
        assert (await chassis.get("/readyz"))[0] == 503
        assert await chassis.stop() == 0


def value(metrics: str, name: str) -> float:
    """The value of a metric without labels, of which there must be one."""
    (line,) = [line for line in metrics.splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


async def test_several_workers_count_together_and_end_together() -> None:
    async with served("--self-signed", "--workers", "2") as chassis:
        await chassis.logged("certificate in force", 2)
        for _ in range(20):
            assert (await chassis.post("mutate"))["allowed"] is True
        total = 'chassis_admission_requests_total{endpoint="mutate",kind="Pod",outcome="changed"} 20.0'
        assert {total in (await chassis.get("/metrics"))[1] for _ in range(10)} == {True}
        metrics = (await chassis.get("/metrics"))[1]
        build = f'python="{platform.python_version()}",version="{version()}"'
        assert f"chassis_build_info{{{build}}} 1.0" in metrics
        workers = {line["pid"] for line in chassis.lines if line["event"] == "listening"}
        memory = sum(resident(pid) for pid in (chassis.child.pid, *workers))
        assert len(workers) == 2
        assert memory * 0.8 < value(metrics, "process_resident_memory_bytes") < memory * 1.2
        assert value(metrics, "process_cpu_seconds_total") > 0
        assert value(metrics, "process_open_fds") < value(metrics, "process_max_fds")
        assert await chassis.stop() == 0
    assert [line["event"] for line in chassis.lines].count("stopped") == 2


async def test_a_worker_that_dies_is_replaced_and_counted() -> None:
    async with served("--self-signed", "--workers", "2") as chassis:
        await chassis.logged("listening", 2)
        os.kill((await chassis.logged("listening"))["pid"], signal.SIGKILL)
        await chassis.logged("listening", 3)
        metrics = (await chassis.get("/metrics"))[1]
        assert 'chassis_worker_restarts_total{reason="died"} 1.0' in metrics
        assert "chassis_admission_in_flight 0.0" in metrics
        assert await chassis.stop() == 0
    assert [line["event"] for line in chassis.lines].count("stopped") == 2


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
async def test_each_signal_that_ends_it_drains_it(number: signal.Signals) -> None:
    async with served("--self-signed") as chassis:
        await chassis.logged("policy in force")
        chassis.child.send_signal(number)
        async with asyncio.timeout(60):
            assert await chassis.child.wait() == 0
    assert [line["event"] for line in chassis.lines][-2:] == ["draining", "stopped"]


async def test_the_log_level_changes_while_it_runs_in_every_worker_and_those_to_come() -> None:
    async with served("--self-signed", "--workers", "2", whole=True) as chassis:
        await chassis.logged("policy in force", 2)
        await chassis.post("validate", named("before"))
        assert cli.main(["log-level", "debug", "--pid", str(chassis.child.pid)]) == 0
        await chassis.logged("log level changed", 3)
        await chassis.post("validate", named("verbose"))
        assert (await chassis.logged("allowed"))["name"] == "verbose"
        for pid in {line["pid"] for line in chassis.lines if line["event"] == "listening"}:
            os.kill(pid, signal.SIGKILL)
        await chassis.logged("policy in force", 4)
        await chassis.post("validate", named("next"))
        await chassis.logged("allowed", 2)
        assert cli.main(["log-level", "configured", "--pid", str(chassis.child.pid)]) == 0
        await chassis.logged("log level changed", 6)
        await chassis.post("validate", named("after"))
        assert await chassis.stop() == 0
    said = [line["name"] for line in chassis.lines if line["event"] == "allowed"]
    assert said == ["verbose", "next"]


def named(name: str) -> Json:
    """A review of a Pod without findings."""
    pod = {**POD, "metadata": {"name": name, "namespace": "ml"}}
    pod["spec"] = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox"}]}
    return {**REVIEW, "request": {**REVIEW["request"], "object": pod}}


def test_only_a_server_gets_the_signal(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["log-level", "debug", "--pid", str(os.getpid())]) == 2
    assert f"process {os.getpid()} isn't `chassis serve`" in capsys.readouterr().err
    assert cli.main(["log-level", "debug", "--pid", "4194305"]) == 2
    assert "there is no process 4194305" in capsys.readouterr().err


async def test_a_worker_whose_supervisor_is_gone_ends_itself() -> None:
    async with served("--self-signed") as chassis:
        await chassis.logged("policy in force")
        chassis.child.kill()
        await chassis.logged("stopped")


# --- a review that hangs -------------------------------------------------------------------------------


def hanging(uid: str) -> Json:
    request = {**REVIEW["request"], "uid": uid, "name": "hangs"}
    return {**REVIEW, "request": request}


async def test_a_review_that_hangs_costs_one_worker_once_while_the_other_goes_on() -> None:
    async with served("--self-signed", "--workers", "2", program=HANGING) as chassis:
        await chassis.logged("listening", 2)
        await chassis.logged("policy in force", 2)
        hung = asyncio.create_task(chassis.post("mutate?timeout=100ms", hanging("1")))
        answered = 0
        while not hung.done():
            # A connection that the hung worker has taken breaks when it is ended, as for the API server.
            with suppress(aiohttp.ClientConnectionError):
                answered += (await chassis.post("mutate"))["allowed"]
            await asyncio.sleep(0.05)
        with pytest.raises(aiohttp.ClientConnectionError):
            await hung
        assert answered > 0
        await chassis.logged("listening", 3)
        for uid in ("2", "3", "4", "5"):  # any worker may take them
            response = await chassis.post("mutate", hanging(uid))
            assert (response["uid"], response["allowed"], "patch" in response) == (uid, True, False)
            assert "did not read this object" in " ".join(response["warnings"])
        metrics = (await chassis.get("/metrics"))[1]
        assert 'chassis_worker_restarts_total{reason="hung"} 1.0' in metrics
        unread = 'chassis_admission_requests_total{endpoint="mutate",kind="other",outcome="undecidable"} 4.0'
        assert unread in metrics
        assert await chassis.stop() == 0
    said = await chassis.logged("a review hangs, ending its worker")
    assert (said["kind"], said["namespace"], said["name"], said["endpoint"], len(said["review"])) == (
        *("Pod", "ml", "hangs", "mutate"),
        32,
    )


async def test_with_one_worker_connections_wait_for_the_next_one() -> None:
    async with served("--self-signed", program=HANGING) as chassis:
        await chassis.logged("policy in force")
        hung = asyncio.create_task(chassis.post("mutate?timeout=100ms", hanging("1")))
        await chassis.logged("a review hangs, ending its worker")
        # The worker is dead or about to be: new requests wait in the backlog, or are sent again.
        while True:
            try:
                response = await chassis.post("mutate", hanging("2"))
                break
            except aiohttp.ClientConnectionError:
                continue
        assert (response["uid"], response["allowed"], "patch" in response) == ("2", True, False)
        assert "patch" in await chassis.post("mutate")
        with pytest.raises(aiohttp.ClientConnectionError):
            await hung
        assert await chassis.stop() == 0
    assert [line["event"] for line in chassis.lines].count("a review hangs, ending its worker") == 1


async def test_a_port_that_is_taken_ends_it_with_one_sentence() -> None:
    with listen("127.0.0.1", 0) as taken:
        async with served("--self-signed", "--port", str(taken.getsockname()[1])) as chassis:
            assert await chassis.child.wait() == 2
    (line,) = chassis.lines
    assert "can't listen on 127.0.0.1" in line["event"]


BUDGET = """
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: api, namespace: ml}
spec: {minAvailable: 2, selector: {matchLabels: {app: api}}}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: api, namespace: ml}
spec:
  replicas: 2
  selector: {matchLabels: {app: api}}
  template: {metadata: {labels: {app: api}}, spec: {containers: [{name: api, image: api}]}}
"""


async def test_manifests_can_replace_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "deployment.yaml").write_text(DEPLOYMENT)
    request = {
        "uid": "u",
        "kind": {"group": "policy", "version": "v1", "kind": "PodDisruptionBudget"},
        "operation": "CREATE",
        "namespace": "ml",
        "object": next(load_all(BUDGET)),
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    async with served("--self-signed", "--facts", str(tmp_path)) as chassis:
        await chassis.until("/readyz", "ok")
        refused = await chassis.post("validate", review)
    assert not refused["allowed"]
    assert "drain-blocked-by-pdb" in refused["status"]["message"]
    async with served("--self-signed") as chassis:
        await chassis.until("/readyz", "ok")
        assert (await chassis.post("validate", review))["allowed"]


@pytest.mark.parametrize("argv", [(), ("--self-signed", "--facts", "/none")], ids=["flags", "manifests"])
async def test_what_can_t_be_used_ends_it_with_2(argv: tuple[str, ...]) -> None:
    async with served(*argv) as chassis:
        assert await chassis.child.wait() == 2
