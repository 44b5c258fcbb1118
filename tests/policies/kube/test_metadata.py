from policies.kube.metadata import has_room


def test_annotations_have_room_until_the_api_server_would_refuse_the_object() -> None:
    assert has_room({"k": "v" * (2**18 - 3)}, {"a": "b"})
    assert not has_room({"k": "v" * (2**18 - 2)}, {"a": "b"})
    assert not has_room({"k": "ü" * 2**17}, {})
    assert has_room({"k": "v" * (2**18 - 1)}, {"k": "w"}), "what is there stays, so nothing is added"
