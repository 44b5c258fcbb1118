"""The caBundle: the times of additions and removals, and two replicas in the middle of a change of CA."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from policies.core.annotations import CA_BUNDLE_CHANGED
from policies.kube.json import Json
from tests.webhook.kube.apiserver import FakeApiServer, turns, until
from webhook.kube import reflector
from webhook.kube.api import ApiServer
from webhook.kube.calls import ApiError
from webhook.server import ca_bundle, pki
from webhook.server.ca_bundle import LAG, MAX_RETAINED, RETENTION, Registration, ignoring, update_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
VALIDATING = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
A, B, C = (pki.issue(["a.svc"], NOW).ca for _ in range(3))
NAMES = {A: "A", B: "B", C: "C"}


def configuration(*bundles: bytes, changed: datetime | str | None = None) -> Json:
    """A configuration with an entry for each caBundle."""
    stamp = f"{changed:{ca_bundle.TIME}}" if isinstance(changed, datetime) else changed
    return {
        "metadata": {
            "name": "mlchassis",
            "resourceVersion": "7",
            "annotations": {CA_BUNDLE_CHANGED: stamp} if stamp else {},
        },
        "webhooks": [
            {
                "name": f"entry-{number}",
                "clientConfig": {
                    "service": {"name": "mlchassis"},
                    **({"caBundle": base64.b64encode(bundle).decode()} if bundle else {}),
                },
            }
            for number, bundle in enumerate(bundles)
        ],
    }


def after(configuration: Json, patch: Json | None) -> Json:
    """The configuration as the API server makes it of the patch."""
    if patch is None:
        return configuration
    assert patch["metadata"]["resourceVersion"] == configuration["metadata"]["resourceVersion"]
    annotations = configuration["metadata"]["annotations"] | patch["metadata"].get("annotations", {})
    changes = {entry["name"]: entry["clientConfig"] for entry in patch.get("webhooks", ())}
    return {
        "metadata": {
            **configuration["metadata"],
            "annotations": {key: value for key, value in annotations.items() if value is not None},
        },
        "webhooks": [
            {**entry, "clientConfig": entry["clientConfig"] | changes.get(entry["name"], {})}
            for entry in configuration["webhooks"]
        ],
    }


def trusted(configuration: Json) -> list[str]:
    """The CAs of each entry, newest first."""
    bundles = (entry["clientConfig"].get("caBundle", "") for entry in configuration["webhooks"])
    return ["".join(NAMES[ca] for ca in pki.certificates_in(base64.b64decode(it))) for it in bundles]


def stamp(configuration: Json) -> str | None:
    found = configuration["metadata"]["annotations"].get(CA_BUNDLE_CHANGED)
    assert found is None or isinstance(found, str)
    return found


def test_entries_that_fail_closed_are_opened_by_name() -> None:
    entries = [
        {"name": "a", "failurePolicy": "Fail"},
        {"name": "b", "failurePolicy": "Ignore"},
        {"name": "c"},
    ]
    assert ignoring({"webhooks": entries}) == [
        {"name": "a", "failurePolicy": "Ignore"},
        {"name": "c", "failurePolicy": "Ignore"},
    ]
    assert ignoring({}) == []


# --- one look ------------------------------------------------------------------------------------------


def look(found: Json, wanted: bytes, now: datetime = NOW) -> tuple[list[str], str | None, bool]:
    """The CAs of each entry and the annotation after a look, and whether the wanted CA is in force."""
    trust = update_of(found, wanted, now)
    written = after(found, trust.patch)
    again = update_of(written, wanted, now)
    assert again.patch is None, "one write is enough"
    assert again.in_force(now) == trust.in_force(now)
    return trusted(written), stamp(written), trust.in_force(now)


def test_the_first_ca_is_in_force_at_once() -> None:
    assert look(configuration(b"", b""), A) == (["A", "A"], None, True)


def test_a_correct_bundle_is_not_written() -> None:
    assert update_of(configuration(A, A), A, NOW).patch is None
    assert update_of(configuration(A + B), B + A, NOW).patch is None
    noted = configuration(A + B, A + B, changed=NOW)
    assert update_of(noted, B + A, NOW + LAG).patch is None
    assert update_of(noted, A, NOW + LAG).patch is None
    assert update_of(noted, B, NOW + LAG).patch is None


def test_a_ca_that_is_written_otherwise_is_the_same_one() -> None:
    lines = A.decode().splitlines()
    folded = "\r\n".join(
        [lines[0], *("".join(lines[1:-1])[at : at + 76] for at in range(0, 2000, 76)), lines[-1]]
    )
    assert update_of(configuration(b"# ours\n" + folded.encode()), A, NOW).patch is None


def test_a_new_ca_is_added_to_the_old_one_and_is_in_force_after_the_lag() -> None:
    written, noted, in_force = look(configuration(A, A), B)
    assert (written, in_force) == (["BA", "BA"], False)
    assert noted == "2026-01-01T00:00:00Z"
    found = configuration(B + A, B + A, changed=NOW)
    assert not update_of(found, B, NOW + LAG - timedelta(seconds=1)).in_force(
        NOW + LAG - timedelta(seconds=1)
    )
    assert update_of(found, B, NOW + LAG).in_force(NOW + LAG)
    assert update_of(found, B, NOW + LAG).patch is None


def test_an_unused_ca_goes_after_its_retention() -> None:
    found = configuration(B + A, B + A, changed=NOW)
    late = NOW + RETENTION
    assert look(found, B, late - timedelta(seconds=1))[0] == ["BA", "BA"]
    assert look(found, B, late) == (["B", "B"], None, True)
    assert look(found, B + A, late)[:2] == (["BA", "BA"], None), "a time that is over is not kept"


def test_a_change_after_a_change_keeps_all_three() -> None:
    found = configuration(B + A, changed=NOW)
    later = NOW + RETENTION + timedelta(days=1)
    assert look(found, C, later) == (["CBA"], f"{later:{ca_bundle.TIME}}", False)


def test_a_ca_that_somebody_else_put_there_is_kept_for_the_same_time() -> None:
    assert look(configuration(A + B), A) == (["AB"], "2026-01-01T00:00:00Z", False)


def test_a_wiped_bundle_is_back_and_in_force_at_once() -> None:
    assert look(configuration(b"", A), A) == (["A", "A"], None, True)
    assert look(configuration(b"", b"", changed=NOW), A, NOW + LAG)[::2] == (["A", "A"], True)


def test_a_ca_that_has_ended_goes_when_another_comes() -> None:
    assert look(configuration(A), B, NOW + pki.CA_LIFETIME)[0] == ["B"]


def test_other_replicas_cas_are_bounded_and_the_newest_stay() -> None:
    several = [pki.issue(["a.svc"], NOW).ca for _ in range(MAX_RETAINED + 3)]
    trust = update_of(configuration(b"".join(several)), A, NOW)
    assert trust.patch is not None
    written = base64.b64decode(trust.patch["webhooks"][0]["clientConfig"]["caBundle"])
    assert pki.certificates_in(written) == (A, *several[:MAX_RETAINED])


@pytest.mark.parametrize("noted", ["", "yesterday", "2026-01-01", "2036-01-01T00:00:00Z", "\u0661"])
def test_an_invalid_time_is_written_again(noted: str) -> None:
    assert look(configuration(B + A, changed=noted), B)[1] == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize("bundle", ["%", "Y2E=", None, 7])
def test_a_bundle_that_can_t_be_read_is_none(bundle: object) -> None:
    found = configuration(b"")
    found["webhooks"][0]["clientConfig"]["caBundle"] = bundle
    assert look(found, A) == (["A"], None, True)


# --- over HTTP -----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(reflector, "MAX_PAUSE", 0.05)
    monkeypatch.setattr(ca_bundle, "RETRY_SECONDS", 0.01)


@asynccontextmanager
async def background(registration: Registration) -> AsyncIterator[None]:
    task = asyncio.create_task(registration.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def using(cas: bytes) -> Callable[[], Awaitable[bytes]]:
    async def used() -> bytes:
        return cas

    return used


def bundles(fake: FakeApiServer, path: str) -> list[str]:
    return trusted(fake.objects[f"{path}/mlchassis"])


async def test_the_ca_bundle_is_written_and_kept(fake: FakeApiServer, api: ApiServer) -> None:
    await fake.put(MUTATING, configuration(b"", b""))

    async with background(Registration(api, "mlchassis", using(A))):
        await until(lambda: bundles(fake, MUTATING) == ["A", "A"])
        await fake.put(VALIDATING, configuration(b""))  # installed later
        await until(lambda: bundles(fake, VALIDATING) == ["A"])
        await fake.put(MUTATING, configuration(b""))  # applied again, and so wiped
        await until(lambda: bundles(fake, MUTATING) == ["A"])
        entry = fake.objects[f"{MUTATING}/mlchassis"]["webhooks"][0]
        assert entry["clientConfig"]["service"] == {"name": "mlchassis"}


async def test_replicas_that_know_different_cas_do_not_write_against_each_other(
    fake: FakeApiServer, api: ApiServer
) -> None:
    await fake.put(MUTATING, configuration(b""))

    async with (
        background(Registration(api, "mlchassis", using(A))),
        background(Registration(api, "mlchassis", using(B))),
    ):
        await until(lambda: set(*bundles(fake, MUTATING)) == {"A", "B"})
        await turns(20)
        version = fake.version
        await turns(40)
        assert fake.version == version


async def test_the_ca_to_serve_is_written_when_it_is_asked_for(fake: FakeApiServer, api: ApiServer) -> None:
    await fake.put(MUTATING, configuration(A))

    registration = Registration(api, "mlchassis", using(A))
    assert await registration.trusts(b"")
    assert await registration.trusts(A)
    assert not await registration.trusts(B)
    assert bundles(fake, MUTATING) == ["BA"]
    with pytest.raises(pki.CertificateError, match="no PEM"):
        await Registration(api, "mlchassis", using(b"")).trusts(b"rubbish")
    assert await Registration(api, "other", using(b"")).trusts(B), "there is no such configuration"


@pytest.mark.parametrize(
    ("first", "meanwhile", "trusted", "bundle"),
    [((b"", b""), [b""] * 9, False, ""), ((b"",), [A], True, "A")],
    ids=["a removed entry is not put back", "the same write of another replica is no delay"],
)
async def test_a_write_is_tried_again_after_that_of_another(
    fake: FakeApiServer,
    api: ApiServer,
    monkeypatch: pytest.MonkeyPatch,
    first: tuple[bytes, ...],
    meanwhile: list[bytes],
    trusted: bool,
    bundle: str,
) -> None:
    await fake.put(MUTATING, configuration(*first))
    read, others = api.get, [*meanwhile]

    async def overtaken(path: str, query: Mapping[str, str] | None = None) -> Json | None:
        found = await read(path, query)
        if others:
            await fake.put(MUTATING, configuration(others.pop()))
        return found

    monkeypatch.setattr(api, "get", overtaken)
    assert await Registration(api, "mlchassis", using(b"")).trusts(A) is trusted
    assert bundles(fake, MUTATING) == [bundle]


async def test_no_request_without_a_change(fake: FakeApiServer, api: ApiServer) -> None:
    await fake.put(MUTATING, configuration(b""))
    asked: list[bytes] = []

    async def used() -> bytes:
        asked.append(A)
        return A

    async with background(Registration(api, "mlchassis", used)):
        await until(lambda: bundles(fake, MUTATING) == ["A"])
        await turns(40)
        assert len(asked) < 10, "once for the start, each list, and its own write; then it waits"


async def test_a_failing_source_is_asked_again(fake: FakeApiServer, api: ApiServer) -> None:
    await fake.put(MUTATING, configuration(b""))
    answers: list[bytes | Exception] = [ApiError(0, "Unreachable", "gone"), OSError("gone"), b"rubbish", A]

    async def used() -> bytes:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with background(Registration(api, "mlchassis", used)):
        await until(lambda: bundles(fake, MUTATING) == ["A"])


async def test_a_lasting_failure_is_tried_and_logged_less_and_less_often(
    fake: FakeApiServer, api: ApiServer
) -> None:
    await fake.put(MUTATING, configuration(b""))
    asked: list[float] = []

    async def used() -> bytes:
        asked.append(asyncio.get_running_loop().time())
        if len(asked) < 9:
            raise OSError("gone")
        return A

    async with background(Registration(api, "mlchassis", used)):
        await until(lambda: bundles(fake, MUTATING) == ["A"])
        # 127 pauses before the eighth, of which the lists at the start may cut the three longest short.
        assert asked[7] - asked[0] > 14 * ca_bundle.RETRY_SECONDS
