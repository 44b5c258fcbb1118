"""One worker: it starts the policy source, certificate, caches and server, and runs until the drain.

Law: a failed background task does not stop the server. The task is restarted, and the server answers from its
present state.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from socket import gethostname
from types import ModuleType
from typing import Final, cast

import structlog
import uvloop

from policies.core.data import load_tables
from policies.core.facts import Cluster, NoCluster
from policies.core.resources import Resource
from policies.core.workloads import known_workloads
from policies.kube.group_kinds import kind_of
from webhook.admission import engine
from webhook.admission.envelope import Request
from webhook.admission.review import Review
from webhook.config.load import load, models, rules
from webhook.config.source import DefaultPolicy, LivePolicy, PolicyDirectory, PolicySource, WatchedConfigMap
from webhook.errors import UserError
from webhook.kube.api import ApiServer, NoApiServer, load_client
from webhook.kube.caches import ClusterCache
from webhook.kube.leader_election import Uptime
from webhook.kube.oldest_kubelet import OldestKubelet
from webhook.kube.own_pod import own_namespace
from webhook.kube.reflector import Reflector
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import read
from webhook.observed.collector import Collector
from webhook.observed.model_events import ModelEvents
from webhook.server import pki, tls_reload
from webhook.server.ca_bundle import Registration
from webhook.server.connections import FastPath, raise_descriptor_limit
from webhook.server.endpoints import endpoints, on_error
from webhook.server.http import AdmissionServer, Readiness, listen
from webhook.server.metrics import Metrics, Tally, remove_gauges
from webhook.server.running_pods import RunningPods
from webhook.server.server_flags import ServerOptions
from webhook.server.shared_memory import SharedRecords
from webhook.server.supervisor import processes, stopping_signals, supervise
from webhook.server.tracing import Tracing, otlp
from webhook.worker_names.cluster import LiveWorkers, Sweep
from webhook.worker_names.endpoint import NameMetrics, Namer

log = structlog.get_logger()

Work = Callable[[], Awaitable[None]]

RESTART_SECONDS = 5.0
TURN_SECONDS = 1.0
MIB = 1024 * 1024
USAGE = 2
"""Exit status for flags that can't be used."""
POLICY_PATIENCE = 15.0
"""Seconds after which the server is ready although it could not read its policy: a webhook that observes is
better than one that an unreachable API server keeps out of service."""


def serve(options: ServerOptions) -> int:
    """Serve until SIGTERM or SIGINT; the exit status."""
    raise_descriptor_limit()
    try:
        listener = listen(options.host, options.port)
    except OSError as error:
        raise UserError(
            f"can't listen on {options.host or '*'}:{options.port}: {error.strerror or error}"
        ) from None

    def serve_one(listener: socket.socket, shared: SharedRecords) -> int:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(_serve(options, listener, shared))
        except UserError as error:
            for problem in error.problems:  # the worker never returns to the command line
                print(f"chassis: {problem}", file=sys.stderr, flush=True)
            return USAGE

    _preload(options)
    return supervise(options.workers, listener, serve_one, remove_gauges)


def _preload(options: ServerOptions) -> None:
    """Load all tables and modules before the first fork, so that a restarted worker serves at once."""
    _kinds()
    config = load(dict.fromkeys(models(), ""))  # builds what checks a policy, too
    rules()
    load_tables()
    engine.decide(Review(Request("", kind_of(_SAMPLE), "CREATE", object=_SAMPLE), config, NoCluster()))
    if options.uses_cluster:
        load_client()


_SAMPLE: Final = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "spec": {
        "template": {
            "spec": {
                "initContainers": [{"name": "wait", "command": ["curl", "http://models"]}],
                "containers": [
                    {
                        "name": "server",
                        "image": "vllm/vllm-openai",
                        "args": ["--model", "meta-llama/Llama-3-8B"],
                        "resources": {"limits": {"nvidia.com/gpu": 1}},
                    },
                    {
                        "name": "own",
                        "image": "own",
                        "livenessProbe": {"exec": {"command": ["sh", "-c", "pgrep own | wc -l"]}},
                        "readinessProbe": {"tcpSocket": {"port": 80}},
                    },
                ],
            }
        }
    },
}
"""Its review loads what is not a table, such as compiled patterns."""


