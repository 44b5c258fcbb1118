"""Real operators in a test cluster, with their webhooks."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest
import yaml

from tests.e2e import crds
from tests.e2e.api import JSON, Api
from tests.e2e.binaries import binary, module_directory
from tests.e2e.controlplane import HOST, LEFT_ALONE, ControlPlane
from tests.e2e.pki import Authority, KeyPair, rsa_key
from tests.e2e.processes import Process, free_port
from tests.e2e.status import established
from tests.manifests import manifest

START_TIMEOUT = 120
T = TypeVar("T")


@dataclass(frozen=True)
class Release:
    """What an operator's module holds for its installation, and how the operator is started."""

    name: str
    """Its key in `binaries.TABLE`."""
    definitions: str
    """The file or directory of its CustomResourceDefinitions."""
    started: str = "Starting workers"
    """A line of its log: from then on it works."""
    configuration: Mapping[str, object] = field(default_factory=dict)
    """Its own part of its configuration file; without one it has no such file."""
    arguments: tuple[str, ...] = ()
    webhooks: str = ""
    """The file of its webhook configurations."""
    pods: str = ""
    """The label of the pods that its webhooks see; without one they see all."""
    secret: tuple[str, str] = ("", "")
    """Namespace and name of the Secret with its certificates, if it manages one itself."""
    names_certificates: bool = True
    """Whether its configuration file names their directory; without, it is controller-runtime's default."""


LWS = Release(
    "lws",
    "config/crd/bases",
    configuration={
        "apiVersion": "config.lws.x-k8s.io/v1alpha1",
        "internalCertManagement": {"enable": False},
    },
    webhooks="config/webhook/manifests.yaml",
    pods="leaderworkerset.sigs.k8s.io/name",
)
JOB_SET = Release(
    "jobset",
    "config/components/crd/bases",
    configuration={
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "internalCertManagement": {"enable": False},
    },
    webhooks="config/components/webhook/manifests.yaml",
    pods="jobset.sigs.k8s.io/jobset-name",
)
KUEUE = Release(
    "kueue",
    "config/components/crd/bases",
    configuration={
        "apiVersion": "config.kueue.x-k8s.io/v1beta1",
        "integrations": {"frameworks": ["batch/job", "pod"]},
    },
    # Its API server for positions in queues listens on every address.
    arguments=("--feature-gates=VisibilityOnDemand=false",),
    webhooks="config/components/webhook/manifests.yaml",
    secret=("kueue-system", "kueue-webhook-server-cert"),
)
ARGO = Release("argo-workflows", "manifests/base/crds/minimal", "Starting Workflow Controller")
ROLLOUTS = Release(
    "argo-rollouts",
    "manifests/crds",
    "Started rollout workers",
    # Its ports for metrics and health listen on every address; it goes on without ports that cannot be.
    arguments=("--leader-elect=false", "--metricsPort=65536", "--healthzPort=65537"),
)
TRAINER = Release(
    "trainer",
    "manifests/base/crds",
    configuration={
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "certManagement": {"enable": False},
    },
    webhooks="manifests/base/webhook/manifests.yaml",
    names_certificates=False,
)
KSERVE = Release(
    "kserve-manager",
    "config/crd/full",
    configuration={"apiVersion": "mlchassis.dev/v1"},
    webhooks="config/webhook/manifests.yaml",
)
MPI = Release("mpi-operator", "manifests/base/kubeflow.org_mpijobs.yaml", "Started workers")
TRAINING_OPERATOR = Release("training-operator", "manifests/base/crds")


