"""`make demo`: the examples go through the real HTTPS webhook, as an API server would send them.

It starts `chassis serve` with a certificate of its own making on 127.0.0.1, the examples standing for what
is known of a cluster, posts an AdmissionReview per object to /mutate and /validate (and, for a workload, one
for the pod that its controller would create), and shows diffs, warnings and refusals. No cluster is needed
or touched.
"""

from __future__ import annotations

import base64
import contextlib
import difflib
import json
import re
import ssl
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import jsonpatch
from rich.console import Console
from rich.text import Text

from policies.core.annotations import CHANGED
from policies.core.pod_templates import pod_templates
from policies.core.workloads import known_workloads
from policies.kube.group_kinds import POD, kind_of
from policies.kube.json import Json
from policies.kube.metadata import annotations_of
from policies.kube.names import plural
from webhook.cli.output.yaml import dump, for_reading
from webhook.manifests.files import Document, read
from webhook.server.pki import issue

EXAMPLES = Path(__file__).parent
MUTATED = {"Pod", "Job", "CronJob", "JobSet"}
TABLE = {workload.group_kind: workload for workload in known_workloads()}


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
        command = [sys.executable, "-m", "webhook.cli", "serve", "--host=127.0.0.1", "--port=0"]
        command += [f"--facts={EXAMPLES}", f"--tls-cert={certificate}", f"--tls-key={key}"]
        command += ["--log-format=json", "--drain-grace=0"]
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
    """The port, once the webhook listens there with its certificate in force."""
    printed, events = [], {}
    for line in process.stderr or ():
        printed.append(line)
        with contextlib.suppress(json.JSONDecodeError):
            record = json.loads(line)
            events[record.get("event")] = record
            if events.keys() >= {"listening", "certificate in force"}:
                return int(events["listening"]["port"])
    raise SystemExit(f"the webhook did not start:\n{''.join(printed)}")


@dataclass
class Outcome:
    """What became of the objects of one example."""

    changed: bool = False
    warned: list[str] = field(default_factory=list)
    """Ids of the rules that warned."""
    refused: list[str] = field(default_factory=list)
    """Ids of the rules that refused."""

    def __str__(self) -> str:
        said = ["changed"] if self.changed else []
        for verb, rules in (("warned", self.warned), ("refused", self.refused)):
            if rules:
                said.append(f"{verb}: {', '.join(dict.fromkeys(rules))}")
        return ", ".join(said) or "admitted unchanged"

    @property
    def style(self) -> str:
        return "red" if self.refused else "yellow" if self.warned else "green"


def main() -> int:
    """Show every example, or those whose file names contain one of the arguments."""
    console = Console(highlight=False, soft_wrap=True)
    wanted = sys.argv[1:]
    files = [f for f in sorted(EXAMPLES.glob("*.yaml")) if not wanted or any(w in f.name for w in wanted)]
    if not files:
        print(f"No example's name contains {' or '.join(wanted)}.", file=sys.stderr)
        return 2
    outcomes: dict[str, Outcome] = {}
    with serving() as webhook:
        for file in files:
            console.rule(f"[bold]{file.name}", align="left")
            _introduce(console, file)
            outcome = outcomes[file.name] = Outcome()
            for document in read([str(file)]):
                _show(console, webhook, document, outcome)
            console.print()
    _summarise(console, outcomes)
    return 0


def _introduce(console: Console, file: Path) -> None:
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        console.print(Text(line.lstrip("# "), style="italic"))
    console.print()


def _summarise(console: Console, outcomes: dict[str, Outcome]) -> None:
    """Print one line for each example, and what to try next."""
    console.rule("[bold]In short", align="left")
    width = max(map(len, outcomes), default=0) + 2
    for name, outcome in outcomes.items():
        console.print(Text(f"{name:{width}}").append(str(outcome), style=outcome.style))
    console.print()
    refused = sum(bool(outcome.refused) for outcome in outcomes.values())
    changed = sum(outcome.changed for outcome in outcomes.values())
    console.print(
        f"{plural(len(outcomes), 'file')} reviewed: {changed} changed, {refused} with a refusal. "
        "What to try next:"
    )
    console.print("  make demo ARGS=torchserve               only one of them", style="dim")
    console.print("  .venv/bin/chassis review FILE.yaml      the same decisions on your files", style="dim")
    console.print("  .venv/bin/chassis explain liveness-external-dependency", style="dim")
    console.print("  docs/install.md                         install it, observing only", style="dim")


def _show(console: Console, webhook: Webhook, document: Document, outcome: Outcome) -> None:
    title = f"{document.obj['kind']} {document.name}"
    obj = document.obj
    warnings: list[str] = []
    if obj["kind"] in MUTATED:
        obj, warnings = _mutated(webhook, document, obj)
    response = webhook.review("/validate", document, obj)
    warnings += response.get("warnings", [])
    if not response["allowed"]:
        message = response["status"]["message"]
        outcome.refused += re.findall(r"^\d+\. ([a-z-]+)$", message, re.MULTILINE)
        console.print(f"✗ {title}: refused", style="bold red")
        console.print(Text(message, style="red"))
        return
    console.print(f"✓ {title}: admitted", style="bold green")
    outcome.changed |= _diff(console, document.obj, obj, title)
    for template in pod_templates(document.obj, TABLE):
        if template.workload is not None and template.workload.projected:
            made, _ = _mutated(webhook, document, template.pod)
            outcome.changed |= _diff(console, template.pod, made, f"a pod of {template.path}")
    # Operators make some pods only in a cluster: warnings list their changes.
    outcome.changed |= any(re.match(r"[a-z-]+ will add ", warning) for warning in warnings)
    outcome.warned += [found[1] for warning in warnings if (found := re.match(r"([a-z-]+): ", warning))]
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
            dump(for_reading(_shown(after), before)).splitlines(),
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
    """A pod without the owner reference that stands for its controller, and without the annotation that says
    what the warnings say."""
    if kind_of(obj) != POD:
        return obj
    metadata = {k: v for k, v in obj["metadata"].items() if k not in ("ownerReferences", "annotations")}
    own = {k: v for k, v in annotations_of(obj).items() if k != CHANGED}
    return obj | {"metadata": metadata | ({"annotations": own} if own else {})}


if __name__ == "__main__":
    sys.exit(main())
