"""Directories in which stores keep what nobody else has, by image, from `data_directories.yaml`."""

from __future__ import annotations

import sys
from typing import Final

from policies.core import data
from policies.core.settings import Field, Model
from policies.kube.images import is_newest, numbers_of_tag, repository, repository_and_tag
from policies.kube.pods import Container

_NEWEST: Final = (sys.maxsize,)
"""A version above all others."""


class OwnPlace(Model):
    """Where the images of a store write its data, unless something moves it."""

    images: tuple[str, ...] = Field(min_length=1, description="their repositories, without the registry")
    before: str = Field("", pattern=r"^[0-9.]*$", description="the first version for which this is not true")
    since: str = Field("", pattern=r"^[0-9.]*$", description="the first version for which this is true")
    path: str = Field(pattern=r"^/", description="the directory")
    declared: bool = Field(
        False,
        description="whether the images declare it as a volume, with which containerd hides one above it",
    )
    version_after: str = Field("", description="what stands before the version in a tag")
    refuses: str = Field("", description="a directory with whose mount the container ends with an error")
    empty: bool = Field(False, description="whether it must be empty before the first start")
    moved_by: tuple[str, ...] = Field(
        (), description="variables, and parts of arguments, that name another one"
    )
    files: tuple[str, ...] = Field((), description="configuration files that may name another one")
    source: str

    def is_covered_by(self, mounted: str) -> bool:
        """Whether what it writes may be on a volume that is mounted at a path."""
        return is_below(mounted, self.path) or (not self.declared and is_below(self.path, mounted))


class DataDirectory(Model):
    """An entry of `data_directories.yaml`."""

    image: str = Field(description="the last part of the image's repository")
    path: str = Field(description="the directory with the data")
    argument: str = Field("", description="words of the command line, without which it has only a cache")
    source: str
    locked: str = Field(
        "",
        description="the documentation or thread that shows that a second process on it ends with an error",
    )
    own: tuple[OwnPlace, ...] = Field((), description="where its own images write")

    def own_place(self, container: Container) -> OwnPlace | None:
        """The directory in which a container with one of the store's own images certainly keeps its data;
        None if the image is another one, or if something may move it."""
        name, tag = repository_and_tag(container.image)
        newest = _NEWEST if is_newest(container.image) else ()
        for each in self.own:
            version = newest or numbers_of_tag(
                tag.partition(each.version_after)[2] if each.version_after else tag
            )
            if name not in each.images or not (version or not (each.before or each.since)):
                continue
            if each.before and version >= numbers_of_tag(each.before):
                continue
            if each.since and version < numbers_of_tag(each.since):
                continue
            typed = container.typed
            words = (*typed.args, *(entry.name for entry in typed.env))
            moved = any(part in word for part in each.moved_by for word in words)
            moved = moved or any(mount.mount_path in each.files for mount in typed.volume_mounts)
            unknown = typed.command or any(source.config_map_ref is not None for source in typed.env_from)
            return None if moved or unknown else each
        return None


def is_below(path: str, other: str) -> bool:
    """Whether a path is another one or below it."""
    one, two = path.rstrip("/"), other.rstrip("/")
    return bool(one) and f"{one}/".startswith(f"{two}/")


_directories = data.entries(DataDirectory, "policies.core", "data_directories.yaml")


def data_directories(container: Container) -> tuple[DataDirectory, ...]:
    """The data directories of a container that runs one of these stores."""
    name = repository(container.image).rpartition("/")[2]
    line = f" {' '.join(container.typed.argv)} "
    known = (each for each in _directories() if each.image == name)
    return tuple(each for each in known if not each.argument or f" {each.argument} " in line)
