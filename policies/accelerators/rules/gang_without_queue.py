"""Accelerator pods that wait forever: for a node that is nowhere, for room, for each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.accelerators.inventory import HOSTNAME
from policies.accelerators.placement import Obstacle, Place, kept_apart, placement
from policies.accelerators.requests import GpuAffinity
from policies.core.contracts import Family, Rule
from policies.core.facts import Facts, Resource
from policies.core.finding import Certainty, Finding
from policies.core.mode import Mode
from policies.core.target import PodTemplate, Target
from policies.kube.group_kinds import CRON_JOB, DEPLOYMENT, JOB, JOB_SET, KUBEFLOW_JOBS, RAY_CLUSTER, RAY_JOB
from policies.kube.json import Json, dig, integer, mapping, text
from policies.kube.metadata import annotations_of, labels_of
from policies.kube.names import listed
from policies.rollouts.rollouts import rolling_update

# --- gpu-unschedulable -----------------------------------------------------------------------


def check_unschedulable(target: Target, facts: Facts) -> Iterator[Finding]:
    settings = facts.settings(GpuAffinity)
    for template in target.templates:
        found = placement(template.pod, settings, facts)
        if found is not None and found.obstacle is not None:
            obstacle = found.obstacle
            certainty = Certainty.SURE if settings.pools or settings.fixed_size else Certainty.LIKELY
            yield Finding(
                _path(template, obstacle, settings),
                obstacle.message,
                obstacle.hint,
                certainty if obstacle.certain else Certainty.UNDECIDED,
            )


def _path(template: PodTemplate, obstacle: Obstacle, settings: GpuAffinity) -> str:
    match obstacle.place:
        case Place.RESOURCES:
            return _asking(template, settings)
        case Place.PRODUCT | Place.MEMORY as place:
            return f"{template.metadata_path}.annotations[{place.value}]"
        case Place.TAINTS:
            return f"{template.spec_path}.tolerations"
    selects = mapping(template.spec, "nodeSelector")
    return f"{template.spec_path}.{'nodeSelector' if selects else 'affinity.nodeAffinity'}"


def _asking(template: PodTemplate, settings: GpuAffinity) -> str:
    """The resources of the first container that asks for an accelerator."""
    for container in template.containers():
        alone = {"spec": {"containers": [container.spec]}}
        if settings.catalogue.requests(alone):
            return template.at(container, "resources")
    return template.spec_path


# --- rollout-gpu-deadlock --------------------------------------------------------------------


def check_rollout(target: Target, facts: Facts) -> Iterator[Finding]:
    rollout = rolling_update(target.obj)
    if rollout is None or rollout.unavailable:
        return
    settings = facts.settings(GpuAffinity)
    certainty = Certainty.SURE if settings.pools or settings.fixed_size else Certainty.UNDECIDED
    for template in target.templates:
        found = placement(template.pod, settings, facts)
        if found is None or not found.nodes:
            continue  # with no node at all it is gpu-unschedulable's
        room = found.room(one_each=kept_apart(template.pod, HOSTNAME))
        if room <= rollout.replicas:
            asked = listed(f"{count} {resource}" for resource, count in found.requests.items())
            yield Finding(
                "spec.strategy.rollingUpdate.maxUnavailable",
                f"A rollout starts a pod with {asked} before it stops one, and beside the "
                f"{rollout.replicas} that run there is no room: all nodes and pools together take "
                f"{room:g} such pods.",
                "Set maxUnavailable to 1 and maxSurge to 0, or declare a pool that can grow in "
                "gpu-affinity.yaml.",
                certainty,
            )


# --- gang-without-queue ----------------------------------------------------------------------

_QUEUE_LABELS: Final = (
    "kueue.x-k8s.io/queue-name",
    "kueue.x-k8s.io/pod-group-name",
    "volcano.sh/queue-name",
    "ray.io/scheduler-name",
    "ray.io/gang-scheduling-enabled",
    "ray.io/priority-class-name",
    "yunikorn.apache.org/task-group-name",
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io/name",
    "kai.scheduler/queue",
    "runai/queue",
    "queue",
)
"""Labels and annotations by which gang schedulers and queues are told of a workload."""
_QUEUE_ANNOTATIONS: Final = (
    "scheduling.k8s.io/group-name",
    "scheduling.volcano.sh/queue-name",
    *_QUEUE_LABELS,
)
_GANGS: Final = (JOB, CRON_JOB, JOB_SET, RAY_CLUSTER, RAY_JOB, *KUBEFLOW_JOBS)


def check_gang(target: Target, facts: Facts) -> Iterator[Finding]:
    catalogue = facts.settings(GpuAffinity).catalogue
    gang = [template for template in target.templates if catalogue.requests(template.pod)]
    workers = sum(_workers(target.obj, template) for template in gang)
    if workers < 2 or _is_queued(target.obj) or any(_is_queued(template.pod) for template in gang):
        return
    yield Finding(
        f"{gang[0].spec_path}.schedulerName",
        f"Its {workers} workers with accelerators are scheduled one by one: two such jobs can each hold "
        "half of the nodes and wait for the other half.",
        "Give it a queue, as Kueue's label kueue.x-k8s.io/queue-name, or a scheduler that places a gang "
        "as one.",
    )


def _workers(obj: Json, template: PodTemplate) -> int:
    """How many pods of a template run at once and need each other."""
    above = mapping(obj, *template.steps[:-1])
    match template.workload.kind if template.workload else "":
        case "Job" | "CronJob":
            return _indexed(above)
        case "JobSet":
            sets = integer(mapping(obj, *template.steps[:-3]), "replicas", default=1)
            return sets * max(1, integer(above, "parallelism", default=1))
        case "RayCluster" | "RayJob":
            if template.steps[-2] == "headGroupSpec":
                return 1
            return integer(above, "replicas", default=0) * integer(above, "numOfHosts", default=1)
    return integer(above, "replicas", default=1)


def _indexed(job: Json) -> int:
    """Without an index, pods of a Job can't find each other: they work through a queue one by one."""
    return integer(job, "parallelism", default=1) if job.get("completionMode") == "Indexed" else 0


