"""`-o html`: the content of the page, the escaping of users' words, and its parts."""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from policies.core.facts import NoCluster
from policies.core.finding import Profile
from policies.kube.json import Json
from policies.kube.names import shortened
from tests.manifests import manifest
from tests.webhook.cli.scanned import DEPLOYMENTS, RULE, Chassis, InCluster, deployment
from tests.webhook.kube.apiserver import FakeApiServer
from webhook.cli.output.html import page
from webhook.cli.output.html.card import MAX_ROW_LENGTH, card
from webhook.cli.output.html.summary import Profiles, ReviewStatus, status_of
from webhook.cli.output.html.timeline import Timeline, timelines
from webhook.cli.output.yaml import dump, for_reading
from webhook.cli.reviewed import Reviewed, Subject, review_documents
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import Document, read
from webhook.manifests.positions import Lines, Origin

HOSTILE = "</script><script>document.title='owned'</script><!--\"'&"
HAZARDS = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: bad
  namespace: shop
spec:
  replicas: 2
  selector: {matchLabels: {app: bad}}
  template:
    metadata: {labels: {app: bad}}
    spec:
      containers:
      - name: main
        image: registry.example/recommender:7
        ports: [{containerPort: 80}]
        livenessProbe:
          exec:
            # asks another team
            command: [curl, "http://payments/health"]
          timeoutSeconds: 5
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: llm, namespace: ml}
spec:
  replicas: 3
  selector: {matchLabels: {app: llm}}
  template:
    metadata: {labels: {app: llm}, annotations: {mlchassis.dev/liveness: endpoint}}
    spec:
      containers:
      - name: server
        image: vllm/vllm-openai:v0.11.0
        args: [--model, meta-llama/Llama-3.1-70B]
        ports: [{containerPort: 8000}]
        resources: {limits: {nvidia.com/gpu: 2}}
"""


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    file = tmp_path / "hazards.yaml"
    file.write_text(HAZARDS)
    return file


class Page(HTMLParser):
    """Elements, the texts between them, and the JSON blocks."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.cards: dict[str, Json] = {}
        self._row = ""
        self._block = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if attributes.get("class") == "w":
            self._row = attributes["id"] or ""
        self._block = tag == "script" and attributes.get("type") == "application/json"

    def handle_data(self, data: str) -> None:
        if self._block:
            self.cards[self._row] = json.loads(data)
            self._block = False
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def ids(self) -> list[str]:
        return [attributes["id"] or "" for _, attributes in self.tags if "id" in attributes]


def reviewed(*documents: Document, **policy: str) -> tuple[list[Reviewed], Subject]:
    config = load({f"{name}.yaml": text for name, text in policy.items()})
    known = ManifestCluster([document.obj for document in documents])
    return list(review_documents(documents, config, known)), Subject("x", "y", config, known, 0)


# --- its content -----------------------------------------------------------------------------------


def test_the_head_counts_and_names_the_policy(chassis: Chassis, manifests: Path) -> None:
    made = Page(chassis("review", manifests, "-o", "html").out)
    assert "2 objects" in made.text
    assert "Not read" not in made.text
    head = f"Source {manifests} Policy the built-in one Digest {load({}).digest} Profile standard"
    assert head in made.text
    assert "✕ 1 refused" in made.text
    assert f"{RULE} 1 refuse" in made.text
    assert len(made.ids()) == len(set(made.ids()))
    (manifests.parent / "broken.yaml").write_text("a: [")
    shown = Page(chassis("review", manifests.parent, "-o", "html").out).text
    assert all(part in shown for part in ("2 objects", "Not read", "broken.yaml"))


def test_the_plan_is_what_each_profile_decides(chassis: Chassis, manifests: Path) -> None:
    reviews, subject = reviewed(*read([str(manifests)]))
    by_profile = [Profiles(subject).decide(review) for review in reviews]
    for profile in Profile:
        alone = load({"rules.yaml": f"profile: {profile}"})
        known = ManifestCluster([review.document.obj for review in reviews])
        for review, decided in zip(reviews, by_profile, strict=True):
            (expected,) = review_documents([review.document], alone, known)
            assert decided[profile] == expected.decision
    assert [status_of(each[Profile.OBSERVE]) for each in by_profile] == [
        ReviewStatus.CLEAN,
        ReviewStatus.CLEAN,
    ]
    assert status_of(by_profile[0][Profile.STANDARD]) is ReviewStatus.REFUSED
    text = chassis("review", manifests, "-o", "html").out
    rows = re.findall(r'<tr><th scope="row">(observe|standard|strict)', text)
    assert rows == ["observe", "standard", "strict"]


