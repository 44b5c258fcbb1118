"""What /name does in modes that change nothing, on a dry run, and while the API server can't be asked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from prometheus_client import CollectorRegistry

from tests.steady import pass_over
from tests.webhook.worker_names.setting import CLUSTERS, PODS, Setting, worker
from webhook.admission.answer import Response
from webhook.admission.configuration import Config
from webhook.manifests.cluster import ManifestCluster
from webhook.worker_names import endpoint as names
from webhook.worker_names.cluster import Listed, LiveWorkers
from webhook.worker_names.endpoint import NameMetrics, Namer

# --- modes, exemptions, dry runs -----------------------------------------------------------


async def test_a_dry_run_gets_the_same_answers_and_writes_nothing(setting: Setting) -> None:
    await setting.cluster(1)
    shown = await setting.ask(dry_run=True)
    assert setting.leases() == []
    given = await setting.ask()
    assert len(given.audit["name"]) == len(shown.audit["name"])
    [before] = setting.leases()
    await setting.cluster(2)
    second = await setting.ask(dry_run=True)
    assert (await setting.ask(dry_run=True)).patch == second.patch
    assert setting.leases() == [before]
    await setting.cluster(1)
    await setting.fake.put(PODS, worker(name=given.audit["name"]))
    assert (await setting.refused(dry_run=True)).reason == "AlreadyExists"
    assert setting.leases() == [before]
    assert await setting.events() == []
    assert setting.count("given_total") == 1
    assert setting.count("refused_total", reason="exists") == 0


async def test_warn_and_audit_describe_the_change_without_making_it(setting: Setting) -> None:
    await setting.cluster(1)
    for mode, warned in (("warn", True), ("audit", False)):
        setting.configure(worker_names=f"mode: {mode}")
        response = await setting.ask()
        assert response.allowed
        assert response.patch == ()
        assert "would-name" in response.audit
        assert bool(response.warnings) is warned
    assert setting.leases() == []
    await setting.fake.put(PODS, worker(name="demo-small-worker-random"))
    for mode, warned in (("warn", True), ("audit", False)):
        setting.configure(worker_names=f"mode: {mode}")
        response = await setting.ask()
        assert response.allowed
        assert "would-refuse" in response.audit
        assert bool(response.warnings) is warned
    await setting.ask(dry_run=True)
    assert setting.count("would_refuse_total", reason="exists") == 2
    assert setting.count("refused_total", reason="exists") == 0


async def test_an_override_by_the_labels_of_the_namespace_holds(setting: Setting) -> None:
    await setting.cluster(1)
    override = "overrides: [{namespaceSelector: {matchLabels: {team: vision}}, modes: {worker-names: off}}]"
    setting.configure(webhook=override)
    for team, named in (("nlp", True), ("vision", False)):
        metadata = {"name": "ml", "labels": {"team": team}}
        facts = ManifestCluster([{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}])
        setting.namer = Namer(
            setting.workers, lambda: setting.policy, NameMetrics(CollectorRegistry()), facts=facts
        )
        assert bool((await setting.ask()).patch) is named


async def test_off_and_exempted_ask_nothing(setting: Setting) -> None:
    setting.configure(worker_names="mode: off")
    assert await setting.ask() == Response()
    setting.policy = Config()
    exempt = worker(annotations={"mlchassis.dev/exempt": "worker-names=benchmarks the operator"})
    assert await setting.ask(exempt) == Response(audit={"exempted": "benchmarks the operator"})
    assert setting.fake.requests == []


# --- the API server can't be asked -----------------------------------------------------------


class Silent(LiveWorkers):
    """An API server that never answers a list of pods."""

    async def pods(self, namespace: str, labels: Mapping[str, str], *, phases: bool = True) -> Listed:
        await asyncio.Event().wait()
        raise AssertionError


async def test_unavailable_refuses_so_that_the_operator_tries_again(setting: Setting) -> None:
    await setting.cluster(1)
    await setting.fake.forbid(PODS)
    status = await setting.refused()
    assert (status.code, status.reason) == (409, "Conflict")
    assert "the API server answered 403" in status.message
    assert PODS not in status.message, "the API server's message is only logged"
    assert setting.count("unavailable_total", answer="refuse") == 1


async def test_a_cluster_that_cannot_be_read_counts_as_unavailable(setting: Setting) -> None:
    await setting.cluster(1, minReplicas="many")
    status = await setting.refused()
    assert "cannot be read: spec.workerGroupSpecs[0].minReplicas: expected int, got str" in status.message
    assert setting.count("unavailable_total", answer="refuse") == 1


async def test_unavailable_may_allow_under_the_random_name(setting: Setting) -> None:
    setting.configure(worker_names="onUnavailable: allow")
    await setting.fake.forbid(CLUSTERS)
    response = await setting.ask()
    assert response.allowed
    assert response.patch == ()
    assert "keeps its random name" in response.warnings[0]
    assert setting.count("unavailable_total", answer="allow") == 1
    await setting.fake.forbid()
    await setting.cluster(0)
    assert not (await setting.ask()).allowed, "one too many is refused, where that can be found out"
    await setting.fake.forbid(CLUSTERS)
    setting.configure(worker_names="{onUnavailable: allow, mode: audit}")
    response = await setting.ask()
    assert not response.warnings
    assert "keeps its random name" in response.audit["not-named"]


async def test_an_answer_comes_before_the_deadline_though_the_api_server_is_silent(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "ANSWER_SECONDS", 10)
    await setting.cluster(1)
    setting = Setting(setting.fake, setting.api, Silent)
    loop = asyncio.get_running_loop()
    began = loop.time()
    asked = asyncio.gather(setting.refused(patience=70), setting.refused(patience=70))
    await asyncio.sleep(0.05)
    assert not asked.done()
    pass_over(60)
    first, second = await asked
    assert loop.time() - began < 70
    for status in (first, second):
        assert "did not answer in time" in status.message
