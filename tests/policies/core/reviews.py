"""Reviews of an object among others, as files of one folder."""

from __future__ import annotations

from policies.core.finding import Finding
from policies.core.workloads import workloads_by_kind
from policies.kube.json import Json
from webhook.admission.configuration import Config
from webhook.admission.coverage import Coverage
from webhook.admission.decision import Decision
from webhook.admission.engine import decide
from webhook.admission.review import Review
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import Document

TABLE = workloads_by_kind()
STANDARD = load({})
STRICT = STANDARD.with_profile("strict")
HAZARD: Json = {"exec": {"command": ["curl", "-f", "http://payments.shop/health"]}, "timeoutSeconds": 5}
RULE = "liveness-external-dependency"


def decided(obj: Json, *others: Json, config: Config = STANDARD) -> Decision:
    return decide(Review(Document("test", 0, obj).request(), config, ManifestCluster([obj, *others])))


def coverage_of(obj: Json, *others: Json, config: Config = STANDARD) -> Coverage:
    coverage = decided(obj, *others, config=config).coverage
    assert coverage is not None
    return coverage


def hazards(decision: Decision) -> list[Finding]:
    """The findings about `HAZARD`."""
    return [each.finding for each in decision.results if each.rule == RULE]
