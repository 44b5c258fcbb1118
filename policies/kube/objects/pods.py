"""Pods and what is in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from policies.kube.objects.metadata import (
    EMPTY,
    NO_METADATA,
    Condition,
    IntOrString,
    Named,
    Object,
    ObjectMeta,
    Part,
    Present,
    Quantity,
)
from policies.kube.objects.placement import Affinity, Toleration, TopologySpreadConstraint
from policies.kube.quantities import bytes_or_zero

DEFAULT_GRACE: Final = 30
"""The API server's default of `terminationGracePeriodSeconds`."""

# --- environment -----------------------------------------------------------------------------------


class LocalReference(Part):
    """A ConfigMap or Secret of the pod's namespace, or one of its keys."""

    name: str = ""
    key: str = ""
    optional: bool = False


class FieldReference(Part):
    field_path: str = ""


class EnvVarSource(Part):
    field_ref: FieldReference | None = None
    config_map_key_ref: LocalReference | None = None
    secret_key_ref: LocalReference | None = None


class EnvVar(Part):
    name: str = ""
    value: str = ""
    value_from: EnvVarSource | None = None

    @property
    def field_path(self) -> str:
        """The field of the pod that it is read from; empty for others."""
        source = self.value_from
        return "" if source is None or source.field_ref is None else source.field_ref.field_path


class EnvFromSource(Part):
    prefix: str = ""
    config_map_ref: LocalReference | None = None
    secret_ref: LocalReference | None = None


# --- probes and hooks ------------------------------------------------------------------------------


class ExecAction(Part):
    command: tuple[str, ...] = ()


class HTTPGetAction(Part):
    path: str = ""
    port: IntOrString | None = None
    host: str = ""
    scheme: str = ""


class TCPSocketAction(Part):
    port: IntOrString | None = None
    host: str = ""


class GRPCAction(Part):
    port: int | None = None
    service: str = ""


class SleepAction(Part):
    seconds: int = 0


class Probe(Part):
    """A number that is absent or 0 has the API server's default, as the properties give it. It refuses
    negative ones, which only files contain."""

    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    grpc: GRPCAction | None = None
    initial_delay_seconds: int | None = None
    period_seconds: int | None = None
    timeout_seconds: int | None = None
    failure_threshold: int | None = None
    success_threshold: int | None = None

    @property
    def initial_delay(self) -> int:
        return max(0, self.initial_delay_seconds or 0)

    @property
    def period(self) -> int:
        return max(0, self.period_seconds or 0) or 10

    @property
    def timeout(self) -> int:
        return max(0, self.timeout_seconds or 0) or 1

    @property
    def failures(self) -> int:
        return max(0, self.failure_threshold or 0) or 3

    @property
    def give_up(self) -> int:
        """Seconds of failures until the kubelet restarts the container or removes its endpoint."""
        return self.period * self.failures

    @property
    def startup_deadline(self) -> int:
        """Seconds from the container's start until the probe fails, without a startupProbe."""
        return self.initial_delay + self.give_up


class LifecycleHandler(Part):
    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    sleep: SleepAction | None = None


class Lifecycle(Part):
    post_start: LifecycleHandler | None = None
    pre_stop: LifecycleHandler | None = None


# --- containers ------------------------------------------------------------------------------------


class ContainerPort(Part):
    name: str = ""
    container_port: int | None = None
    host_port: int | None = None
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class ClaimedDevice(Part):
    """An entry of `resources.claims`."""

    name: str = ""
    request: str = ""


class ResourceRequirements(Part):
    limits: Mapping[str, Quantity] = EMPTY
    requests: Mapping[str, Quantity] = EMPTY
    claims: tuple[ClaimedDevice, ...] = ()

    @property
    def memory_limit(self) -> int:
        """The limit in bytes; 0 without a valid one."""
        return bytes_or_zero(self.limits.get("memory"))

    @property
    def has_devices(self) -> bool:
        """Whether an extended resource, such as an accelerator, is requested, or a device claimed."""
        return bool(self.claims) or any(map(is_device, (*self.limits, *self.requests)))


DEVICE_CLASS: Final = "deviceclass.resource.kubernetes.io/"
"""The start of the implicit resource of each DeviceClass (k8s.io/api, resource/v1)."""


def is_extended(resource: str) -> bool:
    """Whether the API server takes a resource for an extended one: `IsExtendedResourceName` in
    pkg/apis/core/helper/helpers.go of Kubernetes."""
    domain, slash, _ = resource.partition("/")
    return bool(slash) and not domain.endswith("kubernetes.io") and not domain.startswith("requests.")


