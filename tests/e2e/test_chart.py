"""The Helm chart renders the same objects as manifests/, and refuses values without an effect."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.e2e.api import JSON
from tests.e2e.binaries import HELM, binary
from tests.e2e.controlplane import ControlPlane
from tests.e2e.helm import CHART, FOR_CLUSTER, Helm, HelmError, of_kind
from tests.e2e.install import NAMESPACE, POLICY, REPOSITORY, Chassis
from webhook.cli import manifests
from webhook.config.load import load

pytestmark = pytest.mark.e2e
COMPONENTS: dict[str, JSON] = {
    "cert-manager": {"certManager": {"enabled": True}},
    "fail-closed-validation": {"failurePolicy": {"validation": "Fail"}},
    "fail-closed-worker-names": {"failurePolicy": {"workerNames": "Fail"}},
    "name-ignore": {"failurePolicy": {"workerNames": "Ignore"}},
    "hpa": {"hpa": {"enabled": True}},
    "monitoring": {"monitoring": {"enabled": True}},
    "network-policy": {"networkPolicy": {"enabled": True}},
    "openshift": {"openshift": True},
    "scan": {"scan": {"enabled": True}},
    "only-this-release": {"workerNamesUpgrade": False},
}
"""The values that choose each component."""
OVERLAYS: dict[str, JSON] = {
    "observe": {"profile": "observe"},
    "strict": {"profile": "strict", **COMPONENTS["fail-closed-validation"]},
}
DIGEST = "sha256:" + "1" * 64
EVERYTHING: JSON = {
    "image": {"repository": "registry.example/platform/ml-chassis", "tag": "1.2.3", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "replicas": 3,
    "priorityClassName": "high",
    "exemptNamespaces": ["istio-system", "123"],
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "infra", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}]
    }}},
    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
    "extraEnv": [{"name": "CHASSIS_LOG_LEVEL", "value": "debug"}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
    "topologySpreadConstraints": [
        {
            "maxSkew": 2, "topologyKey": "example.com/rack", "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "mlchassis"}},
        }
    ],
    "hostNetwork": True,
    "dnsPolicy": "Default",
    "port": 9443,
    "labels": {"team": "platform"},
    "annotations": {"example.com/owner": "platform"},
    "podLabels": {"sidecar.istio.io/inject": "false"},
    "podAnnotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
    "serviceAccount": {"create": True, "name": "ours", "annotations": {"example.com/role": "reader"}},
    "policy": {"gpu-affinity": {"mode": "off"}, "rules": {"modes": {"liveness-external-dependency": "warn"}}},
    "unregisterFirst": True,
}  # fmt: skip
"""Every value without a component, set to another value than its default."""
OPTIONS: JSON = {
    "networkPolicy": {"from": [{"ipBlock": {"cidr": "10.0.0.0/28"}}]},
    "rights": {"without": ["nodepools"]},
    "hpa": {"enabled": True, "minReplicas": 3, "maxReplicas": 9, "averageCPU": "1"},
    "scan": {
        "enabled": True,
        "schedule": "0 0 * * 0",
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
    },
    "certManager": {"enabled": True, "issuerRef": {"kind": "ClusterIssuer", "name": "internal"}},
    "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
}
"""The same of the values that go with a component."""
FREE = (
    "resources", "nodeSelector", "affinity", "monitoring.labels", "labels", "annotations", "podLabels",
    "podAnnotations", "serviceAccount.annotations", "certManager.issuerRef", "scan.resources",
)  # fmt: skip
"""Values that Kubernetes gives a shape, not the chart."""
REMOVED = {"events"}
"""Values of earlier versions, still accepted, so that an upgrade with --reuse-values doesn't fail."""
NAMED = ("image.digest", "puller.image.repository", "puller.image.tag", "puller.image.digest")
"""Values with their own tests."""


@pytest.fixture(params=HELM)
def helm(request: pytest.FixtureRequest, tmp_path: Path) -> Helm:
    return Helm(request.param, tmp_path)


def kustomized(
    scratch: Path, start: str, *components: str, earlier: bool = False
) -> dict[tuple[str, str], JSON]:
    """What kustomize makes of a directory of manifests/ and components; without the namespace.

    And without the rights of replicas that no chart has installed, unless `earlier`.
    """
    if not earlier and "only-this-release" not in components:
        components = (*components, "only-this-release")
    kustomization = {
        "resources": [os.path.relpath(REPOSITORY / "manifests" / start, scratch)],
        "components": [
            os.path.relpath(REPOSITORY / "manifests" / "components" / name, scratch) for name in components
        ],
    }
    (scratch / "kustomization.yaml").write_text(json.dumps(kustomization))
    command: list[str | Path] = [binary("kubectl"), "kustomize", scratch]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return by_id(item for item in yaml.safe_load_all(text) if item["kind"] != "Namespace")


