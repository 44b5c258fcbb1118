"""Probes that conclude too soon: before the start is over, or before anything else had a chance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.core.contracts import Family, Rule
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.mode import Mode
from policies.core.target import Target
from policies.kube.json import mapping
from policies.kube.pods import Role
from policies.probes.health import expected_start, known_health
from policies.probes.probe import LIVENESS, READINESS, STARTUP, Probe, is_written, probe_of, probes
from policies.probes.serving import StandardProbes
from policies.probes.standard_probes import kill_budget

# --- slow starts ---------------------------------------------------------------------------------


def check_slow_start(target: Target, facts: Facts) -> Iterator[Finding]:
    for probe in probes(target, LIVENESS):
        if _is_guarded(probe, facts):
            continue
        expected = expected_start(probe.template.pod, probe.container, facts)
        budget = kill_budget(probe.spec)
        if expected is None or budget >= expected:
            continue
        yield Finding(
            probe.at(),
            f"The {probe.name} kills it {budget} s after its start, but it takes about {expected} s until it "
            "serves: it is killed again and again and never gets there.",
            _slow_start_hint(probe, expected),
        )


def _slow_start_hint(probe: Probe, expected: int) -> str:
    if probe.container.role is Role.SIDECAR:  # a startupProbe would hold back the containers after it
        return f"Set initialDelaySeconds of the livenessProbe above {expected}."
    return f"Add a startupProbe with the same check and periodSeconds * failureThreshold above {expected}."


def _is_guarded(probe: Probe, facts: Facts) -> bool:
    """Whether a startupProbe holds liveness back, or will: what isn't projected is mended in its pods."""
    if mapping(probe.container.spec, STARTUP):
        return True
    mends = facts.settings(StandardProbes).mode in (None, Mode.ENFORCE)
    later = probe.template.is_ray or bool(probe.template.container_path)
    return later and probe.container.role is Role.MAIN and mends


# --- liveness against readiness -------------------------------------------------------------------


def check_as_strict(target: Target, facts: Facts) -> Iterator[Finding]:
    for liveness, readiness in _pairs(target):
        if not liveness.asks_as(readiness) or liveness.give_up > readiness.give_up:
            continue
        yield Finding(
            liveness.at("failureThreshold"),
            f"Liveness and readiness of container {liveness.container.name} ask the same, and liveness gives "
            f"up after {liveness.give_up} s, readiness after {readiness.give_up} s: overload restarts the "
            "container instead of taking traffic off it.",
            f"Let liveness give up later: periodSeconds * failureThreshold above {readiness.give_up}, better "
            "twice that.",
        )


def check_readiness_first(target: Target, facts: Facts) -> Iterator[Finding]:
    for liveness, readiness in _pairs(target):
        if mapping(liveness.container.spec, STARTUP) or readiness.delay >= liveness.delay:
            continue
        if liveness.container.role is Role.SIDECAR:  # a startupProbe would hold back the containers after it
            continue
        if not is_written(target, readiness) or not is_written(target, liveness):
            continue
        yield Finding(
            readiness.at("initialDelaySeconds"),
            f"Container {readiness.container.name} takes traffic from {readiness.delay} s on, but liveness "
            f"looks at it from {liveness.delay} s on: what hangs in between is not restarted, and "
            "the delay is a guess at the start.",
            "Add a startupProbe and drop both delays: neither probe is asked before it has passed.",
        )


def _pairs(target: Target) -> Iterator[tuple[Probe, Probe]]:
    """The liveness and readiness probes of the containers that have both; a pod that runs to completion
    has no traffic to be taken off it."""
    for liveness in probes(target, LIVENESS):
        if liveness.template.completes:
            continue
        readiness = probe_of(liveness.template, liveness.container, READINESS)
        if readiness is not None:
            yield liveness, readiness


# --- single probes --------------------------------------------------------------------------------


def check_tcp(target: Target, facts: Facts) -> Iterator[Finding]:
    for probe in probes(target, LIVENESS, READINESS):
        if not mapping(probe.spec, "tcpSocket"):
            continue
        health = known_health(probe.template.pod, probe.container, facts)
        known = health and (health.live if probe.field == LIVENESS else health.ready)
        if not health or not known or "tcpSocket" in known:
            continue
        yield Finding(
            probe.at("tcpSocket"),
            f"The {probe.name} asks for an open port, but {_known_by(health.source)} tells a health "
            "endpoint: a port can be open while the model isn't loaded or the server hangs.",
            f"Ask {_endpoint(known)} instead, or remove the probe: the webhook then adds the right one.",
        )


def _known_by(source: str) -> str:
    return f"the {source}" if source.startswith("preset") else "an annotation"


