"""Names as the API server accepts them; tests/e2e compares them with a real one."""

from collections.abc import Callable

import pytest

from policies.kube.names import is_label_key, is_label_value, is_subdomain


@pytest.mark.parametrize(
    ("accepts", "valid", "invalid"),
    [
        (
            is_subdomain,
            ["a", "a.b-c.d", "0", "a" * 253],
            ["", "A", "a..b", "a.-b", "-a", "a.", "a_b", "a" * 254, "a\n", "ä"],
        ),
        (
            is_label_key,
            ["zone", "Rack_1.a", "topology.kubernetes.io/zone", "a" * 63, "a/" + "b" * 63],
            ["", "/a", "a/", "a/b/c", "a..b/zone", "A.b/zone", "a b", "a" * 64, "a\n", "-a"],
        ),
        (
            is_label_value,
            ["", "A100-SXM4-40GB", "1", "a" * 63],
            ["NVIDIA A100", "-1", "a" * 64, "a\n", "a/b"],
        ),
    ],
)
def test_names(accepts: Callable[[str], bool], valid: list[str], invalid: list[str]) -> None:
    assert [text for text in valid if not accepts(text)] == []
    assert [text for text in invalid if accepts(text)] == []