def _kinds() -> tuple[str, ...]:
    """The kinds with their own value of the metric label `kind`."""
    others = ("Pod", "ConfigMap", "PodDisruptionBudget", "HorizontalPodAutoscaler", "ScaledObject")
    return (*others, *(each.kind for each in known_workloads()))


async def _serve(options: ServerOptions, listener: socket.socket, shared: SharedRecords) -> int:
    stopped = asyncio.Event()
    for number in stopping_signals():
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    turning = asyncio.create_task(_count_turns(shared, stopped))
    fast_path = _fast_path(options)

    def fast_path_on() -> bool:
        return fast_path is not None and policy.config.webhook.fast_path

    metrics = Metrics(_kinds(), shared.restarts.counts, processes, fast_path_on)
    own = options.namespace or own_namespace()
    policy = LivePolicy(metrics, options.policy_config_map[0] if options.policy_config_map else own)
    memo = fast_path.Memo(options.memo * MIB, metrics.memo, (Tally,)) if fast_path else None
    async with AsyncExitStack() as stack:
        tracing = otlp() if options.tracing else Tracing()
        stack.push_async_callback(asyncio.to_thread, tracing.close)
        api = await _connect(options, stack)
        cluster, reflectors = _facts(options, own, api, metrics)
        workers = LiveWorkers(api, own) if api else None
        namer = _namer(workers, policy, cluster, metrics) if workers else None
        source = _certificate_source(options, own, api)
        serving = tls_reload.ServingCertificate()
        clock = api.now if api else time.time  # the API server verifies by its own clock
        readiness = Readiness(lambda: serving.problem(clock()))
        registration = _registration(options, api, source, serving, policy)
        trusts = registration.trusts if registration else tls_reload.always_trusted

        def installed(bundle: pki.Bundle) -> None:
            metrics.certificate_expiry.set(pki.expiry(bundle).timestamp())
            log.info("certificate in force", until=pki.expiry(bundle).isoformat())

        server = AdmissionServer(
            endpoints(policy, cluster, namer, memo),
            on_error(policy),
            metrics,
            readiness,
            shared=shared,
            drain_patience=options.drain_patience,
            tracing=tracing,
            fast_path=cast(FastPath, fast_path) if fast_path else None,
            fast_path_on=fast_path_on,
        )
        host, port = listener.getsockname()[:2]
        await server.start(listener, lambda: serving.context)
        shared.state.serving = 1
        log.info("listening", host=host, port=port, pid=os.getpid())
        background: list[tuple[str, Work]] = [
            ("policy", lambda: _policy_source(options, api).follow(policy)),
            ("certificate", lambda: tls_reload.follow(source, serving, installed, trusts)),
            *(("facts", reflector.run) for reflector in reflectors),
        ]
        if api:
            uptime = Uptime(api, own, f"{gethostname()}-{os.getpid()}", lambda: not readiness.problems())
            models = ModelEvents(api, lambda: policy.config, cluster)
            collector = Collector(api, own, lambda: uptime.is_leader, lambda: policy.config, cluster, models)
            running_pods = RunningPods(
                api, lambda: policy.config, cluster, metrics.registry, lambda: uptime.is_leader
            )
            background += [
                ("observed starts", collector.run),
                ("model events", models.run),
                ("uptime", uptime.run),
                ("running pods", running_pods.run),
            ]
        if registration:
            background.append(("caBundle", registration.run))
        if workers:
            background.append(("worker names", Sweep(workers).run))
        tasks = [asyncio.create_task(_keep_running(name, work)) for name, work in background]
        tasks.append(asyncio.create_task(_await_policy(policy, readiness)))
        await stopped.wait()
        log.info("draining", grace=options.drain_grace)
        await server.drain(options.drain_grace)
        if namer:
            await namer.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    turning.cancel()
    log.info("stopped")
    return 0


async def _count_turns(shared: SharedRecords, stopped: asyncio.Event) -> None:
    """Show the supervisor that the event loop turns. Stop if the supervisor has exited."""
    supervisor = os.getppid()
    while True:
        shared.state.turns += 1
        if os.getppid() != supervisor:
            stopped.set()
        await asyncio.sleep(TURN_SECONDS)


