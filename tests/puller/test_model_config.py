"""The parser that the sidecar and the webhook share."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puller import model_config as spec_module
from puller.model_config import (
    LIST_KEY,
    MAX_MODELS,
    DesiredModels,
    ModelSpec,
    RefusedError,
    carry_over,
    from_json,
    parse,
    quantity,
    without_secrets,
)
from tests.tables import table

URI = "s3://bucket/m"


def listed(*entries: Any) -> dict[str, str]:
    return {LIST_KEY: json.dumps(entries)}


def entry(name: Any = "m", **spec: Any) -> dict[str, Any]:
    return {
        "modelName": name,
        "modelSpec": {"storageUri": URI, "framework": "sklearn", "memory": "1Gi"} | spec,
    }


def only_error(files: dict[str, str]) -> tuple[str, str]:
    desired = parse(files)
    assert len(desired.errors) == 1, desired.errors
    return desired.errors[0].where, desired.errors[0].message


def test_kserves_list_is_read() -> None:
    desired = parse(listed(entry("a"), entry("b", storageUri="gs://c/d", memory="500M")))
    assert desired.models == {
        "a": ModelSpec("a", URI, "sklearn", 1 << 30),
        "b": ModelSpec("b", "gs://c/d", "sklearn", 500_000_000),
    }
    assert desired.errors == ()
    assert desired.keys == {"a": LIST_KEY, "b": LIST_KEY}


def test_keys_for_single_models_can_be_mixed_with_the_list() -> None:
    desired = parse(listed(entry("a")) | {"b.json": json.dumps({"storageUri": URI}), "README": "hello"})
    assert set(desired.models) == {"a", "b"}
    assert desired.models["b"] == ModelSpec("b", URI)
    assert desired.errors == ()


def test_our_own_fields() -> None:
    spec = parse(listed(entry(sha256="AB" * 32, version=7, files=["*.json", "w/**"], priority=-3))).models[
        "m"
    ]
    assert (spec.sha256, spec.version, spec.files, spec.priority) == ("ab" * 32, "7", ("*.json", "w/**"), -3)


@pytest.mark.parametrize(
    "name", ["", "a/b", "..", "a.b", "ä", "a\n", "x" * 254, None, 7, ["a"], "\ud800"], ids=repr
)
def test_only_the_bad_name_is_refused(name: Any) -> None:
    desired = parse(listed(entry(name), entry("good")))
    assert set(desired.models) == {"good"}
    assert [error.where for error in desired.errors] == ["models.json[0].modelName"]


def test_the_longest_name_is_accepted() -> None:
    assert "x" * 253 in parse(listed(entry("x" * 253))).models


@table(
    ("field", "value"),
    [
        ("storageUri", None),
        ("storageUri", ""),
        ("storageUri", 7),
        ("storageUri", "ftp://host/m"),
        ("storageUri", "bucket/m"),
        ("storageUri", "s3:///m"),
        ("storageUri", "s3://bucket/../m"),
        ("storageUri", "s3://bucket/%2e%2e/m"),
        ("storageUri", "s3://bucket/a\nb"),
        ("storageUri", "s3://bucket/" + "a" * 5000),
        ("storageUri", "https://user:secret@host/m"),
        ("storageUri", "https://host:port/m"),
        ("storageUri", "http://[::1/m"),
        ("storageUri", "file://host/m"),
        ("storageUri", "file:///"),
        ("storageUri", "hf://organisation"),
        ("storageUri", "hf://organisation/model/more"),
        ("storageUri", "hf://organisation/model?revision=v2"),
        ("storageUri", "pvc://claim/a#b"),
        ("memory", "-1"),
        ("memory", "2Pi"),
        ("memory", "1e99"),
        ("memory", "lots"),
        ("memory", "1Zi"),
        ("memory", True),
        ("memory", []),
        ("framework", 5),
        ("framework", "a\tb"),
        ("sha256", "abc"),
        ("version", 1.5),
        ("files", "*.json"),
        ("priority", "high"),
        ("priority", True),
        ("priority", 10**9),
    ],
)
def test_a_bad_field_refuses_its_model_with_the_place(field: str, value: Any) -> None:
    desired = parse(listed(entry("good"), entry("bad", **{field: value})))
    assert set(desired.models) == {"good"}
    (error,) = desired.errors
    assert (error.where, error.model) == (f"models.json[1].modelSpec.{field}", "bad")
    assert error.message.endswith((".", "?", "…"))
    assert desired.refused == {"bad"}


@pytest.mark.parametrize("glob", ["", "/etc/*", "a/../b", 3, "a\x00"])
def test_a_bad_glob_is_named_by_its_index(glob: Any) -> None:
    assert only_error(listed(entry(files=["ok", glob])))[0] == "models.json[0].modelSpec.files[1]"


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket",
        "s3://bucket/a/b.tar.gz",
        "gs://bucket/a",
        "az://container/a",
        "https://account.blob.core.windows.net/container/a",
        "http://127.0.0.1:8080/m.zip?token=a",
        "hf://organisation/model",
        "hf://organisation/model:v1.0",
        "file:///mnt/models/a",
        "pvc://claim/a",
        "s3://bucket/a..b/c",
    ],
)
def test_every_scheme_of_the_contract(uri: str) -> None:
    assert parse(listed(entry(storageUri=uri))).models["m"].storage_uri == uri


@table(
    ("text", "size"),
    [
        (0, 0),
        (7_516_192_768, 7_516_192_768),
        ("7516192768", 7_516_192_768),
        ("1Gi", 1 << 30),
        ("0.5Gi", 1 << 29),
        (".5Ki", 512),
        ("1.", 1),
        ("2k", 2000),
        ("3M", 3_000_000),
        ("1E", 10**18),
        ("1Ei", 1 << 60),
        ("1e3", 1000),
        ("1E3", 1000),
        (1e9, 10**9),
        ("100m", 1),
        ("1500m", 2),
        ("-1", -1),
        ("100n", 1),
    ],
)
def test_quantities_as_kubernetes_reads_them(text: object, size: int) -> None:
    assert quantity(text) == size


@table(
    "text",
    ["", "Gi", "1 Gi", "1gi", "1e", "1K", " 5 ", "0x10", "\u0661", "1e1000", "nan", None, True, float("inf")],
)
def test_not_a_quantity(text: object) -> None:
    with pytest.raises(ValueError, match=r".+"):
        quantity(text)


@table(
    "text",
    [
        "",
        "{",
        "[1,",
        "nul",
        "[NaN]",
        "[" * 100_000,
        "9" * 5000,
        '{"a": 1, "a": 2}',
        "\ufeff[]",
        "{}",
        "null",
        "7",
    ],
)
def test_an_unreadable_list_is_one_error(text: str) -> None:
    desired = parse({LIST_KEY: text, "b.json": json.dumps({"storageUri": URI})})
    assert set(desired.models) == {"b"}
    assert [error.key for error in desired.errors] == [LIST_KEY]
    assert desired.blind


def test_an_unreadable_key_refuses_only_its_model() -> None:
    desired = parse({"a.json": "{", "b.json": json.dumps({"storageUri": URI})})
    assert set(desired.models) == {"b"}
    assert desired.refused == {"a"}
    assert not desired.blind


def test_entries_of_the_wrong_shape() -> None:
    desired = parse(listed(7, {"modelName": "a"}, {"modelName": "b", "modelSpec": []}, entry("c")))
    assert set(desired.models) == {"c"}
    assert [error.where for error in desired.errors] == [
        "models.json[0]",
        "models.json[1].modelSpec",
        "models.json[2].modelSpec",
    ]


def test_two_different_entries_of_one_name_refuse_the_name() -> None:
    desired = parse(listed(entry("a"), entry("a", storageUri="s3://other/m"), entry("b")))
    assert set(desired.models) == {"b"}
    assert [(error.where, error.model) for error in desired.errors] == [("models.json[1]", "a")]


def test_the_same_entry_twice_is_reported_and_served() -> None:
    desired = parse(listed(entry("a"), entry("a")))
    assert set(desired.models) == {"a"}
    assert len(desired.errors) == 1


def test_an_unknown_field_warns_with_its_path() -> None:
    desired = parse(listed(entry("a", sha265="…")))
    assert set(desired.models) == {"a"}
    assert [warning.where for warning in desired.warnings] == ["models.json[0].modelSpec.sha265"]


def test_carry_over_keeps_the_last_good_entries() -> None:
    good = parse(listed(entry("a"), entry("b")) | {"c.json": json.dumps({"storageUri": URI})})

    one_bad = carry_over(parse(listed(entry("a", memory="-1"), entry("b", storageUri="s3://new/m"))), good)
    assert one_bad.models["a"] == good.models["a"]
    assert one_bad.models["b"].storage_uri == "s3://new/m"
    assert "c" not in one_bad.models

    list_broken = carry_over(parse({LIST_KEY: "[", "c.json": "{"}), good)
    assert list_broken.models == good.models
    assert len(list_broken.errors) == 2

    assert carry_over(parse(listed()), good).models == {}


def test_memory_and_priority_do_not_change_the_content() -> None:
    spec = from_json("m", {"storageUri": URI})
    steered = from_json("m", {"storageUri": URI, "memory": "5Gi", "priority": 2})
    assert spec.digest == steered.digest
    for change in (
        {"framework": "x"},
        {"version": "2"},
        {"files": ["*"]},
        {"sha256": "0" * 64},
        {"storageUri": URI + "2"},
    ):
        assert from_json("m", {"storageUri": URI} | change).digest != spec.digest


def test_a_spec_survives_its_own_json() -> None:
    spec = from_json("m", {"storageUri": URI, "memory": "5Gi", "priority": 2, "files": ["a"], "version": "3"})
    assert from_json("m", json.loads(json.dumps(spec.to_json()))) == spec


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
specs = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("storageUri", "memory", "files", "sha256", "version", "priority"), json_values),
)
entries = st.lists(
    json_values
    | st.fixed_dictionaries({"modelName": st.sampled_from(["a", "b"]) | json_values, "modelSpec": specs}),
    max_size=5,
)


@given(
    st.dictionaries(
        st.sampled_from([LIST_KEY, "a.json", "x y.json", "z"]), st.text() | entries.map(json.dumps)
    )
)
def test_no_input_raises_and_every_model_is_valid(files: dict[str, str]) -> None:
    desired = parse(files)
    assert isinstance(desired, DesiredModels)
    for name, spec in desired.models.items():
        assert from_json(name, spec.to_json()) == spec
    for error in desired.errors:
        assert str(error)


def test_the_parser_imports_only_quantities() -> None:
    code = (
        "import sys; import puller.model_config;"
        "print([name for name in sys.modules if name.split('.')[0] in {'aiohttp', 'asyncio', 'socket'}],"
        " sorted(name for name in sys.modules if name.startswith('puller')))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded == "[] ['puller', 'puller.model_config', 'puller.quantities']\n"


# --- nothing costs more than its length -----------------------------------------------------------


def steps(work: Callable[[], object]) -> int:
    """Python lines and calls of C that the work takes: a count that no load of the machine changes."""
    count = 0

    def line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += 1
        return line

    def call(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += 1

    before = sys.gettrace(), sys.getprofile()
    sys.settrace(line)
    sys.setprofile(call)
    try:
        work()
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    return count


def many_keys(count: int) -> str:
    """An object of that many keys, one of them twice, at the end."""
    return "{" + ",".join(f'"k{index}":0' for index in range(count)) + ',"k0":1}'


HOSTILE: dict[str, Callable[[int], dict[str, str]]] = {
    "keys, one twice": lambda count: {"a.json": many_keys(count)},
    "one name again and again": lambda count: listed(*[entry("same")] * count),
    "unknown fields": lambda count: listed(entry("a", **{f"x{index}": 0 for index in range(count)})),
    "entries that are none": lambda count: {LIST_KEY: json.dumps([1] * count)},
    "globs": lambda count: listed(entry("a", files=["*"] * count)),
    "keys that are broken": lambda count: {f"k{index}.json": "{" for index in range(count)},
    "a long name": lambda count: listed(entry("n" * count)),
    "a long URI": lambda count: listed(entry("a", storageUri="s3://b/" + "../" * count)),
    "a long memory": lambda count: listed(entry("a", memory="1" * count + "x")),
    "a long digest": lambda count: listed(entry("a", sha256="a" * count + "x")),
    "a name that is an array": lambda count: {LIST_KEY: json.dumps([{"modelName": list(range(count))}])},
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_the_parser_takes_linear_time(hostile: Callable[[int], dict[str, str]]) -> None:
    small, large = hostile(300), hostile(3000)
    assert steps(lambda: parse(large)) <= 12 * steps(lambda: parse(small)) + 1000


def test_duplicate_keys_are_found_in_linear_time() -> None:
    """A name is compared once by hashing; `count` in a list took a step for each pair of names."""
    compared = 0

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    pairs: list[tuple[str, Any]] = [(Name(f"k{index}"), 0) for index in range(40_000)]
    with pytest.raises(RefusedError, match="twice"):
        spec_module._object([*pairs, (Name("k39999"), 1)])
    assert compared < 400


def test_a_carried_over_model_is_looked_up_once() -> None:
    good = parse(listed(*[entry(f"m{index}") for index in range(3000)]))
    bad = parse(listed(*[entry(f"m{index}", memory="-1") for index in range(3000)]))
    assert len(carry_over(bad, good).models) == 3000
    assert steps(lambda: carry_over(bad, good)) < 100_000


def test_a_list_with_too_many_models_is_refused() -> None:
    desired = parse({LIST_KEY: json.dumps([1] * (MAX_MODELS + 1))})
    assert desired.blind
    assert len(desired.errors) == 1


# --- parts that may be shown -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("https://me:secret@host/path", "https://host/path"),
        ("https://host/path?sig=secret", "https://host/path?…"),
        ("https://a@b:secret@host/p?x=1?y", "https://host/p?…"),
        ("s3://bucket/a?b", "s3://bucket/a?…"),
        ("nothing", "nothing"),
    ],
)
def test_a_uri_is_shown_without_its_secrets(uri: str, shown: str) -> None:
    assert without_secrets(uri) == shown


def test_a_refused_uri_does_not_show_the_password_it_is_refused_for() -> None:
    (error,) = parse(listed(entry(storageUri="https://me:s3cret@host/path?sig=t0ken"))).errors
    assert "host/path" in error.message
    assert "s3cret" not in error.message
    assert "t0ken" not in error.message


@pytest.mark.parametrize(
    "uri",
    [
        "https://me:s3cret/1@host/path",
        "https://me:s3cret?1@host/path",
        "https://me:s3cret#1@host/path",
        "https://me:s3cret@h\u2100st/path",
        "https://[s3cret/path",
        "s3://key:s3cret/1@bucket/path",
    ],
)
def test_a_password_with_unencoded_characters_is_not_shown(uri: str) -> None:
    (error,) = parse(listed(entry(storageUri=uri))).errors
    assert error.path == "[0].modelSpec.storageUri"
    assert "s3cret" not in error.message


@pytest.mark.parametrize("bucket", ["169.254.169.254#", "b:80", "[::1]", "b b", "b\\c", "b%2f", "-b", ".b"])
def test_a_bucket_cannot_be_another_host(bucket: str) -> None:
    assert parse(listed(entry(storageUri=f"s3://{bucket}/key"))).refused == {"m"}


def test_a_scheme_may_be_in_upper_case() -> None:
    uris = {"a": "S3://b/Key", "b": "HTTP://host/Path", "c": "Hf://o/M"}
    desired = parse(listed(*[entry(name, storageUri=uri) for name, uri in uris.items()]))
    assert [spec.storage_uri for spec in desired.models.values()] == [
        "s3://b/Key",
        "http://host/Path",
        "hf://o/M",
    ]


def test_schemes_may_be_narrowed() -> None:
    uris = {"a": "s3://b/k", "b": "file:///etc", "c": "FILE:///etc", "d": "hf://o/m", "e": "file:/etc"}
    desired = parse(listed(*[entry(name, storageUri=uri) for name, uri in uris.items()]), ("s3", "hf"))
    assert set(desired.models) == {"a", "d"}
    assert {error.path for error in desired.errors} == {
        f"[{index}].modelSpec.storageUri" for index in (1, 2, 4)
    }
    assert "file:// is not allowed here; s3, hf are." in desired.errors[0].message
