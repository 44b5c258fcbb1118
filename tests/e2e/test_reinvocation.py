"""Next to other webhooks: later additions are reviewed again, and a second pass makes no change."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.e2e.api import JSON
from tests.e2e.controlplane import HOST, ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.pki import Authority
from tests.e2e.workloads import PROBES, container, pod, probes

pytestmark = pytest.mark.e2e
MESH = {"mesh.example/inject": "true"}


class Mesh(BaseHTTPRequestHandler):
    """A webhook of the kind that service meshes bring: it appends its own container, once."""

    def do_POST(self) -> None:
        """Answer one AdmissionReview."""
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        response: JSON = {"uid": review["request"]["uid"], "allowed": True}
        names = [it["name"] for it in review["request"]["object"]["spec"]["containers"]]
        if "second" not in names:
            second = container() | {"name": "second"}
            patch = json.dumps([{"op": "add", "path": "/spec/containers/-", "value": second}])
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch.encode()).decode()}
        body = json.dumps(review | {"request": None, "response": response}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def mesh(control_plane: ControlPlane, tmp_path: Path) -> Iterator[None]:
    """The other webhook, registered under a name that is called after ours."""
    authority = Authority("mesh")
    pair = authority.server("mesh", [HOST])
    (tmp_path / "pair.pem").write_bytes(pair.certificate + pair.key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "pair.pem")
    server = HTTPServer((HOST, 0), Mesh)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    entry = {
        "name": "inject.mesh.example",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {
            "url": f"https://{HOST}:{server.server_port}/inject",
            "caBundle": base64.b64encode(authority.certificate).decode(),
        },
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "objectSelector": {"matchLabels": MESH},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
        ],
    }
    configuration: JSON = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "zz-mesh"},
        "webhooks": [entry],
    }
    control_plane.api.create(configuration)
    yield
    control_plane.api.delete("mutatingwebhookconfigurations", "zz-mesh")
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("mesh")
def test_a_container_that_another_webhook_adds_gets_probes_too(
    control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    def reviewed() -> float:
        return chassis.metric("chassis_admission_requests_total", endpoint="mutate", kind="Pod")

    meshed = pod("meshed")
    meshed["metadata"]["labels"] |= MESH
    _wait_until_injected(control_plane, meshed, namespace)
    alone = control_plane.api.create(pod("alone"), namespace).body
    before = reviewed()
    made = control_plane.api.create(meshed, namespace).body
    assert reviewed() == before + 2, "once for the pod as sent, once more for what the mesh made of it"
    assert [it["name"] for it in made["spec"]["containers"]] == ["main", "second"]
    assert probes(made, 0) == probes(made, 1) == set(PROBES)
    assert _injected(made) == _injected(alone), "the second pass leaves the first one's work alone"


def _injected(made: JSON) -> JSON:
    """The first container, less the token mount, whose name is drawn by chance."""
    return {key: value for key, value in made["spec"]["containers"][0].items() if key != "volumeMounts"}


def _wait_until_injected(control_plane: ControlPlane, meshed: JSON, namespace: str) -> None:
    """The API server reads a new webhook configuration from its own watch, a moment after the create."""
    deadline = time.monotonic() + 60
    while len(control_plane.api.create(meshed, namespace, dry_run=True).body["spec"]["containers"]) < 2:
        assert time.monotonic() < deadline, "the mesh's webhook is never called"
