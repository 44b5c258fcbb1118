"""A value is computed once for each owner, function and key."""

from __future__ import annotations

from policies.core.facts import Facts
from policies.kube.cache import Cache
from policies.kube.pods import Container, Role


def test_a_value_is_computed_once_for_each_function_and_key() -> None:
    calls: list[str] = []

    def nothing(name: str) -> None:
        calls.append(name)

    def upper(name: str) -> str:
        return name.upper()

    cache = Cache()
    assert [cache.once(upper, "a"), cache.once(upper, "b"), cache.once_for(1, upper, "c")] == ["A", "A", "C"]
    assert [cache.once(nothing, "a"), cache.once(nothing, "b")] == [None, None]
    assert [cache.once_for(key, nothing, key) for key in ("x", "x", "y")] == [None] * 3
    assert calls == ["a", "x", "y"]


def test_a_containers_cache_is_kept_after_an_edit_of_its_probes_only() -> None:
    container = Container({"name": "a", "image": "x"}, "containers", 0, Role.MAIN)
    assert container.with_spec({**container.spec, "livenessProbe": {}}).cache is container.cache
    assert container.with_spec({**container.spec, "image": "y"}).cache is not container.cache


def test_facts_have_a_cache_for_each_pod_object() -> None:
    facts = Facts()
    pod = {"metadata": {"name": "a"}}
    view = facts.view(pod)
    assert facts.pod_caches[view] is facts.pod_caches[facts.view(pod)]
    assert facts.pod_caches[view] is not facts.pod_caches[facts.view(dict(pod))]