def _is_queued(obj: Json) -> bool:
    spec = mapping(obj, "spec")
    if text(spec, "schedulerName") not in ("", "default-scheduler"):
        return True
    if dig(spec, "runPolicy", "schedulingPolicy") is not None or spec.get("schedulingGates"):
        return True
    if spec.get("schedulingGroup") is not None or spec.get("workloadRef") is not None:
        return True  # Kubernetes' own gang scheduling, KEP-4671
    return any(key in labels_of(obj) for key in _QUEUE_LABELS) or any(
        key in annotations_of(obj) for key in _QUEUE_ANNOTATIONS
    )


# --- the rules ---------------------------------------------------------------------------------

_NODE: Final = """\
---
apiVersion: v1
kind: Node
metadata:
  name: gpu-0
  labels: {nvidia.com/gpu.present: "true", nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB}
status:
  allocatable: {nvidia.com/gpu: "8"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: mlchassis-policy, labels: {mlchassis.dev/policy: "true"}}
data:
  gpu-affinity.yaml: |
    fixedSize: true
"""

_TRAINING: Final = """\
apiVersion: v1
kind: Pod
metadata: {{name: training}}
spec:
  restartPolicy: Never
  containers:
    - name: train
      image: registry.example/train:3
      resources:
        limits: {{nvidia.com/gpu: "{count}"}}
"""

