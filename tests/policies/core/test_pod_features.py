"""A rule is not called for a pod without the features it requires: it would have found nothing there."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import orjson

from policies.core import registry
from policies.core.contracts import Rule
from policies.core.facts import Cluster
from policies.core.pod_view import PodFeature
from policies.core.target import Target
from policies.kube.json import Json, text
from tests.tables import table
from tests.webhook.fast_path.test_memo import corpus, judged
from webhook.admission.bounds import allowance, bounded
from webhook.admission.configuration import Config
from webhook.admission.projection import project
from webhook.admission.review import Context
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster

RULES = registry.rules().values()


def damaged(obj: Json, chance: random.Random) -> Json:
    """The object with other values, or none, at a few places."""
    result: Json = orjson.loads(orjson.dumps(obj))
    for _ in range(chance.randrange(1, 4)):
        node: Any = result
        for _ in range(chance.randrange(1, 9)):
            keys: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = chance.choice(keys)
            if not isinstance(node[key], dict | list) or chance.random() < 0.1:
                node[key] = chance.choice([None, 0, "", "x", [], {}, True, [1], {"a": {"b": 1}}, "8000"])
                break
            node = node[key]
    return result


@cache
def targets() -> tuple[tuple[Target, Context, frozenset[PodFeature]], ...]:
    """Every object of the golden cases, and a third of them damaged, with the features of its pods."""
    chance, config = random.Random(3), load({})
    cluster: Cluster = ManifestCluster(list(corpus()))
    every = (*judged(), *(damaged(obj, chance) for obj in judged()[::3]))
    return tuple((*each, had_in(each[0])) for each in _targets(every, config, cluster))


def _targets(objects: tuple[Json, ...], config: Config, cluster: Cluster) -> Iterator[tuple[Target, Context]]:
    for obj in objects:
        context = Context.of(obj, text(obj, "metadata", "namespace") or "default", config, cluster)
        bounds = bounded(obj, config.workloads, allowance())
        if not bounds.left_out:  # else a value has a wrong type, and no rule reads it
            yield project(obj, bounds.templates, context).target, context


def had_in(target: Target) -> frozenset[PodFeature]:
    return frozenset[PodFeature]().union(*(template.view.features for template in target.templates))


@table("rule", [rule for rule in RULES if rule.requires])
def test_a_rule_finds_nothing_without_its_features(rule: Rule) -> None:
    seen: Counter[bool] = Counter()
    for target, context, had in targets():
        if target.kind in rule.also or (rule.kinds is not None and target.kind not in rule.kinds):
            continue
        met = rule.requires <= had
        found = list(rule.check(target, context.facts)) if not met else []
        assert found == [], (rule.id, rule.requires, target.obj)
        seen[met] += 1
    assert seen[True], "no object here has the features"


def test_each_feature_is_present_and_missing_somewhere() -> None:
    had = [each for _, _, each in targets()]
    for need in PodFeature:
        assert {need in each for each in had} == {True, False}, need
