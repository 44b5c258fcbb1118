"""The registry of the distribution project: open, behind a password, or behind tokens."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import parse_qs, urlsplit

import yaml
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.e2e.binaries import binary
from tests.e2e.processes import Process, free_port
from tests.puller.storage.registries import Blobs, digest_of

USER: Final = "puller"
PASSWORD: Final = "pass word"
_HTPASSWD: Final = f"{USER}:$2b$04$DoeYsOWNFmg.SX.OOFOugOnMXd.6gumTO5AGHo6DqR34.hOyrf.fm"
_SERVICE: Final = "models"
_ISSUER: Final = "tests"


class Registry:
    """One storage on disk; `running` serves it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    @contextmanager
    def running(self, auth: dict[str, Any] | None = None) -> Iterator[Process]:
        config = {
            "version": 0.1,
            "log": {"level": "info"},
            "storage": {"filesystem": {"rootdirectory": str(self.folder / "storage")}},
            "http": {"addr": self.name},
            **({"auth": auth} if auth else {}),
        }
        path = self.folder / "registry.yaml"
        path.write_text(yaml.safe_dump(config))
        process = Process(
            "registry", [str(binary("registry")), "serve", str(path)], self.folder / "registry.log"
        )
        try:
            process.wait_until(self._answers, 30)
            yield process
        finally:
            process.kill()

    @property
    def password_file(self) -> dict[str, Any]:
        """The setting `auth` for one user."""
        path = self.folder / "htpasswd"
        path.write_text(_HTPASSWD + "\n")
        return {"htpasswd": {"realm": "tests", "path": str(path)}}

    def push(self, blobs: Blobs, references: dict[str, bytes]) -> None:
        """Upload manifests by `repository:tag`, and everything that they may name."""
        for reference, manifest in references.items():
            repository, _, tag = reference.partition(":")
            for digest, content in blobs.content.items():
                begun = self._call("POST", f"/v2/{repository}/blobs/uploads/")
                place = urlsplit(begun.headers["Location"])
                query = f"{place.query}&digest={digest}"
                self._call("PUT", f"{place.path}?{query}", content, "application/octet-stream")
            kind = json.loads(manifest)["mediaType"]
            put = self._call("PUT", f"/v2/{repository}/manifests/{tag}", manifest, kind)
            assert put.headers["Docker-Content-Digest"] == digest_of(manifest)

    def _call(self, method: str, path: str, body: bytes = b"", kind: str = "") -> Any:
        request = urllib.request.Request(f"http://{self.name}{path}", body, method=method)
        if kind:
            request.add_header("Content-Type", kind)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"http://{self.name}/v2/", timeout=2).close()
        except urllib.error.HTTPError:
            return True
        except (URLError, ConnectionError, TimeoutError):
            return False
        return True


class TokenServer:
    """Gives tokens to clients that know the password. `asked` counts them; one lasts for `lasts` seconds."""

    def __init__(self, folder: Path, lasts: float = 300.0) -> None:
        self.asked = 0
        self.lasts = lasts
        self._key = rsa.generate_private_key(65537, 2048)
        self._folder = folder
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                wanted = "Basic " + b64encode(f"{USER}:{PASSWORD}".encode()).decode()
                known = self.headers["Authorization"] == wanted
                query = parse_qs(urlsplit(self.path).query)
                body = json.dumps({"token": outer.token(query["scope"][0])} if known else {}).encode()
                self.send_response(200 if known else 401)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Not to the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def auth(self) -> dict[str, Any]:
        """The setting `auth` of a registry that takes these tokens."""
        public = self._key.public_key().public_numbers()
        key = {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "tests"}
        key |= {"n": _encoded(public.n.to_bytes(256)), "e": _encoded(public.e.to_bytes(3))}
        path = self._folder / "jwks.json"
        path.write_text(json.dumps({"keys": [key]}))
        realm = f"http://127.0.0.1:{self._server.server_port}/token"
        return {"token": {"realm": realm, "service": _SERVICE, "issuer": _ISSUER, "jwks": str(path)}}

    def token(self, scope: str) -> str:
        self.asked += 1
        kind, name, actions = scope.split(":")
        assert actions == "pull"
        now = time.time()
        claims = {
            "iss": _ISSUER,
            "sub": USER,
            "aud": _SERVICE,
            "exp": int(now + self.lasts),
            "nbf": int(now - 5),
            "iat": int(now),
            "jti": str(self.asked),
            "access": [{"type": kind, "name": name, "actions": [actions]}],
        }
        head = {"typ": "JWT", "alg": "RS256", "kid": "tests"}
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in (head, claims))
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_encoded(signature)}"


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