def test_a_card_marks_the_field_in_the_file(chassis: Chassis, manifests: Path) -> None:
    made = Page(chassis("review", manifests, "-o", "html").out)
    cards = made.cards.values()
    found = ((card, finding) for card in cards for finding in card.get("findings", ()))
    (shown, finding) = next(pair for pair in found if pair[1]["rule"] == RULE)
    written = HAZARDS.splitlines()
    assert finding["line"] == 1 + written.index('            command: [curl, "http://payments/health"]')
    assert finding["marked"] == [finding["line"]] * 2
    assert finding["rows"] == written[finding["line"] - 3 : finding["line"] + 2]
    assert yaml.safe_load(shown["exempt"]["yaml"]) == {
        "metadata": {"annotations": {"mlchassis.dev/exempt": f"{RULE}=<why this is safe here>"}}
    }


def test_a_diff_is_the_object_before_and_after(manifests: Path) -> None:
    for review in reviewed(*read([str(manifests), "examples"]))[0]:
        rows = card(review, review.decision, ()).get("diff", [])
        added = [text for sign, text, _ in rows if sign == "+"]
        shown = for_reading(review.final, review.document.obj)
        before, after = (dump(each).splitlines() for each in (review.document.obj, shown))
        assert len(rows) < 200, "a program is cut"
        assert [line for line in after if line not in added] == [
            line for line in before if line not in added
        ], review.title
        assert {*added} <= {shortened(line, MAX_ROW_LENGTH) for line in after}
        assert bool(rows) <= bool(review.mutations)
        if review.final == review.document.obj:  # an operator makes the changed pods
            assert not rows
            continue
        reasons = " ".join(why for _, _, why in rows)
        for reason in (each for change in review.decision.changes for each in change.reasons):
            assert f"{reason.policy}: {reason.why}" in reasons, (review.title, reason)


# --- the timeline ------------------------------------------------------------------------------------


