"""The shipped manifests: properties of every rendering, and that ours equals kustomize's."""

from __future__ import annotations

import json
import os
import re
import subprocess
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from policies.core import registry
from policies.core.annotations import POLICY_LABEL
from policies.core.resources import resource_kinds
from policies.core.workloads import known_workloads
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json
from policies.kube.yaml_text import load_all
from tests.e2e.binaries import binary
from tests.webhook.cli.scanned import Chassis
from webhook.admission.configuration import Namespaces
from webhook.cli import main as cli
from webhook.cli import manifests
from webhook.cli.cluster_reviews import kinds_of
from webhook.cli.output.policyreport import APIS
from webhook.config.load import load
from webhook.errors import UserError
from webhook.kube.own_pod import own_namespace
from webhook.server import pki
from webhook.server import server_flags as serve

ROOT = manifests.directory()
OVERLAYS, COMPONENTS = manifests.choices("overlays"), manifests.choices("components")
RENDERINGS = ("base", *OVERLAYS, *(f"+{name}" for name in COMPONENTS), "+all")


@cache
def rendering(name: str) -> list[Json]:
    """The objects of the base, of an overlay, or of the base with one component or all."""
    if name[0] == "+":
        return manifests.render(components=COMPONENTS if name == "+all" else [name[1:]])
    return manifests.render(None if name == "base" else name)


@pytest.fixture(params=RENDERINGS)
def objects(request: pytest.FixtureRequest) -> list[Json]:
    return rendering(request.param)


def of_kind(objects: list[Json], kind: str) -> list[Json]:
    return [item for item in objects if item["kind"] == kind]


def only(objects: list[Json], kind: str) -> Json:
    (item,) = of_kind(objects, kind)
    return item


def the_policy(objects: list[Json]) -> Json:
    (item,) = (
        it for it in of_kind(objects, "ConfigMap") if it["metadata"]["labels"].get(POLICY_LABEL) == "true"
    )
    return item


def of_the_webhook(objects: list[Json]) -> list[Json]:
    """Without the objects of the scan, which has its own account."""
    return [it for it in objects if it["metadata"]["labels"]["app.kubernetes.io/name"] == "mlchassis"]


def entries(objects: list[Json]) -> dict[str, Json]:
    found = [
        entry
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for entry in only(objects, kind)["webhooks"]
    ]
    return {entry["name"]: entry for entry in found}


def selected(rules: list[Json]) -> set[tuple[str, str]]:
    """Group and resource of each pair that the rules select."""
    return {(group, kind) for rule in rules for group in rule["apiGroups"] for kind in rule["resources"]}


def of_the_scan() -> list[Json]:
    return [it for it in rendering("+scan") if it not in of_the_webhook(rendering("+scan"))]


# --- webhook configurations ----------------------------------------------------------------------------


def test_every_entry_keeps_the_api_server_s_and_our_own_rules(objects: list[Json]) -> None:
    service = only(objects, "Service")["metadata"]
    endpoints = {"/mutate", "/validate", "/name"}
    for name, entry in entries(objects).items():
        assert entry["admissionReviewVersions"] == ["v1"], name
        assert entry["timeoutSeconds"] <= 5, name
        assert entry["matchPolicy"] == "Equivalent", name
        called = entry["clientConfig"]["service"]
        assert (called["namespace"], called["name"]) == (service["namespace"], service["name"])
        assert called["path"] in endpoints, name
        assert entry["sideEffects"] == ("NoneOnDryRun" if called["path"] == "/name" else "None")
        assert "caBundle" not in entry["clientConfig"], "it is written by the webhook itself"
        assert all(set(rule["operations"]) <= {"CREATE", "UPDATE"} for rule in entry["rules"])


def test_system_namespaces_our_own_and_those_that_opted_out_are_not_sent(objects: list[Json]) -> None:
    own = only(objects, "Namespace")["metadata"]["name"]
    excluded = {"kube-system", "kube-public", "kube-node-lease", own}
    for name, entry in entries(objects).items():
        if name == "policy.mlchassis.dev":
            continue
        terms = {term["key"]: term for term in entry["namespaceSelector"]["matchExpressions"]}
        by_name = terms["kubernetes.io/metadata.name"]
        assert by_name["operator"] == "NotIn", name
        assert set(by_name["values"]) == excluded, name
        disabled = terms["mlchassis.dev/admission"]
        assert (disabled["operator"], disabled["values"]) == ("NotIn", ["disabled"])


