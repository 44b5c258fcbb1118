"""Known sidecars: proxies, log shippers and exporters. Their vendors set their probes, their ports do not
show whether a model is ready, and most of them never end. The table is `sidecars.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

from policies.core.data import entries
from policies.core.settings import Field, Model
from policies.kube.images import image_matches
from policies.kube.pods import Container


class SidecarProgram(Model):
    """A program that runs next to the main program of a pod."""

    program: str = Field(description="what a sentence calls it")
    images: tuple[str, ...] = Field((), description="its images, by the end of their path; they never end")
    names: tuple[str, ...] = Field((), description="container names that only this program has")
    also_called: tuple[str, ...] = Field((), description="further images and names; `*` is anything but `/`")
    ends_with: tuple[str, ...] = Field(
        (), description="options and variables with which it ends after one run, also as an init container"
    )

    def ends(self, container: Container) -> bool:
        """Whether a container has an option or a variable with which it ends, or may have one."""
        typed = container.typed
        names = {each.name for each in typed.env} | {word.partition("=")[0] for word in typed.argv}
        is_operand = any(not word.startswith("-") for word in typed.argv[:1])
        unknown = typed.command or typed.env_from or is_operand or any(word[:1] == "$" for word in typed.argv)
        return bool(self.ends_with) and (bool(unknown) or not names.isdisjoint(self.ends_with))


PULLER: Final = "chassis-puller"
"""The program of this project's own sidecar."""


def is_puller(container: Container) -> bool:
    """Whether a container runs the puller of this project."""
    command = container.typed.command
    return bool(command) and command[0].rpartition("/")[2] == PULLER


known_sidecars = entries(SidecarProgram, __package__, "sidecars.yaml")
"""The table."""


@cache
def infrastructure() -> tuple[str, ...]:
    """Globs of the images and container names of all known sidecars."""
    globs = (glob for each in known_sidecars() for glob in (*each.images, *each.names, *each.also_called))
    return tuple(dict.fromkeys(globs))


def never_ending(container: Container, further: Iterable[str]) -> str | None:
    """The name of a container's program if it is known to never end. `further`: images from the settings, by
    the end of their path."""
    image = container.image
    for each in known_sidecars():
        if container.name in each.names or image_matches(image, each.images):
            return None if each.ends(container) else each.program
    return next((glob for glob in further if image_matches(image, (glob,))), None)


def endless_init(container: Container) -> SidecarProgram | None:
    """The program of an init container that probably never ends, since it lacks the option for one run."""
    for each in known_sidecars():
        if each.ends_with and image_matches(container.image, (*each.images, *each.also_called)):
            return None if each.ends(container) else each
    return None
