"""The fields that Seldon gives to the containers of a graph, as a review shows the pods in advance."""

from __future__ import annotations

from policies.core.pod_templates import pod_templates, with_template
from policies.core.workloads import workloads_by_kind
from policies.kube.json import Json, dig, maps, replaced

WORKLOADS = workloads_by_kind()


def deployment(*predictors: Json, **spec: object) -> Json:
    return {
        "apiVersion": "machinelearning.seldon.io/v1",
        "kind": "SeldonDeployment",
        "metadata": {"name": "x"},
        "spec": {"predictors": list(predictors), **spec},
    }


def predictor(graph: Json, *containers: Json) -> Json:
    return {"name": "p", "graph": graph, "componentSpecs": [{"spec": {"containers": list(containers)}}]}


def container(name: str, **fields: object) -> Json:
    return {"name": name, "image": "registry.example/model:1", **fields}


def made(obj: Json) -> list[list[Json]]:
    """The containers of each pod."""
    return [maps(each.pod, "spec", "containers") for each in pod_templates(obj, WORKLOADS)]


def asked(container: Json, field: str = "livenessProbe") -> object:
    return dig(container, field, "tcpSocket", "port")


def test_a_container_of_the_graph_gets_probes_ports_and_a_hook() -> None:
    [[model]] = made(deployment(predictor({"name": "model"}, container("model"))))
    assert (asked(model), asked(model, "readinessProbe")) == (9000, 9000)
    assert dig(model, "livenessProbe", "initialDelaySeconds") == 60
    assert dig(model, "readinessProbe", "initialDelaySeconds") == 20
    assert dig(model, "lifecycle", "preStop", "exec", "command", 2) == "/bin/sleep 10"
    assert [each["containerPort"] for each in maps(model, "ports")] == [9000, 9500]


def test_each_name_has_its_own_port() -> None:
    tree: Json = {"name": "a", "children": [{"name": "b"}]}
    first = predictor(tree, container("a"), container("other"), container("b"))
    [[a, other, b], [again, late]] = made(
        deployment(
            first, predictor({"name": "a", "children": [{"name": "c"}]}, container("a"), container("c"))
        )
    )
    assert [asked(each) for each in (a, b, again, late)] == [9000, 9002, 9000, 9003]
    assert "livenessProbe" not in other, "it is no unit of the graph"


def test_written_fields_stay() -> None:
    own: Json = {"httpGet": {"path": "/live", "port": 8080}}
    ports = [{"name": "http", "containerPort": 8080}]
    [[model]] = made(
        deployment(
            predictor({"name": "model"}, container("model", livenessProbe=own, ports=ports, lifecycle={}))
        )
    )
    assert (model["livenessProbe"], model["ports"], model["lifecycle"]) == (own, ports, {})
    assert asked(model, "readinessProbe") == 8080


def test_over_grpc_its_port_is_asked() -> None:
    [[model]] = made(deployment(predictor({"name": "model"}, container("model")), transport="grpc"))
    assert asked(model) == 9500
    unit: Json = {"name": "model", "endpoint": {"type": "GRPC"}}
    ports = [{"name": "grpc", "containerPort": 5000}]
    [[model]] = made(deployment(predictor(unit, container("model", ports=ports))))
    assert asked(model) == 5000


def test_prepackaged_servers_get_others() -> None:
    unit: Json = {"name": "model", "implementation": "SKLEARN_SERVER"}
    [[model]] = made(deployment(predictor(unit, container("model"))))
    assert "livenessProbe" not in model


def test_the_object_does_not_get_what_the_pods_get() -> None:
    obj = deployment(predictor({"name": "model"}, container("model")))
    [template] = pod_templates(obj, WORKLOADS)
    startup: Json = {"tcpSocket": {"port": 9000}}
    pod = replaced(template.pod, ("spec", "containers", 0, "startupProbe"), startup)
    changed = with_template(obj, template, pod)
    assert dig(changed, "spec", "predictors", 0, "componentSpecs", 0, "spec", "containers", 0) == container(
        "model", startupProbe=startup
    )