def test_the_manifests_and_the_default_policy_exclude_the_same_namespaces() -> None:
    selector = entries(rendering("base"))["mutate.mlchassis.dev"]["namespaceSelector"]
    assert set(Namespaces().exclude) == set(selector["matchExpressions"][0]["values"])


def test_mutation_fails_open_always(objects: list[Json]) -> None:
    entry = entries(objects)["mutate.mlchassis.dev"]
    assert (entry["failurePolicy"], entry["reinvocationPolicy"]) == ("Ignore", "IfNeeded")


def test_our_own_policy_can_never_lock_itself_out(objects: list[Json]) -> None:
    entry = entries(objects)["policy.mlchassis.dev"]
    (labels,) = entry["objectSelector"]["matchExpressions"]
    assert entry["failurePolicy"] == "Ignore"
    assert (labels["key"], labels["operator"]) == (POLICY_LABEL, "In")
    used = {item["metadata"]["labels"].get(POLICY_LABEL) for item in of_kind(objects, "ConfigMap")}
    assert set(labels["values"]) == used - {None}


def test_validation_fails_open_without_its_component() -> None:
    policies = {
        name: {entry: fields["failurePolicy"] for entry, fields in entries(rendering(name)).items()}
        for name in ("base", "+fail-closed-validation", "+fail-closed-worker-names", "+name-ignore")
    }
    names = ("ray-name.mlchassis.dev", "worker-name.mlchassis.dev")
    base = policies["base"]
    assert set(base.values()) == {"Ignore"}
    assert policies["+fail-closed-validation"] == {
        **base,
        "validate.mlchassis.dev": "Fail",
        "model-config.mlchassis.dev": "Fail",
        "validate-owned.mlchassis.dev": "Ignore",
    }
    assert policies["+fail-closed-worker-names"] == {**base, **dict.fromkeys(names, "Fail")}
    assert policies["+name-ignore"] == base


def test_what_a_controller_makes_is_judged_but_never_waits_for_us() -> None:
    found = entries(rendering("+fail-closed-validation"))
    ours, owned = found["validate.mlchassis.dev"], found["validate-owned.mlchassis.dev"]

    def sent(entry: Json) -> tuple[set[tuple[str, str]], set[str]]:
        rules = entry["rules"]
        pairs = {pair for rule in rules for pair in product(rule["resources"], rule["operations"])}
        return pairs, {group for rule in rules for group in rule["apiGroups"]}

    assert sent(owned) == sent(ours)
    (without, _), (having,) = ours["matchConditions"], owned["matchConditions"]
    assert without["expression"] == f"!({having['expression']})"


def test_deletions_never_wait_for_us() -> None:
    found = entries(rendering("+fail-closed-validation"))
    for name in ("validate.mlchassis.dev", "model-config.mlchassis.dev"):
        *_, alive = found[name]["matchConditions"]
        assert alive["expression"] == "!has(object.metadata.deletionTimestamp)"


def test_worker_names_are_asked_only_for_ray_pods_and_worker_groups() -> None:
    found = entries(rendering("base"))
    keys = {
        term["key"]
        for name in ("ray-name.mlchassis.dev", "worker-name.mlchassis.dev")
        for term in found[name]["objectSelector"]["matchExpressions"]
    }
    assert keys == {"ray.io/is-ray-node", "mlchassis.dev/worker-group"}


def test_every_kind_that_is_read_is_sent_for_validation() -> None:
    sent = selected(entries(rendering("base"))["validate.mlchassis.dev"]["rules"])
    paths = {"templates", "specs", "containers", "composed", "overrides", "objects"}
    read = (workload for workload in known_workloads() if workload.given & paths)
    wanted = {(workload.api_group, workload.group_kind.resource) for workload in read}
    assert sent == wanted | {
        ("", "pods"),
        ("policy", "poddisruptionbudgets"),
        ("autoscaling", "horizontalpodautoscalers"),
        ("keda.sh", "scaledobjects"),
    }


def test_every_kind_that_a_policy_changes_is_sent_for_mutation() -> None:
    rules = entries(rendering("base"))["mutate.mlchassis.dev"]["rules"]
    changing = [policy for policy in registry.mutators().values() if policy.mutate is not None]
    assert {(kind.group, kind.resource) for policy in changing for kind in policy.kinds} == selected(rules)