async def _keep_running(name: str, work: Work) -> None:
    while True:
        try:
            await work()
        except Exception:
            log.exception("background task failed, starting it again", task=name)
        await asyncio.sleep(RESTART_SECONDS)


async def _await_policy(policy: LivePolicy, readiness: Readiness) -> None:
    try:
        async with asyncio.timeout(POLICY_PATIENCE):
            await policy.read.wait()
    except TimeoutError:
        log.warning("the policy can't be read yet: observing until it can")
    readiness.policy = True


# --- the parts -----------------------------------------------------------------------------------------


def _fast_path(options: ServerOptions) -> ModuleType | None:
    """The package `webhook.fast_path`, unless it is switched off or deleted."""
    if options.fast_path == "off":
        return None
    if find_spec("webhook.fast_path") is None:
        log.warning("there is no fast path in this build")
        return None
    return import_module("webhook.fast_path")


async def _connect(options: ServerOptions, stack: AsyncExitStack) -> ApiServer | None:
    if not options.uses_cluster:
        return None
    try:
        return await stack.enter_async_context(ApiServer.connect(options.kubeconfig))
    except NoApiServer as error:
        if options.kubeconfig or options.self_signed or options.policy_config_map:
            raise UserError(f"no API server to use: {error}") from None
        log.warning("no facts about the cluster", why=str(error))
        return None


def _facts(
    options: ServerOptions, own: str, api: ApiServer | None, metrics: Metrics
) -> tuple[Cluster, list[Reflector]]:
    if api is None and options.facts:
        try:
            return ManifestCluster([document.obj for document in read([str(options.facts)])]), []
        except UserError as error:
            raise UserError(f"--facts: {error}") from None
    if api is None:
        return NoCluster(), []

    def on_change(resource: Resource, synced: bool) -> None:
        metrics.facts_synced.labels(resource.value).set(synced)

    def on_skip(resource: Resource) -> None:
        metrics.facts_skipped.labels(resource.value).inc()

    cache = ClusterCache(on_change, lambda resource: oldest.changed(resource), own, on_skip)
    oldest = OldestKubelet(cache, metrics.oldest_kubelet.set)
    return cache, cache.reflectors(api)


def _namer(workers: LiveWorkers, policy: LivePolicy, cluster: Cluster, metrics: Metrics) -> Namer:
    return Namer(
        workers,
        lambda: policy.config,
        NameMetrics(metrics.registry),
        facts=cluster,
        identity=gethostname(),
    )


def _policy_source(options: ServerOptions, api: ApiServer | None) -> PolicySource:
    if not options.policy:
        return DefaultPolicy()
    if api and options.policy_config_map:
        return WatchedConfigMap(api, api, *options.policy_config_map)
    return PolicyDirectory(Path(options.policy))


def _certificate_source(
    options: ServerOptions, own: str, api: ApiServer | None
) -> tls_reload.CertificateSource:
    if options.tls_cert and options.tls_key:
        return tls_reload.MountedFiles(options.tls_cert, options.tls_key, options.tls_ca)
    addressed = [options.host] if options.host and options.host not in ("0.0.0.0", "::") else []  # noqa: S104
    hosts = pki.service_hosts(own, options.service, [*(options.tls_host or ()), *addressed])
    if api is None:
        return tls_reload.SelfSigned([*hosts, "localhost", "127.0.0.1", "::1"])
    return tls_reload.ManagedSecret(api, own, options.tls_secret, hosts)


def _registration(
    options: ServerOptions,
    api: ApiServer | None,
    source: tls_reload.CertificateSource,
    serving: tls_reload.ServingCertificate,
    policy: LivePolicy,
) -> Registration | None:
    if api is None or not options.webhook_configurations or (options.tls_cert and not options.tls_ca):
        return None

    async def used() -> bytes:
        served = serving.bundle.ca if serving.bundle else b""
        return (await source.read()).ca + b"\n" + served

    return Registration(api, options.webhook_configurations, used, fails_open=lambda: policy.fails_open)
