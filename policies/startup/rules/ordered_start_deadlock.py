"""StatefulSets whose first pod waits for its peers: they are made only after it is ready."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from policies.core.contracts import Family, Rule
from policies.core.facts import Facts, Resource
from policies.core.finding import Certainty, Finding
from policies.core.mode import Mode
from policies.core.services import hides_not_ready, in_namespace
from policies.core.target import PodTemplate, Target
from policies.kube.group_kinds import STATEFUL_SET
from policies.kube.json import integer, maps, text
from policies.kube.pods import Container, Role
from policies.startup.waits import Wait, init_waits, probe_waits

_OWN_NAME: Final = re.compile(r"hostname|pod_?name|ordinal|pod_?index|\buname\b", re.IGNORECASE)

_READ_HOSTS_FILE: Final = frozenset({"getent", "ping"})
"""What is content with the pod's own full name and address, which kubelet writes into /etc/hosts."""


def check_ordered_start(target: Target, facts: Facts) -> Iterator[Finding]:
    for template in target.templates:
        for container in template.containers(Role.INIT):
            finding = waits_for_peer(target, template, container, facts)
            if finding:
                yield finding
        for container in template.containers(Role.MAIN, Role.SIDECAR):
            told: set[str] = set()
            for called, wait in probe_waits(template, container):
                finding = _judged(target, template, wait, container, f"The {called} probe of", facts)
                if finding and called not in told:
                    told.add(called)
                    yield finding


def waits_for_peer(
    target: Target, template: PodTemplate, container: Container, facts: Facts
) -> Finding | None:
    """What is to be said of an init container that waits for a pod of its own StatefulSet."""
    if target.kind != STATEFUL_SET:
        return None
    waits = init_waits(template, container)
    judged = (_judged(target, template, wait, container, "Init", facts) for wait in waits)
    return next(filter(None, judged), None)


def _judged(
    target: Target, template: PodTemplate, wait: Wait, container: Container, who: str, facts: Facts
) -> Finding | None:
    """A wait for a pod that can't be there before the first pod is ready.

    Pod N+1 is made when pod N is ready. The first pod's own name is no better: it does not resolve
    before that pod is ready, unless the Service publishes pods that are not.
    """
    peer = _peer(target, wait)
    if peer is None or target.spec.get("podManagementPolicy") == "Parallel":
        return None
    pod, ordinal, namespace = peer
    certainty = in_namespace(namespace, container, facts)
    asked = ("names itself", wait.path)
    if asked not in template.memo:
        template.memo[asked] = _names_itself(wait.script, container)
    if certainty is None or template.memo[asked]:
        return None
    until = "which OrderedReady makes only after this one is ready"
    if ordinal == integer(target.obj, "spec", "ordinals", "start", default=0):
        if len(namespace) > 2 and wait.host.client in _READ_HOSTS_FILE:
            return None
        hidden = hides_not_ready(text(target.obj, "spec", "serviceName"), facts)
        if hidden is False:
            return None
        until = "whose name the Service shows only after it is ready"
        certainty = certainty if hidden else Certainty.UNDECIDED
    return Finding(
        wait.path,
        f"{who} container {container.name} waits for pod {pod}, {until}.",
        "Wait for lower ordinals only, or look for peers once the main container runs, with "
        "podManagementPolicy: Parallel and publishNotReadyAddresses.",
        wait.certainty_of(certainty),
    )


def _peer(target: Target, wait: Wait) -> tuple[str, int, list[str]] | None:
    """The pod of this StatefulSet that a per-pod name such as `pg-0.pg.ns.svc` means: its name, its
    ordinal, and what follows the Service in the name."""
    pod, *labels = wait.host.name.rstrip(".").split(".")
    owner, _, ordinal = pod.rpartition("-")
    if owner != target.name or not (ordinal.isascii() and ordinal.isdigit() and len(ordinal) < 10):
        return None
    if not labels or labels[0] != text(target.obj, "spec", "serviceName"):
        return None
    return pod, int(ordinal), labels[1:]


def _names_itself(script: str, container: Container) -> bool:
    """Whether a script asks which pod it runs in: then it may wait for lower ordinals only."""
    fields = (
        (text(entry, "name"), text(entry, "valueFrom", "fieldRef", "fieldPath"))
        for entry in maps(container.spec, "env")
    )
    return _OWN_NAME.search(script) is not None or any(
        path.startswith(("metadata.name", "metadata.labels")) and bool(name) and name in script
        for name, path in fields
        if path != "metadata.namespace"
    )


# --- the rule ----------------------------------------------------------------------------------

_EXAMPLE: Final = """\
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: shard
spec:
  serviceName: shard
  replicas: 3
  selector:
    matchLabels:
      app: shard
  template:
    metadata:
      labels:
        app: shard
    spec:
      initContainers:
        - name: wait-for-peers
          image: registry.example/tools:1
          command: [timeout, 10m, sh, -c, "{wait}"]
      containers:
        - name: shard
          image: registry.example/shard:1
---
apiVersion: v1
kind: Service
metadata:
  name: shard
spec:
  clusterIP: None
  selector:
    app: shard
"""

RULES = (
    Rule(
        id="ordered-start-deadlock",
        family=Family.DEADLOCK,
        check=check_ordered_start,
        standard=Mode.ENFORCE,
        strict=Mode.ENFORCE,
        kinds=(STATEFUL_SET,),
        needs=(Resource.SERVICES,),
        what="An OrderedReady StatefulSet (the default) whose probes or init containers wait for its own "
        "pods by name, through a Service that hides pods which are not ready.",
        why="OrderedReady makes pod N+1 only when pod N is ready. If pod 0 waits for pod 1 before it is "
        "ready, pod 1 is never made. If it waits for its own name, the name does not resolve before it is "
        "ready, because a headless Service shows ready pods only. Waiting for lower ordinals is sound, so "
        "a script that asks which pod it runs in is left alone.",
        mend="Let each pod wait for lower ordinals only. Or look for peers from the main container, with "
        "podManagementPolicy: Parallel and publishNotReadyAddresses: true on the headless Service, as "
        "clustered databases do.",
        source="https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#pod-management-policies",
        bad=_EXAMPLE.format(wait="until nc -z shard-2.shard 6000; do sleep 2; done"),
        good=_EXAMPLE.format(
            wait="n=${HOSTNAME##*-}; [ $n = 0 ] || until nc -z shard-$((n-1)).shard 6000; do sleep 2; done"
        ),
    ),
)