class Operator:
    """The operator as a separate process, with cluster-admin's rights, and its webhooks on 127.0.0.1."""

    def __init__(self, release: Release, control_plane: ControlPlane, directory: Path) -> None:
        self._release, self._control_plane, self._directory = release, control_plane, directory
        self._root = module_directory(release.name)
        self._certificates = directory / "k8s-webhook-server" / "serving-certs"
        """Where controller-runtime looks for them below TMPDIR."""
        self._log = control_plane.logs / f"{release.name}.log"
        self._port, self._health = free_port(), free_port()
        self._authority = Authority(f"{release.name}-ca", rsa_key() if release.secret[0] else None)
        self._definitions: list[str] = []
        """The CustomResourceDefinitions that were not there before."""
        self._webhooks: list[tuple[str, str]] = []

    def __enter__(self) -> Self:
        release, api = self._release, self._control_plane.api
        hosts = [HOST]
        if release.secret[0]:
            hosts.append(f"{release.name}-webhook-service.{release.secret[0]}.svc")
        pair = self._authority.server(release.name, hosts)
        self._certificates.mkdir(parents=True)
        (self._certificates / "tls.crt").write_bytes(pair.certificate)
        (self._certificates / "tls.key").write_bytes(pair.key)
        command: list[str | Path] = [binary(release.name), *release.arguments]
        if release.configuration:
            config = self._directory / "config.yaml"
            config.write_text(yaml.safe_dump(self._configuration()))
            command += [f"--config={config}", "--zap-log-level=info"]
        self._define()
        if release.secret[0]:
            self._control_plane.create_namespace(release.secret[0])
            api.create(self._secret(pair))
        if release.webhooks:
            self._register()
        environment = {
            **os.environ,
            "KUBECONFIG": str(self._control_plane.kubeconfig),
            "TMPDIR": str(self._directory),
        }
        self.process = Process(release.name, command, self._log, environment)
        try:
            self.process.wait_until(lambda: release.started in self._log.read_text(), START_TIMEOUT)
        except BaseException:
            self.process.terminate(timeout=5)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        api = self._control_plane.api
        for resource, name in self._webhooks:
            api.delete(resource, name)
        # The operator removes finalizers, and for that it lists objects of its other kinds.
        kinds = ",".join(self._definitions)
        self._control_plane.kubectl("delete", kinds, "--all", "--all-namespaces", timeout=300)
        crds.remove(self._control_plane, [f"customresourcedefinition/{name}" for name in self._definitions])
        self.process.terminate(timeout=5)
        if self._release.secret[0]:
            api.delete("namespaces", self._release.secret[0])

    def _configuration(self) -> JSON:
        named = {"certDir": str(self._certificates)} if self._release.names_certificates else {}
        return {
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "webhook": {"host": HOST, "port": self._port, **named},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": f"{HOST}:{self._health}"},
            **self._release.configuration,
        }

    def _define(self) -> None:
        api, given = self._control_plane.api, self._root / self._release.definitions
        for file in sorted(given.glob("*.yaml")) if given.is_dir() else [given]:
            for definition in yaml.load_all(file.read_text(), yaml.CSafeLoader):
                if definition["kind"] != "CustomResourceDefinition":
                    continue
                name = definition["metadata"]["name"]
                if not api.exists("customresourcedefinitions", name):
                    api.create(definition)
                    self._definitions.append(name)
                api.wait("customresourcedefinitions", name, established)

    def _secret(self, pair: KeyPair) -> JSON:
        """The Secret as the operator itself would write it: it uses certificates that are valid."""
        namespace, name = self._release.secret
        files = {
            "ca.crt": self._authority.certificate,
            "ca.key": self._authority.key,
            "tls.crt": pair.certificate,
            "tls.key": pair.key,
        }
        data = {key: base64.b64encode(value).decode() for key, value in files.items()}
        metadata = {"name": name, "namespace": namespace}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}

    def _register(self) -> None:
        """The webhook configurations, with a URL in place of the Service."""
        api = self._control_plane.api
        bundle = base64.b64encode(self._authority.certificate).decode()
        for item in yaml.load_all((self._root / self._release.webhooks).read_text(), yaml.CSafeLoader):
            for webhook in item["webhooks"]:
                path = webhook["clientConfig"].pop("service")["path"]
                webhook["clientConfig"] = {
                    "url": f"https://{HOST}:{self._port}{path}",
                    "caBundle": bundle,
                }
                webhook["failurePolicy"] = "Ignore"
                if "pod" in webhook["name"] and self._release.pods:
                    # As the project's own patch has it: only pods of its sets.
                    webhook["objectSelector"] = {
                        "matchExpressions": [{"key": self._release.pods, "operator": "Exists"}]
                    }
            item["metadata"]["name"] = f"{self._release.name}-{item['metadata']['name']}"
            api.create(item)
            self._webhooks.append((f"{item['kind'].lower()}s", item["metadata"]["name"]))


