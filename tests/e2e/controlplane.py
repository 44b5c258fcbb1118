"""A real control plane on 127.0.0.1: etcd, kube-apiserver, controllers, scheduler and fake nodes.

Nothing is simulated but the nodes: admission, RBAC, garbage collection and scheduling are those of
the release pinned in `tools/go.mod`. KWOK plays the kubelets: it keeps nodes Ready and moves bound
pods to Running, or Jobs' pods to Succeeded. All state lies in one directory and is thrown away.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn, Self

from tests.e2e.api import JSON, Api, ApiError
from tests.e2e.binaries import TABLE, api_server, binary, module_directory
from tests.e2e.pki import Authority, KeyPair, new_key, private_pem, public_pem
from tests.e2e.processes import Process, ProcessFailedError, free_port
from tests.e2e.status import is_ready
from tests.manifests import manifest

HOST = "127.0.0.1"
ADMIN = ("kubernetes-admin", ["system:masters"])
LEFT_ALONE = {"mlchassis.dev/admission": "disabled"}
"""The label of a namespace that the webhook does not see."""
FAKE_NODE = {"mlchassis.dev/fake-node": "kwok"}
DEFAULT_CAPACITY = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti"}


class KubectlError(RuntimeError):
    """kubectl ended with a status above 0; the message is what it printed."""

    def __init__(self, arguments: Sequence[str], result: subprocess.CompletedProcess[str]) -> None:
        super().__init__(f"kubectl {' '.join(arguments)}: {result.stderr.strip() or result.stdout.strip()}")
        self.result = result


AUDIT_POLICY = b"""\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    verbs: [create, update, patch]
    resources: [{group: apps, resources: [deployments]}]
  - level: Metadata
    users: ["system:serviceaccount:mlchassis-system:mlchassis"]
  - level: None
