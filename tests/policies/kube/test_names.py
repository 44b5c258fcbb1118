"""Names as the API server accepts them; tests/e2e holds the same against a real one."""

import pytest

from policies.kube.names import is_label_key, is_label_value, is_subdomain


@pytest.mark.parametrize("text", ["a", "a.b-c.d", "0", "a" * 253])
def test_subdomains(text: str) -> None:
    assert is_subdomain(text)


@pytest.mark.parametrize("text", ["", "A", "a..b", "a.-b", "-a", "a.", "a_b", "a" * 254, "a\n", "ä"])
def test_not_a_subdomain(text: str) -> None:
    assert not is_subdomain(text)


@pytest.mark.parametrize(
    "text", ["zone", "Rack_1.a", "topology.kubernetes.io/zone", "a" * 63, "a/" + "b" * 63]
)
def test_label_keys(text: str) -> None:
    assert is_label_key(text)


@pytest.mark.parametrize(
    "text", ["", "/a", "a/", "a/b/c", "a..b/zone", "A.b/zone", "a b", "a" * 64, "a\n", "-a"]
)
def test_not_a_label_key(text: str) -> None:
    assert not is_label_key(text)


@pytest.mark.parametrize("text", ["", "A100-SXM4-40GB", "1", "a" * 63])
def test_label_values(text: str) -> None:
    assert is_label_value(text)


@pytest.mark.parametrize("text", ["NVIDIA A100", "-1", "a" * 64, "a\n", "a/b"])
def test_not_a_label_value(text: str) -> None:
    assert not is_label_value(text)
