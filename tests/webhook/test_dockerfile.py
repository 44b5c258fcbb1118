"""The image, as far as it can be judged without building it."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LINES = [
    line.split(maxsplit=1)
    for line in re.sub(r"\\\n", "", DOCKERFILE).splitlines()
    if line and not line.startswith("#")
]


def instructions(name: str) -> list[str]:
    return [rest for instruction, rest in LINES if instruction == name]


def copied() -> list[str]:
    """What is copied from the build's context."""
    return [source for rest in instructions("COPY") if "--from" not in rest for source in rest.split()[:-1]]


def test_all_that_is_copied_is_there_and_let_through_by_dockerignore() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignore[1] == "*"
    allowed = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    assert set(copied()) == allowed
    assert all((ROOT / source).exists() for source in copied())


def test_every_package_and_data_directory_of_the_wheel_is_copied() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {*wheel["packages"], *wheel["shared-data"]} <= set(copied())


def test_both_stages_are_the_same_slim_python_and_the_last_holds_no_build_tools() -> None:
    first, last = instructions("FROM")
    assert first.removesuffix(" AS build") == last
    assert "-slim" in last
    version = re.search(r"ARG PYTHON_VERSION=(\S+)", DOCKERFILE)
    assert version is not None
    assert PROJECT["project"]["requires-python"] == f">={version[1]}"
    final_stage = DOCKERFILE.split("FROM ")[-1]
    assert not re.search(r"apt|gcc|build-essential|pip install|uv ", final_stage)


def test_it_runs_as_a_numeric_user_that_is_not_root() -> None:
    (user,) = instructions("USER")
    assert all(int(part) > 0 for part in user.split(":"))
    assert LINES.index(["USER", user]) > max(n for n, line in enumerate(LINES) if line[0] in ("RUN", "COPY"))
    manifest = (ROOT / "manifests" / "base" / "deployment.yaml").read_text()
    assert f"runAsUser: {user.split(':')[0]}" in manifest


def test_it_starts_a_command_of_the_project() -> None:
    (entrypoint,) = instructions("ENTRYPOINT")
    (program,) = json.loads(entrypoint)
    assert {program, "chassis-puller"} <= set(PROJECT["project"]["scripts"])


def test_the_image_is_built_with_the_uv_that_the_makefile_uses() -> None:
    makefile = re.search(r"UV_VERSION := (\S+)", (ROOT / "Makefile").read_text())
    assert makefile is not None
    assert f"uv=={makefile[1]}\n" in DOCKERFILE
