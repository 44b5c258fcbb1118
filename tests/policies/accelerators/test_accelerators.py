"""Who asks for accelerators and who has them: the arithmetic, and properties of any cluster."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.accelerators.annotations import MemoryBound, requested_memory
from policies.accelerators.catalogue import whole_quantity
from policies.accelerators.gpu_affinity import mutate
from policies.accelerators.gpu_affinity_settings import GpuAffinity, standard
from policies.accelerators.placement import placement
from policies.accelerators.vendors import MIB, Pool, Vendor, VendorTaint
from policies.core import registry
from policies.core.annotations import GPU_MEMORY, GPU_PRODUCT
from policies.core.listing import Listing
from policies.core.pydantic_models import validated
from policies.core.resources import Resource, resource_kinds
from policies.kube.json import Json, replaced
from policies.kube.objects.metadata import Requirement
from policies.kube.objects.nodes import Taint as NodeTaint
from policies.kube.objects.pods import Pod, PodSpec, ResourceRequirements
from policies.kube.objects.reading import read
from policies.kube.scheduling import admits, matches, tolerates
from tests.policies.accelerators.nodes import GPU, affinity, expression, facts, labelled, named, node, pod
from tests.policies.test_laws import damaged, lost, places, reaches_policies
from tests.tables import table


def spec_of(obj: Json) -> PodSpec:
    return read(obj, Pod).spec


# --- what a pod asks for ---------------------------------------------------------------------------


def test_a_count_has_at_most_64_bits() -> None:
    """The room on two such nodes, divided by the pods of a replica, is no float."""
    counts = [whole_quantity(text) for text in ("1e999", "9" * 60, 1e308, "8", "-1", "x")]
    assert counts == [2**63 - 1] * 3 + [8, -1, 0]


@given(
    main=st.lists(st.integers(0, 8), min_size=1, max_size=4),
    init=st.lists(st.tuples(st.integers(0, 8), st.booleans()), max_size=5),
)
def test_requests_are_the_peak_over_the_pods_life(main: list[int], init: list[tuple[int, bool]]) -> None:
    running, peak = 0, 0
    for count, is_sidecar in init:
        peak = max(peak, running + count)
        running += count if is_sidecar else 0
    peak = max(peak, running + sum(main))

    def container(count: int, **more: Any) -> Json:
        return {"name": "c", "resources": {"limits": {GPU: count}}, **more}

    obj = {
        "spec": {
            "containers": [container(count) for count in main],
            "initContainers": [
                container(count, **({"restartPolicy": "Always"} if is_sidecar else {}))
                for count, is_sidecar in init
            ],
        }
    }
    assert standard().requests(read(obj, Pod).spec).get(GPU, 0) == peak


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"limits": {GPU: "2"}}, {GPU: 2}),
        ({"limits": {GPU: 2}, "requests": {GPU: "2"}}, {GPU: 2}),
        ({"requests": {"nvidia.com/mig-1g.5gb": "1k"}}, {"nvidia.com/mig-1g.5gb": 1000}),
        ({"limits": {"amd.com/gpu": "1", "cpu": "4", "example.com/fpga": "1"}}, {"amd.com/gpu": 1}),
        ({"limits": {GPU: "0"}}, {}),
        ({"limits": {GPU: "many"}}, {}),
        ({"claims": [{"name": "gpu"}]}, {}),
    ],
)
def test_what_counts_as_an_accelerator(resources: Any, expected: dict[str, int]) -> None:
    assert standard().requests_of(read(resources, ResourceRequirements)) == expected


# --- node selectors and tolerations, as the scheduler reads them -------------------------------------

LABELS = {"zone": "a", "count": "8", "odd": "x8"}


@pytest.mark.parametrize(
    ("operator", "key", "values", "expected"),
    [
        ("In", "zone", ["a", "b"], True),
        ("In", "zone", ["b"], False),
        ("Gt", "count", ["7"], True),
        ("Gt", "count", ["8"], False),
        ("Lt", "count", ["9"], True),
        ("Gt", "odd", ["1"], False),
        ("Gt", "absent", ["1"], False),
        ("Gt", "count", ["x"], False),
        ("Gt", "count", ["1", "2"], False),
    ],
)
def test_one_expression(operator: str, key: str, values: list[str] | None, expected: bool) -> None:
    requirement = read({"key": key, "operator": operator, "values": values}, Requirement)
    assert matches(requirement, LABELS) is expected


@table(
    ("spec", "running", "future"),
    [
        ({}, True, True),
        ({"nodeSelector": {"zone": "a"}}, True, True),
        ({"nodeSelector": {"zone": "b"}}, False, False),
        ({"nodeSelector": {"rack": "7"}}, False, True),
        ({"affinity": affinity()}, False, False),
        ({"affinity": affinity({})}, False, False),
        ({"affinity": affinity({}, {"matchExpressions": [expression("zone", "Exists")]})}, True, True),
        ({"affinity": labelled("zone DoesNotExist")}, False, False),
        ({"affinity": labelled("rack Exists")}, False, True),
        ({"affinity": named("metadata.name", "n")}, True, True),
        ({"affinity": named("metadata.name", "m")}, False, True),
        ({"affinity": named("metadata.uid", "n")}, False, False),
        ({"nodeSelector": {"zone": "a"}, "affinity": labelled("zone In b")}, False, False),
    ],
)
def test_which_nodes_a_pod_may_run_on(spec: Json, running: bool, future: bool) -> None:
    wanted = spec_of(pod(**spec))
    assert admits(wanted, "n", LABELS) is running
    assert admits(wanted, "pool p", LABELS, partial=True) is future, "only known labels exclude it"


GPU_TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}
TAINT = NodeTaint(key=GPU, value="present", effect="NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        ({"operator": "Exists"}, True),
        ({"key": GPU, "operator": "Exists"}, True),
        ({"key": GPU, "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": GPU, "value": "present"}, True),
        ({"key": GPU, "operator": "Equal", "value": "absent"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"operator": "Equal", "value": "present"}, False),
    ],
)
def test_tolerations(toleration: Json, expected: bool) -> None:
    assert tolerates(spec_of(pod(tolerations=[toleration])), TAINT) is expected
    bare = NodeTaint(key=GPU, effect="NoSchedule")
    assert tolerates(spec_of(pod(tolerations=[{"key": GPU}])), bare), "no value is empty"


# --- properties of any cluster and any pod ------------------------------------------------------------

KEYS = ("nvidia.com/gpu.present", "cloud.google.com/gke-accelerator", "karpenter.sh/nodepool", "zone", "disk")
VALUES = ("true", "nvidia-l4", "a", "b")


@st.composite
def clusters(draw: st.DrawFn) -> list[Json]:
    made = []
    for n in range(draw(st.integers(1, 6))):
        labels = {key: draw(st.sampled_from(VALUES)) for key in draw(st.sets(st.sampled_from(KEYS)))}
        made.append(node(f"n{n}", labels, draw(st.sampled_from(("", "0", "4")))))
    return made


EXPRESSIONS = st.builds(
    expression, st.sampled_from(KEYS), st.sampled_from(("Exists", "DoesNotExist"))
) | st.builds(
    lambda key, operator, values: expression(key, operator, *values),
    st.sampled_from(KEYS),
    st.sampled_from(("In", "NotIn")),
    st.lists(st.sampled_from(VALUES), min_size=1, max_size=2),
)
TERMS = st.lists(
    st.just({}) | st.fixed_dictionaries({"matchExpressions": st.lists(EXPRESSIONS, min_size=1, max_size=2)}),
    min_size=1,
    max_size=3,
)


@given(
    nodes=clusters(),
    terms=st.none() | TERMS,
    selector=st.none() | st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=1),
    gpus=st.sampled_from((0, 1)),
    strength=st.sampled_from(("required", "preferred")),
)
@settings(max_examples=150)
def test_affinity_neither_loses_nor_gains_a_node(
    nodes: list[Json], terms: list[Json] | None, selector: Json | None, gpus: int, strength: str
) -> None:
    """The same nodes can take the pod before and after.

    Required, CPU pods give up accelerator nodes, but not all the nodes they had.
    """
    spec: Json = {} if terms is None else {"affinity": affinity(*terms)}
    before = pod(gpus, **spec, **({} if selector is None else {"nodeSelector": selector}))
    config = validated(GpuAffinity, {"cpuPods": strength})
    after = mutate(before, config, facts(*nodes))

    def able(obj: Json) -> set[str]:
        return {
            item["metadata"]["name"]
            for item in nodes
            if admits(spec_of(obj), item["metadata"]["name"], item["metadata"]["labels"])
            and int(item["status"]["allocatable"].get(GPU, 0)) >= gpus
        }

    if gpus or strength == "preferred":
        assert able(after) == able(before)
    else:
        assert able(after) <= able(before)
        assert bool(able(after)) == bool(able(before))


PRODUCTS = ("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-SXM4-40GB", "Tesla-T4")


@given(
    products=st.lists(st.none() | st.sampled_from(PRODUCTS), min_size=1, max_size=5),
    globs=st.lists(
        st.sampled_from((*PRODUCTS, "*A100*", "tesla-*", "*H100*", "B200")), min_size=1, max_size=2
    ),
)
def test_a_product_annotation_admits_exactly_the_products_that_match(
    products: list[str | None], globs: list[str]
) -> None:
    nodes = [
        node(f"n{n}", {} if product is None else {"nvidia.com/gpu.product": product}, 8)
        for n, product in enumerate(products)
    ]
    after = mutate(pod(annotations={GPU_PRODUCT: ",".join(globs)}), GpuAffinity(), facts(*nodes))
    asking = spec_of(after)
    admitted = {n for n, item in enumerate(nodes) if admits(asking, f"n{n}", item["metadata"]["labels"])}
    wanted = {p for p in PRODUCTS for glob in globs if _names(glob, p)}
    if any(products):
        assert admitted == {n for n, product in enumerate(products) if product in wanted}
    else:
        assert admitted == set(range(len(nodes))), "no node says what it has: nothing can be demanded"


def _names(glob: str, product: str) -> bool:
    start, star, rest = glob.lower().partition("*")
    if not star:
        return product.lower() == start
    return product.lower().startswith(start) and rest.strip("*") in product.lower()


@given(
    operator=st.sampled_from((">=", "<=", ">", "<")),
    amount=st.integers(0, 200 << 30),
    label=st.integers(0, 200_000),
)
def test_a_memory_bound_in_whole_mebibytes_is_equal(operator: str, amount: int, label: int) -> None:
    bound = MemoryBound(operator, amount)
    assert matches(read(bound.on("m"), Requirement), {"m": str(label)}) is bound.met_by(label * MIB)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (">=40Gi", MemoryBound(">=", 40 << 30)),
        (" < 24G ", MemoryBound("<", 24 * 10**9)),
        ("16Gi", MemoryBound(">=", 16 << 30)),
    ],
)
def test_memory_bounds_are_read(written: str, expected: MemoryBound) -> None:
    assert requested_memory({GPU_MEMORY: written}) == expected


@pytest.mark.parametrize("written", ["", "lots", "=>40Gi", ">=", ">=-1"])
def test_memory_bounds_that_are_none(written: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        requested_memory({GPU_MEMORY: written})


@given(data=st.data())
@settings(max_examples=150)
def test_the_laws_hold_with_accelerator_nodes(data: st.DataObject) -> None:
    """As in test_laws, but with nodes, so that every part of the policy has something to do."""
    labels = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "NVIDIA-A100"}
    zone = {"topology.kubernetes.io/zone": "a", "nvidia.com/gpu.memory": "81920"}
    known = facts(
        node("a", labels | zone, 8, (GPU_TAINT,)), node("t4", labels, 4), node("bare", gpus=2), node("c")
    )
    obj = data.draw(damaged())
    if obj["kind"] == "Pod" and reaches_policies(obj):
        for policy in (registry.mutators()["gpu-affinity"], registry.mutators()["disruption-guard"]):
            assert policy.mutate is not None
            after = policy.mutate(obj, policy.settings(), known)
            assert lost(obj, after) == []
            assert policy.mutate(after, policy.settings(), known) == after


def test_a_pod_whose_containers_another_object_writes_is_not_kept_from_accelerators() -> None:
    """As the predictor of an InferenceService, whose model asks for its accelerators elsewhere."""
    known = facts(node("gpu", gpus=8), node("cpu"))
    model = {"resources": {"limits": {GPU: "1"}}}
    obj = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"model": model}}
    assert mutate(obj, GpuAffinity(), known) == obj
    plain = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    assert mutate(plain, GpuAffinity(), known) != plain


# --- the inventory --------------------------------------------------------------------------------------


def test_only_a_changed_node_is_read_again() -> None:
    catalogue = GpuAffinity(fixed_size=True, pools=(Pool(name="p", accelerators={GPU: 1}),)).catalogue
    first, second = node("a", gpus=8), node("b", gpus=4)
    before = catalogue.inventory(Listing([first, second])).fleets["nvidia"]
    grown = node("b", gpus=16)
    after = catalogue.inventory(Listing([first, grown])).fleets["nvidia"]
    assert [n.accelerators[GPU] for n in before.nodes] == [8, 4, 1]
    assert [n.accelerators[GPU] for n in after.nodes] == [8, 16, 1]
    assert after.nodes[0] is before.nodes[0]


def test_a_pool_is_of_the_vendors_whose_accelerators_it_has() -> None:
    declared = GpuAffinity(pools=(Pool(name="p", accelerators={GPU: 1}),)).catalogue.declared
    assert list(declared.fleets) == ["nvidia"]


def test_default_settings_share_derived_values() -> None:
    assert GpuAffinity().catalogue is GpuAffinity(fixed_size=True).catalogue
    listing = Listing([node("a", gpus=8)])
    assert listing.derive(GpuAffinity().catalogue.inventory) is listing.derive(
        GpuAffinity().catalogue.inventory
    )


def test_a_vendor_of_ones_own_replaces_the_known_one() -> None:
    own = GpuAffinity(
        vendors={"nvidia": Vendor(resources=("acme.com/gpu-*",), taints=(VendorTaint(key="acme.com/gpu"),))}
    )
    assert own.catalogue.vendor_of(GPU) is None
    assert own.catalogue.vendor_of("acme.com/gpu-l") == "nvidia"
    assert own.catalogue.vendor_of("amd.com/gpu") == "amd"


NODES = next(each for each in resource_kinds() if each.resource is Resource.NODES)


@pytest.mark.parametrize("junk", [None, 0, 0.5, "x", [], {}, [None], {"a": {}}], ids=repr)
def test_a_node_may_look_like_anything(junk: Any) -> None:
    """Nodes may come from files that no API server has validated."""
    labels = {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": "A100",
        "nvidia.com/gpu.memory": "81920",
    }
    sound = node("a", labels, 8, (GPU_TAINT,))
    asking = pod(16, {GPU_PRODUCT: "*", GPU_MEMORY: ">=1G"}, nodeSelector={"zone": "a"})
    for path in places(sound):
        if path not in ((), ("metadata",), ("metadata", "name")):
            spoiled = replaced(sound, path, junk)
            if NODES.problem(spoiled):
                continue  # the stores leave it out
            known = facts(spoiled, sound)
            for each in (asking, pod(1, {GPU_PRODUCT: "*A*", GPU_MEMORY: "1G"}), pod(0)):
                mutate(each, GpuAffinity(), known)
                placement(known.view(each), known)
