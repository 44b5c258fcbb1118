"""The work for a set of manifests grows no faster than the set, counted in calls: on every machine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from tests.calls import calls
from webhook.cli.reviewed import review_documents
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import Document, parse

FEW, MANY = 12, 96
STEEPEST = 1.1
"""The exponent: 1 is linear."""
STEEPEST_OF_ALONE = 1.03
"""Where no object has to do with those of other applications."""
STEEPEST_OF_SHARED = 1.5
"""The exponent where each Service selects the pods of each application, which makes as many pairs as the
square. Each waits for the next, so a search that starts at one of them finds all."""

APPLICATION = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: app-N}
spec:
  replicas: 2
  selector: {matchLabels: {app: app-N}}
  template:
    metadata: {labels: {app: app-N, part-of: all}}
    spec:
      containers:
      - name: server
        image: vllm/vllm-openai:v0.11.0
        args: [--model, Qwen/Qwen2.5-0.5B]
        env: [{name: BACKEND, value: "http://app-1"}]
        ports: [{containerPort: 8000, name: http}]
        readinessProbe: {httpGet: {path: /health, port: http}}
        volumeMounts: [{name: models, mountPath: /models}]
      volumes: [{name: models, persistentVolumeClaim: {claimName: models-N}}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: models-N}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 10Gi}}}
---
apiVersion: v1
kind: Service
metadata: {name: app-N}
spec: {selector: {app: app-N}, ports: [{port: 80, targetPort: http}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: app-N}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: app-N}}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: app-N}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: app-N}
  minReplicas: 2
  maxReplicas: 4
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: app-N}
spec: {parentRefs: [{name: gateway}], rules: [{backendRefs: [{name: app-N, port: 80}]}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: app-N}
spec:
  ingressClassName: nginx
  rules: [{http: {paths: [{path: /N, backend: {service: {name: app-N, port: {number: 80}}}}]}}]
---
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: group-N}
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: pytorch, image: "registry.example/train:1", args: [torchrun]}]}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: job-N}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: train, image: pytorch/pytorch, args: [torchrun, train.py]}]
"""
ONCE = """\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gateway}
spec: {gatewayClassName: eg}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: quota}
spec: {hard: {count/pods: "100000", requests.storage: 1Pi}}
"""


EXPOSED = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: app-N, namespace: apps}
spec:
  selector: {matchLabels: {app: app-N}}
  template:
    metadata: {labels: {app: app-N}}
    spec:
      containers: [{name: app, image: "registry.example/app:1", env: [{name: NEXT, value: "http://app-NEXT"}]}]
      volumes: [{name: files, persistentVolumeClaim: {claimName: files-N}}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: files-N, namespace: apps}
spec: {accessModes: [ReadWriteMany], volumeName: files-N, storageClassName: files}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: files-N}
spec: {accessModes: [ReadWriteMany], storageClassName: other}
---
apiVersion: v1
kind: Service
metadata: {name: app-N, namespace: apps}
spec: {selector: {app: app-N}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gateway-N, namespace: gateways}
spec: {gatewayClassName: eg, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: inside-N, namespace: apps}
spec: {parentRefs: [{name: gateway-N}], rules: [{backendRefs: [{name: app-N, port: 80}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: outside-N, namespace: gateways}
spec: {parentRefs: [{name: gateway-N}], rules: [{backendRefs: [{name: app-N, namespace: apps, port: 80}]}]}
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: app-N, namespace: apps}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: web}]
  to: [{group: "", kind: Service, name: app-N}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gateway-N, namespace: istio}
spec: {servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: app-N, namespace: apps}
spec: {gateways: [gateway-N], hosts: ["*"], http: [{route: [{destination: {host: app-N}}]}]}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: app-N, namespace: apps}
spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: server-N}, maxReplicas: 4}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: app-N, namespace: apps}
spec:
  podSelector: {matchLabels: {app: app-N}}
  policyTypes: [Egress]
  egress: [{ports: [{port: 8080}]}]
"""


WAITS = """\
      initContainers:
      - {name: wait, image: busybox, command: [sh, -c, "until nc -z app-NEXT 80; do sleep 1; done"]}
"""


def documents(number: int, application: str, *, files: bool) -> Iterator[Document]:
    """So many applications, in one file or in a directory each."""
    yield from parse("all.yaml", ONCE)
    for each in range(number):
        text = application.replace("-NEXT", f"-{(each + 1) % number}").replace("-N", f"-{each}")
        yield from parse(f"{each}/app.yaml" if files else "all.yaml", text)


def work(number: int, application: str = APPLICATION, *, files: bool) -> int:
    """The calls that a review of so many applications takes."""
    found, config = list(documents(number, application, files=files)), load({})

    def review() -> None:
        sources = [str(Path(each.source)) for each in found]
        cluster = ManifestCluster([each.obj for each in found], whole=True, sources=sources)
        assert sum(1 for _ in review_documents(found, config, cluster)) == len(found)

    return calls(review)


def test_a_file_of_many_applications() -> None:
    work(1, files=False)  # data that is read once, such as the table of presets
    least, most = work(FEW, files=False), work(MANY, files=False)
    assert math.log(most / least) / math.log(MANY / FEW) <= STEEPEST, (least, most)


def test_many_applications_with_a_directory_each() -> None:
    work(1, files=True)
    least, most = work(FEW, files=True), work(MANY, files=True)
    assert math.log(most / least) / math.log(MANY / FEW) <= STEEPEST, (least, most)


def test_many_applications_that_share_a_label() -> None:
    shared = APPLICATION.replace("selector: {app: app-N}", "selector: {part-of: all}")
    shared = shared.replace(
        "      containers:\n      - name: server", f"{WAITS}      containers:\n      - name: server"
    )
    work(1, shared, files=False)
    least, most = work(FEW, shared, files=False), work(MANY, shared, files=False)
    assert math.log(most / least) / math.log(MANY / FEW) <= STEEPEST_OF_SHARED, (least, most)


def test_many_applications_with_a_gateway_each() -> None:
    without = "\n---\n".join(each for each in EXPOSED.split("\n---\n") if "gateway" not in each)
    for application in (EXPOSED, without):  # with kinds of operators, and without
        work(1, application, files=False)
        least, most = work(FEW, application, files=False), work(MANY, application, files=False)
        assert math.log(most / least) / math.log(MANY / FEW) <= STEEPEST_OF_ALONE, (least, most)
