"""The programs of the control plane: taken from KUBEBUILDER_ASSETS, or built once from Go modules.

Versions are pinned by the go.mod files under `tools/` and nowhere else. Built programs are in
`$XDG_CACHE_HOME/ml-chassis/bin`, outside the tree, under a name that changes with everything that
goes into the build; a second run, or a second clone, builds nothing.

    python -m tests.e2e.binaries [NAME...]     build missing programs (all that tests start), print the paths
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TOOLS = Path(__file__).with_name("tools")
STRIPPED = "-s -w"


class BinaryError(RuntimeError):
    """A program is neither there nor can it be built; one sentence with the reason."""


@dataclass(frozen=True)
class Tool:
    """A Go program and the module that pins it."""

    name: str
    module: str
    package: str
    directory: str = "."
    """Where the go.mod lies, below `tools/`."""
    tags: str = ""
    """Build tags, with commas between them."""

    @property
    def root(self) -> Path:
        """The directory of the go.mod."""
        return TOOLS / self.directory

    @property
    def version(self) -> str:
        """The version that go.mod requires, with its `v`."""
        text = (self.root / "go.mod").read_text()
        found = re.search(rf"^\s*(?:require )?{re.escape(self.module)} (v\S+)", text, re.MULTILINE)
        if found is None:
            raise BinaryError(f"{self.root / 'go.mod'} does not require {self.module}.")
        return found[1]

    @property
    def link_flags(self) -> str:
        """Stripped; Kubernetes programs carry their true version, which a release build stamps too."""
        if self.module != "k8s.io/kubernetes":
            return STRIPPED
        major, minor = self.version.removeprefix("v").split(".")[:2]
        values = {"gitVersion": self.version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
        stamps = [
            f"-X {package}.{variable}={value}"
            for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
            for variable, value in values.items()
        ]
        return " ".join((STRIPPED, *stamps))

    @property
    def key(self) -> str:
        """The file name in the cache: changes when any input of the build does."""
        inputs = [(self.root / name).read_text() for name in ("go.mod", "go.sum")]
        inputs += [path.read_text() for path in sorted(self.root.glob("*.go"))]
        inputs += [self.package, self.link_flags, *([self.tags] if self.tags else [])]
        digest = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:12]
        return f"{self.name}-{self.version}-{digest}"


def _kubernetes(name: str, release: str = "") -> Tool:
    """A program of the pinned Kubernetes, or of another release, e.g. "1.29"."""
    module = "k8s.io/kubernetes"
    if not release:
        return Tool(name, module, f"{module}/cmd/{name}")
    # Kubernetes before 1.31 compiles cloud providers unless a tag excludes them.
    return Tool(f"{name}-{release}", module, f"{module}/cmd/{name}", f"kubernetes-{release}", "providerless")


def _helm(major: int) -> Tool:
    module = f"helm.sh/helm/v{major}"
    return Tool(f"helm-{major}", module, f"{module}/cmd/helm", f"helm-{major}")


def _prometheus(name: str) -> Tool:
    module = "github.com/prometheus/prometheus"
    # Without its ways to discover targets in clouds, which are most of what there is to compile.
    return Tool(name, module, f"{module}/cmd/{name}", "prometheus", "remove_all_sd")


def _kuberay(release: str) -> Tool:
    module = "github.com/ray-project/kuberay/ray-operator"
    return Tool(f"kuberay-{release}", module, module, f"kuberay-{release}")


def _own(name: str, module: str) -> Tool:
    """A program whose main.go is ours: the module's controllers without all that its own main adds."""
    return Tool(name, module, f"mlchassis.dev/tests/e2e/tools/{name}", name)


CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok")
NODE = ("kubelet", "kube-proxy")
HELM = ("helm-3", "helm-4")
PROMETHEUS = ("promtool", "prometheus")
CERT_MANAGER = ("cert-manager",)
KUBERAY = ("kuberay-1.0", "kuberay-1.2", "kuberay-1.5", "kuberay-1.6")
REGISTRY = ("registry",)
OPERATORS = ("lws", "jobset")
"""The operators that `make e2e` runs too, except KubeRay's."""
FURTHER_OPERATORS = (
    "kueue",
    "mpi-operator",
    "training-operator",
    "argo-workflows",
    "argo-rollouts",
    "trainer",
    "kserve-manager",
)
"""The operators that only `make e2e-operators` runs."""
BENCHMARKS = ("kserve-agent", "kyverno")
"""Programs that only benchmarks start, and so build when they need them."""
RELEASES = ("1.29", "1.33", "1.37")
"""The releases of Kubernetes of `make compatibility`: the oldest, one in the middle, and the newest."""
COMPATIBILITY = tuple(f"kube-apiserver-{release}" for release in RELEASES)
"""Programs that only `make compatibility` starts."""
TABLE: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool("etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3"),
        _kubernetes("kube-apiserver"),
        _kubernetes("kube-controller-manager"),
        _kubernetes("kube-scheduler"),
        _kubernetes("kubectl"),
        _kubernetes("kubelet"),
        _kubernetes("kube-proxy"),
        Tool("kwok", "sigs.k8s.io/kwok", "sigs.k8s.io/kwok/cmd/kwok", "kwok"),
        _helm(3),
        _helm(4),
        _prometheus("promtool"),
        _prometheus("prometheus"),
        _own("cert-manager", "github.com/cert-manager/cert-manager"),
        _kuberay("1.0"),
        _kuberay("1.2"),
        _kuberay("1.5"),
        _kuberay("1.6"),
        Tool("lws", "sigs.k8s.io/lws", "sigs.k8s.io/lws/cmd", "lws"),
        Tool("jobset", "sigs.k8s.io/jobset", "sigs.k8s.io/jobset", "jobset"),
        Tool("kueue", "sigs.k8s.io/kueue", "sigs.k8s.io/kueue/cmd/kueue", "kueue"),
        _own("mpi-operator", "github.com/kubeflow/mpi-operator"),
        _own("training-operator", "github.com/kubeflow/training-operator"),
        _own("argo-workflows", "github.com/argoproj/argo-workflows/v3"),
        Tool(
            "argo-rollouts",
            "github.com/argoproj/argo-rollouts",
            "github.com/argoproj/argo-rollouts/cmd/rollouts-controller",
            "argo-rollouts",
        ),
        Tool(
            "trainer",
            "github.com/kubeflow/trainer/v2",
            "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
            "trainer",
        ),
        _own("kserve-manager", "github.com/kserve/kserve"),
        Tool(
            "registry",
            "github.com/distribution/distribution/v3",
            "github.com/distribution/distribution/v3/cmd/registry",
            "registry",
        ),
        Tool("kserve-agent", "github.com/kserve/kserve", "github.com/kserve/kserve/cmd/agent", "kserve"),
        Tool("kyverno", "github.com/kyverno/kyverno", "github.com/kyverno/kyverno/cmd/kyverno", "kyverno"),
        *(_kubernetes(*name.rsplit("-", 1)) for name in COMPATIBILITY),
    )
}