_SERVER: Final = """\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: llm}}
spec:
  replicas: 2
  strategy:
    rollingUpdate: {{{steps}}}
  selector: {{matchLabels: {{app: llm}}}}
  template:
    metadata: {{labels: {{app: llm}}}}
    spec:
      containers:
        - name: server
          image: registry.example/llm:7
          ports: [{{containerPort: 8080}}]
          resources:
            limits: {{nvidia.com/gpu: "4"}}
          livenessProbe:
            httpGet: {{path: /health, port: 8080}}
            failureThreshold: 6
"""

_GANG: Final = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: pretraining
  {labels}annotations: {{mlchassis.dev/checkpoint: "s3://models/pretraining"}}
spec:
  completionMode: Indexed
  completions: 4
  parallelism: 4
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: train
          image: registry.example/train:3
          resources:
            limits: {{nvidia.com/gpu: "8"}}
"""

RULES = (
    Rule(
        id="gpu-unschedulable",
        family=Family.DEADLOCK,
        check=check_unschedulable,
        standard=Mode.ENFORCE,
        strict=Mode.ENFORCE,
        likely=(Mode.WARN, Mode.ENFORCE),
        needs=(Resource.NODES,),
        what="A pod that asks for more accelerators than any node or declared pool has, for a product or "
        "memory that none has, or that its node selector keeps from all that have them.",
        why="The pod stays Pending forever, with a FailedScheduling event that nobody reads; a Job that "
        "waits for it keeps the rest of its gang waiting, with their accelerators. It is certain only "
        "where the settings of gpu-affinity declare `pools` or `fixedSize: true`; elsewhere an autoscaler "
        "might still bring the node, so it is a warning.",
        mend="Ask for what one node has, and for a product by the name that the nodes' labels give it; "
        "declare pools that scale from zero in gpu-affinity.yaml.",
        source="https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/",
        bad=_TRAINING.format(count=16) + _NODE,
        good=_TRAINING.format(count=8) + _NODE,
    ),
    Rule(
        id="rollout-gpu-deadlock",
        family=Family.DEADLOCK,
        check=check_rollout,
        standard=Mode.ENFORCE,
        strict=Mode.ENFORCE,
        kinds=(DEPLOYMENT,),
        needs=(Resource.NODES,),
        what="A Deployment with accelerators whose maxUnavailable is 0 in effect (25% of up to three "
        "replicas is 0), with no room for the surge pod on all nodes and declared pools together.",
        why="The new pod waits for the accelerators that the old pod holds, and the old pod is kept until "
        "the new one is ready: the rollout never ends, and neither does a rollback. Where neither `pools` "
        "nor `fixedSize` is set in gpu-affinity.yaml, an autoscaler might bring a node, so it is a "
        "warning.",
        mend="Set maxUnavailable to 1 and maxSurge to 0, so that an old pod makes room first; keep a node "
        "free; or declare the pool that grows.",
        source="https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#rolling-update-deployment",
        bad=_SERVER.format(steps="maxSurge: 1, maxUnavailable: 0") + _NODE,
        good=_SERVER.format(steps="maxSurge: 0, maxUnavailable: 1") + _NODE,
    ),
    Rule(
        id="gang-without-queue",
        family=Family.DEADLOCK,
        check=check_gang,
        standard=Mode.AUDIT,
        strict=Mode.WARN,
        kinds=_GANGS,
        what="A job of several workers with accelerators that need each other (an Indexed Job, a JobSet, "
        "a Ray cluster, a Kubeflow job) with neither a queue nor a scheduler that places them as one.",
        why="Kubernetes schedules pod by pod. Two jobs that each need all the nodes can each get half of "
        "them; the workers that run wait for those that don't, holding their accelerators, until somebody "
        "deletes one.",
        mend="Submit it through a queue (Kueue) or to a gang scheduler (Volcano, coscheduling, YuniKorn, "
        "KAI).",
        source="https://kueue.sigs.k8s.io/docs/tasks/manage/setup_wait_for_pods_ready/",
        bad=_GANG.format(labels=""),
        good=_GANG.format(labels="labels: {kueue.x-k8s.io/queue-name: training}\n  "),
    ),
)
