"""What `docker/tidy.py` leaves in the images: enough for everything that the programs do."""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
_spec = importlib.util.spec_from_file_location("tidy", ROOT / "docker" / "tidy.py")
assert _spec is not None
assert _spec.loader is not None
tidy = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tidy)


def installed(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@pytest.fixture(scope="module")
def trimmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Kubernetes client as in the image, the only package in a directory; tests only read it."""
    client = tmp_path_factory.mktemp("trimmed") / "kubernetes"
    shutil.copytree(installed("kubernetes"), client, ignore=shutil.ignore_patterns("__pycache__"))
    tidy.trim_client(client)
    return client


@pytest.mark.e2e
def test_the_webhook_does_everything_with_the_trimmed_client(trimmed: Path) -> None:
    """Kubeconfigs, exec plugins, tokens that rotate, watches: the tests of the API server's client pass."""
    here = "import kubernetes.aio.client, sys; print(kubernetes.__file__)"
    environment = os.environ | {"PYTHONPATH": str(trimmed.parent)}
    shown = subprocess.run([sys.executable, "-c", here], env=environment, text=True, capture_output=True)
    assert shown.stdout.strip() == str(trimmed / "__init__.py"), "the trimmed one is the one that is tested"
    tests = ["tests/webhook/kube/test_api.py", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *tests], cwd=ROOT, env=environment, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_next_to_nothing_of_the_client_is_left(trimmed: Path) -> None:
    def size(directory: Path) -> int:
        return sum(path.stat().st_size for path in directory.rglob("*.py"))

    assert size(trimmed) < size(installed("kubernetes")) / 50


def test_a_client_with_another_layout_stops_the_build(tmp_path: Path, trimmed: Path) -> None:
    client = shutil.copytree(trimmed, tmp_path / "kubernetes")
    (client / "aio" / "client" / "rest.py").unlink()
    with pytest.raises(SystemExit, match=r"has no aio/client/rest\.py"):
        tidy.trim_client(client)


def test_the_puller_finds_what_it_imports_in_its_image() -> None:
    group = set(PROJECT["dependency-groups"]["puller"])
    assert group <= {line.partition(">")[0] for line in PROJECT["project"]["dependencies"]}
    statements = [
        node for path in (ROOT / "puller").rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))
    ]
    names = [node.module or "" for node in statements if isinstance(node, ast.ImportFrom)]
    names += [it.name for node in statements if isinstance(node, ast.Import) for it in node.names]
    imported = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - {"puller"}
    assert imported == {name.replace("-", "_") for name in group}


def test_a_package_lists_its_remaining_files(tmp_path: Path) -> None:
    package = tmp_path / "it-1.0.dist-info"
    package.mkdir()
    (tmp_path / "it, again.py").touch()
    kept = '"it, again.py",sha256=abc,0\nit-1.0.dist-info/RECORD,,\n'
    record = package / "RECORD"
    record.write_text(f"it-1.0.dist-info/uv_cache.json,sha256=of-the-time,80\n{kept}")
    tidy.list_what_is_left(record)
    assert record.read_text() == kept


def test_compiling_is_reproducible(tmp_path: Path) -> None:
    environment, version = tmp_path / "environment", ".".join(map(str, sys.version_info[:2]))
    packages = environment / "lib" / f"python{version}" / "site-packages" / "puller"
    seen = []
    for seed in ("1", "2"):
        shutil.copytree(ROOT / "puller", packages, copy_function=shutil.copyfile)
        subprocess.run(
            [sys.executable, ROOT / "docker" / "tidy.py", environment],
            env=os.environ | {"PYTHONHASHSEED": seed, "SOURCE_DATE_EPOCH": "1700000000"},
            check=True,
        )
        files = [path for path in environment.rglob("*") if path.is_file()]
        seen.append({path: (path.stat().st_mtime, path.read_bytes()) for path in files})
        shutil.rmtree(environment)
    assert seen[0] == seen[1]
    assert any(path.suffix == ".pyc" for path in seen[0])
    assert {moment for moment, _ in seen[0].values()} == {1700000000}
