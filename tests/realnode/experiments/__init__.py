"""What each hazard does on a real node, with the webhook and without it.

Every experiment is a function of an arm, a namespace in which the webhook is at work or one that it does
not see, and returns its figures. Where a rule refuses or warns, the arm with the webhook gets what the rule
advises instead. Several run at the same time, since most of them wait; the tests in `test_outage.py` judge
the figures, and `evidence.py` writes them down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.e2e.node.cluster import RealNode
from tests.realnode.arms import Arm, arms, side_by_side
from tests.realnode.experiments import (
    accelerators,
    disruption,
    jobs,
    models,
    probes,
    rollouts,
    startup,
    workers,
)
from tests.realnode.experiments.model_api import WATCHED, Figures
from tests.realnode.formats import seconds, share, times

Cell = Callable[[Figures], str]


@dataclass(frozen=True)
class Experiment:
    """One experiment and its row in `docs/evidence.md`."""

    run: Callable[[Arm], Figures]
    hazard: str
    without: Cell
    """The result of the arm without the webhook."""
    with_: Cell
    rule: str = ""
    """The rule of the families deadlock and cascade whose hazard it is."""


def _ready(figures: Figures) -> str:
    return f"ready after {seconds(figures['ready after'])}"


def _pending(figures: Figures) -> str:
    return f"not through after {WATCHED} s: {figures['pending']} pod Pending"


def _through(figures: Figures) -> str:
    return f"through after {seconds(figures['updated after'])}"


def _never_ready(figures: Figures) -> str:
    return f"{figures['ready']} ready after {WATCHED} s"


def _lost(figures: Figures) -> str:
    lost = f"{figures['lost']} of {figures['requests']} requests lost"
    return f"{lost}, {figures['silent']} s without any answer" if figures.get("silent") else lost


def _slow(figures: Figures) -> str:
    if figures["answered after"] is None:
        return f"restarted {figures['restarts']} times, never answers"
    return f"answers after {seconds(figures['answered after'])}, {times(figures['restarts'])}"


def _restarts(figures: Figures) -> str:
    return times(figures["restarts"])


def _left(figures: Figures) -> str:
    return f"out of its Service after {seconds(figures['left after'])}"


def _restarted(figures: Figures) -> str:
    return f"restarted after {seconds(figures['restarted after'])}"


AT_ONCE = 10
"""Experiments that run at the same time: two CPUs start so many pods without making any of them late."""
# Those that send requests come first, the longest among them, and do not wait.
EXPERIMENTS: dict[str, Experiment] = {
    "outage": Experiment(
        probes.outage,
        "[The outage](#the-outage): no probe at all, and every replica hangs",
        lambda it: f"{share(it['at the end'])} answered at the end",
        lambda it: f"{share(it['again'])} answered once all are ready again",
        "liveness-missing",
    ),
    "rolling_update": Experiment(
        rollouts.rolling_update,
        "Three rolling restarts under 30 requests a second; the server ends at SIGTERM at once",
        _lost,
        lambda it: f"adds a drain: {_lost(it)}",
    ),
    "all_down": Experiment(
        rollouts.all_down,
        "A rolling restart that may stop all three replicas, which load for 10 s",
        _lost,
        _lost,
        "rollout-takes-all-down",
    ),
    "single_replica": Experiment(
        disruption.single_replica,
        "An eviction, where one replica is all there is; it loads for 10 s",
        _lost,
        lambda it: f"with two {_lost(it)}",
        "single-replica-eviction",
    ),
    "store_for_readiness": Experiment(
        probes.store_for_readiness,
        "A readiness probe that asks the feature store",
        lambda it: f"{it['ready']} of 3 ready, {share(it['at the end'])} answered",
        lambda it: f"{it['ready']} of 3 ready, {share(it['at the end'])} answered",
        "readiness-external-dependency",
    ),
    "strict_liveness": Experiment(
        probes.strict_liveness,
        "A minute of overload, under a liveness probe that gives up as soon as readiness does",
        _restarts,
        lambda it: f"{times(it['after'])} under the injected probes",
        "liveness-as-strict-as-readiness",
    ),
    "slow_start": Experiment(
        probes.slow_start,
        "A server that loads for 45 s, under a liveness probe that gives it 20",
        _slow,
        lambda it: f"adds a startup probe: {_slow(it)}",
        "liveness-kills-slow-start",
    ),
    "short_startup": Experiment(
        probes.short_startup,
        "A server that loads for 45 s, under a startup probe that gives it 20",
        _slow,
        _slow,
        "startup-kills-slow-start",
    ),
    "masked_hang": Experiment(
        probes.masked_hang,
        "A server that hangs, with only a readiness probe",
        lambda it: f"{_left(it)}; {WATCHED} s later {times(it['restarts'])}, {it['answering']} answering",
        lambda it: f"{_left(it)}, {_restarted(it)}",
        "readiness-without-liveness",
    ),
    "open_port": Experiment(
        probes.open_port,
        "A server that hangs, under probes that ask whether its port is open",
        lambda it: f"after {WATCHED} s {it['ready']} ready, {it['answering']} answering",
        lambda it: f"{_left(it)}, {_restarted(it)}",
        "tcp-probe",
    ),
    "feature_store": Experiment(
        probes.feature_store,
        "A liveness probe that asks a feature store, which is down",
        lambda it: f"{it['replicas restarted']} of 3 replicas restarted after {seconds(it['after'])}",
        lambda it: f"with the probe it gets instead {_restarts(it)}",
        "liveness-external-dependency",
    ),
    "store_for_startup": Experiment(
        probes.store_for_startup,
        "A startup probe that asks the feature store, while it is away",
        lambda it: f"{it['ready']} ready, {_restarts(it)} and so on",
        _ready,
        "startup-external-dependency",
    ),
    "one_failure": Experiment(
        probes.one_failure,
        "A pause of 8 s, under a liveness probe that fails once",
        _restarts,
        _restarts,
        "liveness-single-failure",
    ),
    "busy_exec": Experiment(
        probes.busy_exec,
        "A container that uses up its CPU limit for a minute, under a command as liveness probe",
        _restarts,
        lambda it: f"{_restarts(it)} under the injected probes",
        "exec-probe-default-timeout",
    ),
    "heavy_probe": Experiment(
        probes.heavy_probe,
        "A liveness probe that checksums 2 GiB of weights",
        lambda it: f"{_restarts(it)} (with 1 MiB {times(it['control'])})",
        _restarts,
        "probe-heavy-command",
    ),
    "inner_timeout": Experiment(
        probes.inner_timeout,
        "A probe that waits up to 4 s for each of two slow answers, killed after 5 s",
        _restarts,
        lambda it: f"{_restarts(it)} with 20 s",
        "probe-inner-timeout",
    ),
    "wrong_port": Experiment(
        probes.wrong_port,
        "Triton's readiness asked on its port for metrics (a stand-in for Triton)",
        _never_ready,
        _ready,
        "probe-wrong-port",
    ),
    "unknown_port": Experiment(
        probes.unknown_port,
        "A readiness probe on a port by a name that the container does not have",
        _never_ready,
        _ready,
        "probe-port-unknown",
    ),
    "target_port": Experiment(
        probes.target_port,
        "A Service that sends to a port by a name that no container of its ready pod has",
        lambda it: f"{it['answered']} of 1 requests answered {WATCHED} s after the pod is ready",
        lambda it: f"answered {seconds(it['answered after'])} after the pod is ready",
        "service-port-unknown",
    ),
    "short_deadline": Experiment(
        rollouts.short_deadline,
        "A start of 45 s that the startup probe allows, under a progress deadline of 20",
        lambda it: f"`kubectl rollout status` fails; {_ready(it)} nevertheless",
        lambda it: "succeeds" if it["succeeds"] else "fails",
        "progress-deadline-too-short",
    ),
    "own_volume": Experiment(
        rollouts.own_volume,
        "A rolling update of a pod whose volume only one pod can mount",
        _pending,
        lambda it: f"with `Recreate` {_through(it)}",
        "rollout-volume-deadlock",
    ),
    "host_port": Experiment(
        rollouts.host_port,
        "A rolling update of a pod that takes a port of its node",
        _pending,
        _through,
        "rollout-host-port-deadlock",
    ),
    "no_room": Experiment(
        accelerators.no_room,
        "A rolling update of replicas that hold the GPUs which the new pod asks for (KWOK's node)",
        _pending,
        _through,
        "rollout-gpu-deadlock",
    ),
    "too_many": Experiment(
        accelerators.too_many,
        "A pod that asks for 16 GPUs where a node has 8 (KWOK's node)",
        lambda it: f"{it['pending']} pod Pending after {WATCHED} s",
        lambda it: f"with 2 GPUs {_ready(it)}",
        "gpu-unschedulable",
    ),
    "blocked_drain": Experiment(
        disruption.blocked_drain,
        "A budget that asks for as many replicas as there are, and an eviction",
        lambda it: f"refused {it['tries']} times, once a second",
        lambda it: f"under a budget that can allow it, try {it['tries']} succeeds",
        "drain-blocked-by-pdb",
    ),
    "short_grace": Experiment(
        disruption.short_grace,
        "A preStop hook of 12 s in a grace period of 10, and a server that saves its state in 4",
        lambda it: "saved" if it["saved"] else "killed before it had saved",
        lambda it: "saved" if it["saved"] else "killed before it had saved",
        "grace-shorter-than-prestop",
    ),
    "bad_entry": Experiment(
        models.bad_entry,
        "A model is added to the model config, under a scheme that the puller does not know",
        lambda it: f"let in, not loaded after {WATCHED} s; corrected, after {seconds(it['corrected'])}",
        lambda it: f"the corrected one is loaded after {seconds(it['corrected'])}",
        "model-config-invalid",
    ),
    "own_service": Experiment(
        startup.own_service,
        "An init container that waits for its own Service",
        lambda it: (
            f"{_never_ready(it)}; one that waits for another Service is, after "
            f"{seconds(it['control ready after'])}"
        ),
        lambda it: "ready without the wait" if it["ready after"] is not None else "not ready",
        "init-waits-on-own-service",
    ),
    "wait_cycle": Experiment(
        startup.wait_cycle,
        "Two Deployments whose init containers wait for each other's Services",
        _never_ready,
        lambda it: f"with one of the waits removed {_ready(it)}",
        "startup-wait-cycle",
    ),
    "own_pod": Experiment(
        startup.own_pod,
        "An init container that waits for a server in the same pod",
        _never_ready,
        lambda it: f"with the server as native sidecar {_ready(it)}",
        "init-waits-on-own-pod",
    ),
    "endless_wait": Experiment(
        startup.endless_wait,
        "An init container that waits for a database which is not there",
        lambda it: (
            f"in {WATCHED} s {times(it['tries'], 'failed attempt')}, {times(it['warnings'], 'warning event')}"
        ),
        lambda it: f"{times(it['tries'], 'failed attempt')}, {times(it['warnings'], 'warning event')}",
        "init-wait-unbounded",
    ),
    "ordered_start": Experiment(
        startup.ordered_start,
        "A StatefulSet whose first pod waits for its second",
        lambda it: f"{it['pods']} pod, {_never_ready(it)}",
        lambda it: f"both {_ready(it)}",
        "ordered-start-deadlock",
    ),
    "asks_itself": Experiment(
        startup.asks_itself,
        "A readiness probe that asks its own Service",
        lambda it: f"{_never_ready(it)}; as soon as the Service shows them, all",
        _ready,
        "readiness-waits-on-own-service",
    ),
    "ray_in_background": Experiment(
        startup.ray_in_background,
        "`ray start` without `--block` (a stand-in for Ray)",
        lambda it: f"{_restarts(it)} in {WATCHED} s",
        _restarts,
        "ray-start-without-block",
    ),
    "jobs": Experiment(
        jobs.jobs,
        "A Job with `backoffLimit: 0` whose pod is evicted; a training Job that fails by a mistake",
        lambda it: f"{it['evicted']}; tried {it['tries']} times and more",
        lambda it: f"{it['evicted']}; {it['wrong']} after {it['tries']} try",
    ),
    "beside_server": Experiment(
        jobs.beside_server,
        "A Job whose work ends, next to a model server",
        lambda it: f"not complete {WATCHED} s after its work",
        lambda it: f"with a native sidecar complete {seconds(it['complete after'])} after its work",
        "job-server-blocks-completion",
    ),
    "beside_proxy": Experiment(
        jobs.beside_proxy,
        "A Job whose work ends, next to a database proxy (simulated)",
        lambda it: f"not complete {WATCHED} s after its work",
        lambda it: f"with a native sidecar complete {seconds(it['complete after'])} after its work",
        "job-sidecar-blocks-completion",
    ),
    "doubled_workers": Experiment(
        workers.doubled_workers,
        f"KubeRay 1.0 with a cache {workers.DELAY:g} s late, three RayClusters of four workers (KWOK's node)",
        lambda it: f"{it['created']} created for {it['wanted']}, up to {it['peak']} of 4 at once",
        lambda it: f"{it['created']} created for {it['wanted']}, up to {it['peak']} of 4 at once",
    ),
}


def run(node: RealNode, name: str) -> Figures:
    """Run an experiment, both arms at the same time; it leaves no object on the node."""
    both = arms(node, name.replace("_", "-"))
    try:
        with_, without = side_by_side(EXPERIMENTS[name].run, both)
    finally:
        for arm in both:
            node.api.delete("namespaces", arm.namespace)
    return {"with": with_, "without": without}
