"""The webhook serves, and the puller downloads, with nothing but a FIPS provider behind Python's `ssl`."""

from __future__ import annotations

import hashlib
import json
import os
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from policies.kube.json import Json
from tests.e2e.processes import Process, free_port
from tests.fips.provider import environment
from tests.manifests import manifest
from webhook.server import pki

pytestmark = pytest.mark.fips
PATIENCE = 60.0
"""Seconds until it serves, on a busy machine."""


@pytest.fixture(scope="session")
def fips() -> Mapping[str, str]:
    """The environment of a program that has only the provider."""
    return {**os.environ, **environment()}


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    """Flags with a certificate of 127.0.0.1 that was made elsewhere."""
    made = pki.issue(["127.0.0.1"], datetime.now(UTC))
    for name, content in (("tls.crt", made.certificate), ("tls.key", made.key), ("ca.crt", made.ca)):
        (tmp_path / name).write_bytes(content)
    return "--tls-cert", str(tmp_path / "tls.crt"), "--tls-key", str(tmp_path / "tls.key")


@contextmanager
def serving(flags: tuple[str, ...], env: Mapping[str, str], log: Path) -> Iterator[tuple[Process, int]]:
    """A server, and its port."""
    port = free_port()
    command = [sys.executable, "-m", "webhook.cli", "serve", "--host", "127.0.0.1", "--port", str(port)]
    process = Process("chassis serve", [*command, *flags], log, env)
    try:
        yield process, port
    finally:
        process.terminate()


def ask(port: int, path: str, ca: Path, body: Json | None = None) -> str:
    """The text of an answer."""
    context = ssl.create_default_context(cafile=str(ca))
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(
        f"https://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, context=context) as answer:
        text: str = answer.read().decode()
        return text


def test_the_provider_is_all_there_is(fips: Mapping[str, str]) -> None:
    """Else the other tests show nothing."""
    script = (
        "import ssl; c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT);"
        "print(ssl.OPENSSL_VERSION_INFO[0], *(each['name'] for each in c.get_ciphers()))"
    )
    command = [sys.executable, "-c", script]
    with_it = subprocess.run(command, env=fips, capture_output=True, text=True, check=True).stdout.split()
    without = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert with_it[0] == "3", "a provider belongs to OpenSSL 3"
    assert not any("CHACHA20" in name for name in with_it[1:])
    assert any("CHACHA20" in name for name in without[1:])


def test_reviews_are_answered_with_a_certificate_of_others(
    fips: Mapping[str, str], files: tuple[str, ...], tmp_path: Path
) -> None:
    pod = manifest(
        "Pod", "p", {"containers": [{"name": "c", "image": "vllm/vllm-openai:v0.20.0"}]}, namespace="ml"
    )
    request: Json = {"uid": "1", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE"}
    request |= {
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "ml",
        "object": pod,
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    with serving(files, fips, tmp_path / "log") as (chassis, port):

        def is_ready() -> bool:
            with suppress(OSError):
                return ask(port, "/readyz", tmp_path / "ca.crt") == "ok\n"
            return False

        chassis.wait_until(is_ready, PATIENCE)
        answer = json.loads(ask(port, "/mutate", tmp_path / "ca.crt", review))["response"]
        assert answer["allowed"]
        assert answer["patch"]
        assert json.loads(ask(port, "/validate", tmp_path / "ca.crt", review))["response"]["allowed"]


def test_it_says_that_it_cannot_make_a_certificate(fips: Mapping[str, str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serving(("--self-signed",), fips, log) as (chassis, _):
        chassis.wait_until(lambda: "no new serving certificate" in log.read_text(), PATIENCE)
    line = next(line for line in log.read_text().splitlines() if "no new serving certificate" in line)
    assert json.loads(line)["error"].endswith("serve it with --tls-cert and --tls-key")


@pytest.fixture
def store(files: tuple[str, ...], tmp_path: Path) -> Iterator[str]:
    """The address of a server of files over TLS, without the provider."""
    (tmp_path / "files").mkdir()
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "files"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
        http.socket = context.wrap_socket(http.socket, server_side=True)
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"https://127.0.0.1:{http.server_address[1]}"
        http.shutdown()


@pytest.mark.parametrize("right", [True, False], ids=["its digest", "another digest"])
def test_the_puller_downloads_and_compares_digests(
    right: bool, store: str, fips: Mapping[str, str], tmp_path: Path
) -> None:
    content = b"a model" * 1000
    (tmp_path / "files" / "model.bin").write_bytes(content)
    digest = hashlib.sha256(content if right else b"").hexdigest()
    spec = {"storageUri": f"{store}/model.bin", "sha256": digest}
    config = tmp_path / "config"
    config.mkdir()
    (config / "models.json").write_text(json.dumps([{"modelName": "m", "modelSpec": spec}]))
    models, port = tmp_path / "models", free_port()
    models.mkdir()
    command = [sys.executable, "-m", "puller", "--server=none", "--host=127.0.0.1", f"--port={port}"]
    command += [f"--config-dir={config}", f"--model-dir={models}"]
    log = tmp_path / "log"
    puller = Process("chassis-puller", command, log, {**fips, "SSL_CERT_FILE": str(tmp_path / "ca.crt")})
    try:
        if right:
            puller.wait_until(lambda: (models / "m" / "model.bin").is_file(), PATIENCE)
            assert (models / "m" / "model.bin").read_bytes() == content
        else:
            puller.wait_until(lambda: "DigestMismatch" in log.read_text(), PATIENCE)
            assert not (models / "m").exists()
    finally:
        puller.terminate()
