"""`make demo`: the examples go through the real HTTPS webhook, as an API server would send them.

It starts `chassis serve` with a certificate of its own making on 127.0.0.1, the examples standing for
what is known of a cluster, posts an AdmissionReview
per object to /mutate and /validate (and, for a Deployment or StatefulSet, one for the pod that its
controller would create), and shows diffs, warnings and refusals. No cluster is needed or touched.
"""

from __future__ import annotations

import base64
import contextlib
import difflib
import json
import ssl
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import jsonpatch
from rich.console import Console
from rich.text import Text

from policies.base import Json
from policies.kinds import POD, WORKLOADS
from policies.objects import kind_of, pod_templates
from webhook.offline import Document, read
from webhook.pki import issue
from webhook.report import dump

EXAMPLES = Path(__file__).parent
MUTATED = {"Pod", "Job", "CronJob", "JobSet"}
TABLE = {workload.gk: workload for workload in WORKLOADS}


@dataclass
class Webhook:
    """A client of the webhook that speaks as the API server does."""

    connection: HTTPSConnection

    def review(self, path: str, document: Document, obj: Json) -> Json:
        request = {
            "uid": str(uuid.uuid4()),
            "kind": dict(zip(("group", "version", "kind"), _gvk(obj), strict=True)),
            "operation": "CREATE",
            "namespace": document.namespace or "default",
            "dryRun": True,
            "object": obj,
        }
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        self.connection.request(
            "POST", f"{path}?timeout=5s", json.dumps(body), {"Content-Type": "application/json"}
        )
        answer = json.loads(self.connection.getresponse().read())
        response: Json = answer["response"]
        assert response["uid"] == request["uid"]
        return response


def _gvk(obj: Json) -> tuple[str, str, str]:
    kind = kind_of(obj)
    return kind.group, obj["apiVersion"].rpartition("/")[2], kind.kind


@contextlib.contextmanager
def serving() -> Iterator[Webhook]:
    """`chassis serve` on a free port, and a client that verifies its certificate."""
    with tempfile.TemporaryDirectory() as directory:
        bundle = issue(["localhost", "127.0.0.1"], datetime.now(UTC))
        certificate, key = Path(directory, "tls.crt"), Path(directory, "tls.key")
        certificate.write_bytes(bundle.certificate)
        key.write_bytes(bundle.key)
        command = [sys.executable, "-m", "webhook.cli", "serve", "--host", "127.0.0.1", "--port", "0"]
        command += [
            "--facts",
            str(EXAMPLES),
            "--tls-cert",
            str(certificate),
            "--tls-key",
            str(key),
            "--log-format",
            "json",
        ]
        with subprocess.Popen(  # noqa: S603  # our own module, fixed arguments
            command, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                port = _port(process)
                context = ssl.create_default_context(cadata=bundle.ca.decode())
                yield Webhook(HTTPSConnection("localhost", port, context=context, timeout=10))
            finally:
                process.terminate()


def _port(process: subprocess.Popen[str]) -> int:
    said = []
    for line in process.stderr or ():
        said.append(line)
        with contextlib.suppress(json.JSONDecodeError):
            record = json.loads(line)
            if record.get("event") == "listening":
                return int(record["port"])
    raise SystemExit(f"the webhook did not start:\n{''.join(said)}")


def main() -> int:
    """Show every example, or those whose file names are given as arguments."""
    console = Console(highlight=False, soft_wrap=True)
    wanted = sys.argv[1:]
    files = [f for f in sorted(EXAMPLES.glob("*.yaml")) if not wanted or any(w in f.name for w in wanted)]
    counts = dict.fromkeys(("objects", "changed", "warned", "refused"), 0)
    with serving() as webhook:
        for file in files:
            console.rule(f"[bold]{file.name}", align="left")
            _introduce(console, file)
            for document in read([str(file)]):
                _show(console, webhook, document, counts)
    console.rule(align="left")
    console.print(
        "{objects} objects: {changed} changed, {warned} with warnings, {refused} refused".format(**counts),
        style="bold",
    )
    console.print("The same decisions without a server: chassis review examples/", style="dim")
    return 0


def _introduce(console: Console, file: Path) -> None:
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        console.print(Text(line.lstrip("# "), style="italic"))


def _show(console: Console, webhook: Webhook, document: Document, counts: dict[str, int]) -> None:
    counts["objects"] += 1
    title = f"{document.obj['kind']} {document.name}"
    obj = document.obj
    warnings: list[str] = []
    if obj["kind"] in MUTATED:
        obj, warnings = _mutated(webhook, document, obj)
    response = webhook.review("/validate", document, obj)
    warnings += response.get("warnings", [])
    if not response["allowed"]:
        counts["refused"] += 1
        console.print(f"✗ {title}: refused", style="bold red")
        console.print(Text(response["status"]["message"], style="red"))
        return
    console.print(f"✓ {title}: admitted", style="bold green")
    changed = _diff(console, document.obj, obj, title)
    for template in pod_templates(document.obj, TABLE):
        if template.workload is not None and template.workload.projected:
            made, _ = _mutated(webhook, document, template.pod)
            changed |= _diff(console, template.pod, made, f"a pod of {template.path}")
    counts["changed"] += changed
    counts["warned"] += bool(warnings)
    for warning in warnings:
        console.print(Text(f"Warning: {warning}", style="yellow"))


def _mutated(webhook: Webhook, document: Document, obj: Json) -> tuple[Json, list[str]]:
    response = webhook.review("/mutate", document, obj)
    if "patch" not in response:
        return obj, response.get("warnings", [])
    patched: Json = jsonpatch.apply_patch(obj, json.loads(base64.b64decode(response["patch"])))
    return patched, response.get("warnings", [])


def _diff(console: Console, before: Json, after: Json, title: str) -> bool:
    lines = list(
        difflib.unified_diff(
            dump(_shown(before)).splitlines(),
            dump(_shown(after)).splitlines(),
            title,
            f"{title} (mutated)",
            lineterm="",
            n=2,
        )
    )
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for line in lines:
        console.print(Text(line, style="bold" if line[:3] in ("+++", "---") else styles.get(line[:1], "")))
    return bool(lines)


def _shown(obj: Json) -> Any:
    """A pod without the owner reference that stands for its controller."""
    if kind_of(obj) != POD:
        return obj
    return obj | {"metadata": {k: v for k, v in obj["metadata"].items() if k != "ownerReferences"}}


if __name__ == "__main__":
    sys.exit(main())
