"""The leader's ConfigMap as a fact: by namespace, and the same listing while no budget could change."""

import json
from pathlib import Path

import pytest

from policies.core.resources import Resource
from policies.kube.json import Json
from tests.manifests import manifest
from webhook.cli.main import main
from webhook.errors import UserError
from webhook.kube.caches import ClusterCache, ObservedStarts
from webhook.kube.calls import ApiError
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import observed_in


def observed(**data: object) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mlchassis-observed"}, "data": data}


def entry(seconds: int, count: int = 5, **other: object) -> str:
    return json.dumps({"Deployment/a/b@0123456789ab": {"basis": [seconds, count], **other}})


@pytest.fixture
def cluster() -> ClusterCache:
    return ClusterCache(namespace="own")


@pytest.fixture
def store(cluster: ClusterCache) -> ObservedStarts:
    [(path, query, store)] = [each for each in cluster.sources if isinstance(each[2], ObservedStarts)]
    assert path == "/api/v1/namespaces/own/configmaps"
    assert query == {"fieldSelector": "metadata.name=mlchassis-observed"}
    assert isinstance(store, ObservedStarts)
    return store


def known(cluster: ClusterCache, namespace: str) -> int:
    listing = cluster.listing(Resource.OBSERVED, namespace)
    assert listing is not None
    return len(listing)


def test_a_listing_changes_only_with_what_budgets_need(cluster: ClusterCache, store: ObservedStarts) -> None:
    assert cluster.listing(Resource.OBSERVED, "ml") is None
    store.begin()
    store.put(observed(ml=entry(300), other=entry(9)))
    store.commit()
    first, other = (cluster.listing(Resource.OBSERVED, namespace) for namespace in ("ml", "other"))
    assert first is not None
    assert next(iter(first))["starts"] == {
        "0123456789ab": (300, 5, 0),
        "Deployment/a/b@0123456789ab": (300, 5, 0),
    }
    store.put(observed(ml=entry(300, seen=99, starts=77), other=entry(9)))
    assert cluster.listing(Resource.OBSERVED, "ml") is first
    store.put(observed(ml=entry(600), other=entry(9)))
    assert cluster.listing(Resource.OBSERVED, "ml") is not first
    assert cluster.listing(Resource.OBSERVED, "other") is other
    assert known(cluster, "nobody's") == 0
    store.put(observed(ml="{"))
    assert known(cluster, "ml") == 0


def test_a_deletion_changes_nothing_and_a_missing_right_is_unknown(
    cluster: ClusterCache, store: ObservedStarts
) -> None:
    store.begin()
    store.put(observed(ml=entry(300)))
    store.put({"metadata": {"name": "another"}, "data": {"ml": "{}"}})
    store.commit()
    store.remove(observed())
    assert cluster.listing(Resource.OBSERVED, "ml")
    store.lost(ApiError(0, "Unreachable", "away"))
    assert cluster.listing(Resource.OBSERVED, "ml")
    store.begin()
    store.commit()
    assert known(cluster, "ml") == 0
    store.lost(ApiError(403, "Forbidden", "no"))
    assert cluster.listing(Resource.OBSERVED, "ml") is None


def test_offline(tmp_path: Path) -> None:
    file = tmp_path / "observed.json"
    file.write_text(json.dumps(observed(ml=entry(300))))
    cluster = ManifestCluster([], observed_in(str(file)))
    assert [len(cluster.listing(Resource.OBSERVED, name) or ()) for name in ("ml", "other")] == [1, 0]
    assert ManifestCluster([]).listing(Resource.OBSERVED, "ml") is None
    file.write_text(json.dumps({**observed(), "metadata": {"name": "x"}}))
    with pytest.raises(UserError, match="there is no ConfigMap mlchassis-observed in it"):
        observed_in(str(file))


def test_a_review_with_observed_starts_has_their_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from policies.kube.pods import containers
    from policies.probes.observed import run_of

    server = {"name": "server", "image": "vllm/vllm-openai:v0.9.1", "args": ["meta-llama/Llama-3.1-70B"]}
    pod = manifest("Pod", "llm", {"containers": [server]}, namespace="ml")
    run = run_of(pod, next(iter(containers(pod))), 0)
    files = [tmp_path / "pod.json", tmp_path / "observed.json"]
    files[0].write_text(json.dumps(pod))
    files[1].write_text(json.dumps(observed(ml=json.dumps({f"Pod/llm/server@{run}": {"basis": [400, 6]}}))))
    main(["review", str(files[0]), "--observed", str(files[1])])
    assert "three times the slowest of 6 observed starts (400 s)" in " ".join(capsys.readouterr().out.split())
