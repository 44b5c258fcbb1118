"""Images whose programs use GPUs, whether or not their containers request any."""

from __future__ import annotations

from functools import cache

from policies.core.data import entries
from policies.core.settings import Field, Model


class GpuImage(Model):
    """An entry of the table gpu_images.yaml."""

    image: str = Field(description="a glob of the image's path, with or without its tag")
    agent: bool = Field(False, description="whether its program uses all GPUs of a node without a request")
    source: str = Field(description="the page that shows it")


@cache
def gpu_images(*, agents: bool) -> tuple[str, ...]:
    """The globs of the agents of nodes, or of the others."""
    return tuple(each.image for each in _images() if each.agent == agents)


_images = entries(GpuImage, "policies.accelerators", "gpu_images.yaml")
