"""The cost of a decision compared with parsing its JSON, and with the usual deepcopy and make_patch.

The baseline of each table is `orjson.loads` of the same bytes, in the same run.
"""

from __future__ import annotations

import copy

import jsonpatch
import orjson

from benchmarks._timing import best, table
from policies.core.facts import NoCluster
from policies.kube.json import Json
from webhook.admission import envelope as review
from webhook.admission import messages as answer
from webhook.admission.answer import render
from webhook.admission.configuration import Config
from webhook.admission.engine import mutate, validate
from webhook.admission.review import Review

POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "generateName": "triton-7c9d8b6f5-",
        "namespace": "ml",
        "labels": {"app": "triton", "pod-template-hash": "7c9d8b6f5"},
        "ownerReferences": [
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "name": "triton-7c9d8b6f5",
                "uid": "u",
                "controller": True,
            }
        ],
        "managedFields": [
            {"manager": "kube-controller-manager", "fieldsV1": {f"f:{n}": {} for n in range(120)}}
        ],
    },
    "spec": {
        "containers": [
            {
                "name": "server",
                "image": "nvcr.io/nvidia/tritonserver:24.12-py3",
                "ports": [{"name": "http", "containerPort": 8000}, {"name": "grpc", "containerPort": 8001}],
                "env": [{"name": f"OPTION_{n}", "value": "x" * 20} for n in range(30)],
                "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "32Gi"}},
            }
        ],
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{state}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            }
            for state in ("not-ready", "unreachable")
        ],
    },
}


def body(obj: Json) -> bytes:
    """The AdmissionReview for the creation of an object."""
    group, _, version = obj["apiVersion"].rpartition("/")
    request = {
        "uid": "0d6f8c1e-2a3b-4c5d-8e9f-0a1b2c3d4e5f",
        "kind": {"group": group, "version": version, "kind": obj["kind"]},
        "operation": "CREATE",
        "namespace": "ml",
        "object": obj,
    }
    return orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


def deployment(pod: Json) -> Json:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "triton", "namespace": "ml"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "triton"}},
            "template": {"metadata": {"labels": {"app": "triton"}}, "spec": pod["spec"]},
        },
    }


def main() -> None:
    config, cluster = Config(), NoCluster()
    sent = body(POD)
    request = review.parse(sent)
    final = mutate(Review(request, config, cluster)).object

    def whole() -> bytes:
        parsed = review.parse(sent)
        return render(parsed.uid, answer.respond(mutate(Review(parsed, config, cluster))))

    def usual() -> object:
        return jsonpatch.make_patch(copy.deepcopy(POD), final)

    table(
        f"a pod of {len(sent):,} bytes, mutated",
        "orjson.loads",
        {
            "orjson.loads": best(lambda: orjson.loads(sent)),
            "review.parse": best(lambda: review.parse(sent)),
            "engine.mutate": best(lambda: mutate(Review(request, config, cluster))),
            "bytes to bytes": best(whole),
            "only deepcopy and jsonpatch.make_patch": best(usual),
        },
    )
    judged_body = body(deployment(final))
    judged = review.parse(judged_body)
    table(
        f"a Deployment of {len(judged_body):,} bytes, judged by every rule",
        "orjson.loads",
        {
            "orjson.loads": best(lambda: orjson.loads(judged_body)),
            "engine.validate": best(lambda: validate(Review(judged, config, cluster))),
        },
    )


if __name__ == "__main__":
    main()
