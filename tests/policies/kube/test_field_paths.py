"""Field paths followed through an object."""

import pytest

from policies.kube.field_paths import field_path, named, named_path, scopes, value_at
from policies.kube.json import dig

OBJ = {
    "metadata": {"annotations": {"a.b/c[d": "x"}},
    "spec": {"containers": [{"name": "api", "args": ["-v"]}], "items": [1]},
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.containers[0].args[0]", "-v"),
        ("spec.containers[1].args", None),
        ("spec.containers[api].args[0]", "-v"),
        ("spec.containers[other].args", None),
        ("spec.items[0]", 1),
        ("spec.items[0].x", None),
        ("metadata.annotations[a.b/c[d]", "x"),
        ("", OBJ),
    ],
)
def test_value_at(path: str, value: object) -> None:
    assert value_at(OBJ, path) == value


def test_a_path_is_spelled_and_read_back() -> None:
    assert value_at(OBJ, field_path(["metadata", "annotations", "a.b/c[d"])) == "x"


@pytest.mark.parametrize(
    ("steps", "path"),
    [
        (("spec", "containers", 0, "args", 0), "spec.containers[api].args[0]"),
        (("spec", "containers", 0), "spec.containers[api]"),
        (("spec", "items", 0), "spec.items[0]"),
        (("metadata", "annotations", "a.b/c[d"), "metadata.annotations[a.b/c[d]"),
        ((), ""),
    ],
)
def test_a_path_is_spelled_with_names(steps: tuple[str | int, ...], path: str) -> None:
    assert named_path(OBJ, steps) == path
    assert value_at(OBJ, path) == (dig(OBJ, *steps) if steps else OBJ)


def test_elements_go_by_their_name() -> None:
    assert named(OBJ, "spec.containers[0].args[0]") == ("spec", "containers", "api", "args", "0")
    assert named(OBJ, "spec.items[0]") == ("spec", "items", "0")
    assert named({}, "spec.containers[0].image") == ("spec", "containers", "0", "image")
    assert named({"c": [{"name": {}}, {"name": ""}]}, "c[0]") == ("c", "0"), "a name that is none"


def test_a_place_lies_in_all_that_is_above_it() -> None:
    assert list(scopes("spec.containers[0].image")) == [
        "",
        "spec",
        "spec.containers",
        "spec.containers[0]",
        "spec.containers[0].image",
    ]


def test_field_paths() -> None:
    assert field_path(["spec", "containers", 0, "env"]) == "spec.containers[0].env"
    assert field_path(["metadata", "labels", "a.b/c"]) == "metadata.labels[a.b/c]"
