"""Paths of the API: no text chooses more than the one segment that it is."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from tests.tables import table
from webhook.kube import paths
from webhook.kube.calls import ApiError


def test_paths_are_those_of_the_api_server() -> None:
    assert paths.root("v1") == "/api/v1"
    assert paths.root("apps/v1") == "/apis/apps/v1"
    assert paths.group("ray.io") == "/apis/ray.io"
    assert paths.collection("v1", "pods") == "/api/v1/pods"
    assert paths.collection("v1", "pods", "ml") == "/api/v1/namespaces/ml/pods"
    assert paths.one("v1", "nodes", "n-0") == "/api/v1/nodes/n-0"
    ray = "/apis/ray.io/v1/namespaces/ml/rayclusters"
    assert paths.one("ray.io/v1", "rayclusters", "demo", "ml") == f"{ray}/demo"
    assert paths.one("ray.io/v1", "rayclusters", "demo", "ml", "scale") == f"{ray}/demo/scale"
    assert paths.within("/apis/ray.io/v1/rayclusters", "ml") == ray
    assert paths.one("v1", "things", "system:x_Y.z") == "/api/v1/things/system%3Ax_Y.z"


PARTS = [
    *("../../api/v1/pods?x=", "..", ".", "a/b", "a%2fb", "a?b", "a#b", "a\n", " ", "", "ä", "\x00"),
    "a" * 254,
]


@table("part", PARTS)
def test_other_texts_than_segments_are_refused(part: str) -> None:
    builders: tuple[Callable[[], str], ...] = (
        lambda: paths.group(part),
        lambda: paths.root(f"ray.io/{part}"),
        lambda: paths.root(f"{part}/v1"),
        lambda: paths.collection("v1", part),
        lambda: paths.one("v1", "pods", part, "ml"),
        lambda: paths.one("v1", "pods", "a", f"x{part}/"),
        lambda: paths.one("v1", "pods", "a", "ml", f"{part}/"),
        lambda: paths.within("/api/v1/pods", part),
    )
    for build in builders:
        with pytest.raises(ApiError) as refused:
            build()
        assert refused.value.reason == "BadPath"


HOSTILE = st.text(alphabet="abv1./%?#:\n\\ -_A2f", max_size=12)


@given(HOSTILE, HOSTILE, HOSTILE, HOSTILE)
def test_a_path_has_as_many_segments_as_it_was_given(
    api_version: str, resource: str, name: str, namespace: str
) -> None:
    """Also once the HTTP client has taken dots and escapes for what they are."""
    try:
        path = paths.one(api_version, resource, name, namespace)
    except ApiError:
        return
    sent = URL(f"https://api{path}", encoded=False)
    assert sent.raw_path.count("/") == path.count("/")
    assert sent.query_string == urlsplit(path).query == urlsplit(path).fragment == ""
    segments = unquote(sent.raw_path).split("/")
    assert segments[-2:] == [resource, name]
    wanted = 2 + (1 if "/" not in api_version else 2) + (2 if namespace else 0) + 2
    assert len(segments) == wanted
