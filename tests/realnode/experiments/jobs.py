"""Jobs that are evicted, that fail, and that are kept from ending."""

from __future__ import annotations

import time

from tests.e2e.api import JSON
from tests.e2e.node.images import PROXY
from tests.e2e.status import finished
from tests.e2e.workloads import VLLM
from tests.manifests import manifest
from tests.realnode.arms import Arm
from tests.realnode.experiments.disruption import evict
from tests.realnode.experiments.model_api import BASE, WATCHED, Figures, python_get


def job(name: str, code: str, backoff: int | None = None) -> JSON:
    """A training Job that runs Python code."""
    container = {"name": "train", "image": BASE, "command": ["python3", "-c", code]}
    template = {
        "metadata": {"labels": {"app": name, "mlchassis.dev/training": "true"}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]},
    }
    spec = {"template": template} | ({} if backoff is None else {"backoffLimit": backoff})
    return manifest("Job", name, spec)


def condition(arm: Arm, name: str) -> str:
    """How a Job has ended: "Complete", "Failed", or "" for not yet."""
    return finished(arm.node.api.get("jobs.batch", name, arm.namespace)) or ""


def jobs(arm: Arm) -> Figures:
    """A Job whose pod is evicted, and one that fails by a mistake in its code."""
    arm.create(job("evicted", "import time; time.sleep(900)", backoff=0))
    arm.create(job("wrong", "raise SystemExit(3)"))
    arm.wait("running", lambda: any(map(_running, arm.pods("evicted"))))
    (first,) = arm.pods("evicted")
    evict(arm, first["metadata"]["name"])

    def decided() -> bool:
        others = [it for it in arm.pods("evicted") if it["metadata"]["uid"] != first["metadata"]["uid"]]
        return condition(arm, "evicted") == "Failed" or any(map(_running, others))

    arm.wait("given up or started again", decided)
    arm.wait(
        "given up or tried again",
        lambda: condition(arm, "wrong") == "Failed" or len(arm.pods("wrong")) > 2,
    )
    return {
        "evicted": condition(arm, "evicted") or "runs again",
        "wrong": condition(arm, "wrong") or "is tried again",
        "tries": len(arm.pods("wrong")),
    }


def _running(item: JSON) -> bool:
    return item["status"]["phase"] == "Running" and "deletionTimestamp" not in item["metadata"]


def _next_to(arm: Arm, rule: str, image: str, *command: str) -> Figures:
    """A Job whose work ends, next to a container that never does."""
    work: JSON = {"name": "work", "image": BASE, "command": list(command)}
    server: JSON = {"name": "other", "image": image, "args": ["serve"]}

    def made(containers: list[JSON], sidecars: list[JSON]) -> JSON:
        item = job("work", "")
        spec = item["spec"]["template"]["spec"]
        spec |= {"containers": containers, "initContainers": sidecars}
        return item

    reaction = arm.put(rule, made([work, server], []), made([work], [server | {"restartPolicy": "Always"}]))

    def work_ended() -> bool:
        return any(
            it["name"] == "work" and it["state"].get("terminated", {}).get("exitCode") == 0
            for item in arm.pods("work")
            for it in item["status"].get("containerStatuses", ())
        )

    arm.wait("the work done", work_ended)
    if arm.webhook:
        took = arm.wait("complete", lambda: condition(arm, "work") == "Complete")
        return {"reaction": reaction, "complete after": took}
    time.sleep(WATCHED)
    return {"reaction": reaction, "ended": condition(arm, "work"), "active": len(arm.pods("work"))}


def beside_server(arm: Arm) -> Figures:
    """Batch inference: a model server next to its client."""
    asks = f'until python3 -c "{python_get("http://localhost:8000/health")}"; do sleep 1; done'
    return _next_to(arm, "job-server-blocks-completion", VLLM, "sh", "-c", asks)


def beside_proxy(arm: Arm) -> Figures:
    """A database proxy next to the work."""
    return _next_to(arm, "job-sidecar-blocks-completion", PROXY, "sleep", "5")
