"""Modes, certainty, listings and facts."""

from typing import Any

import pytest
from pydantic import BaseModel

from policies.core.contracts import Family, Modes, Rule, RuleDocument
from policies.core.facts import Facts, Listing, NoCluster
from policies.core.finding import Certainty
from policies.core.mode import Mode, Profile
from policies.core.resources import Resource
from policies.core.settings import Duration, Model, Quantity
from policies.kube.json import Json


class Sizes(Model):
    keep_for: Duration = 1
    room: Quantity = 1


class Nodes(NoCluster):
    def __init__(self, *nodes: Json) -> None:
        self.nodes = Listing(nodes)

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        return self.nodes if resource is Resource.NODES else None


def test_modes_have_an_order() -> None:
    assert Mode.ENFORCE.at_most(Mode.WARN) is Mode.WARN
    assert Mode.AUDIT.at_most(Mode.WARN) is Mode.AUDIT
    assert [mode.strength for mode in Mode] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("profile", "certainty", "mode"),
    [
        (Profile.OBSERVE, Certainty.SURE, Mode.AUDIT),
        (Profile.STANDARD, Certainty.SURE, Mode.ENFORCE),
        (Profile.STANDARD, Certainty.LIKELY, Mode.WARN),
        (Profile.STRICT, Certainty.LIKELY, Mode.ENFORCE),
        (Profile.STRICT, Certainty.UNDECIDED, Mode.WARN),
        (Profile.STANDARD, Certainty.UNDECIDED, Mode.WARN),
    ],
)
def test_a_finding_is_answered_by_profile_and_certainty(
    profile: Profile, certainty: Certainty, mode: Mode
) -> None:
    words: dict[str, Any] = dict.fromkeys(("what", "why", "remediation", "source", "bad", "good"), "-")
    document = RuleDocument(
        family=Family.CASCADE,
        modes=Modes(standard=Mode.ENFORCE, strict=Mode.ENFORCE),
        likely=Modes(standard=Mode.WARN, strict=Mode.ENFORCE),
        **words,
    )
    rule = Rule("x", lambda target, facts: (), None, lambda: document)
    assert rule.mode(profile, certainty) is mode


def test_settings_are_strict_camel_case_and_frozen() -> None:
    sizes = Sizes.model_validate_json('{"keepFor": "24h", "room": "1Ki"}')
    assert (sizes.keep_for, sizes.room) == (86400, 1024)
    for bad in ('{"keepFor": true}', '{"keepFor": "soon"}', '{"keep": 1}', '{"room": "-1"}'):
        with pytest.raises(ValueError, match=r"keepFor|keep|room"):
            Sizes.model_validate_json(bad)
    with pytest.raises(ValueError, match="frozen"):
        sizes.room = 5  # type: ignore[misc]
    assert issubclass(Sizes, BaseModel)


def test_what_is_derived_is_computed_once_per_listing() -> None:
    calls = []

    def count(listing: Listing) -> int:
        calls.append(listing)
        return len(listing)

    listing = Listing([{"a": 1}, {"a": 2}])
    assert [listing.derive(count), listing.derive(count), len(calls)] == [2, 2, 1]
    assert Listing([{"a": 1}]).derive(count) == 1
    assert (listing[0], listing[1:]) == ({"a": 1}, ({"a": 2},))


def test_what_is_not_known_is_none() -> None:
    facts = Facts()
    assert facts.nodes() is None
    assert facts.namespace_labels() is None
    assert facts.model_config("x") is None
    assert facts.oldest_kubelet() is None


def test_the_oldest_kubelet_counts() -> None:
    def node(version: str) -> Json:
        return {"metadata": {"name": version}, "status": {"nodeInfo": {"kubeletVersion": version}}}

    assert Facts(cluster=Nodes(node("v1.36.1"), node("v1.9.0-gke.1"), node("?"))).oldest_kubelet() == (1, 9)
    assert Facts(cluster=Nodes({"metadata": {"name": "x"}})).oldest_kubelet() is None
    serverless = node("v1.19.10-vk-azure-aci-1.4.4")
    labelled = node("v1.14.3") | {"metadata": {"name": "l", "labels": {"type": "virtual-kubelet"}}}
    tainted = node("v1.14.3") | {"spec": {"taints": [{"key": "virtual-kubelet.io/provider"}]}}
    for virtual in (serverless, labelled, tainted):
        assert Facts(cluster=Nodes(node("v1.36.1"), virtual)).oldest_kubelet() == (1, 36)
        assert Facts(cluster=Nodes(virtual)).oldest_kubelet() is None
    assert Facts(cluster=Nodes({"status": "ready"}, {"status": {"nodeInfo": [1]}})).oldest_kubelet() is None