def test_a_timeline_is_the_arithmetic_of_the_probes(manifests: Path) -> None:
    reviews, subject = reviewed(*read([str(manifests)]))
    (server,) = timelines(subject.pods(reviews[1]))
    probes = reviews[1].final["spec"]["template"]["spec"]["containers"][0]
    assert server.expected == 60 + -(-140 * 10**9 // (64 << 20))
    assert server.reason == "140 GB at 64 MiB/s"
    startup = probes["startupProbe"]
    assert server.startup == startup["failureThreshold"] * startup["periodSeconds"]
    assert (server.readiness, server.liveness, server.liveness_only) == (30, 120, None)
    assert not server.kills_the_start
    assert not server.restarts_first
    assert server.sentences[1].startswith("The kubelet kills it if it hasn't answered ")


def test_a_probe_that_kills_a_start_is_shown() -> None:
    hasty = Timeline("a", 600, "so", None, liveness_only=30, readiness=30, liveness=30)
    assert hasty.kills_the_start
    assert hasty.restarts_first
    assert "That is before it is expected to serve, so it restarts in a loop." in hasty.sentences
    silent = Timeline("a", None, "", None, None, None, None)
    assert not silent.kills_the_start
    assert "No probe ends a start that hangs." in silent.sentences


# --- whose words they are -----------------------------------------------------------------------------


def test_nothing_that_a_user_wrote_is_markup(chassis: Chassis, tmp_path: Path) -> None:
    labels = {"app": HOSTILE}
    probe = {"exec": {"command": ["curl", f"http://payments/{HOSTILE}"]}}
    container = {"name": HOSTILE, "image": HOSTILE, "ports": [{"containerPort": 80}], "livenessProbe": probe}
    exempt = {"mlchassis.dev/exempt": f"liveness-missing={HOSTILE}"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 2, "template": template}
    obj = manifest("Deployment", HOSTILE, spec, namespace=HOSTILE, annotations=exempt)
    (tmp_path / "x.json").write_text(json.dumps(obj))
    (tmp_path / "y.json").write_text(json.dumps({**obj, "kind": HOSTILE}))
    text = chassis("review", tmp_path, "-o", "html").out
    made = Page(text)
    scripts = [attributes for tag, attributes in made.tags if tag == "script"]
    assert scripts.count({}) == 1, "its own"
    assert all(attributes in ({}, {"type": "application/json"}) for attributes in scripts)
    assert text.count("</script>") == len(scripts)
    assert any(HOSTILE in (value or "") for _, attributes in made.tags for value in attributes.values())
    assert any(HOSTILE in finding["message"] for each in made.cards.values() for finding in each["findings"])


def test_its_own_policy_lets_nothing_else_run(chassis: Chassis, manifests: Path) -> None:
    made = Page(chassis("review", manifests, "-o", "html").out)
    policy = next(a["content"] for tag, a in made.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert not any(name in a for _, a in made.tags for name in ("src", "style", "onclick", "srcset"))
    assert all((a.get("href") or "#").startswith("#") for _, a in made.tags), "no link leads out of the file"


# --- how it is written --------------------------------------------------------------------------------


def test_objects_are_let_go_as_they_come(manifests: Path) -> None:
    """No more than one review is alive while the next one is made."""
    (document, _) = read([str(manifests)])
    alive: list[Any] = []

    def stream() -> Iterator[Reviewed]:
        for number in range(20):
            obj = Tracked({**document.obj, "metadata": {"name": f"d{number}", "namespace": "a"}})
            assert sum(ref() is not None for ref in alive) <= 1
            alive.append(weakref.ref(obj))
            (review,) = review_documents([Document("f", number, obj)], load({}), NoCluster())
            del obj
            yield review
            del review

    text = "".join(page.pieces(stream(), Subject("x", "y", load({}), NoCluster(), 0)))
    assert text.count('class="w"') == 20


class Tracked(dict[str, Any]):
    """A map that can be weakly referenced."""


# --- a cluster -----------------------------------------------------------------------------------------


async def test_an_exemption_has_an_age(fake: FakeApiServer, scan: InCluster) -> None:
    annotations = {"mlchassis.dev/exempt": f"{RULE}=known"}
    fields: Json = {"f:metadata": {"f:annotations": {"f:mlchassis.dev/exempt": {}}}}
    managed = [
        {"manager": "a", "time": "2020-02-01T00:00:00Z", "fieldsV1": fields},
        {"manager": "b", "time": "2021-01-01T00:00:00Z", "fieldsV1": {"f:spec": {}}},
    ]
    made = deployment(
        "bad", annotations=annotations, managedFields=managed, creationTimestamp="2020-01-01T00:00:00Z"
    )
    await fake.put(DEPLOYMENTS, made)
    shown = Page((await scan("-o", "html")).out)
    assert f"Deployment ml/bad {RULE} known" in shown.text
    times = [a["datetime"] for tag, a in shown.tags if tag == "time"]
    assert times[-2:] == ["2020-01-01T00:00:00Z", "2020-02-01T00:00:00Z"]
    assert "kubectl" not in str(shown.cards), "what is exempted needs no exemption"


async def test_a_running_object_is_exempted_by_a_command(fake: FakeApiServer, scan: InCluster) -> None:
    await fake.put(DEPLOYMENTS, deployment("bad", annotations={"mlchassis.dev/exempt": "tcp-probe=x"}))
    shown = Page((await scan("-o", "html")).out)
    (only,) = shown.cards.values()
    assert only["exempt"]["command"] == (
        "kubectl annotate deployment.apps/bad "
        f"'mlchassis.dev/exempt=tcp-probe=x; {RULE}=<why this is safe here>' -n ml --overwrite"
    )


async def test_what_may_not_be_read_is_on_the_page(fake: FakeApiServer, scan: InCluster) -> None:
    await fake.put(DEPLOYMENTS, deployment("bad"))
    assert "Not read" not in Page((await scan("-o", "html")).out).text
    await fake.forbid("/apis/batch/v1/namespaces/ml/jobs")
    shown = Page((await scan("-o", "html")).out).text
    assert "not scanned, because you may not list them in namespace ml: Job.batch" in shown


# --- marks -------------------------------------------------------------------------------------------


def test_lines_are_those_of_the_text() -> None:
    text = (
        "a: 1\n---\nkind: List\nitems:\n- kind: X\n  spec:\n    list:\n"
        "    - name: one\n      deep: {b: 2}\n\n    - name: two\n"
    )
    origin = Origin(text, 1, ("items", "0"))
    assert origin.lines(()) == Lines(5, 11, exact=True)
    assert origin.lines(("spec", "list", "one", "deep", "b")) == Lines(9, 9, exact=True)
    assert origin.lines(("spec", "list", "one")) == Lines(8, 9, exact=True)
    assert origin.lines(("spec", "list", "1")) == Lines(11, 11, exact=True)
    assert origin.lines(("spec", "list", "two", "missing")) == Lines(11, 11, exact=False)
    assert Origin(text, 0).lines(("a",)) == Lines(1, 1, exact=True)
