from policies.kube.group_kinds import GroupKind, kind_of


def test_kinds() -> None:
    assert kind_of({"apiVersion": "apps/v1", "kind": "Deployment"}) == GroupKind("apps", "Deployment")
    assert kind_of({"apiVersion": "v1", "kind": "Pod"}) == GroupKind("", "Pod")
    assert kind_of({}) == GroupKind("", "")
    assert (str(GroupKind("apps", "X")), str(GroupKind("", "Y"))) == ("X.apps", "Y")
