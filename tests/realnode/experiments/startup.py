"""What a pod waits for before it is ready."""

from __future__ import annotations

import time

from tests.e2e.api import JSON
from tests.e2e.node.cluster import RealNode
from tests.realnode.arms import Arm, api, arms, side_by_side
from tests.realnode.experiments.model_api import BASE, SOON, Figures


def own_service(node: RealNode) -> Figures:
    """An init container that waits for the Service of its own pod."""

    def waiting(name: str, address: str, host: str) -> JSON:
        once = f"import urllib.request as u; u.urlopen('http://{host}/health', timeout=2)"
        code = f'until python3 -c "{once}"; do sleep 1; done'
        item = api(name, annotations=SOON)
        spec = item["spec"]["template"]["spec"]
        spec["initContainers"] = [{"name": "wait", "image": BASE, "command": ["sh", "-c", code]}]
        spec["hostAliases"] = [{"ip": address, "hostnames": [host]}]  # in place of a name server
        return item

    def run(arm: Arm) -> Figures:
        own, other = arm.service("api"), arm.service("other")
        arm.create(api("other", annotations=SOON))
        arm.wait_ready("other", 1)
        control = waiting("control", other, "other")
        arm.create(control)
        refused = arm.refusal(waiting("api", own, "api"))
        took = arm.wait_ready("control", 1)
        if not refused:
            time.sleep(90)
        return {"refused": refused, "ready": arm.ready("api"), "control ready after": took}

    with_, without = side_by_side(run, arms(node, "service"))
    return {"with": with_, "without": without}
