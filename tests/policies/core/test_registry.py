"""Policies and rules are found by their files; an id belongs to one of them."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from policies.core import registry

MUTATOR = next(iter(registry.mutators().values()))
RULE = next(iter(registry.rules().values()))


@pytest.mark.parametrize("find", [registry.mutators, registry.rules])
def test_an_id_that_was_copied_with_its_file_is_an_error(
    find: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = [SimpleNamespace(MUTATOR=replace(MUTATOR), RULE=replace(RULE)) for _ in range(2)]
    monkeypatch.setattr(registry, "_modules", lambda _: modules)
    with pytest.raises(RuntimeError, match="share the id"):
        find.__wrapped__()  # type: ignore[attr-defined]  # the cached value stays
