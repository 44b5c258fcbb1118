"""The webhook disturbed under 20 creates a second: which are lost, refused, or let in unchanged?"""

from __future__ import annotations

import base64
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.x509 import load_pem_x509_certificate

from tests.e2e.api import JSON, ApiError
from tests.e2e.install import NAMESPACE
from tests.e2e.node.cluster import RealNode
from tests.e2e.node.webhook import Webhook
from tests.realnode import evidence
from tests.realnode.creates import CLIENTS, RATE, Creates

pytestmark = pytest.mark.realnode
IN_FLIGHT = CLIENTS // 4
"""Creates that a replica may be reviewing when it breaks."""
WATCHED = 75
"""Seconds for which a replica hangs."""
SECRET = "mlchassis-tls"
EXPIRY = "chassis_certificate_expiry_timestamp_seconds"
ANSWERED = "chassis_admission_requests_total"


@pytest.fixture(scope="module")
def written() -> Iterator[dict[str, dict[str, int]]]:
    """The figures of all tests of this file, kept once they are through."""
    found: dict[str, dict[str, int]] = {}
    yield found
    evidence.keep("under_fire", dict(found))


def restart(webhook: Webhook, creates: Creates) -> None:
    webhook.restart()


def kill(webhook: Webhook, creates: Creates) -> None:
    replica = webhook.pods()[0]
    assert webhook.node.signal(signal.SIGKILL, replica, "chassis")
    webhook.node.api.wait("pods", replica["metadata"]["name"], _restarted, namespace=NAMESPACE, timeout=120)
    webhook.wait_until_it_serves()


def _restarted(item: JSON) -> bool:
    (status,) = item["status"]["containerStatuses"]
    return bool(status["restartCount"] and status["ready"])


def workers(node: RealNode, replica: JSON) -> list[int]:
    """The processes of a replica that another one of it has started."""
    found = node.pids(replica, "chassis")
    parents = {pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in found}
    return [pid for pid, parent in parents.items() if parent in found]


def stop_worker(webhook: Webhook, creates: Creates) -> None:
    """The supervisor replaces it."""
    replica = webhook.pods()[0]
    (hung,) = workers(webhook.node, replica)
    os.kill(hung, signal.SIGSTOP)
    ends = time.monotonic() + 240
    while not (now := workers(webhook.node, replica)) or hung in now:
        assert time.monotonic() < ends, "the hung worker was not replaced"
        time.sleep(0.2)
    webhook.wait_until_it_serves()


def new_certificate(webhook: Webhook, creates: Creates) -> None:
    """The certificate in the Secret is damaged, and every replica restarted: they agree on another one."""
    damaged = base64.b64encode(b"rubbish").decode()
    webhook.node.api.patch("secrets", SECRET, {"data": {"tls.crt": damaged}}, NAMESPACE)
    webhook.restart()
    assert webhook.node.api.get("secrets", SECRET, NAMESPACE)["data"]["tls.crt"] != damaged


def delete_ca(webhook: Webhook, creates: Creates) -> None:
    """The Secret is deleted, and every replica restarted at once: old and new ones serve under two CAs."""
    before = webhook.node.api.get("secrets", SECRET, NAMESPACE)["data"]
    webhook.node.api.delete("secrets", SECRET, NAMESPACE)
    webhook.restart()
    _served_by_all(webhook)
    assert webhook.node.api.get("secrets", SECRET, NAMESPACE)["data"]["ca.key"] != before["ca.key"]


def rotate_ca(webhook: Webhook, creates: Creates) -> None:
    """The Secret is deleted, and each running replica goes over to another CA when it looks at it next."""
    before = webhook.node.api.get("secrets", SECRET, NAMESPACE)["data"]
    webhook.node.api.delete("secrets", SECRET, NAMESPACE)
    webhook.node.api.wait("secrets", SECRET, namespace=NAMESPACE, timeout=90)
    _served_by_all(webhook)
    assert webhook.node.api.get("secrets", SECRET, NAMESPACE)["data"]["ca.key"] != before["ca.key"]


