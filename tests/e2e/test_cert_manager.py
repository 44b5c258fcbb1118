"""The component cert-manager, with cert-manager itself: it signs, the API server trusts, it renews."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.api import JSON
from tests.e2e.binaries import binary
from tests.e2e.controlplane import HOST, ControlPlane
from tests.e2e.crds import CERT_MANAGER
from tests.e2e.install import BASE, CONFIGURATIONS, NAMESPACE, REPOSITORY, Chassis
from tests.e2e.processes import Process
from tests.e2e.workloads import PROBES, injected
from tests.puller.fakes import ConfigVolume

pytestmark = pytest.mark.e2e
PATIENCE = 120
SECRET = "mlchassis-serving"
NAME = "chassis.mlchassis.dev"
INJECT = {"cert-manager.io/inject-ca-from": f"{NAMESPACE}/{SECRET}"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A new cluster in which cert-manager runs."""
    with ControlPlane(tmp_path_factory.mktemp("cert-manager")) as running:
        running.add_node("node-0")
        with CERT_MANAGER.installed(running):
            command: list[str | Path] = [binary("cert-manager"), f"--kubeconfig={running.kubeconfig}"]
            signer = Process("cert-manager", command, running.logs / "cert-manager.log")
            yield running
            signer.terminate()


class Served:
    """The webhook with the component, and its Secret as the kubelet would mount it."""

    def __init__(self, cluster: ControlPlane, scratch: Path) -> None:
        self.cluster = cluster
        self.volume = ConfigVolume(scratch / "tls")
        component = REPOSITORY / "manifests" / "components" / "cert-manager"
        # The API server calls an address here, not the Service.
        address = [{"op": "add", "path": "/spec/ipAddresses", "value": [HOST]}]
        overlay = {
            "resources": [os.path.relpath(BASE, scratch)],
            "components": [os.path.relpath(component, scratch)],
            "patches": [{"target": {"kind": "Certificate", "name": SECRET}, "patch": json.dumps(address)}],
        }
        (scratch / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
        self.flags = [
            f"--tls-{name}={scratch}/tls/{file}" for name, file in (("cert", "tls.crt"), ("key", "tls.key"))
        ]
        self.ca = f"--tls-ca={scratch}/tls/ca.crt"
        self.chassis = Chassis(cluster, scratch, [*self.flags, self.ca])

    def mount(self, before: str = "") -> str:
        """Put the Secret where the webhook reads it, once its certificate is not `before`; return that."""

        def signed(secret: JSON) -> bool:
            return secret.get("data", {}).get("tls.crt", "") not in ("", before)

        secret = self.cluster.api.wait("secrets", SECRET, signed, namespace=NAMESPACE, timeout=PATIENCE)
        self.volume.write_files({key: base64.b64decode(it).decode() for key, it in secret["data"].items()})
        return str(secret["data"]["tls.crt"])

    def bundles(self) -> set[str]:
        """The CAs that the API server trusts the webhook by."""
        return {entry["clientConfig"].get("caBundle", "") for entry in self.chassis.entries()}


@pytest.fixture(scope="module")
def served(cluster: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    running = Served(cluster, tmp_path_factory.mktemp("overlay"))
    running.chassis.install()
    running.mount()
    running.chassis.start()
    yield running
    running.chassis.stop()


def authority(cluster: ControlPlane) -> str:
    """The CA of the certificate that cert-manager made."""
    return str(cluster.api.get("secrets", SECRET, NAMESPACE)["data"]["ca.crt"])


def test_what_cert_manager_signs_is_served_and_trusted(cluster: ControlPlane, served: Served) -> None:
    assert served.bundles() == {authority(cluster)}
    assert injected(cluster.api) == set(PROBES)


def test_a_renewal_is_served_without_a_restart(cluster: ControlPlane, served: Served) -> None:
    before = cluster.api.get("secrets", SECRET, NAMESPACE)["data"]["tls.crt"]
    loaded = served.chassis.metric("chassis_certificate_expiry_timestamp_seconds")
    certificate = cluster.api.get("certificates.cert-manager.io", SECRET, NAMESPACE)
    # What `cmctl renew` does.
    certificate["status"]["conditions"].append(
        {"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "by a test"}
    )
    path = f"/apis/cert-manager.io/v1/namespaces/{NAMESPACE}/certificates/{SECRET}/status"
    cluster.api.request("PUT", path, certificate)
    assert served.mount(before) != before
    served.chassis.process.wait_until(
        lambda: served.chassis.metric("chassis_certificate_expiry_timestamp_seconds") > loaded, PATIENCE
    )
    # It writes the bundles after it has loaded the certificate.
    served.chassis.process.wait_until(lambda: served.bundles() == {authority(cluster)}, PATIENCE)
    assert injected(cluster.api) == set(PROBES)


def test_cert_manager_s_injector_may_write_the_ca_bundle_instead(
    cluster: ControlPlane, served: Served
) -> None:
    served.chassis.stop()
    for resource in CONFIGURATIONS:
        for entry in (item := cluster.api.get(resource, NAME))["webhooks"]:
            entry["clientConfig"].pop("caBundle", None)
        item["metadata"]["annotations"] = item["metadata"].get("annotations", {}) | INJECT
        cluster.api.request("PUT", f"/apis/admissionregistration.k8s.io/v1/{resource}/{NAME}", item)
    for resource in CONFIGURATIONS:
        cluster.api.wait(
            resource,
            NAME,
            lambda it: all(entry["clientConfig"].get("caBundle") for entry in it["webhooks"]),
            timeout=PATIENCE,
        )
    served.chassis.start()
    assert served.bundles() == {authority(cluster)}
    assert injected(cluster.api) == set(PROBES)
