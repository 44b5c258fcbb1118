"""service-port-unknown reads the versions of objects in several files."""

from __future__ import annotations

from webhook.cli.reviewed import review_documents
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import Document, parse

CHAT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat}
spec:
  selector: {matchLabels: {app: chat}}
  template:
    metadata: {labels: {app: chat}}
    spec: {containers: [{name: c, image: "r/c:1", ports: [{containerPort: 8000}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: chat}
spec: {selector: {app: chat}, ports: [{port: 80, targetPort: 8000}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: chat}
spec:
  rules:
    - http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: chat, port: {number: PORT}}}}]}
"""


def warned(files: dict[str, str]) -> list[tuple[str, str]]:
    """The file and the rule of each finding."""
    documents = [
        Document(file, number, each.obj)
        for file, text in files.items()
        for number, each in enumerate(parse(file, text))
    ]
    cluster = ManifestCluster([each.obj for each in documents], sources=[each.source for each in documents])
    return [
        (review.document.source, result.rule)
        for review in review_documents(documents, load({}), cluster)
        for result in review.decision.results
    ]


def test_each_file_has_its_own_version() -> None:
    ports = {"apps/chat.yaml": "80", "exported/chat.yaml": "8000", "other/chat.yaml": "80"}
    files = {file: CHAT.replace("PORT", port) for file, port in ports.items()}
    found = [source for source, rule in warned(files) if rule == "service-port-unknown"]
    assert found == ["exported/chat.yaml"]


WORKLOAD = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: store}
spec:
  selector: {matchLabels: {app: LABEL}}
  template:
    metadata: {labels: {app: LABEL}}
    spec: {containers: [{name: c, image: "r/c:1", ports: [{containerPort: 8080}]}]}
"""
SERVICE = """\
apiVersion: v1
kind: Service
metadata: {name: store}
spec: {selector: {app: shop}, ports: [{port: 80, targetPort: 8080}]}
"""


def test_a_service_selects_the_version_of_its_own_file() -> None:
    def rules_about(files: dict[str, str]) -> list[str]:
        return [rule for _, rule in warned(files)]

    other = WORKLOAD.replace("LABEL", "store")
    assert rules_about({"a.yaml": other, "service.yaml": SERVICE}) == ["service-port-unknown"]
    own = WORKLOAD.replace("LABEL", "shop")
    assert rules_about({"a.yaml": other, "guide.yaml": f"{own}---\n{SERVICE}"}) == []