def by_id(objects: object) -> dict[tuple[str, str], JSON]:
    found = list(objects)  # type: ignore[call-overload]
    keyed = {(item["kind"], item["metadata"]["name"]): item for item in found}
    assert len(keyed) == len(found)
    return keyed


def the_policy(objects: list[JSON]) -> JSON:
    """The policy's ConfigMap among the objects."""
    return by_id(objects)["ConfigMap", POLICY]


def merged(*values: JSON) -> JSON:
    """Values, one over the other, as Helm merges them."""
    result: JSON = {}
    for each in values:
        for key, value in each.items():
            before = result.get(key)
            if isinstance(before, dict) and isinstance(value, dict):
                value = merged(before, value)
            result[key] = value
    return result


def test_there_are_values_for_every_component() -> None:
    assert set(COMPONENTS) == set(manifests.choices("components"))
    assert set(OVERLAYS) == set(manifests.choices("overlays"))


def test_its_defaults_give_the_base(helm: Helm, tmp_path: Path) -> None:
    assert by_id(helm.template()) == kustomized(tmp_path, "base")


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_component_s_values_give_the_component(helm: Helm, tmp_path: Path, name: str) -> None:
    components = () if name == "only-this-release" else (name,)  # the chart's default
    assert by_id(helm.template(COMPONENTS[name])) == kustomized(tmp_path, "base", *components)


def test_a_value_gives_the_rights_of_earlier_replicas(helm: Helm, tmp_path: Path) -> None:
    ours = by_id(helm.template({"workerNamesUpgrade": True}))
    assert ours == kustomized(tmp_path, "base", earlier=True)


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_s_values_give_the_overlay(helm: Helm, tmp_path: Path, name: str) -> None:
    theirs, ours = kustomized(tmp_path, f"overlays/{name}"), by_id(helm.template(OVERLAYS[name]))
    for objects in (theirs, ours):  # a patch of kustomize's ends without a line break
        data = objects["ConfigMap", POLICY]["data"]
        data["rules.yaml"] = data["rules.yaml"].strip()
    assert ours == theirs


def test_all_components_together(helm: Helm, tmp_path: Path) -> None:
    values = merged(*COMPONENTS.values())
    assert by_id(helm.template(values)) == kustomized(tmp_path, "base", *COMPONENTS)


@pytest.mark.parametrize("values", [{}, EVERYTHING, merged(*COMPONENTS.values())], ids=str)
def test_helm_lint_passes(helm: Helm, values: JSON) -> None:
    output = helm.run("lint", "--strict", FOR_CLUSTER, str(CHART), values=values)
    assert "0 chart(s) failed" in output
    assert "[WARNING]" not in output


def test_every_value_is_known_to_the_schema_and_tried_here() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())

    def keys(properties: JSON, prefix: str = "") -> set[str]:
        return {
            found
            for name, each in properties.items()
            for found in (
                keys(each["properties"], f"{prefix}{name}.") if "properties" in each else {prefix + name}
            )
        }

    def given(values: JSON, prefix: str = "") -> set[str]:
        return {
            found
            for name, each in values.items()
            for found in (
                given(each, f"{prefix}{name}.") if isinstance(each, dict) and each else {prefix + name}
            )
        }

    known = {name for name in keys(schema["properties"]) if not name.startswith(("policy.", "global"))}

    def shaped(values: JSON) -> set[str]:
        return {next((free for free in FREE if name.startswith(f"{free}.")), name) for name in given(values)}

    assert known - REMOVED == shaped(defaults) - {"policy"}
    assert known >= REMOVED
    tried = set().union(
        *(shaped(each) for each in (EVERYTHING, OPTIONS, *COMPONENTS.values(), *OVERLAYS.values()))
    )
    assert known <= tried | set(NAMED) | REMOVED


