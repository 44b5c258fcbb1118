"""Jobs that are evicted, and Jobs that fail."""

from __future__ import annotations

from tests.e2e.api import JSON
from tests.e2e.node.cluster import RealNode
from tests.realnode.arms import Arm, arms, side_by_side
from tests.realnode.experiments.disruption import evict
from tests.realnode.experiments.model_api import BASE, Figures


def job(name: str, code: str, backoff: int | None = None) -> JSON:
    """A training Job that runs Python code."""
    container = {"name": "train", "image": BASE, "command": ["python3", "-c", code]}
    template = {
        "metadata": {"labels": {"app": name, "mlchassis.dev/training": "true"}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]},
    }
    spec = {"template": template} | ({} if backoff is None else {"backoffLimit": backoff})
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def jobs(node: RealNode) -> Figures:
    """A Job whose pod is evicted, and one that fails by a mistake in its code."""

    def condition(arm: Arm, name: str) -> str:
        status = arm.node.api.get("jobs.batch", name, arm.namespace).get("status", {})
        ended = {it["type"] for it in status.get("conditions", ()) if it["status"] == "True"}
        return next(iter(ended & {"Complete", "Failed"}), "")

    def run(arm: Arm) -> Figures:
        arm.create(job("evicted", "import time; time.sleep(900)", backoff=0))
        arm.create(job("wrong", "raise SystemExit(3)"))
        arm.wait("running", lambda: any(map(running, arm.pods("evicted"))))
        (first,) = arm.pods("evicted")
        evict(arm, first["metadata"]["name"])

        def decided() -> bool:
            others = [it for it in arm.pods("evicted") if it["metadata"]["uid"] != first["metadata"]["uid"]]
            return condition(arm, "evicted") == "Failed" or any(map(running, others))

        arm.wait("given up or begun anew", decided)
        arm.wait(
            "given up or tried again",
            lambda: condition(arm, "wrong") == "Failed" or len(arm.pods("wrong")) > 2,
        )
        return {
            "evicted": condition(arm, "evicted") or "runs again",
            "wrong": condition(arm, "wrong") or "is tried again",
            "tries": len(arm.pods("wrong")),
        }

    def running(item: JSON) -> bool:
        return item["status"]["phase"] == "Running" and "deletionTimestamp" not in item["metadata"]

    with_, without = side_by_side(run, arms(node, "jobs"))
    return {"with": with_, "without": without}
