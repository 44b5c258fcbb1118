"""`chassis tune --prometheus` in PromQL that a real Prometheus answers.

What kube-state-metrics and the kubelet would export is written by the test, twice, as if two exporters had
it.
"""

from __future__ import annotations

import asyncio
import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.controlplane import HOST
from tests.e2e.prometheus import Prometheus
from webhook.observed.history import query_history

pytestmark = pytest.mark.e2e

NOW = time.time()
IMAGE = "acme/server:1"
STARTED = {"new": NOW - 3600, "restarted": NOW - 3600, "old": NOW - 700_000}
"""When the containers of three pods started; a week has 604,800 s."""
KEY = ("ml", "Deployment/llm", "server")


def metrics(count: int) -> str:
    """A page of metrics; `count` liveness probes failed, and nine times as many succeeded."""
    lines = [
        'kube_replicaset_owner{namespace="ml",replicaset="llm-5d4f",owner_kind="Deployment",owner_name="llm",'
        'owner_is_controller="true"} 1'
    ]
    for name, began in STARTED.items():
        pod = f'namespace="ml",pod="llm-5d4f-{name}",uid="{name}"'
        container = f'{pod},container="server"'
        lines += [
            f'kube_pod_owner{{{pod},owner_kind="ReplicaSet",owner_name="llm-5d4f",'
            'owner_is_controller="true"} 1',
            f'kube_pod_container_info{{{container},image="{IMAGE}",image_spec="{IMAGE}",container_id="x"}} 1',
            f"kube_pod_container_state_started{{{container}}} {began}",
            f"kube_pod_container_status_restarts_total{{{container}}} {int(name == 'restarted')}",
            f"kube_pod_status_ready_time{{{pod}}} {began + 312}",
        ]
    probe = 'namespace="ml",pod="llm-5d4f-new",container="server",probe_type="Liveness"'
    lines += [
        f'prober_probe_total{{{probe},pod_uid="new",result="failed"}} {count}',
        f'prober_probe_total{{{probe},pod_uid="new",result="successful"}} {9 * count}',
        f'prober_probe_duration_seconds_bucket{{{probe},le="0.5"}} {6 * count}',
        f'prober_probe_duration_seconds_bucket{{{probe},le="+Inf"}} {9 * count}',
    ]
    return "\n".join([*lines, ""])


@contextmanager
def exporter() -> Iterator[str]:
    scrapes = iter(range(1, 1 << 20))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = metrics(100 * next(scrapes)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"{HOST}:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_starts_and_probes_are_found(tmp_path: Path) -> None:
    with exporter() as first, exporter() as second:
        jobs: list[dict[str, object]] = [
            {"job_name": name, "honor_labels": True, "static_configs": [{"targets": [target]}]}
            for name, target in (("one", first), ("two", second))
        ]
        prometheus = Prometheus(tmp_path, jobs)
        prometheus.process.wait_until(prometheus.ready)
        scraped = "count_over_time(prober_probe_total[7d]) >= 4"
        prometheus.process.wait_until(lambda: len(prometheus.values(scraped)) == 4)
        found = asyncio.run(query_history(prometheus.url, "ml"))
        everywhere = asyncio.run(query_history(prometheus.url, ""))
        prometheus.process.terminate()
    assert dict(found.starts) == dict(everywhere.starts) == {(KEY, IMAGE): [312]}
    liveness = found.liveness[KEY]
    assert liveness.failed >= 100
    assert liveness.succeeded == pytest.approx(9 * liveness.failed)
    share = liveness.slow(1)
    assert share is not None
    assert share[0] == pytest.approx(1 / 3)
    assert share[1] == 0.5