def fixture(key: str, *releases: Release) -> Any:
    """The fixture `operator` of a module: a node for its pods, and the operators; the last one is given."""

    @pytest.fixture(scope="module", name="operator")
    def started(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
        with own_node(control_plane, key), ExitStack() as running:
            for release in releases:
                directory = tmp_path_factory.mktemp(release.name)
                operator = running.enter_context(Operator(release, control_plane, directory))
            yield operator

    return started


@contextmanager
def own_node(control_plane: ControlPlane, key: str) -> Iterator[None]:
    """A node for pods with `place(key)` only: the tests of one module play its kubelet."""
    name, taint = f"node-of-{key}", {"key": key, "effect": "NoSchedule"}
    # Pods that are deleted keep their place until somebody ends them.
    control_plane.add_node(
        name, {key: "yes"}, [taint], {"nvidia.com/gpu": "64", "pods": "1000"}, runs_pods=False
    )
    yield
    control_plane.api.delete("nodes", name)


def place(key: str) -> JSON:
    """The fields of a pod that bind it to that node."""
    return {"nodeSelector": {key: "yes"}, "tolerations": [{"key": key, "operator": "Exists"}]}


# A kubelet by hand


def bound(pod: JSON) -> bool:
    """Whether the scheduler has found a node for the pod."""
    return bool(pod["spec"].get("nodeName"))


def bound_pods(api: Api, namespace: str, labels: str, count: int) -> list[JSON]:
    """The pods with these labels once there are so many and all are bound, by name."""
    pods = api.wait_for(
        "pods",
        lambda found: len(found) == count and all(map(bound, found)),
        namespace=namespace,
        labels=labels,
        timeout=120,
    )
    return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))


def uid(item: JSON) -> str:
    return str(item["metadata"]["uid"])


def new_pods(
    api: Api, labels: str, count: int = 1, *, besides: Collection[str] = (), namespace: str | None = None
) -> list[JSON]:
    """The bound pods with these labels, others than those with these uids, once there are so many."""

    def new(found: list[JSON]) -> list[JSON]:
        return [pod for pod in found if bound(pod) and uid(pod) not in besides]

    found = api.wait_for(
        "pods", lambda found: len(new(found)) == count, namespace=namespace, labels=labels, timeout=120
    )
    return new(found)


def run(api: Api, pod: JSON, *, answers: bool = True) -> None:
    """Be the kubelet of a pod: its containers run, and its servers answer or not. Without readiness and
    startup probes it is Ready when it runs."""
    containers = pod["spec"]["containers"]
    ready = answers or not any({"readinessProbe", "startupProbe"} & each.keys() for each in containers)
    sidecars = [_RUNNING if "restartPolicy" in each else _ended(0) for each in _inits(pod)]
    _report(api, pod, "Running", [_RUNNING] * len(containers), sidecars, ready=ready)


def end(
    api: Api, pod: JSON, codes: Mapping[str, int] | None = None, *, running: Collection[str] = ()
) -> None:
    """Be the kubelet of a pod: its containers have ended with the codes by their names, the others with 0,
    except those that still run."""
    containers, codes = pod["spec"]["containers"], codes or {}
    states = [
        _RUNNING if each["name"] in running else _ended(codes.get(each["name"], 0)) for each in containers
    ]
    inits = [_ended(0)] * len(_inits(pod))
    phase = "Running" if running else "Failed" if any(codes.values()) else "Succeeded"
    _report(api, pod, phase, states, inits, ready=False)