def _served_by_all(webhook: Webhook) -> None:
    """Wait until every replica serves the certificate in the Secret."""
    pem = base64.b64decode(webhook.node.api.get("secrets", SECRET, NAMESPACE)["data"]["tls.crt"])
    expiry = load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
    ends = time.monotonic() + 120
    while {webhook.metric(replica, EXPIRY) for replica in webhook.pods()} != {expiry}:
        assert time.monotonic() < ends, "a replica goes on serving the certificate of before"
        time.sleep(1)


def edit_policy(webhook: Webhook, creates: Creates) -> None:
    """Good edits, which every replica takes, and bad ones, which are refused."""
    for number in range(10):
        webhook.write_policy(gpu_affinity=f"# edit {number}\nmode: enforce\n")
        with pytest.raises(ApiError, match="standard-probes"):
            webhook.write_policy(standard_probes="mode: sometimes\n")
        creates.wait(RATE // 2)


def restart_api_server(webhook: Webhook, creates: Creates) -> None:
    webhook.node.end("kube-apiserver")
    webhook.node.start_api_server()
    creates.wait(5 * RATE)


@pytest.mark.parametrize(
    ("name", "disturb", "most"),
    [
        ("a rolling restart", restart, 0),
        ("another certificate, by a rolling restart", new_certificate, 0),
        ("another CA, its Secret deleted during a rolling restart", delete_ca, 0),
        ("another CA, its Secret deleted under running replicas", rotate_ca, 0),
        ("ten good and ten bad edits of the policy", edit_policy, 0),
        ("the API server is killed and restarted", restart_api_server, 0),
        ("a replica is killed (SIGKILL)", kill, IN_FLIGHT),
        ("a worker hangs (SIGSTOP)", stop_worker, IN_FLIGHT),
    ],
)
def test_no_create_is_lost_or_refused_and_only_ones_in_flight_are_unchanged(
    node: RealNode,
    webhook: Webhook,
    written: dict[str, dict[str, int]],
    name: str,
    disturb: Callable[[Webhook, Creates], object],
    most: int,
) -> None:
    """The API server lets in what it had asked on a connection that breaks, or gets no answer in time."""
    with Creates(node) as creates:
        disturb(webhook, creates)
        creates.wait(3 * RATE)
    written[name] = creates.figures()
    assert creates.lost == []
    assert creates.refused == []
    assert len(creates.unmutated) <= most, creates.unmutated


def _busiest(webhook: Webhook, creates: Creates) -> JSON:
    """The replica that is asked most: the API server may hold its connections to only one of the two."""
    replicas = webhook.pods()
    before = [webhook.metric(replica, ANSWERED) for replica in replicas]
    creates.wait(3 * RATE)
    since = [webhook.metric(replica, ANSWERED) - seen for replica, seen in zip(replicas, before, strict=True)]
    return replicas[since.index(max(since))]


def test_a_replica_that_hangs_whole_is_left_out_soon(
    node: RealNode, webhook: Webhook, written: dict[str, dict[str, int]]
) -> None:
    """Its connections stay open, so the API server waits for it until its time is up, and lets the pod in.

    This is the control of the tests above, too: it notices creates that are let in unchanged.
    """
    with Creates(node) as creates:
        hung = node.signal(signal.SIGSTOP, _busiest(webhook, creates), "chassis")
        assert len(hung) > 1
        began = creates.now
        while creates.now < began + WATCHED:
            time.sleep(1)
        for pid in hung:
            os.kill(pid, signal.SIGKILL)
        webhook.wait_until_it_serves()
    written["a replica hangs whole (SIGSTOP), its connections open"] = creates.figures()
    assert creates.lost == []
    assert creates.refused == []
    assert creates.unmutated, "some time is needed to find out"
    assert max(creates.unmutated) < began + WATCHED - 15, "and then no more is let in unchanged"
    assert len(creates.unmutated) < creates.creates / 5
