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
    """The files copied from the build's context."""
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


def test_every_stage_is_the_same_slim_python_and_the_last_has_no_build_tools() -> None:
    assert re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.MULTILINE) == [
        ("${BASE}", "tools"),
        ("tools", "webhook-build"),
        ("tools", "puller-build"),
        ("${BASE}", "runtime"),
        ("runtime", "puller"),
        ("runtime", "webhook"),
    ]
    base = re.search(r"^ARG BASE=python:(\S+)-slim-bookworm$", DOCKERFILE, re.MULTILINE)
    assert base is not None
    assert PROJECT["project"]["requires-python"] == f">={base[1]}"
    runs = DOCKERFILE.split("FROM ${BASE} AS runtime")[-1]
    assert not re.search(r"apt|gcc|build-essential|pip install|uv ", runs)


def test_nothing_in_it_is_tied_to_one_architecture() -> None:
    """Every dependency has wheels for arm64, so that no stage has to compile."""
    assert not re.search(r"amd64|x86_64|aarch64", DOCKERFILE.replace("linux/arm64", ""))
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    packages = {package["name"]: package for package in lock["package"]}
    wanted, reached = ["ml-chassis"], set()
    while wanted:
        name = wanted.pop()
        if name not in reached:
            reached.add(name)
            wanted += [dependency["name"] for dependency in packages[name].get("dependencies", ())]
    assert len(reached) > 20
    for name in reached - {"ml-chassis"}:
        wheels = [wheel["url"] for wheel in packages[name].get("wheels", ())]
        fits = [
            url for url in wheels if url.endswith("-any.whl") or ("manylinux" in url and "aarch64" in url)
        ]
        assert fits or "win32" in name or name in ("colorama", "tzdata"), name


def test_an_image_lists_its_parts() -> None:
    stages = DOCKERFILE.split("\nFROM ")
    for built in ("AS webhook-build", "AS puller-build"):
        (stage,) = (it for it in stages if built in it.splitlines()[0])
        assert re.search(r"cyclonedx-bom==\S+ cyclonedx-py environment --output-reproducible", stage)
        assert "python docker/tidy.py /opt/chassis" in stage
    labels = " ".join(instructions("LABEL"))
    assert f'org.opencontainers.image.version="{PROJECT["project"]["version"]}"' in labels
    assert labels.count("org.opencontainers.image.title=") == 2


def test_both_run_as_a_numeric_user_that_is_not_root() -> None:
    users = set(instructions("USER"))
    assert len(instructions("USER")) == 2
    (user,) = users
    assert all(int(part) > 0 for part in user.split(":"))
    for stage in DOCKERFILE.split("FROM runtime AS ")[1:]:
        assert stage.index("USER ") > stage.index("COPY --from")
        assert "RUN " not in stage
    manifest = (ROOT / "manifests" / "base" / "deployment.yaml").read_text()
    assert f"runAsUser: {user.split(':')[0]}" in manifest


def test_the_standard_library_is_compiled_since_the_base_has_only_its_source() -> None:
    (stage,) = (it for it in DOCKERFILE.split("\nFROM ") if it.startswith("${BASE} AS runtime"))
    assert "PYTHONHASHSEED=0 python -m compileall -q --invalidation-mode unchecked-hash" in stage
    assert 'sysconfig.get_path("stdlib")' in stage


def test_each_starts_a_command_of_the_project() -> None:
    programs = [json.loads(entrypoint) for entrypoint in instructions("ENTRYPOINT")]
    assert programs == [["chassis-puller"], ["chassis"]]
    assert {program for (program,) in programs} <= set(PROJECT["project"]["scripts"])
    script = "from puller.__main__ import main"
    assert PROJECT["project"]["scripts"]["chassis-puller"] == "puller.__main__:main"
    assert script in DOCKERFILE


def test_the_image_is_built_with_the_uv_that_the_makefile_uses() -> None:
    makefile = re.search(r"UV_VERSION := (\S+)", (ROOT / "Makefile").read_text())
    assert makefile is not None
    assert f"uv=={makefile[1]}\n" in DOCKERFILE
