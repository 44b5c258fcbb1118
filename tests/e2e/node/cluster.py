"""A control plane whose one node is real: containers run, probes are asked, Services lead to pods.

It runs inside a sandbox (see `sandbox.py`), where 127.0.0.1, the node's address, ClusterIPs and the pods'
addresses can all be reached.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.e2e.api import JSON, ApiError
from tests.e2e.binaries import binary
from tests.e2e.controlplane import HOST, ControlPlane, schedulable
from tests.e2e.node import images, packages
from tests.e2e.node.init import ADDRESS, NODE
from tests.e2e.processes import Process

CONTAINERD_STATE = Path("/run/containerd")
NETWORK = Path("/etc/cni/ml-chassis")
DISK = ("imagefs.available", "nodefs.available", "nodefs.inodesFree")
PODS = "172.31.0.0/24"
FAKE: JSON = {"key": "mlchassis.dev/fake-node", "operator": "Exists"}
"""Tolerates the taint of the nodes that are not real."""


class RealNode(ControlPlane):
    """One running cluster with one real node; use it as a context manager, once a sandbox.

    Args:
        state: an empty directory for certificates, kubeconfigs, logs and etcd's data.
        sandbox: the directory of the sandbox.
    """

    hosts = (HOST, ADDRESS)

    def __init__(self, state: Path, sandbox: Path) -> None:
        super().__init__(state)
        self._sandbox = sandbox

    def pids(self, pod: JSON, command: str = "") -> list[int]:
        """The processes of a pod's containers whose command line contains this text, by their number here."""
        return [pid for pid, line in self._processes_of(pod) if command in line]

    def signal(self, number: signal.Signals, pod: JSON, command: str = "") -> list[int]:
        """Send a signal to processes of a pod, from outside of its containers: SIGSTOP hangs it."""
        sent = []
        for pid in self.pids(pod, command):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
                sent.append(pid)
        return sent

    def _processes_of(self, pod: JSON) -> Iterator[tuple[int, str]]:
        uid = pod["metadata"]["uid"]
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                pid = int(entry.name)
                if uid not in (entry / "cgroup").read_text():
                    continue
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                if command and command != "sleep infinity":  # the pod's own container
                    yield pid, command

    def add_fake_nodes(self, *names: str, **capacity: str) -> None:
        """Add nodes that KWOK plays, next to the real one; only pods that tolerate `FAKE` go there.

        Call it from a thread that lives as long as the cluster.
        """
        if all(it.name != "kwok" for it in self._processes):
            super()._start_nodes()
        for name in names:
            self.add_node(name, taints=[{"key": FAKE["key"], "effect": "NoSchedule"}], capacity=capacity)

    # Components

    def _start_nodes(self) -> None:
        containerd = self._containerd()
        containerd.wait_until(lambda: images.ctr(CONTAINERD_STATE, "version").returncode == 0)
        self._local("kube-proxy", f"--config={self._proxy_config()}", f"--hostname-override={NODE}")
        kubelet = self._kubelet()
        kubelet.wait_until(self._node_ready)

    def _node_ready(self) -> bool:
        with suppress(ApiError):
            return schedulable(self.api.get("nodes", NODE))
        return False

    def _local(self, name: str, *flags: str) -> Process:
        """Start a program of Kubernetes that starts others, those of the packages."""
        log = self.logs / f"{name}.log"
        process = Process(name, [binary(name), *flags], log, packages.environment())
        self._processes.append(process)
        return process

    def _containerd(self) -> Process:
        root = self._sandbox / "containerd"
        images.link((self._sandbox / "store").resolve(), root)
        NETWORK.mkdir(parents=True)
        (NETWORK / "10-node.conflist").write_text(json.dumps(_network()))
        config = self._write("containerd.toml", images.containerd_config(root, CONTAINERD_STATE).encode())
        command: list[str | Path] = ["containerd", "--config", config]
        process = Process("containerd", command, self.logs / "containerd.log", packages.environment())
        self._processes.append(process)
        return process

    def _kubelet(self) -> Process:
        root = self._sandbox / "kubelet"
        config = self._write("kubelet.json", json.dumps(self._kubelet_config(), indent=1).encode())
        return self._local(
            "kubelet",
            f"--config={config}",
            f"--kubeconfig={self.user(f'system:node:{NODE}', ['system:nodes'])}",
            f"--root-dir={root}",
            f"--cert-dir={root}/pki",
            f"--hostname-override={NODE}",
            f"--node-ip={ADDRESS}",
        )

    def _kubelet_config(self) -> JSON:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.state / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_STATE}/containerd.sock",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._sandbox.name}",
            "failCgroupV1": False,
            "volumePluginDir": str(self._sandbox / "volume-plugins"),
            "failSwapOn": False,
            "maxPods": 250,  # as many as there are addresses
            # No kubelet on this machine but this one, and no other firewall than kube-proxy's.
            "makeIPTablesUtilChains": False,
            "oomScoreAdj": 0,
            "clusterDomain": "cluster.local",
            "clusterDNS": ["10.0.0.10"],
            "resolvConf": "",
            # The machine's disk belongs to others too: its state is no reason to evict.
            "evictionHard": dict.fromkeys(DISK, "0%"),
            "imageGCHighThresholdPercent": 100,
            # What an hour shows in a cluster, a minute shows here: how often a container is started again,
            # and how soon an edited ConfigMap reaches a pod.
            "crashLoopBackOff": {"maxContainerRestartPeriod": "2s"},
            "syncFrequency": "2s",
            "serializeImagePulls": False,
            "registryPullQPS": 0,
            "kubeAPIQPS": 200,
            "kubeAPIBurst": 400,
        }  # fmt: skip

    def _proxy_config(self) -> Path:
        config = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "nftables": {"minSyncPeriod": "0s"},
            "clientConnection": {"kubeconfig": str(self.user("system:kube-proxy"))},
            "clusterCIDR": PODS,
            "detectLocalMode": "ClusterCIDR",
            # Not to be set outside of the machine's first network namespace.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
            "metricsBindAddress": "127.0.0.1:10249",
            "healthzBindAddress": "127.0.0.1:10256",
        }
        return self._write("kube-proxy.json", json.dumps(config, indent=1).encode())

    def _api_server_flags(self) -> list[str]:
        pair = self._authority.client("kube-apiserver-kubelet-client", ["system:masters"])
        return [
            *super()._api_server_flags(),
            # The last word wins.
            "--bind-address=0.0.0.0",
            f"--advertise-address={ADDRESS}",  # where default/kubernetes leads
            "--endpoint-reconciler-type=lease",
            f"--kubelet-client-certificate={self._write('kubelet-client.crt', pair.certificate)}",
            f"--kubelet-client-key={self._write('kubelet-client.key', pair.key)}",
            "--kubelet-preferred-address-types=InternalIP",
        ]

    def _controller_flags(self) -> list[str]:
        return [*super()._controller_flags(), "--node-monitor-grace-period=50s"]


def _network() -> JSON:
    """Each pod a link to the node, an address of `PODS`, and the node as its router."""
    addresses = {
        "type": "host-local",
        "dataDir": "/run/cni-addresses",
        "ranges": [[{"subnet": PODS}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugin = {"type": "ptp", "mtu": 1500, "ipMasq": False, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": "node", "plugins": [plugin]}
