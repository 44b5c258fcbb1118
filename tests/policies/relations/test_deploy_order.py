"""deploy-order-deadlock knows which objects are deployed together: those of one kustomization or chart."""

from __future__ import annotations

import pytest

from policies.kube.json import Json
from webhook.cli.reviewed import review_documents
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import Document, parse

JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: check, namespace: ml, annotations: {argocd.argoproj.io/hook: PreSync}}
spec:
  template:
    spec: {serviceAccountName: looks, restartPolicy: Never, containers: [{name: c, image: "r/c:1"}]}
"""
ACCOUNT = """\
apiVersion: v1
kind: ServiceAccount
metadata: {name: looks, namespace: ml, annotations: {argocd.argoproj.io/sync-wave: "1"}}
"""
WAITS = """\
apiVersion: batch/v1
kind: Job
metadata: {name: fill, namespace: ml, annotations: {argocd.argoproj.io/hook: PreSync}}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: "r/c:1", command: [sh, -c, "until nc -z db 5432; do sleep 1; done"]}]
"""
SERVER = """\
apiVersion: v1
kind: Service
metadata: {name: db, namespace: ml}
spec: {selector: {app: db}, ports: [{port: 5432}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: ml}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: db, image: "r/db:1", ports: [{containerPort: 5432}]}]}
"""
CLAIM = """\
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: ml}
spec: {accessModes: [ReadWriteOnce], storageClassName: late, resources: {requests: {storage: 1Gi}}}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: late}
provisioner: ebs.csi.aws.com
volumeBindingMode: WaitForFirstConsumer
"""
MOUNTS = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: ml, annotations: {argocd.argoproj.io/sync-wave: "1"}}
spec:
  strategy: {type: Recreate}
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: w, image: "r/w:1", volumeMounts: [{name: d, mountPath: /d}]}]
      volumes: [{name: d, persistentVolumeClaim: {claimName: data}}]
"""


def reported(files: dict[str, str]) -> list[str]:
    documents = [
        Document(source, number, obj)
        for source, content in files.items()
        for number, obj in enumerate(objects(content))
    ]
    cluster = ManifestCluster([each.obj for each in documents], sources=[each.source for each in documents])
    return [
        review.document.source
        for review in review_documents(documents, load({}), cluster)
        for result in review.decision.results
        if result.rule == "deploy-order-deadlock"
    ]


def objects(content: str) -> list[Json]:
    return [each.obj for each in parse("x", content)]


@pytest.mark.parametrize(
    ("first", "later"), [(JOB, ACCOUNT), (WAITS, SERVER), (MOUNTS, CLAIM)], ids=["needs", "waits", "mounts"]
)
def test_kustomizations_and_charts_are_deployed_on_their_own(first: str, later: str) -> None:
    one = "a/kustomization.yaml"
    assert reported({one: f"{first}---\n{later}"}) == [one]
    assert reported({"a/job.yaml": first, "a/other.yaml": later}) == ["a/job.yaml"]
    assert reported({one: first, "b/kustomization.yaml": later}) == []
    assert reported({one: first, "b/Chart.yaml": later}) == []


def test_the_version_of_the_own_kustomization_counts() -> None:
    files = {f"{name}/kustomization.yaml": f"{JOB}---\n{ACCOUNT}" for name in ("dev", "main")}
    assert reported(files) == list(files)
