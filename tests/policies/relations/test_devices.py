"""Devices of DRA: a watch cache and manifests give the same counts; classes name their driver."""

from __future__ import annotations

import pytest

from policies.core.facts import Facts
from policies.core.listing import Listing
from policies.core.resources import Resource
from policies.kube.json import Json
from policies.relations.devices import (
    ANY,
    OFFER,
    DeviceSupply,
    Offer,
    driver_of,
    offer_of,
    one_slice_has,
    supply,
)
from tests.manifests import manifest
from tests.webhook.kube.filled import filled
from webhook.manifests.cluster import ManifestCluster


def resource_slice(node: str, devices: int, *, driver: str = "gpu.example", pool: Json | None = None) -> Json:
    return manifest(
        "ResourceSlice",
        f"{node}-{driver}-{(pool or {}).get('generation', 1)}",
        {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1, **(pool or {})},
            "devices": [{"name": f"d{n}", "attributes": {"model": {"string": "x"}}} for n in range(devices)],
        },
    )


def watched(*slices: Json) -> Listing:
    listing = filled(*slices).listing(Resource.DEVICE_SLICES)
    assert listing is not None
    return listing


SLICES = (
    resource_slice("a", 2),
    resource_slice("b", 4),
    resource_slice("b", 1, driver="nic.example"),
    resource_slice("c", 9, pool={"generation": 1}),
    resource_slice("c", 1, pool={"generation": 2}),
)


def test_a_watch_cache_and_manifests_give_the_same_counts() -> None:
    cached, written = watched(*SLICES), Listing(SLICES)
    for listing in (cached, written):
        assert supply(listing, "gpu.example") == DeviceSupply(4, "b", partitioned=False)
        assert supply(listing, "nic.example") == DeviceSupply(1, "b", partitioned=False)
        assert supply(listing, ANY) == DeviceSupply(5, "b", partitioned=False)
        assert supply(listing, "other.example") is None
        assert one_slice_has(listing, "gpu.example", 4)
        assert not one_slice_has(listing, "gpu.example", 5), "the slice with 9 is of an old generation"
        assert not one_slice_has(listing, "nic.example", 2)
        assert one_slice_has(listing, ANY, 4)
    assert all("devices" not in each["spec"] and isinstance(each[OFFER], Offer) for each in cached)


@pytest.mark.parametrize(
    "pool", [{"resourceSliceCount": 2}, {"resourceSliceCount": 0}, {"resourceSliceCount": None}]
)
def test_a_pool_that_is_not_complete_makes_its_driver_unknown(pool: Json) -> None:
    listing = Listing([*SLICES, resource_slice("d", 1, pool=pool)])
    assert supply(listing, "gpu.example") is None
    assert supply(listing, ANY) is None
    assert supply(listing, "nic.example") is not None


def test_an_offer_among_manifests_is_not_believed() -> None:
    assert offer_of({OFFER: {"devices": 99}, "spec": {"devices": [{}, "odd", {}]}}) == Offer(2)
    assert offer_of({"spec": {"devices": "odd"}}) == Offer(0)


@pytest.mark.parametrize(
    ("expression", "driver"),
    [
        ('device.driver == "gpu.example"', "gpu.example"),
        ("  device.driver=='gpu.example'  ", "gpu.example"),
        ("device.driver == 'gpu.example' && device.attributes['gpu.example'].type == 'mig'", "gpu.example"),
        ("device.driver == 'gpu.example' || true", ANY),
        ("device.driver == 'gpu.example' && a ? b : c", ANY),
        ("!(a && device.driver == 'gpu.example')", ANY),
        ("device.driver != 'gpu.example'", ANY),
        ("device.driver == 'gpu.example\"", ANY),
        ("device.driver == gpu", ANY),
        ("device.driver == '" + "g" * 10_000, ANY),
        ("", ANY),
    ],
)
def test_a_class_names_its_driver(expression: str, driver: str) -> None:
    device_class = manifest(
        "DeviceClass", "gpu", {"selectors": [{"odd": 1}, {"cel": {"expression": expression}}]}
    )
    facts = Facts(cluster=ManifestCluster([device_class]))
    assert driver_of("gpu", facts) == driver
    assert driver_of("other", facts) == ANY
