"""`python tidy.py ENVIRONMENT`: remove unused files from an image; make the rest reproducible.

Half of what the webhook depends on is generated code of the Kubernetes client: a class for every kind, which
it never touches, since it reads and writes plain JSON. What it uses of the client is how to connect:
kubeconfig, exec plugins, the pod's token and its rotation, TLS.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

CLIENT = {
    "__init__.py": '__version__ = "{version}"\n',
    "aio/__init__.py": "",
    "aio/client/__init__.py": """\
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.exceptions import ApiException

__all__ = ["ApiClient", "ApiException", "Configuration"]
""",
    "aio/client/models/__init__.py": "",
    "aio/utils/__init__.py": "",
}
"""What its packages import in place of everything; the rest of their modules stays as it is."""
KEPT = (
    "aio/client/api_client.py",
    "aio/client/api_response.py",
    "aio/client/configuration.py",
    "aio/client/exceptions.py",
    "aio/client/rest.py",
    "aio/config/",
    "aio/utils/_retry_base.py",
    "aio/utils/retry.py",
)
NOT_READ = ("*.pyi", "*.pyx", "*.pxd", "*.pxi", "*.c", "*.h", "*_test.py", "uv_cache.json")
"""Files that no running program reads: stubs, sources of compiled modules, notes of the installer."""
OTHER_INTERPRETERS = ("zstandard/_cffi.*.so",)


def main(environment: Path) -> None:
    """Tidy the environment."""
    paths = {"base": str(environment), "platbase": str(environment)}
    packages = Path(sysconfig.get_path("purelib", "venv", paths))
    if (packages / "kubernetes").is_dir():
        trim_client(packages / "kubernetes")
    for pattern in (*NOT_READ, *OTHER_INTERPRETERS):
        for path in packages.rglob(pattern):
            path.unlink()
    for record in packages.glob("*.dist-info/RECORD"):
        list_what_is_left(record)
    for cache in environment.rglob("__pycache__"):
        shutil.rmtree(cache)
    # Checked by content and with a fixed order of sets: the compiled files hold no time and no random order.
    done = subprocess.run(
        [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", packages],
        env=os.environ | {"PYTHONHASHSEED": "0"},
    )
    if done.returncode:
        sys.exit("something in the image can't be compiled")
    moment = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    for path in (environment, *environment.rglob("*")):
        os.utime(path, (moment, moment), follow_symlinks=False)


def list_what_is_left(record: Path) -> None:
    """Take out of a package's list of files those that were removed: their digests depend on times, too."""
    root = record.parent.parent
    lines = record.read_text().splitlines(keepends=True)
    rows = csv.reader(lines)
    record.write_text(
        "".join(line for line, (name, *_) in zip(lines, rows, strict=True) if (root / name).exists())
    )


def trim_client(client: Path) -> None:
    """Reduce the Kubernetes client to how it connects."""
    files = {path.relative_to(client).as_posix(): path for path in client.rglob("*") if path.is_file()}
    if missing := [name for name in (*CLIENT, *KEPT) if not any(it.startswith(name) for it in files)]:
        sys.exit(f"the Kubernetes client has another layout: it has no {', '.join(missing)}")
    version = next(line.split('"')[1] for line in _lines(files["__init__.py"]) if "__version__" in line)
    for name, path in files.items():
        if name in CLIENT:
            path.write_text(CLIENT[name].replace("{version}", version))
        elif not name.startswith(KEPT):
            path.unlink()
    for directory in sorted((path for path in client.rglob("*") if path.is_dir()), reverse=True):
        if not any(directory.iterdir()):
            directory.rmdir()


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