def test_a_component_s_own_values_reach_their_places(helm: Helm) -> None:
    objects = helm.template(merged(EVERYTHING, OPTIONS))
    (scaler,) = of_kind(objects, "HorizontalPodAutoscaler")
    (metric,) = scaler["spec"]["metrics"]
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (3, 9)
    assert metric["resource"]["target"]["averageValue"] == "1"
    (nightly,) = of_kind(objects, "CronJob")
    assert nightly["spec"]["schedule"] == "0 0 * * 0"
    spec = nightly["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == "registry.example/platform/ml-chassis:1.2.3"
    assert spec["tolerations"] == EVERYTHING["tolerations"]
    assert spec["containers"][0]["resources"] == OPTIONS["scan"]["resources"]
    for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule"):
        (item,) = of_kind(objects, kind)
        assert item["metadata"]["labels"]["release"] == "prometheus"
    (certificate,) = of_kind(objects, "Certificate")
    assert certificate["spec"]["issuerRef"] == OPTIONS["certManager"]["issuerRef"]
    assert not of_kind(objects, "Issuer")


def test_every_value_reaches_its_place(helm: Helm) -> None:
    objects = helm.template(EVERYTHING)
    (deployment,) = of_kind(objects, "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert deployment["spec"]["replicas"] == 3
    assert container["image"] == "registry.example/platform/ml-chassis:1.2.3"
    assert container["imagePullPolicy"] == "Always"
    assert container["resources"] == EVERYTHING["resources"]
    assert container["env"][-1] == EVERYTHING["extraEnv"][0]
    assert spec["priorityClassName"] == "high"
    for name in ("imagePullSecrets", "tolerations", "topologySpreadConstraints", "hostNetwork", "dnsPolicy"):
        assert spec[name] == EVERYTHING[name]
    assert spec["nodeSelector"] == {"disk": "ssd", "kubernetes.io/os": "linux"}
    assert spec["affinity"]["nodeAffinity"] == EVERYTHING["affinity"]["nodeAffinity"]
    assert "podAntiAffinity" in spec["affinity"], "a user's node affinity does not cost the spread over zones"
    assert spec["volumes"][-1] == EVERYTHING["extraVolumes"][0]
    assert container["volumeMounts"][-1] == EVERYTHING["extraVolumeMounts"][0]
    assert container["ports"] == [{"name": "https", "containerPort": 9443}]
    assert {"name": "CHASSIS_PORT", "value": "9443"} in container["env"]
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    template = deployment["spec"]["template"]["metadata"]
    assert EVERYTHING["podLabels"].items() <= template["labels"].items()
    assert EVERYTHING["podAnnotations"].items() <= template["annotations"].items()
    assert template["annotations"]["prometheus.io/port"] == "9443"
    assert deployment["metadata"]["annotations"] == EVERYTHING["annotations"]
    for item in objects:
        assert item["metadata"]["labels"]["team"] == "platform"
    (account,) = of_kind(objects, "ServiceAccount")
    assert (account["metadata"]["name"], spec["serviceAccountName"]) == ("ours", "ours")
    assert account["metadata"]["annotations"] == {"example.com/role": "reader"}
    bindings = of_kind(objects, "RoleBinding") + of_kind(objects, "ClusterRoleBinding")
    assert {subject["name"] for item in bindings for subject in item["subjects"]} == {"ours"}
    assert not of_kind(objects, "ResourceQuota")
    entries = [entry for item in objects for entry in item.get("webhooks", ())]
    for entry in entries:
        values = entry["namespaceSelector"]["matchExpressions"][0]["values"]
        assert ({"istio-system", "123"} <= set(values)) == (entry["name"] != "policy.mlchassis.dev")
    policy = the_policy(objects)
    assert load(policy["data"]).rules.profile.value == "standard"
    assert policy["data"]["gpu-affinity.yaml"] == 'mode: "off"\n'
    assert yaml.safe_load(policy["data"]["rules.yaml"]) == {
        "profile": "standard",
        **EVERYTHING["policy"]["rules"],
    }


def test_an_account_that_exists_is_bound_and_not_made(helm: Helm) -> None:
    objects = helm.template({"serviceAccount": {"create": False, "name": "theirs"}})
    assert not of_kind(objects, "ServiceAccount")
    (deployment,) = of_kind(objects, "Deployment")
    assert deployment["spec"]["template"]["spec"]["serviceAccountName"] == "theirs"


def test_with_the_host_s_network_names_of_the_cluster_resolve(helm: Helm) -> None:
    (deployment,) = of_kind(helm.template({"hostNetwork": True}), "Deployment")
    assert deployment["spec"]["template"]["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_rights_may_be_left_out(helm: Helm) -> None:
    without = ["configmaps", "leases", "nodepools", "*/scale"]
    objects = helm.template({"rights": {"without": without}})
    rules = {
        (group, resource)
        for item in of_kind(objects, "ClusterRole")
        for rule in item["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert not {resource for _, resource in rules} & set(without)
    assert {("", "services"), ("", "nodes"), ("", "pods"), ("apps", "deployments")} <= rules
    assert ("karpenter.sh", "nodepools") not in rules


def test_a_network_policy_may_name_the_api_servers(helm: Helm) -> None:
    servers = [{"ipBlock": {"cidr": "10.0.0.0/28"}}]
    (policy,) = of_kind(helm.template({"networkPolicy": {"enabled": True, "from": servers}}), "NetworkPolicy")
    (ingress,) = policy["spec"]["ingress"]
    assert ingress["from"] == servers


@pytest.mark.parametrize(
    ("values", "puller"),
    [
        ({}, None),
        ({"image": {"repository": "r.example/p/chassis"}}, "r.example/p/puller:0.1.0"),
        ({"image": {"tag": "9"}}, "ghcr.io/ml-chassis/puller:9"),
        ({"image": {"digest": DIGEST}}, None),
        ({"puller": {"image": {"repository": "r.example/q"}}, "image": {"tag": "9"}}, "r.example/q:9"),
        ({"puller": {"image": {"digest": DIGEST}}}, f"ghcr.io/ml-chassis/puller@{DIGEST}"),
        ({"image": {"tag": "9"}, "policy": {"model-puller": {"image": "mine:1"}}}, "mine:1"),
        ({"image": {"tag": "9"}, "policy": {"model-puller": "image: mine:1\nport: 9082\n"}}, "mine:1"),
        ({"image": {"tag": "9"}, "policy": {"model-puller": "port: 9082\n"}}, "ghcr.io/ml-chassis/puller:9"),
    ],
)  # fmt: skip
def test_the_sidecar_s_image_goes_with_the_webhook_s(helm: Helm, values: JSON, puller: str | None) -> None:
    policy = the_policy(helm.template(values))
    load(policy["data"])
    assert yaml.safe_load(policy["data"].get("model-puller.yaml", "{}")).get("image") == puller


def test_numbers_and_texts_of_the_policy_arrive_as_they_are(helm: Helm) -> None:
    numbers: JSON = {"loadRate": 123456789012, "startupFactor": 2.5, "defaultStart": "15m"}
    text = "# by hand\nmode: off\n"
    policy = the_policy(helm.template({"policy": {"standard-probes": numbers, "job-retries": text}}))
    assert policy["data"]["job-retries.yaml"] == text
    assert yaml.safe_load(policy["data"]["standard-probes.yaml"]) == numbers


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"replica": 2}, "replica"),
        ({"replicas": 0}, "replicas"),
        ({"profile": "stict"}, "profile"),
        ({"failurePolicy": {"mutation": "Fail"}}, "mutation"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"policy": {"gpu-afinity": {}}}, "gpu-afinity"),
        ({"policy": {"gpu-affinity": {"mode": False}}}, r'policy.gpu-affinity.mode: write "off" in quotes'),
        ({"policy": {"rules": {"modes": {"tcp-probe": False}}}}, r'policy.rules.modes.tcp-probe: write'),
        ({"hostNetwork": True, "port": 10250}, "the kubelet listens on 10250"),
        ({"policy": {"rules": "profile: strict"}}, "rules"),
    ],
)  # fmt: skip
def test_values_without_an_effect_are_refused(helm: Helm, values: JSON, word: str) -> None:
    with pytest.raises(HelmError, match=word):
        helm.template(values)


@pytest.mark.parametrize("namespace", ["platform", "123"])
def test_it_goes_into_any_namespace(helm: Helm, namespace: str) -> None:
    objects = helm.template(merged(*COMPONENTS.values()), namespace=namespace)
    assert NAMESPACE not in json.dumps(objects)
    assert {item["metadata"]["namespace"] for item in objects if "namespace" in item["metadata"]} == {
        namespace
    }
    ours = manifests.render(components=list(COMPONENTS), namespace=namespace)
    assert by_id(objects) == by_id(item for item in ours if item["kind"] != "Namespace")


@pytest.mark.usefixtures("definitions")
def test_the_api_server_takes_every_object(control_plane: ControlPlane, chassis: Chassis, helm: Helm) -> None:
    objects = [
        item
        for values in (EVERYTHING, merged(EVERYTHING, OPTIONS), merged(*COMPONENTS.values()))
        for item in helm.template(merged(values, {"hostNetwork": False}))  # which is not restricted
    ]
    taken = control_plane.apply(yaml.safe_dump_all(objects), "--dry-run=server", "--validate=strict")
    assert taken.stderr == ""
    assert len(taken.stdout.splitlines()) == len(objects)


def test_its_version_is_the_project_s() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == project
