"""Webhooks next to ours: a server that patches pods, and the registration of one."""

from __future__ import annotations

import json
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.e2e.api import JSON, Api
from tests.e2e.controlplane import HOST, ControlPlane
from tests.e2e.pki import Authority
from tests.manifests import manifest


@contextmanager
def registered(api: Api, kind: str, client: JSON, **fields: object) -> Iterator[None]:
    """A webhook for created pods, called after ours: `fields` are those of its entry."""
    entry = {
        "name": "other.example.com",
        "admissionReviewVersions": ["v1"],
        "clientConfig": client,
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
        ],
        **fields,
    }
    api.create(manifest(kind, "zz-other") | {"webhooks": [entry]})
    try:
        yield
    finally:
        api.delete(f"{kind.lower()}s", "zz-other")


@contextmanager
def patching(
    control_plane: ControlPlane, patch: Callable[[JSON], list[JSON]], **fields: object
) -> Iterator[None]:
    """A registered webhook that answers each review with the JSON Patch that `patch` makes of the pod."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            request = review.pop("request")
            review["response"] = {"uid": request["uid"], "allowed": True}
            if operations := patch(request["object"]):
                encoded = b64encode(json.dumps(operations).encode()).decode()
                review["response"] |= {"patchType": "JSONPatch", "patch": encoded}
            body = json.dumps(review).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """The test prints nothing."""

    authority = Authority("other-webhook")
    pair = authority.server("other-webhook", [HOST])
    file = control_plane.state / "other-webhook.pem"
    file.write_bytes(pair.certificate + pair.key)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(file)
    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"https://{HOST}:{server.server_address[1]}"
        client = {"url": url, "caBundle": b64encode(authority.certificate).decode()}
        try:
            with registered(control_plane.api, "MutatingWebhookConfiguration", client, **fields):
                yield
        finally:
            server.shutdown()
            thread.join()
