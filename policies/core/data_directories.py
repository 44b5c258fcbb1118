"""Directories in which stores keep what nobody else has, by image, from `data_directories.yaml`."""

from __future__ import annotations

from policies.core import data
from policies.core.settings import Field, Model
from policies.kube.images import repository
from policies.kube.pods import Container


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


@data.table
def _directories() -> tuple[DataDirectory, ...]:
    return data.load_list(DataDirectory, "policies.core", "data_directories.yaml")


def data_directories(container: Container) -> tuple[DataDirectory, ...]:
    """The data directories of a container that runs one of these stores."""
    name = repository(container.image).rpartition("/")[2]
    line = f" {' '.join(container.typed.argv)} "
    known = (each for each in _directories() if each.image == name)
    return tuple(each for each in known if not each.argument or f" {each.argument} " in line)
