"""Why the webhook configurations list every version of custom kinds, shown by the API server's own matching.

`matchPolicy: Equivalent` converts a request to a listed version if the CustomResourceDefinition has that
version, served or not. A list of the versions that we know matches no request any more once an operator has
dropped them.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from policies.core.workloads import known_workloads
from tests.e2e import crds
from tests.e2e.api import JSON, ApiError
from tests.e2e.controlplane import HOST, ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.processes import free_port
from tests.e2e.test_rules import ASKS_PAYMENTS, RULE
from tests.e2e.workloads import UNKNOWN, container
from tests.manifests import manifest

pytestmark = pytest.mark.e2e

GROUP, KIND, PLURAL = "jobset.x-k8s.io", "JobSet", "jobsets"
(KNOWN,) = (list(each.versions) for each in known_workloads() if (each.api_group, each.kind) == (GROUP, KIND))
UNKNOWN_VERSION = "v9"
NARROW = "narrow.test.mlchassis.dev"
TIMEOUT = 60


def definition(known: Sequence[str] = (), *, served: bool = True) -> JSON:
    """JobSet in `known` versions, served or not, and in an unknown one."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    versions = [{"name": each, "served": served, "storage": False, "schema": schema} for each in known]
    versions.append({"name": UNKNOWN_VERSION, "served": True, "storage": True, "schema": schema})
    return manifest(
        "CustomResourceDefinition",
        f"{PLURAL}.{GROUP}",
        {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"kind": KIND, "plural": PLURAL, "singular": "jobset"},
            "versions": versions,
        },
    )


def narrowed(chassis: Chassis, namespace: str) -> JSON:
    """Our entry with a list of the known versions. It fails closed and its server is down, so a request that
    it matches fails."""
    (entry,) = (copy.deepcopy(it) for it in chassis.entries() if it["name"] == "mutate.mlchassis.dev")
    (rule,) = (it for it in entry["rules"] if it["apiGroups"] == [GROUP])
    rule["apiVersions"] = KNOWN
    entry |= {"name": NARROW, "rules": [rule], "failurePolicy": "Fail"}
    entry["clientConfig"] = {"url": f"https://{HOST}:{free_port()}/mutate"}
    entry["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    return manifest("MutatingWebhookConfiguration", NARROW) | {"webhooks": [entry]}


@pytest.fixture
def job_sets(control_plane: ControlPlane) -> Iterator[None]:
    """The API server serves JobSet in the known versions and the unknown one."""
    control_plane.apply(definition(KNOWN))
    control_plane.kubectl("wait", "--for=condition=Established", "crd", f"{PLURAL}.{GROUP}")
    yield
    crds.remove(control_plane, [f"customresourcedefinition/{PLURAL}.{GROUP}"])


def job_set(**fields: object) -> JSON:
    """One pod with an accelerator, written in the unknown version."""
    main = container(resources={"limits": {"nvidia.com/gpu": "1"}}) | fields
    pod = {"restartPolicy": "Never", "containers": [main]}
    job = {"name": "workers", "replicas": 1, "template": {"spec": {"template": {"spec": pod}}}}
    return manifest(KIND, "train", {"replicatedJobs": [job]}, version=f"{GROUP}/{UNKNOWN_VERSION}")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, "the API server has not followed"
        time.sleep(0.2)


def test_unknown_versions_are_reviewed(
    control_plane: ControlPlane, chassis: Chassis, job_sets: None, namespace: str
) -> None:
    api, path = (
        control_plane.api,
        f"/apis/{GROUP}/{UNKNOWN_VERSION}/namespaces/{namespace}/{PLURAL}?dryRun=All",
    )

    def reviewed() -> bool:
        """Mutated, and refused for what the rules refuse."""
        (job,) = api.request("POST", path, job_set()).body["spec"]["replicatedJobs"]
        with pytest.raises(ApiError) as refused:
            api.request("POST", path, job_set(image=UNKNOWN, livenessProbe=ASKS_PAYMENTS))
        return "podFailurePolicy" in job["template"]["spec"] and RULE in str(refused.value)

    def fails() -> bool:
        """Whether the narrow entry matches."""
        try:
            api.request("POST", path, job_set())
        except ApiError as error:
            if NARROW not in str(error):
                raise
            return True
        return False

    def gone() -> bool:
        try:
            api.request("GET", f"/apis/{GROUP}/{KNOWN[0]}/namespaces/{namespace}/{PLURAL}")
        except ApiError as error:
            return error.status == 404
        return False

    assert reviewed()
    control_plane.apply(narrowed(chassis, namespace))
    try:
        until(fails)  # the API server converts the object to the known version
        control_plane.apply(definition(KNOWN, served=False))
        until(gone)
        assert fails(), "also while it does not serve that version"
        control_plane.apply(definition())
        until(lambda: not fails())  # there is no known version any more: the list matches nothing
        assert reviewed()
    finally:
        control_plane.kubectl("delete", "--ignore-not-found", "mutatingwebhookconfiguration", NARROW)
