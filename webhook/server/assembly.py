"""The parts of one worker, and which of them needs which.

The server answers without any of them. Each background task follows its source, and starts again when it
fails.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from socket import gethostname
from types import ModuleType
from typing import cast

import structlog

from policies.core.facts import Cluster, NoCluster
from policies.core.resources import Resource
from policies.core.workloads import known_workloads
from webhook.config.source import DefaultPolicy, LivePolicy, PolicyDirectory, PolicySource, WatchedConfigMap
from webhook.errors import UserError
from webhook.kube.api import ApiServer, NoApiServer
from webhook.kube.caches import ClusterCache, OldestKubelet
from webhook.kube.leader_election import UptimeLease
from webhook.kube.own_pod import own_namespace
from webhook.kube.reflector import Reflector
from webhook.manifests.files import read
from webhook.observed.collector import Collector
from webhook.observed.model_events import ModelEvents
from webhook.server import pki, tls_reload
from webhook.server.admission_server import AdmissionServer, Readiness
from webhook.server.ca_bundle import Registration
from webhook.server.connections import FastPath
from webhook.server.endpoints import endpoints, on_error
from webhook.server.metrics import Metrics, Tally
from webhook.server.running_pods import RunningPods
from webhook.server.server_flags import ServerOptions
from webhook.server.shared_memory import SharedRecords
from webhook.server.supervisor import processes
from webhook.worker_names.cluster import LiveWorkers, Sweep
from webhook.worker_names.endpoint import NameMetrics, Namer

log = structlog.get_logger()

Work = Callable[[], Awaitable[None]]

MIB = 1024 * 1024


@dataclass(frozen=True)
class Parts:
    """What `webhook.server.worker` starts and ends."""

    server: AdmissionServer
    certificate: tls_reload.ServingCertificate
    policy: LivePolicy
    readiness: Readiness
    namer: Namer | None
    background: tuple[tuple[str, Work], ...]
    """Tasks with their names, each of which runs until the worker ends."""


async def assemble(options: ServerOptions, shared: SharedRecords, stack: AsyncExitStack) -> Parts:
    """The parts as the flags want them; `stack` closes what has to be closed.

    Raises:
        UserError: the flags ask for something that cannot be had.
    """
    fast_path = _fast_path(options)

    def fast_path_on() -> bool:
        return fast_path is not None and policy.config.webhook.fast_path

    metrics = Metrics(metric_kinds(), shared.restarts.counts, processes, fast_path_on)
    own = options.namespace or own_namespace()
    policy = LivePolicy(metrics, options.policy_config_map[0] if options.policy_config_map else own)
    memo = fast_path.Memo(options.memo * MIB, metrics.memo, (Tally,)) if fast_path else None
    api = await _connect(options, stack)
    cluster, reflectors = _facts(options, own, api, metrics)
    workers = LiveWorkers(api, own) if api else None
    namer = _namer(workers, policy, cluster, metrics) if workers else None
    source = _certificate_source(options, own, api)
    certificate = tls_reload.ServingCertificate()
    clock = api.now if api else time.time  # the API server verifies by its own clock
    readiness = Readiness(lambda: certificate.problem(clock()))
    registration = _registration(options, api, source, certificate, policy)
    trusts = registration.trusts if registration else tls_reload.always_trusted

    def installed(bundle: pki.Bundle) -> None:
        ends = pki.expiry(bundle)
        metrics.certificate_expiry.set(ends.timestamp())
        if ends.timestamp() > clock():
            log.info("certificate in force", until=ends.isoformat())
        else:
            log.warning("the certificate has expired", until=ends.isoformat())

    server = AdmissionServer(
        endpoints(policy, cluster, namer, memo),
        on_error(policy),
        metrics,
        readiness,
        shared=shared,
        drain_patience=options.drain_patience,
        fast_path=cast(FastPath, fast_path) if fast_path else None,
        fast_path_on=fast_path_on,
    )
    background: list[tuple[str, Work]] = [
        ("policy", lambda: _policy_source(options, api).follow(policy)),
        ("certificate", lambda: tls_reload.follow(source, certificate, installed, trusts)),
        *(("facts", reflector.run) for reflector in reflectors),
    ]
    if api:
        background += _leading(api, own, policy, cluster, metrics, readiness)
    if registration:
        background.append(("caBundle", registration.run))
    if workers:
        background.append(("worker names", Sweep(workers).run))
    return Parts(server, certificate, policy, readiness, namer, tuple(background))


def metric_kinds() -> tuple[str, ...]:
    """The kinds with their own value of the metric label `kind`."""
    others = ("Pod", "ConfigMap", "PodDisruptionBudget", "HorizontalPodAutoscaler", "ScaledObject")
    return (*others, *(each.kind for each in known_workloads()))


def _leading(
    api: ApiServer, own: str, policy: LivePolicy, cluster: Cluster, metrics: Metrics, readiness: Readiness
) -> Iterator[tuple[str, Work]]:
    """The election of the leader, and the tasks of the leader."""
    uptime = UptimeLease(api, own, f"{gethostname()}-{os.getpid()}", lambda: not readiness.problems())
    models = ModelEvents(api, lambda: policy.config, cluster)
    collector = Collector(api, own, lambda: uptime.is_leader, lambda: policy.config, cluster, models)
    running_pods = RunningPods(
        api, lambda: policy.config, cluster, metrics.registry, lambda: uptime.is_leader
    )
    yield "observed starts", collector.run
    yield "model events", models.run
    yield "uptime", uptime.run
    yield "running pods", running_pods.run


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
        given = ClusterCache(namespace=own)
        try:
            given.fill(document.obj for document in read([str(options.facts)]))
        except UserError as error:
            raise UserError(f"--facts: {error}") from None
        return given, []
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