def api_server() -> str:
    """The API server that tests start: the pinned one, or that of the release in CHASSIS_KUBERNETES."""
    release = os.environ.get("CHASSIS_KUBERNETES")
    return f"kube-apiserver-{release}" if release else "kube-apiserver"


def binary(name: str) -> Path:
    """The path of a program, built now if it was never built before (minutes, once).

    Args:
        name: a key of `TABLE`, e.g. "kube-apiserver" or "kuberay-1.0".

    Raises:
        BinaryError: Go is missing, or the build failed.
    """
    tool = TABLE[name]
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and (given := Path(assets, name)).is_file():
        return given
    built = cache_directory() / "bin" / tool.key
    if not built.exists():
        with locked(built):
            if not built.exists():  # another process may have built it while this one waited
                _build(tool, built)
    return built


@cache
def module_directory(name: str) -> Path:
    """The source of a program's module (read-only): KubeRay's CRDs and samples, KWOK's stages.

    Raises:
        BinaryError: Go is missing, or the module cannot be had.
    """
    tool = TABLE[name]
    answer = _go("mod", "download", "-json", tool.module, directory=tool.root)
    return Path(json.loads(answer)["Dir"])


@cache
def module_source(module: str, version: str, checksum: str) -> Path:
    """The source (read-only) of a module that is not built, at the version and with the checksum.

    Raises:
        BinaryError: Go is missing, the module cannot be had, or it is another one than it was.
    """
    answer = json.loads(
        _go("mod", "download", "-json", f"{module}@{version}", directory=Path(tempfile.gettempdir()))
    )
    if answer["Sum"] != checksum:
        raise BinaryError(f"{module}@{version} has the checksum {answer['Sum']}, not {checksum}.")
    return Path(answer["Dir"])


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/ml-chassis`, by default `~/.cache/ml-chassis`: all that tests keep."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "ml-chassis")


def _build(tool: Tool, built: Path) -> None:
    say(f"building {tool.name} {tool.version} from its Go module, once …")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=built.parent, prefix=".building-") as scratch:
        output = Path(scratch, tool.name)
        _go(
            "build", "-trimpath", "-tags", tool.tags, "-ldflags", tool.link_flags,
            "-o", str(output), tool.package, directory=tool.root,
        )  # fmt: skip
        output.replace(built)
    say(f"built {tool.name} in {time.monotonic() - began:.0f} s: {built}")


def _go(*arguments: str, directory: Path) -> str:
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if go is None:
        raise BinaryError(
            "The end-to-end tests build their control plane with Go 1.26 or newer, and `go` is not on PATH: "
            "install it from https://go.dev/dl/."
        )
    # No cgo: static binaries and no C compiler needed. No workspace or flags of the caller's own.
    env = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-mod=readonly"}
    done = subprocess.run([go, *arguments], cwd=directory, env=env, text=True, capture_output=True)
    if done.returncode:
        output = done.stderr.strip() or done.stdout.strip()  # with -json, errors are in the answer
        raise BinaryError(f"`go {' '.join(arguments)}` failed in {directory}:\n{output}")
    return done.stdout


@contextmanager
def locked(built: Path) -> Iterator[None]:
    """Hold the lock of one cached file against other processes, so that no program is built twice."""
    built.parent.mkdir(parents=True, exist_ok=True)
    with built.with_name(f".{built.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that makes {built.name} …")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def main(names: list[str]) -> int:
    """Build the named programs (by default all that tests start) and print where they are."""
    if unknown := [name for name in names if name not in TABLE]:
        say(f"No such program: {', '.join(unknown)}. Known: {', '.join(TABLE)}.")
        return 2
    try:
        for name in names or [
            name for name in TABLE if name not in (*FURTHER_OPERATORS, *BENCHMARKS, *COMPATIBILITY)
        ]:
            print(binary(name))
    except BinaryError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