def test_an_update_is_sent_for_mutation_only_where_the_spec_can_still_change() -> None:
    """A Job's pod template and podFailurePolicy are immutable: a patch on an update would refuse it."""
    rules = entries(rendering("base"))["mutate.mlchassis.dev"]["rules"]
    updated = [rule for rule in rules if "UPDATE" in rule["operations"]]
    assert selected(updated) == {("batch", "cronjobs")}


def test_an_autoscaler_s_number_is_not_put_back() -> None:
    assert "replicas" not in only(rendering("+hpa"), "Deployment")["spec"]


def test_on_openshift_the_namespace_chooses_the_user() -> None:
    assert pod_spec(rendering("+openshift"))["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_the_scan_has_its_own_account_and_may_only_write_reports() -> None:
    theirs = of_the_scan()
    (role,) = of_kind(theirs, "ClusterRole")
    writing = selected([rule for rule in role["rules"] if not set(rule["verbs"]) <= {"get", "list"}])
    assert {group for group, _ in writing} == {"wgpolicyk8s.io", "openreports.io"}
    (binding,) = of_kind(theirs, "ClusterRoleBinding")
    account = only(theirs, "ServiceAccount")["metadata"]["name"]
    assert (binding["roleRef"]["name"], binding["subjects"][0]["name"]) == (role["metadata"]["name"], account)
    template = only(theirs, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]
    assert template["spec"]["serviceAccountName"] == account


def test_the_scan_may_only_list_what_it_reads() -> None:
    (role,) = of_kind(of_the_scan(), "ClusterRole")
    granted = {
        verb: selected([rule for rule in role["rules"] if verb in rule["verbs"]]) for verb in ("get", "list")
    }
    judged = {(kind.group, kind.resource) for kind in kinds_of(each.group_kind for each in known_workloads())}
    asked = {(known.group_kind.group, known.plural) for known in resource_kinds()}
    reports = {(api.group, name) for api in APIS for name in (api.plural, f"cluster{api.plural}")}
    assert granted == {
        "list": judged | asked | reports | {("apiextensions.k8s.io", "customresourcedefinitions")},
        "get": {("", "configmaps"), ("", "namespaces")},
    }


# --- the workload --------------------------------------------------------------------------------------


def pod_spec(objects: list[Json]) -> Json:
    spec: Json = only(objects, "Deployment")["spec"]["template"]["spec"]
    return spec


def test_the_pod_meets_the_restricted_standard_that_its_namespace_enforces(objects: list[Json]) -> None:
    labels = only(objects, "Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    jobs = [item["spec"]["jobTemplate"]["spec"] for item in of_kind(objects, "CronJob")]
    for spec in (pod_spec(objects), *(job["template"]["spec"] for job in jobs)):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"].get("runAsUser") != 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_liveness_is_more_patient_than_readiness(objects: list[Json]) -> None:
    (container,) = pod_spec(objects)["containers"]
    liveness, readiness = container["livenessProbe"], container["readinessProbe"]
    assert liveness["httpGet"]["path"] == container["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert readiness["httpGet"]["path"] == "/readyz"
    patience, other = (each["periodSeconds"] * each["failureThreshold"] for each in (liveness, readiness))
    assert patience > 3 * other


def test_the_pod_has_time_to_drain(objects: list[Json]) -> None:
    spec = pod_spec(objects)
    args = served(objects)
    (sleep,) = re.findall(r"\d+", str(spec["containers"][0]["lifecycle"]["preStop"]))
    assert spec["terminationGracePeriodSeconds"] > int(sleep) + args.drain_grace + args.drain_patience


def test_an_upgrade_and_a_drained_node_leave_a_replica_serving(objects: list[Json]) -> None:
    deployment, budget = only(objects, "Deployment")["spec"], only(objects, "PodDisruptionBudget")["spec"]
    scalers = of_kind(objects, "HorizontalPodAutoscaler")
    replicas = scalers[0]["spec"]["minReplicas"] if scalers else deployment["replicas"]
    assert replicas >= 2
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert budget["maxUnavailable"] < replicas
    labels = deployment["template"]["metadata"]["labels"]
    for selector in (deployment["selector"], budget["selector"]):
        assert selector["matchLabels"].items() <= labels.items()
    assert only(objects, "Service")["spec"]["selector"].items() <= labels.items()


def served(objects: list[Json]) -> Any:
    """The arguments of `chassis serve` as the Deployment gives them."""
    (container,) = pod_spec(objects)["containers"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        for variable in container["env"]:
            assert variable["name"].startswith("CHASSIS_")
            patch.setenv(
                variable["name"], variable.get("value") or variable["valueFrom"]["fieldRef"]["fieldPath"]
            )
        args = cli._parser("chassis", container["args"]).parse_args(container["args"])
        serve.options_of(args)
        return args


def test_the_flags_fit_the_other_objects(objects: list[Json]) -> None:
    args = served(objects)
    (port,) = pod_spec(objects)["containers"][0]["ports"]
    assert args.port == port["containerPort"]
    policy = the_policy(objects)["metadata"]
    assert args.policy == f"configmap:{policy['namespace']}/{policy['name']}"
    assert args.service == only(objects, "Service")["metadata"]["name"]
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        assert only(objects, kind)["metadata"]["name"] == args.webhook_configurations
    assert own_namespace() == policy["namespace"], "the default away from a pod"


def test_the_policy_that_is_shipped_loads(objects: list[Json]) -> None:
    load(the_policy(objects)["data"])


def test_overlays_set_their_profile() -> None:
    profiles = {
        name: load(the_policy(rendering(name))["data"]).rules.profile.value
        for name in ("base", "observe", "strict")
    }
    assert profiles == {"base": "standard", "observe": "observe", "strict": "strict"}


# --- RBAC ----------------------------------------------------------------------------------------------


def test_every_binding_gives_our_account_a_role_that_is_there(objects: list[Json]) -> None:
    objects = of_the_webhook(objects)
    account = only(objects, "ServiceAccount")["metadata"]
    roles = {(item["kind"], item["metadata"]["name"]) for item in objects if item["kind"].endswith("Role")}
    bindings = of_kind(objects, "RoleBinding") + of_kind(objects, "ClusterRoleBinding")
    assert {(item["roleRef"]["kind"], item["roleRef"]["name"]) for item in bindings} == roles
    target = {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    assert all(item["subjects"] == [target] for item in bindings)
    assert pod_spec(objects)["serviceAccountName"] == account["name"]


def test_the_account_may_read_every_fact_and_write_little(objects: list[Json]) -> None:
    objects = of_the_webhook(objects)
    verbs = ["get", "create", "update"]
    of_previous_releases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs}
    all_rules = [rule for role in of_kind(objects, "ClusterRole") for rule in role["rules"]]
    rules = [rule for rule in all_rules if rule != of_previous_releases]
    everywhere = [rule for rule in rules if "resourceNames" not in rule]
    readable = selected([rule for rule in everywhere if {"list", "watch"} <= set(rule["verbs"])])
    facts = {(known.group_kind.group, known.plural) for known in resource_kinds()}
    assert facts <= readable
    [role] = [role for role in of_kind(objects, "ClusterRole") if role["metadata"]["name"].endswith("-facts")]
    assert selected(role["rules"]) == facts, "no more than the facts"
    changing = {"create", "update", "patch", "delete", "*"}
    writable = selected([rule for rule in everywhere if changing & set(rule["verbs"])])
    assert {resource for _, resource in writable} == {"events"}
    own = [rule for role in of_kind(objects, "Role") for rule in role["rules"]]
    assert not any("*" in rule["verbs"] for rule in rules + own)
    deletable = selected([rule for rule in own if "delete" in rule["verbs"]])
    assert {resource for _, resource in deletable} == {"leases"}
    assert not any("delete" in rule["verbs"] for rule in rules)
    assert not any("leases" in rule["resources"] for rule in rules), "who may write any may take any election"
    secrets = [rule for rule in rules if "secrets" in rule["resources"] or "*" in rule["resources"]]
    assert not secrets, "Secrets are read only in our own namespace"


def test_no_role_has_a_wildcard_but_for_the_scale_of_any_kind(objects: list[Json]) -> None:
    rules = [
        rule for item in objects if item["kind"] in ("Role", "ClusterRole") for rule in item.get("rules", ())
    ]
    assert rules
    wild = [rule for rule in rules if "*" in json.dumps(rule)]
    # A worker group may belong to any kind that has a scale: the kinds are not known before.
    assert wild == [{"apiGroups": ["*"], "resources": ["*/scale"], "verbs": ["get"]}]


def test_webhooks_have_no_wildcard_but_the_versions_of_kinds_that_are_not_the_api_server_s_own(
    objects: list[Json],
) -> None:
    for name, entry in entries(objects).items():
        for rule in entry["rules"]:
            listed = [*rule["apiGroups"], *rule["resources"], *rule["operations"], rule["scope"]]
            assert not [each for each in listed if "*" in each], name
            custom = all("." in group for group in rule["apiGroups"])
            own = ["v2"] if rule["apiGroups"] == ["autoscaling"] else ["v1"]
            assert rule["apiVersions"] == (["*"] if custom else own), name


def test_a_resource_is_the_plural_of_its_kind() -> None:
    assert all(known.group_kind.resource == known.plural for known in resource_kinds())
    assert GroupKind("acme.io", "Policy").resource == "policies"
    assert GroupKind("acme.io", "Ingress").resource == "ingresses"


# --- rendering -----------------------------------------------------------------------------------------


@pytest.mark.e2e
@pytest.mark.parametrize("name", RENDERINGS)
def test_our_rendering_is_kustomize_s(name: str, tmp_path: Path) -> None:
    start = ROOT / "overlays" / name if name in manifests.choices("overlays") else ROOT / "base"
    components = manifests.choices("components") if name == "+all" else [name[1:]] if name[0] == "+" else []
    added = [os.path.relpath(ROOT / "components" / component, tmp_path) for component in components]
    kustomization = {"resources": [os.path.relpath(start, tmp_path)], "components": added}
    (tmp_path / "kustomization.yaml").write_text(json.dumps(kustomization))
    command = [str(binary("kubectl")), "kustomize", str(tmp_path)]
    rendered = subprocess.run(command, check=True, capture_output=True, text=True)
    theirs = {_id(item): item for item in load_all(rendered.stdout)}
    assert {_id(item): item for item in rendering(name)} == theirs


def _id(item: Json) -> tuple[str, str]:
    return item["kind"], item["metadata"]["name"]


def test_cert_manager_s_certificate_is_for_the_names_that_the_api_server_calls() -> None:
    objects = rendering("+cert-manager")
    (certificate,) = (item for item in of_kind(objects, "Certificate") if not item["spec"].get("isCA"))
    args = served(objects)
    own = pki.service_hosts(certificate["metadata"]["namespace"], args.service)
    assert set(certificate["spec"]["dnsNames"]) <= set(own)
    assert own[0] in certificate["spec"]["dnsNames"]
    assert not args.self_signed
    (mount,) = (m for m in pod_spec(objects)["containers"][0]["volumeMounts"] if m["name"] == "tls")
    (volume,) = (v for v in pod_spec(objects)["volumes"] if v["name"] == "tls")
    assert volume["secret"]["secretName"] == certificate["spec"]["secretName"]
    for flag in (args.tls_cert, args.tls_key, args.tls_ca):
        assert str(flag.parent) == mount["mountPath"]


def test_another_namespace_and_image_reach_every_place() -> None:
    components = ["name-ignore", "scan"]
    objects = manifests.render("strict", components, image="registry.example/x:1", namespace="platform")
    assert "ghcr.io" not in yaml.safe_dump_all(objects)
    text = yaml.safe_dump_all(objects)
    assert "mlchassis-system" not in text
    assert "configmap:platform/mlchassis-policy" in text
    assert pod_spec(objects)["containers"][0]["image"] == "registry.example/x:1"


@pytest.mark.parametrize(
    ("image", "puller"),
    [
        ("registry.example:5000/platform/x:1", "registry.example:5000/platform/puller:1"),
        ("x:1", "puller:1"),
        ("registry.example:5000/x", None),
        (f"registry.example/x@sha256:{'0' * 64}", None),
        (f"registry.example/x:1@sha256:{'0' * 64}", None),
    ],
)
def test_the_sidecar_s_image_is_in_the_webhook_s_repository(image: str, puller: str | None) -> None:
    data = the_policy(manifests.render(image=image))["data"]
    load(data)
    assert yaml.safe_load(data.get("model-puller.yaml", "{}")).get("image") == puller


def test_the_command_prints_manifests_to_apply(chassis: Chassis) -> None:
    assert list(yaml.safe_load_all(chassis("manifests", "--overlay", "observe").out)) == rendering("observe")


def test_unsupported_features_and_patches_without_an_object_are_refused(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("namePrefix: x-\n")
    with pytest.raises(UserError, match="namePrefix"):
        manifests._apply(tmp_path, [])
    with pytest.raises(UserError, match="no Pod x to patch"):
        list(manifests._patched([], {"kind": "Pod", "name": "x"}, []))


def test_pods_reach_us_before_a_service_mesh_rewrites_their_probes(objects: list[Json]) -> None:
    """Configurations are called in the order of their names."""
    name = only(objects, "MutatingWebhookConfiguration")["metadata"]["name"]
    assert name < "istio-sidecar-injector"
