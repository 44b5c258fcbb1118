"""Experiments in two arms: a namespace in which the webhook is at work, and one that it does not see."""

from __future__ import annotations

import copy
import signal
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from policies.core.annotations import HEALTH_PATH
from tests.e2e.api import JSON, ApiError
from tests.e2e.controlplane import LEFT_ALONE
from tests.e2e.node.cluster import RealNode
from tests.e2e.status import is_ready
from tests.e2e.workloads import UNKNOWN
from tests.manifests import manifest
from tests.realnode.traffic import ask

Result = TypeVar("Result")
SOON = {"mlchassis.dev/expected-start": "20s"}
SERVER = "server.py"
PATIENCE = 240
"""Seconds for an expected event; on a busy machine it takes several times as long as on an idle one."""
KNOWN_SECONDS = 3
"""Seconds after which the webhook's watches have brought every object that an experiment has just made."""


@dataclass(frozen=True)
class Arm:
    """One namespace of an experiment."""

    node: RealNode
    namespace: str
    webhook: bool

    def create(self, *items: JSON) -> None:
        """Create objects. Raises ApiError where one is refused."""
        for item in items:
            self.node.api.create(item, self.namespace)

    def put(self, rule: str, hazard: JSON, advised: JSON) -> str:
        """Create what a rule is about; where the webhook is at work, what it advises instead.

        Returns the webhook's reaction by that rule: "refuses", "warns", or "" for none.
        """
        if not self.webhook:
            self.create(hazard)
            return ""
        reaction = self.verdict(rule, hazard)
        self.create(advised)
        return reaction

    def verdict(self, rule: str, item: JSON) -> str:
        """The webhook's reaction to an object by that rule: "refuses", "warns", or "" for none.

        The object is reviewed without its `hostAliases`: they replace the name server that this node lacks,
        and rules about Services are silent about names that a pod defines itself.
        """
        until = time.monotonic() + KNOWN_SECONDS
        while not (reaction := self.reaction(rule, unaliased(item))) and time.monotonic() < until:
            time.sleep(0.5)
        return reaction

    def reaction(self, rule: str, item: JSON) -> str:
        """The webhook's reaction at this moment."""
        try:
            answer = self.node.api.create(item, self.namespace, dry_run=True)
        except ApiError as error:
            return "refuses" if rule in error.message else ""
        return "warns" if any(text.startswith(rule) for text in answer.warnings) else ""

    def service(self, name: str, selector: Mapping[str, str] | None = None) -> str:
        """Make a Service of the pods with the label `app: name`, or with other ones; its ClusterIP."""
        spec = {"selector": dict(selector or {"app": name}), "ports": [{"port": 80, "targetPort": 8000}]}
        item = manifest("Service", name, spec)
        return str(self.node.api.create(item, self.namespace).body["spec"]["clusterIP"])

    def pods(self, name: str) -> list[JSON]:
        """The pods of an app, those that go away included."""
        return self.node.api.items("pods", self.namespace, f"app={name}")

    def ready(self, name: str) -> int:
        """How many of its pods are ready."""
        return sum(map(is_ready, self.pods(name)))

    def pending(self, name: str) -> int:
        """How many of its pods wait for a node, or for what they mount."""
        return [item["status"]["phase"] for item in self.pods(name)].count("Pending")

    def restarts(self, name: str) -> int:
        """How often its containers were started again."""
        return sum(
            status["restartCount"]
            for item in self.pods(name)
            for status in item["status"].get("containerStatuses", ())
        )

    def answering(self, name: str) -> int:
        """How many of its pods answer, asked without any Service."""
        return sum(
            ask(item["status"]["podIP"], 8000, "/health")
            for item in self.pods(name)
            if "podIP" in item["status"]
        )

    def signal(self, number: signal.Signals, name: str) -> None:
        """Send a signal to the servers in its pods: SIGSTOP hangs them, SIGCONT goes on."""
        for item in self.pods(name):
            self.node.signal(number, item, SERVER)

    def wait(self, what: str, until: Callable[[], Any], patience: float = PATIENCE) -> float:
        """Wait until something is true; the seconds that it took. AssertionError after `patience` seconds."""
        began = time.monotonic()
        while not until():
            waited = time.monotonic() - began
            assert waited < patience, f"{self.namespace}: not {what} after {waited:.0f} s"
            time.sleep(1)
        return time.monotonic() - began

    def wait_ready(self, name: str, count: int) -> float:
        """Wait until so many pods are ready; the seconds that it took."""
        return self.wait(f"{count} pods of {name} ready", lambda: self.ready(name) >= count)

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl in the namespace."""
        return self.node.kubectl("-n", self.namespace, *arguments, timeout=PATIENCE).stdout

    def succeeds(self, *arguments: str) -> bool:
        """Whether kubectl, run in the namespace, ends with the status 0."""
        command = ("-n", self.namespace, *arguments)
        return self.node.kubectl(*command, timeout=PATIENCE, check=False).returncode == 0


def unaliased(workload: JSON) -> JSON:
    """The workload without the names that its pods define themselves."""
    bare = copy.deepcopy(workload)
    bare.get("spec", {}).get("template", {}).get("spec", {}).pop("hostAliases", None)
    return bare


def arms(node: RealNode, name: str) -> tuple[Arm, Arm]:
    """A namespace with the webhook and one without."""
    tag = f"{name}-{uuid.uuid4().hex[:4]}"
    node.create_namespace(f"{tag}-with", {})
    node.create_namespace(f"{tag}-without", LEFT_ALONE)
    return Arm(node, f"{tag}-with", True), Arm(node, f"{tag}-without", False)


def side_by_side(run: Callable[[Arm], Result], both: tuple[Arm, Arm]) -> tuple[Result, Result]:
    """Run the same in both arms at once: what the machine does to one, it does to the other."""
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(run, arm) for arm in both]
        first, second = (future.result() for future in futures)
    return first, second


def api(
    name: str = "api",
    replicas: int = 1,
    env: Mapping[str, object] | None = None,
    annotations: Mapping[str, str] = SOON,
    strategy: JSON | None = None,
    **container: Any,
) -> JSON:
    """A Deployment of the model API in `images/model-server`; further fields go to its container.

    It is an unknown server, whose pods have annotations with its health endpoint, unless another image is
    given.
    """
    if "image" not in container:
        annotations = {HEALTH_PATH: "/health", **annotations}
    variables = [{"name": key, "value": str(value)} for key, value in (env or {}).items()]
    main = {
        "name": "server",
        "image": UNKNOWN,
        "env": variables,
        "ports": [{"name": "http", "containerPort": 8000}],
        **container,
    }
    template = {
        "metadata": {"labels": {"app": name}, "annotations": dict(annotations)},
        "spec": {"containers": [main]},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    if strategy is not None:
        spec["strategy"] = strategy
    return manifest("Deployment", name, spec)