def _endpoint(handler: dict[str, dict[str, object]]) -> str:
    if "grpc" in handler:
        return f"grpc on port {handler['grpc'].get('port')}"
    action = handler.get("httpGet", {})
    return f"GET {action.get('path')} on port {action.get('port')}"


def check_timeout_and_period(target: Target, facts: Facts) -> Iterator[Finding]:
    for probe in probes(target, LIVENESS, READINESS, STARTUP):
        if probe.timeout > probe.period:
            yield Finding(
                probe.at("timeoutSeconds"),
                f"The {probe.name} may take {probe.timeout} s and is due every {probe.period} s: kubelet "
                "runs one at a time, so slow answers delay the next checks and the verdict comes later than "
                "it reads.",
                f"Set periodSeconds to {probe.timeout} or more, or timeoutSeconds to {probe.period} or less.",
            )


def check_single_failure(target: Target, facts: Facts) -> Iterator[Finding]:
    for probe in probes(target, LIVENESS):
        if probe.failures == 1:
            yield Finding(
                probe.at("failureThreshold"),
                f"One failed answer of the {probe.name} kills it: a garbage collection or a lost packet is "
                "enough, and overload makes all replicas miss one.",
                "Set failureThreshold to 3 or more; 6 suits a model server.",
            )


# --- the rules -----------------------------------------------------------------------------------

_PROBES: Final = "https://kubernetes.io/docs/concepts/workloads/pods/probes/"
_CONFIGURE: Final = (
    "https://kubernetes.io/docs/tasks/configure-pod-container/configure-liveness-readiness-startup-probes/"
)


def _workload(*container_yaml: str) -> str:
    head = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat}
spec:
  replicas: 2
  selector: {matchLabels: {app: chat}}
  template:
    metadata: {labels: {app: chat}}
    spec:
      containers:
"""
    return head + "".join(container_yaml)


_SERVER: Final = """\
        - name: server
          image: registry.example/chat:2
          ports: [{containerPort: 8080}]
"""
_PATIENT: Final = """\
          livenessProbe:
            httpGet: {path: /live, port: 8080}
            periodSeconds: 20
            failureThreshold: 6
"""
_EMBEDDER: Final = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: search}
spec:
  replicas: 2
  selector: {matchLabels: {app: search}}
  template:
    metadata:
      labels: {app: search}
      annotations: {mlchassis.dev/expected-start.embedder: 4m}
    spec:
      initContainers:
        - name: embedder
          image: registry.example/embedder:1
          restartPolicy: Always
          ports: [{containerPort: 8081}]
          livenessProbe:
            httpGet: {path: /live, port: 8081}
            initialDelaySeconds: DELAY
            periodSeconds: 10
            failureThreshold: 6
      containers:
        - {name: search, image: "registry.example/search:1"}
"""