def is_accelerator(resource: str) -> bool:
    """Whether a resource is a GPU, or another accelerator, by its name; `accelerators/vendors.yaml` knows the
    vendors, for decisions that need one."""
    return _ACCELERATOR.search(resource) is not None


_ACCELERATOR: Final = re.compile(r"/(?:gpu|tpu|npu|gaudi|mig-|neuron)|^gpu\.")


def is_device(resource: str) -> bool:
    """Whether a resource may stand for devices: an extended one, or that of a DeviceClass."""
    return is_extended(resource) or resource.startswith(DEVICE_CLASS)


class VolumeMount(Part):
    name: str = ""
    mount_path: str = ""
    sub_path: str = ""
    sub_path_expr: str = ""
    read_only: bool = False


class VolumeDevice(Part):
    name: str = ""
    device_path: str = ""


class SecurityContext(Part):
    """Of a container or a pod."""

    privileged: bool | None = None
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    read_only_root_filesystem: bool | None = None


class ContainerSpec(Part):
    """A container of `containers` or `initContainers`."""

    name: str = ""
    image: str = ""
    image_pull_policy: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[EnvFromSource, ...] = ()
    ports: tuple[ContainerPort, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    volume_mounts: tuple[VolumeMount, ...] = ()
    volume_devices: tuple[VolumeDevice, ...] = ()
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    lifecycle: Lifecycle | None = None
    restart_policy: str = ""
    security_context: SecurityContext = SecurityContext()
    termination_message_policy: str = ""

    @property
    def argv(self) -> tuple[str, ...]:
        """Its `command` and `args`."""
        return self.command + self.args

    @property
    def pre_stop(self) -> LifecycleHandler | None:
        return None if self.lifecycle is None else self.lifecycle.pre_stop

    @property
    def is_sidecar(self) -> bool:
        """Whether an init container is a native sidecar."""
        return self.restart_policy == "Always"


# --- volumes ---------------------------------------------------------------------------------------


class KeyToPath(Part):
    key: str = ""
    path: str = ""


class ConfigMapVolume(Part):
    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool = False


class SecretVolume(Part):
    secret_name: str = ""
    optional: bool = False


class ClaimVolume(Part):
    claim_name: str = ""
    read_only: bool = False


class EmptyDirVolume(Part):
    medium: str = ""
    size_limit: Quantity | None = None


CREDENTIAL_DRIVERS: Final = frozenset(
    {"secrets-store.csi.k8s.io", "csi.cert-manager.io", "csi.spiffe.io", "driver.shipwright.io"}
)
"""Inline CSI drivers that write credentials, and keep no files."""


class CSIVolume(Part):
    driver: str = ""
    volume_attributes: Mapping[str, str] = EMPTY


class ImageVolume(Part):
    reference: str = ""


class ClaimResources(Part):
    requests: Mapping[str, Quantity] = EMPTY


class ClaimTemplateSpec(Part):
    resources: ClaimResources = ClaimResources()
    storage_class_name: str | None = None


class ClaimTemplate(Part):
    spec: ClaimTemplateSpec = ClaimTemplateSpec()


class EphemeralVolume(Part):
    volume_claim_template: ClaimTemplate = ClaimTemplate()


class ProjectedSource(Part):
    config_map: LocalReference | None = None
    secret: LocalReference | None = None


class ProjectedVolume(Part):
    sources: tuple[ProjectedSource, ...] = ()


WRITTEN_BY_KUBELET: Final = frozenset({"configMap", "secret", "projected", "downwardAPI"})
"""The fields of volumes whose content the kubelet writes."""
OF_ONE_POD: Final = WRITTEN_BY_KUBELET | {"emptyDir", "ephemeral"}
"""The fields of volumes that begin and end with their pod."""


class Volume(Part):
    name: str = ""
    config_map: ConfigMapVolume | None = None
    secret: SecretVolume | None = None
    persistent_volume_claim: ClaimVolume | None = None
    empty_dir: EmptyDirVolume | None = None
    projected: ProjectedVolume | None = None
    downward_api: Present | None = msgspec.field(default=None, name="downwardAPI")
    csi: CSIVolume | None = None
    image: ImageVolume | None = None
    ephemeral: EphemeralVolume | None = None

    @property
    def keeps_files(self) -> bool:
        """Whether files that a container writes survive its restart: the volume is not in memory, and the
        kubelet does not write its content, as it does for a ConfigMap."""
        if self.empty_dir is not None and self.empty_dir.medium == "Memory":
            return False
        if self.csi is not None and self.csi.driver in CREDENTIAL_DRIVERS:
            return False
        contents = (self.config_map, self.secret, self.projected, self.downward_api)
        return all(each is None for each in contents)


# --- pods ------------------------------------------------------------------------------------------


class HostAlias(Part):
    ip: str = ""
    hostnames: tuple[str, ...] = ()


class PodResourceClaim(Part):
    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


_SYSTEM_LABELS: Final = ("kubernetes.io/os", "beta.kubernetes.io/os")


class PodSpec(Part):
    containers: tuple[ContainerSpec, ...] = ()
    init_containers: tuple[ContainerSpec, ...] = ()
    volumes: tuple[Volume, ...] = ()
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    node_name: str = ""
    node_selector: Mapping[str, str] = EMPTY
    affinity: Affinity = Affinity()
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    scheduler_name: str = ""
    priority_class_name: str = ""
    runtime_class_name: str | None = None
    service_account_name: str = ""
    service_account: str = ""
    """The older name of the same field."""
    automount_service_account_token: bool | None = None
    host_network: bool = False
    host_pid: bool = msgspec.field(default=False, name="hostPID")
    host_ipc: bool = msgspec.field(default=False, name="hostIPC")
    share_process_namespace: bool = False
    hostname: str = ""
    subdomain: str = ""
    host_aliases: tuple[HostAlias, ...] = ()
    dns_policy: str = ""
    dns_config: Present | None = None
    enable_service_links: bool = True
    security_context: SecurityContext = SecurityContext()
    os: Named = Named()
    resources: ResourceRequirements = ResourceRequirements()
    resource_claims: tuple[PodResourceClaim, ...] = ()

    def mounted_by(self, container: ContainerSpec) -> list[Volume]:
        """The volumes that one of the containers mounts."""
        names = {mount.name for mount in container.volume_mounts}
        return [volume for volume in self.volumes if volume.name in names]

    @property
    def grace(self) -> int:
        """`terminationGracePeriodSeconds`, with the API server's default."""
        seconds = self.termination_grace_period_seconds
        return DEFAULT_GRACE if seconds is None else seconds

    @property
    def operating_system(self) -> str:
        """`windows` or `linux`, by `os`, the node selector, or each term of the required node affinity; empty
        if none of them says it."""
        if self.os.name:
            return self.os.name
        for label in _SYSTEM_LABELS:
            if label in self.node_selector:
                return self.node_selector[label]
        required = self.affinity.node_affinity.required
        terms = () if required is None else required.node_selector_terms
        systems = {system for term in terms for system in term.values_of(_SYSTEM_LABELS) or ("",)}
        return systems.pop() if len(systems) == 1 else ""

    @property
    def own_account(self) -> str:
        """Its ServiceAccount; empty for the default one, which kube-controller-manager creates everywhere."""
        name = self.service_account_name or self.service_account
        return "" if name == "default" else name


NO_SPEC = PodSpec()


class PodTemplateSpec(Part):
    metadata: ObjectMeta = NO_METADATA
    spec: PodSpec = NO_SPEC


class RunningState(Part):
    started_at: str = ""


class TerminatedState(Part):
    reason: str = ""
    exit_code: int = -1
    started_at: str = ""
    finished_at: str = ""
    container_id: str = msgspec.field(default="", name="containerID")

    @property
    def run(self) -> str:
        """See `ContainerStatus.run`."""
        return self.container_id or self.started_at


class ContainerState(Part):
    running: RunningState | None = None
    terminated: TerminatedState | None = None


class ContainerStatus(Part):
    name: str = ""
    ready: bool = False
    started: bool | None = None
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    container_id: str = msgspec.field(default="", name="containerID")

    @property
    def running_since(self) -> str:
        """When the present run began; empty if it does not run."""
        return self.state.running.started_at if self.state.running is not None else ""

    @property
    def run(self) -> str:
        """An identifier of the run that the container is in."""
        return self.container_id or self.running_since

    @property
    def has_run(self) -> bool:
        """Whether it runs or ran."""
        return bool(self.state.running or self.state.terminated or self.restart_count)


class PodStatus(Part):
    phase: str = ""
    reason: str = ""
    start_time: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()

    def condition(self, kind: str) -> Condition | None:
        """The condition of a type if it is true."""
        for each in self.conditions:
            if each.type == kind and each.status == "True":
                return each
        return None


class PodState(Object):
    """A pod of the cluster without its spec."""

    status: PodStatus = PodStatus()


class Pod(Object):
    """A pod without its status, which no review reads."""

    spec: PodSpec = NO_SPEC