"""
"""The audit policy: who wrote which Deployment, admission's notes about it, and all requests of the
webhook."""


class ControlPlane:
    """One running cluster; use it as a context manager.

    Args:
        state: an empty directory for certificates, kubeconfigs, logs and etcd's data.
    """

    hosts: tuple[str, ...] = (HOST,)
    """The addresses under which its certificate serves the API."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.logs = state / "logs"
        self.audit_log = self.logs / "audit.log"
        """One JSON object a line for every Deployment that was written, and every request of the webhook."""
        self.port = free_port()
        self.url = f"https://{HOST}:{self.port}"
        self.etcd_url = f"http://{HOST}:{free_port()}"
        self._authority = Authority("ml-chassis-test-cluster")
        self._processes: list[Process] = []
        self.kubeconfig = Path()
        self.api: Api

    # Life cycle

    def start(self) -> Self:
        """Start everything and wait until pods can be created in the namespace `default`.

        Raises:
            ProcessFailedError: a component ended or was not ready in time.
            BinaryError: a program is missing and cannot be built.
        """
        self.logs.mkdir(parents=True)
        self._write_serving_files()
        self.kubeconfig = self.user(*ADMIN)
        self.api = self.api_as(*ADMIN)
        try:
            self._spawn("etcd", *self._etcd_flags())
            self.start_api_server()
            controllers = self._spawn("kube-controller-manager", *self._controller_flags())
            self._spawn("kube-scheduler", *self._scheduler_flags())
            self._start_nodes()
            controllers.wait_until(lambda: self.api.exists("serviceaccounts", "default", "default"))
        except BaseException:
            self.stop()
            raise
        return self

    def start_api_server(self) -> None:
        """Start kube-apiserver, once more if it has ended, and wait until it is ready."""
        self._spawn("kube-apiserver", *self._api_server_flags()).wait_until(self._ready)

    def stop(self) -> None:
        """End the components, the last started first; the logs stay in the state directory."""
        while self._processes:
            # The state directory is deleted, so the order of the shutdown does not matter.
            self._processes.pop().kill()

    def end(self, *components: str) -> None:
        """End components at once, for work that they do not have to do any more."""
        for process in [each for each in self._processes if each.name in components]:
            process.kill()
            self._processes.remove(process)

    def process_ids(self, *components: str) -> list[int]:
        """The process ids of these components."""
        return [each.pid for each in self._processes if each.name in components]

    def watch_over(self, *others: Process) -> NoReturn:
        """Block for as long as every component, and every other process given, runs.

        Raises:
            ProcessFailedError: one of them ended by itself.
        """
        while True:
            for process in (*self._processes, *others):
                if not process.running:
                    raise ProcessFailedError(f"{process.name} ended by itself:\n{process.log_tail()}")
            time.sleep(1)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # Who talks to it

    def user(self, name: str, groups: Sequence[str] = ()) -> Path:
        """The kubeconfig of a user with a client certificate: RBAC sees `name` and `groups`."""
        pair = self._authority.client(name, groups)
        return self._write_kubeconfig(
            name, {"client-certificate-data": _base64(pair.certificate), "client-key-data": _base64(pair.key)}
        )

    def service_account(self, namespace: str, name: str) -> Path:
        """The kubeconfig of a ServiceAccount, with a token from the TokenRequest API."""
        return self._write_kubeconfig(f"{namespace}-{name}", {"token": self.token(namespace, name)})

    def token(self, namespace: str, name: str) -> str:
        """A ServiceAccount's token, valid for a day."""
        request: JSON = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 86400},
        }
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        return str(self.api.request("POST", path, request).body["status"]["token"])

    def api_as(self, name: str, groups: Sequence[str] = ()) -> Api:
        """A REST client for a user with a client certificate."""
        pair = self._authority.client(name, groups)
        tls = self._tls()
        combined = self._write(f"{_file_name(name)}.pem", pair.certificate + pair.key)
        tls.load_cert_chain(combined)
        return Api(HOST, self.port, tls)

    def api_as_service_account(self, namespace: str, name: str) -> Api:
        """A REST client for a ServiceAccount."""
        return Api(HOST, self.port, self._tls(), self.token(namespace, name))

    def kubectl(
        self,
        *arguments: str,
        stdin: str | None = None,
        check: bool = True,
        kubeconfig: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl, as the administrator unless another kubeconfig is given.

        Raises:
            KubectlError: its exit status is not 0 and `check` is true.
        """
        result = subprocess.run(
            [binary("kubectl"), "--kubeconfig", kubeconfig or self.kubeconfig, *arguments],
            input=stdin if stdin is not None else "",
            text=True,
            capture_output=True,
            env=os.environ | {"KUBECACHEDIR": str(self.state / "kubectl-cache")} | dict(env or {}),
            timeout=timeout,
        )
        if check and result.returncode:
            raise KubectlError(arguments, result)
        return result

    # Its parts

    def apply(
        self, manifest: str | JSON | Iterable[JSON], *arguments: str
    ) -> subprocess.CompletedProcess[str]:
        """`kubectl apply` YAML text, one object, or several; more arguments go to kubectl."""
        if not isinstance(manifest, str):
            items = [manifest] if isinstance(manifest, dict) else list(manifest)
            manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        return self.kubectl("apply", "-f", "-", *arguments, stdin=manifest)

    def create_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Create a namespace and wait for its default ServiceAccount, without which no pod is let in."""
        self.api.create(manifest("Namespace", name, labels=dict(labels or {})))
        self.api.wait("serviceaccounts", "default", namespace=name)

    @contextmanager
    def temporary_namespace(self, labels: Mapping[str, str] | None = None) -> Iterator[str]:
        """A new namespace; it is deleted at the end, without waiting until it is gone."""
        name = f"test-{uuid.uuid4().hex[:8]}"
        self.create_namespace(name, labels)
        yield name
        self.api.delete("namespaces", name)

    def add_node(
        self,
        name: str,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[JSON] = (),
        capacity: Mapping[str, str] | None = None,
        *,
        runs_pods: bool = True,
    ) -> JSON:
        """Add a Ready node that stays Ready, and wait until the scheduler may use it.

        Args:
            name: the node's name, also its `kubernetes.io/hostname`.
            labels: further labels, e.g. {"nvidia.com/gpu.product": "…"}.
            taints: as in `spec.taints`.
            capacity: on top of `DEFAULT_CAPACITY`, e.g. {"nvidia.com/gpu": "8"}.
            runs_pods: False leaves bound pods Pending, so that the test itself plays the kubelet.
        """
        own = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        if runs_pods:
            own |= FAKE_NODE
        resources = DEFAULT_CAPACITY | dict(capacity or {})
        condition = {"type": "Ready", "status": "True", "reason": "FakeNode", "message": "has no kubelet"}
        made = manifest("Node", name, {"taints": list(taints)}, labels=own | dict(labels or {}))
        # With its status, as kubelets register: KWOK fills in a thousand CPUs where it sees none.
        made["status"] = {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [condition],
            "nodeInfo": {"kubeletVersion": TABLE[api_server()].version},
        }
        self.api.create(made)
        return self.api.wait("nodes", name, schedulable)

    # Components

    def _start_nodes(self) -> None:
        """Start what plays the kubelets; the API server is ready."""
        self.start_kwok("239.255.0.1/16")  # the API server accepts them, and nobody can connect to them

    def start_kwok(self, pods: str) -> None:
        """Start KWOK; `pods`: their addresses."""
        self._spawn("kwok", *self._kwok_flags(), f"--cidr={pods}")

    def _spawn(self, name: str, *flags: str) -> Process:
        program = api_server() if name == "kube-apiserver" else name
        process = Process(name, [binary(program), *flags], self.logs / f"{name}.log")
        self._processes.append(process)
        return process

    def _ready(self) -> bool:
        with suppress(OSError, ApiError):
            return self.api.request("GET", "/readyz", timeout=5).status == 200
        return False

    def _etcd_flags(self) -> list[str]:
        return [
            f"--data-dir={self.state / 'etcd'}",
            f"--listen-client-urls={self.etcd_url}",
            f"--advertise-client-urls={self.etcd_url}",
            f"--listen-peer-urls=http://{HOST}:0",
            "--unsafe-no-fsync",  # no data has to survive a crash
            "--log-level=warn",
        ]

    def _api_server_flags(self) -> list[str]:
        return [
            f"--etcd-servers={self.etcd_url}",
            f"--bind-address={HOST}",
            f"--advertise-address={HOST}",
            f"--secure-port={self.port}",
            "--endpoint-reconciler-type=none",  # a loopback address is refused as an endpoint
            f"--tls-cert-file={self.state / 'server.crt'}",
            f"--tls-private-key-file={self.state / 'server.key'}",
            f"--client-ca-file={self.state / 'ca.crt'}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            f"--audit-policy-file={self._write('audit-policy.yaml', AUDIT_POLICY)}",
            f"--audit-log-path={self.audit_log}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.state / 'service-account.pub'}",
            f"--service-account-signing-key-file={self.state / 'service-account.key'}",
        ]

    def _controller_flags(self) -> list[str]:
        return [
            f"--kubeconfig={self.user('system:kube-controller-manager')}",
            f"--root-ca-file={self.state / 'ca.crt'}",
            f"--service-account-private-key-file={self.state / 'service-account.key'}",
            "--use-service-account-credentials",  # controllers ask as themselves, as in a real cluster
            "--node-monitor-grace-period=24h",  # fake nodes without KWOK send no heartbeat
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        ]

    def _scheduler_flags(self) -> list[str]:
        config: JSON = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {
                "kubeconfig": str(self.user("system:kube-scheduler")),
                "qps": 200,
                "burst": 400,
            },
        }
        return [
            f"--config={self._write('scheduler.json', json.dumps(config).encode())}",
            "--secure-port=0",
        ]

    def _kwok_flags(self) -> list[str]:
        stages = module_directory("kwok") / "kustomize" / "stage"
        files = [
            stages / "node" / "fast" / "node-initialize.yaml",
            stages / "node" / "heartbeat-with-lease" / "node-heartbeat-with-lease.yaml",
            *(stages / "pod" / "fast" / f"pod-{step}.yaml" for step in ("ready", "complete", "delete")),
        ]
        return [
            f"--kubeconfig={self.user('kwok', ['system:masters'])}",
            *(f"--config={file}" for file in files),
            *(f"--manage-nodes-with-label-selector={key}={value}" for key, value in FAKE_NODE.items()),
            "--node-lease-duration-seconds=40",
            f"--node-ip={HOST}",
        ]

    # Files

    def _write_serving_files(self) -> None:
        names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.0.0.1")
        hosts = [*self.hosts, *names]
        serving: KeyPair = self._authority.server("kube-apiserver", hosts)
        tokens = new_key()
        self._write("ca.crt", self._authority.certificate)
        self._write("server.crt", serving.certificate)
        self._write("server.key", serving.key)
        self._write("service-account.key", private_pem(tokens))
        self._write("service-account.pub", public_pem(tokens))

    def _write_kubeconfig(self, name: str, credentials: JSON) -> Path:
        cluster = {"server": self.url, "certificate-authority-data": _base64(self._authority.certificate)}
        config: JSON = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "ml-chassis", "cluster": cluster}],
            "users": [{"name": name, "user": credentials}],
            "contexts": [{"name": "ml-chassis", "context": {"cluster": "ml-chassis", "user": name}}],
            "current-context": "ml-chassis",
        }
        return self._write(f"{_file_name(name)}.kubeconfig", json.dumps(config, indent=1).encode())

    def _write(self, name: str, content: bytes) -> Path:
        path = self.state / name
        path.touch(mode=0o600)
        path.write_bytes(content)
        return path

    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self._authority.certificate.decode())


def schedulable(node: JSON) -> bool:
    """Ready, and without the taints that controllers put on a node that is not."""
    taints = node["spec"].get("taints", ())
    return is_ready(node) and not any(taint["key"].startswith("node.kubernetes.io/") for taint in taints)


def _file_name(user: str) -> str:
    return user.replace(":", "-").replace("/", "-")


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