def restarted(api: Api, pod: JSON, times: int) -> None:
    """Be the kubelet of a pod: its first container has failed so many times, and runs again."""
    run(api, pod)
    statuses = api.get("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])["status"]
    statuses["containerStatuses"][0]["restartCount"] = times
    _write(api, pod, {"containerStatuses": statuses["containerStatuses"]})


@contextmanager
def drain(api: Api, pod: JSON) -> Iterator[None]:
    """A drain evicts the pod. Its program ends by SIGTERM, and after the block the pod is gone."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    eviction = manifest("Eviction", name)
    api.request("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", eviction)
    pod = api.get("pods", name, namespace)  # with the condition that the eviction has set
    end(api, pod, {each["name"]: 143 for each in pod["spec"]["containers"]})
    yield
    api.delete("pods", name, namespace, grace=0, uid=uid(pod))


_RUNNING: JSON = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


def _ended(code: int) -> JSON:
    return {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}


def _inits(pod: JSON) -> list[JSON]:
    return pod["spec"].get("initContainers") or []


def _report(api: Api, pod: JSON, phase: str, states: list[JSON], inits: list[JSON], *, ready: bool) -> None:
    def statuses(containers: list[JSON], states: list[JSON]) -> list[JSON]:
        return [
            {
                "name": each["name"],
                "image": each["image"],
                "imageID": "",
                "ready": ready,
                "started": ready,
                "restartCount": 0,
                "state": state,
            }
            for each, state in zip(containers, states, strict=True)
        ]

    readiness = ("Ready", "ContainersReady")
    others = [each for each in pod["status"].get("conditions", ()) if each["type"] not in readiness]
    status = {
        "phase": phase,
        "conditions": [
            *others,
            *({"type": kind, "status": "True" if ready else "False"} for kind in readiness),
        ],
        "containerStatuses": statuses(pod["spec"]["containers"], states),
        "initContainerStatuses": statuses(_inits(pod), inits),
    }
    _write(api, pod, status)


def _write(api: Api, pod: JSON, status: JSON) -> None:
    metadata = pod["metadata"]
    api.patch("pods", metadata["name"], {"status": status}, metadata["namespace"], "status")


# What must not change


def first_of_two(api: Api, namespace: str, resources: Iterable[str], runs: Callable[[str], T]) -> T:
    """What `runs` returns for the first of two workloads, which nobody writes while the second one starts:
    by the time that the second one runs, the operator would have written the first one again."""
    found = runs("first")
    before = versions(api, namespace, resources)
    runs("second")
    after = versions(api, namespace, resources)
    assert {key: after.get(key) for key in before} == before
    return found


def versions(api: Api, namespace: str, resources: Iterable[str]) -> dict[str, str]:
    """The uid and resourceVersion of each object: equal as long as nobody writes any of them."""
    return {
        f"{resource}/{item['metadata']['name']}/{item['metadata']['uid']}": item["metadata"][
            "resourceVersion"
        ]
        for resource in resources
        for item in api.items(resource, namespace)
    }


def plain_and_changed(control_plane: ControlPlane, namespace: str, made: Callable[[str], T]) -> tuple[T, T]:
    """What `made` returns in a namespace that the webhook leaves alone, and in this one."""
    bare = f"{namespace}-bare"
    control_plane.create_namespace(bare, LEFT_ALONE)
    plain, changed = made(bare), made(namespace)
    control_plane.api.delete("namespaces", bare)
    return plain, changed


TRAINING = {
    "annotations.cluster-autoscaler.kubernetes.io/safe-to-evict",
    "annotations.karpenter.sh/do-not-disrupt",
    "annotations.mlchassis.dev/changed",
    "tolerations",
}
"""What a pod that trains on GPUs is given."""


def added(plain: JSON, changed: JSON) -> set[str]:
    """The fields that the second of two like pods has and the first does not.

    Names and tokens differ from pod to pod, so values are not compared. Whether affinity is added depends on
    the nodes that other tests have added, so it is left out.
    """
    found = set(_added("", plain["spec"], changed["spec"]))
    for key in ("labels", "annotations"):
        before, after = (pod["metadata"].get(key) or {} for pod in (plain, changed))
        found |= {f"{key}.{name}" for name in after.keys() - before.keys()}
    return found - {"affinity"}


def _added(path: str, plain: object, changed: object) -> Iterable[str]:
    if isinstance(plain, dict) and isinstance(changed, dict):
        for key in changed:
            if key not in plain:
                yield f"{path}{key}"
            else:
                yield from _added(f"{path}{key}.", plain[key], changed[key])
    elif isinstance(plain, list) and isinstance(changed, list) and len(plain) == len(changed):
        for before, after in zip(plain, changed, strict=True):
            yield from _added(path, before, after)
    elif type(plain) is not type(changed) or isinstance(plain, list):
        yield path.rstrip(".")