RULES = (
    Rule(
        id="liveness-kills-slow-start",
        family=Family.CASCADE,
        check=check_slow_start,
        standard=Mode.ENFORCE,
        strict=Mode.ENFORCE,
        what="A livenessProbe without a startupProbe whose initialDelaySeconds + periodSeconds * "
        "failureThreshold is below the expected start, known from an annotation, a preset or the model "
        "config.",
        why="Kubelet kills the container before it has loaded its model, restarts it, and kills it again: it "
        "never serves. That shows first when many start at once (a node failure, a scale-up), because then "
        "downloads and disks are slower than on the day the delay was chosen. The webhook mends this by "
        "adding a startupProbe to the pods; what is flagged is what it can't mend, such as a native sidecar, "
        "or any container while `standard-probes` doesn't enforce. Ray's templates count as mended.",
        mend="Add a startupProbe with the same check and a budget well above the expected start; in a native "
        "sidecar raise initialDelaySeconds.",
        source=f"{_CONFIGURE}#define-startup-probes",
        bad=_EMBEDDER.replace("DELAY", "30"),
        good=_EMBEDDER.replace("DELAY", "600"),
    ),
    Rule(
        id="liveness-as-strict-as-readiness",
        family=Family.CASCADE,
        check=check_as_strict,
        standard=Mode.WARN,
        strict=Mode.ENFORCE,
        what="A livenessProbe that makes the same check as the readinessProbe and gives up no later.",
        why="Under overload answers come late, and both probes fail together. Readiness would take traffic "
        "off the replica until it has caught up; liveness kills it in the same moment, it loads its model "
        "for minutes, and the other replicas get its share and fail next. Liveness must be the more patient "
        "one.",
        mend="Give liveness a higher failureThreshold or a longer period, at least twice readiness, or a "
        "cheaper endpoint of its own.",
        source=_CONFIGURE,
        bad=_workload(
            _SERVER,
            """\
          livenessProbe: &health
            httpGet: {path: /health, port: 8080}
            failureThreshold: 3
          readinessProbe: *health
""",
        ),
        good=_workload(
            _SERVER,
            """\
          livenessProbe:
            httpGet: {path: /health, port: 8080}
            failureThreshold: 9
          readinessProbe:
            httpGet: {path: /health, port: 8080}
            failureThreshold: 3
""",
        ),
    ),
    Rule(
        id="readiness-before-liveness",
        family=Family.CASCADE,
        check=check_readiness_first,
        standard=Mode.WARN,
        strict=Mode.WARN,
        what="A readinessProbe with a shorter initialDelaySeconds than the livenessProbe, and no "
        "startupProbe.",
        why="Between the two delays the container takes traffic while nothing would restart it. And a "
        "liveness delay is a guess at the longest start: too short, and it kills slow starts; too long, and "
        "it also leaves early hangs alone. A startupProbe ends the guess, because it holds both probes back "
        "until the container has answered once.",
        mend="Add a startupProbe with a generous failureThreshold and drop both initial delays.",
        source=f"{_CONFIGURE}#define-startup-probes",
        bad=_workload(
            _SERVER,
            """\
          livenessProbe:
            httpGet: {path: /live, port: 8080}
            initialDelaySeconds: 120
            failureThreshold: 6
          readinessProbe:
            httpGet: {path: /ready, port: 8080}
            initialDelaySeconds: 10
""",
        ),
        good=_workload(
            _SERVER,
            """\
          startupProbe:
            httpGet: {path: /live, port: 8080}
            failureThreshold: 30
          livenessProbe:
            httpGet: {path: /live, port: 8080}
            failureThreshold: 6
          readinessProbe:
            httpGet: {path: /ready, port: 8080}
""",
        ),
    ),
    Rule(
        id="tcp-probe",
        family=Family.CASCADE,
        check=check_tcp,
        standard=Mode.WARN,
        strict=Mode.WARN,
        what="A tcpSocket liveness or readiness probe on a container whose health endpoint is known from a "
        "preset or an annotation.",
        why="The kernel accepts connections for a listening socket even when the process behind it hangs, "
        "and many servers open their port before the model is loaded. As readiness it sends requests to a "
        "server that can't answer; as liveness it never sees a hang.",
        mend="Use the health endpoint (httpGet or grpc), or remove the probe so that the webhook adds it.",
        source=f"{_PROBES}#probe-check-methods",
        bad=_workload("""\
        - name: triton
          image: nvcr.io/nvidia/tritonserver:24.08-py3
          ports: [{containerPort: 8000}]
          readinessProbe:
            tcpSocket: {port: 8000}
"""),
        good=_workload("""\
        - name: triton
          image: nvcr.io/nvidia/tritonserver:24.08-py3
          ports: [{containerPort: 8000}]
          readinessProbe:
            httpGet: {path: /v2/health/ready, port: 8000}
"""),
    ),
    Rule(
        id="probe-timeout-exceeds-period",
        family=Family.CASCADE,
        check=check_timeout_and_period,
        standard=Mode.WARN,
        strict=Mode.ENFORCE,
        what="A probe whose timeoutSeconds is above its periodSeconds.",
        why="Kubelet runs one check of a probe at a time, so while a check waits for its timeout the next "
        "ones are skipped. The probe then draws its conclusion later than periodSeconds * failureThreshold "
        "says: an overloaded replica keeps its traffic longer, and its own checks add to its load all the "
        "while.",
        mend="Keep timeoutSeconds at or below periodSeconds.",
        source=f"{_CONFIGURE}#configure-probes",
        bad=_workload(
            _SERVER,
            """\
          livenessProbe:
            httpGet: {path: /live, port: 8080}
            periodSeconds: 10
            timeoutSeconds: 30
            failureThreshold: 6
""",
        ),
        good=_workload(
            _SERVER,
            """\
          livenessProbe:
            httpGet: {path: /live, port: 8080}
            periodSeconds: 30
            timeoutSeconds: 30
            failureThreshold: 6
""",
        ),
    ),
    Rule(
        id="liveness-single-failure",
        family=Family.CASCADE,
        check=check_single_failure,
        standard=Mode.WARN,
        strict=Mode.ENFORCE,
        what="A livenessProbe with failureThreshold 1.",
        why="Single answers get lost for reasons that no restart helps: a pause for garbage collection, a "
        "busy kubelet, a dropped packet. When load makes one answer late in every replica, all of them "
        "restart together and stay away for as long as they load their models.",
        mend="Set failureThreshold to 3 or more.",
        source=f"{_CONFIGURE}#configure-probes",
        bad=_workload(_SERVER, _PATIENT.replace("failureThreshold: 6", "failureThreshold: 1")),
        good=_workload(_SERVER, _PATIENT),
    ),
)
