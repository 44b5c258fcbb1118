"""A view of a pod: unchanged parts are known, edited parts are read again."""

from policies.core.pod_view import PodView, PodViews
from policies.kube.json import Json, replaced

POD: Json = {
    "metadata": {"annotations": {"mlchassis.dev/health-path": "/h", "other": "x"}},
    "spec": {
        "containers": [{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}],
        "initContainers": [{"name": "c", "image": "c:1", "restartPolicy": "Always"}],
    },
}
LIVENESS = ("spec", "containers", 0, "livenessProbe")


def test_a_pod_is_looked_at_once() -> None:
    views = PodViews()
    assert views.of(POD) is views.of(POD)
    assert views.of(dict(POD)) is not views.of(POD)


def test_containers_that_stayed_are_the_same_objects() -> None:
    views = PodViews([PodView(POD)])
    first = views.of(POD).containers
    edited = views.of(replaced(POD, LIVENESS, {"exec": {}})).containers
    assert edited[1] is first[1]
    assert edited[2] is first[2]
    assert edited[0].spec["livenessProbe"] == {"exec": {}}
    assert edited[0].cache is first[0].cache, "what runs in it is the same"


def test_an_edit_elsewhere_leaves_the_containers_as_they_were_read() -> None:
    views = PodViews([PodView(POD)])
    first = views.of(POD)
    containers = first.containers
    edited = views.of(replaced(POD, ("spec", "tolerations"), [{"operator": "Exists"}]))
    assert edited.containers is containers
    other = views.of(
        replaced(edited.json, ("metadata", "annotations"), {"mlchassis.dev/health-path": "/other"})
    )
    assert other.chassis_annotations == {"mlchassis.dev/health-path": "/other"}
    assert other.containers is containers


def test_a_containers_programs_are_read_again_when_they_changed() -> None:
    views = PodViews([PodView(POD)])
    first = views.of(POD).containers
    lists = ("command", "args", "env", "envFrom", "ports", "volumeMounts")
    for field, value in (("name", "other"), ("image", "other"), *((field, ["other"]) for field in lists)):
        edited = views.of(replaced(POD, ("spec", "containers", 0, field), value)).containers[0]
        assert edited.cache is not first[0].cache, field


def test_a_container_in_front_moves_the_others() -> None:
    views = PodViews([PodView(POD)])
    first = views.of(POD).containers
    pod = replaced(POD, ("spec", "containers"), [{"name": "new"}, *POD["spec"]["containers"]])
    found = views.of(pod).containers
    assert [(each.name, each.list, each.index) for each in found] == [
        ("new", "containers", 0),
        ("a", "containers", 1),
        ("b", "containers", 2),
        ("c", "initContainers", 0),
    ]
    assert not any(each.cache is old.cache for each in found for old in first[:1])


def test_our_own_annotations() -> None:
    assert PodView(POD).chassis_annotations == {"mlchassis.dev/health-path": "/h"}
