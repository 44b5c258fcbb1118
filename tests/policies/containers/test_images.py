"""Many globs at once match an image as each of them does."""

from hypothesis import given
from hypothesis import strategies as st

from policies.kube.images import Globs, image_matches
from policies.probes.preset import known_presets

GLOBS = [glob for each in known_presets().values() for glob in (*each.images, *each.excluded_images)]
NAMES = st.sampled_from([*{glob.replace("*", "x").partition(":")[0] for glob in GLOBS}, "a/b", "my-ray"])
TAGS = st.sampled_from(["", ":1", ":24.01-py3-sdk", ":server-cuda", "@sha256:0", ":sha-1-grpc"])
IMAGES = st.builds("{}{}{}".format, st.sampled_from(["", "nvcr.io/", "localhost:5000/x/"]), NAMES, TAGS)


@given(st.lists(IMAGES, min_size=1, max_size=20))
def test_as_one_by_one(images: list[str]) -> None:
    globs = Globs(GLOBS)
    for image in (*images, *images):  # the second time they are remembered
        assert globs.matching(image) == {glob for glob in GLOBS if image_matches(image, (glob,))}


def test_tags_are_not_remembered_with_the_repository() -> None:
    globs = Globs(("tritonserver:*sdk", "tritonserver"))
    assert globs.matching("nvcr.io/nvidia/tritonserver:1-sdk") == {"tritonserver:*sdk", "tritonserver"}
    assert globs.matching("nvcr.io/nvidia/tritonserver:1") == {"tritonserver"}


def test_globs_are_linear() -> None:
    """A hundred thousand characters at once: in the square of them this takes minutes, and pytest with it."""
    for glob in ("*vllm*", "a*a*a*b", "*a/*a", "*"):
        for unit in ("vllm", "a", "a/", "/", "a\n"):
            assert not image_matches(unit * 25_000 + "/x!/\n", (f"{glob}!",))
    assert image_matches("reg.io/a/x-vllm-y:1", ("*vllm*", "b"))
    assert image_matches("reg.io/a/aXaYb:1", ("a*a*b",))
    assert not image_matches("reg.io/a/aXb/Yb:1", ("a*a*b",))
