"""Generates the Mermaid diagrams of docs/architecture.md: the packages with their imports, and two reviews.

The imports come from the packages' docstrings, which a test compares with the code. The calls of a review are
traced: those between the functions in STEPS, in order.
"""

from __future__ import annotations

import ast
import asyncio
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, Final, cast

import orjson
from structlog.testing import capture_logs

from policies.core.facts import NoCluster
from policies.kube.json import Json

ROOTS: Final = ("webhook", "policies", "puller")
SOURCE: Final = Path(__file__).resolve().parents[1]
STEPS: Final = (
    "webhook.server.reviews:Reviews.answer",
    "webhook.server.endpoints:Decider.__call__",
    "webhook.server.journal:Journal.record",
    "webhook.admission.envelope:parse",
    "webhook.admission.engine:mutate",
    "webhook.admission.engine:validate",
    "webhook.admission.bounds:bounded",
    "webhook.admission.mutators:fold",
    "webhook.admission.projection:project",
    "webhook.admission.json_patch:diff",
    "webhook.admission.rules:findings",
    "webhook.admission.ratcheting:ratchet",
    "webhook.admission.messages:respond",
)
"""The functions in the diagram of a review; each is called in it."""
_POD_SPEC: Final[Json] = {
    "containers": [
        {
            "name": "api",
            "image": "registry.example/api:1",
            "ports": [{"containerPort": 8080}],
            "livenessProbe": {"exec": {"command": ["curl", "http://payments/health"]}},
        }
    ]
}
_LABELS: Final[Json] = {"app": "api"}
REVIEWED: Final[Mapping[str, Json]] = {
    "mutate": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "api"}, "spec": _POD_SPEC},
    "validate": {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "api"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": _LABELS},
            "template": {"metadata": {"labels": _LABELS}, "spec": _POD_SPEC},
        },
    },
}
"""The object reviewed at each endpoint; the second is refused, so that ratcheting is called."""


def with_diagrams(text: str) -> str:
    """A page with its diagrams generated again, each between its two markers."""
    for name, made in (("packages", packages), ("review", review)):
        before, begin, rest = text.partition(f"<!-- {name}: begin (make docs) -->\n")
        _, end, after = rest.partition(f"<!-- {name}: end -->")
        if end:
            text = f"{before}{begin}```mermaid\n{made()}```\n{end}{after}"
    return text


# --- packages --------------------------------------------------------------------------------------


def packages() -> str:
    """Packages as boxes, with an arrow for each import that no other arrows imply."""
    imports = imported()
    lines = ["flowchart TB"]
    for root in ROOTS:
        inside = [name for name in imports if name.startswith(f"{root}.")]
        lines.append(f"  subgraph {root}")
        lines += [f'    {name}["{name.partition(".")[2]}/"]' for name in inside]
        lines += [f"    {name} --> {other}" for name, other in _direct(imports, inside)]
        lines.append("  end")
    lines += [f"  {one} --> {other}" for one, other in _between(imports)]
    return "\n".join(lines) + "\n"


def imported() -> dict[str, set[str]]:
    """The imports of each package, by its name; those of a root are its own modules' imports."""
    found: dict[str, set[str]] = {}
    for root in ROOTS:
        for file in sorted((SOURCE / root).glob("*/__init__.py")):
            found[f"{root}.{file.parent.name}"] = _listed(file)
        found[root] = _listed(SOURCE / root / "__init__.py")
    return found


def _listed(file: Path) -> set[str]:
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    listed, _, _ = f"\n{docstring}\n".partition("\nImports: ")[2].partition(".\n")
    return set(re.findall(r"`([\w.]+)`", listed))


def _direct(imports: Mapping[str, set[str]], inside: Collection[str]) -> Iterator[tuple[str, str]]:
    reach = {name: _reachable(name, imports) for name in inside}
    for name in inside:
        near = imports[name] & set(inside)
        implied = {far for each in near for far in reach[each]}
        yield from ((name, other) for other in sorted(near - implied))


def _reachable(name: str, imports: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        more = imports.get(waiting.pop(), set()) - found
        found |= more
        waiting += more
    return found


def _between(imports: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """The imports from one root to another."""
    arrows = {(_root(name), _root(other)) for name, others in imports.items() for other in others}
    return sorted((one, other) for one, other in arrows if one != other)


def _root(name: str) -> str:
    return name.partition(".")[0]


# --- a review --------------------------------------------------------------------------------------


def review() -> str:
    """The calls between modules in a review at each endpoint."""
    lines = ["sequenceDiagram", "  participant caller as API server"]
    calls = {endpoint: traced(endpoint, obj) for endpoint, obj in REVIEWED.items()}
    modules = dict.fromkeys(_module(step) for found in calls.values() for _, step in found)
    lines += [f"  participant {name.rpartition('.')[2]} as {name.partition('.')[2]}" for name in modules]
    for endpoint, found in calls.items():
        lines.append(f"  note over caller: /{endpoint}, a {REVIEWED[endpoint]['kind']}")
        for caller, step in found:
            source = "caller" if caller is None else _module(caller).rpartition(".")[2]
            lines.append(f"  {source}->>{_module(step).rpartition('.')[2]}: {step.partition(':')[2]}")
    return "\n".join(lines) + "\n"


def _module(step: str) -> str:
    return step.partition(":")[0]


def traced(endpoint: str, obj: Json) -> list[tuple[str | None, str]]:
    """The calls between the functions in STEPS during a review, as caller and callee, each once."""
    answer = _answering(endpoint, obj)
    found: dict[tuple[str | None, str], None] = {}

    def called(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (step := _step(frame)) in STEPS:
            found[next(_above(frame), None), step] = None

    async def reviewed() -> None:
        sys.setprofile(called)
        try:
            with capture_logs():
                await answer
        finally:
            sys.setprofile(None)

    asyncio.run(reviewed())
    return [*found]


def _step(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__', '')}:{frame.f_code.co_qualname}"


def _above(frame: FrameType) -> Iterator[str]:
    """The callers of this frame that are in STEPS, the nearest first."""
    above = frame.f_back
    while above is not None:
        if (step := _step(above)) in STEPS:
            yield step
        above = above.f_back


def _answering(endpoint: str, obj: Json) -> Any:
    """The server's answer to the creation of an object."""
    from webhook.admission.engine import mutate, validate
    from webhook.config.load import load
    from webhook.config.source import LivePolicy
    from webhook.server.endpoints import Decider, on_error
    from webhook.server.journal import Journal
    from webhook.server.metrics import Metrics
    from webhook.server.reviews import Reviews
    from webhook.server.shared_memory import SharedRecords

    policy, metrics = cast(LivePolicy, SimpleNamespace(config=load({}))), Metrics()
    decide = {"mutate": mutate, "validate": validate}[endpoint]
    decider = Decider(endpoint, policy, NoCluster(), decide, None)
    reviews = Reviews(
        {endpoint: decider},
        on_error(policy),
        metrics,
        Journal(metrics),
        SharedRecords.unshared(),
    )
    group, _, version = obj["apiVersion"].rpartition("/")
    request = {
        "uid": "00000000-0000-0000-0000-000000000000",
        "kind": {"group": group, "version": version, "kind": obj["kind"]},
        "operation": "CREATE",
        "namespace": "default",
        "object": obj,
    }
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return reviews.answer(endpoint, orjson.dumps(body), float("inf"))
