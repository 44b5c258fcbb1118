"""The images that the node runs: built from Dockerfiles by buildah, unpacked once into containerd's store.

The base image, which comes from a registry elsewhere, is made of Debian's packages under the name that the
project's Dockerfile asks for. A store is keyed by everything that goes into its images; `link` gives a run a
copy of it that shares every unpacked file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from policies.models.model_puller_settings import ModelPuller
from tests.e2e.binaries import BinaryError, cache_directory, locked, say
from tests.e2e.install import BASE, REPOSITORY
from tests.e2e.node import packages
from tests.e2e.workloads import UNKNOWN, VLLM

NAMESPACE = "k8s.io"
CONTEXTS = Path(__file__).with_name("images")
SANDBOX = "mlchassis.dev/sandbox:1"
TRITON = "nvcr.io/nvidia/tritonserver:24.08-py3"
PROXY = "gcr.io/cloud-sql-connectors/cloud-sql-proxy:2.11.0"
MLSERVER = "seldonio/mlserver:1.7.1"
OWN_SERVER = "registry.example/own-server:1"
CERTIFICATES = "/etc/ssl/certs"
NOTHING: Mapping[str, str] = {}
KEPT_STORES = 3
LARGEST_CACHE = 8 << 30
"""Bytes of layers that buildah may keep; beyond, it starts again from none."""


@dataclass(frozen=True)
class Image:
    """An image and what it is built from."""

    name: str
    context: Path
    """A directory with a Dockerfile and what it copies."""
    target: str = ""
    """The stage that is built; the last one by default."""

    def inputs(self) -> list[Path]:
        """Every file that goes into it."""
        dockerfile, ignore = self.context / "Dockerfile", self.context / ".dockerignore"
        if not ignore.exists():
            return sorted(path for path in self.context.rglob("*") if path.is_file())
        allowed = [line[1:] for line in ignore.read_text().splitlines() if line.startswith("!")]
        roots = [self.context / name for name in allowed]
        found = [path for root in roots for path in (root.rglob("*") if root.is_dir() else [root])]
        return [dockerfile, *sorted(it for it in found if it.is_file() and "__pycache__" not in it.parts)]


def base_name() -> str:
    """What the project's Dockerfile is built from, as a registry would name it."""
    text = (REPOSITORY / "Dockerfile").read_text()
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)", text, re.MULTILINE))
    found = re.search(r"^FROM (\S+)", text, re.MULTILINE)
    assert found is not None
    named = re.sub(r"\$\{(\w+)\}", lambda it: arguments[it[1]], found[1])
    return "docker.io/library/" + named


def webhook_name() -> str:
    """The image of the shipped Deployment."""
    found = re.search(r"image: (\S+)", (BASE / "deployment.yaml").read_text())
    assert found is not None
    return found[1]


def everything() -> list[Image]:
    """What the node has: the pause container's image, the webhook's, and servers for it to watch over."""
    return [
        Image(SANDBOX, CONTEXTS / "sandbox"),
        Image(webhook_name(), REPOSITORY),
        Image(ModelPuller().image, REPOSITORY, target="puller"),
        *(Image(name, CONTEXTS / "model-server") for name in ("docker.io/" + VLLM, TRITON, PROXY, UNKNOWN)),
        Image("docker.io/" + MLSERVER, CONTEXTS / "mlserver"),
        Image(OWN_SERVER, CONTEXTS / "own-server"),
    ]


def store(images: Sequence[Image]) -> Path:
    """The root directory of a containerd that has these images unpacked, built now if it never was.

    Raises:
        BinaryError: an image cannot be built.
    """
    stores = cache_directory() / "stores"
    made = stores / _key(images)
    with locked(made):
        if not made.exists():
            say("building the images of the real node, once per content …")
            began = time.monotonic()
            with tempfile.TemporaryDirectory(dir=stores, prefix=".building-") as scratch:
                layout = Path(scratch, "layout")
                _build(images, layout)
                _import(layout, Path(scratch))
                (Path(scratch) / "containerd").replace(made)
            say(f"built the images in {time.monotonic() - began:.0f} s")
        os.utime(made)
    _forget(stores)
    return made


def link(store: Path, target: Path) -> None:
    """A containerd root of a run's own: hard links, but for the databases, which are written to."""
    subprocess.run(["cp", "-al", store, target], check=True)
    for original in store.glob("*/*.db"):
        copy = target / original.relative_to(store)
        copy.unlink()
        shutil.copy2(original, copy)


UNUSED = (
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.internal.v1.opt",
    "io.containerd.tracing.processor.v1.otlp",
)
KUBELETS_PART = "io.containerd.grpc.v1.cri"


def containerd_config(root: Path, state: Path, *, serves_kubelet: bool = True) -> str:
    """The configuration of a containerd with its root and state in these directories."""
    programs = packages.root()
    disabled = [*UNUSED, *([] if serves_kubelet else [KUBELETS_PART])]
    general = f"""\
version = 2
root = "{root}"
state = "{state}"
oom_score = 0
disabled_plugins = {json.dumps(disabled)}
[grpc]
  address = "{state}/containerd.sock"
"""
    if not serves_kubelet:
        return general
    return f"""\
{general}
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{SANDBOX}"
  enable_selinux = false
  disable_apparmor = true
  # Without CAP_SYS_RESOURCE no process can be given a lower score than its parent's.
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{shutil.which("runc", path=packages.environment()["PATH"])}"
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{programs}/usr/lib/cni"
    conf_dir = "/etc/cni/ml-chassis"
"""


def ctr(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run containerd's own client against the containerd of a state directory."""
    command = ctr_command(state, *arguments)
    return subprocess.run(command, text=True, capture_output=True, env=packages.environment())


def ctr_command(state: Path, *arguments: str) -> list[str]:
    """The command line of `ctr`; it needs the environment of the packages."""
    return ["ctr", "--address", str(state / "containerd.sock"), "--namespace", NAMESPACE, *arguments]


# Building


def _key(images: Sequence[Image]) -> str:
    digest = hashlib.sha256(_base_key().encode())
    for image in images:
        digest.update(f"{image.name}\0{image.target}\0".encode())
        for path in image.inputs():
            digest.update(f"{path.relative_to(image.context)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


# A venv at /usr/local replaces the Python that the official image builds there. The two files at the end
# let pip and uv trust what this machine trusts, as they would behind a company's proxy.
BASE_HOOKS = (
    'chroot "$1" python3 -m venv /usr/local',
    'rm -rf "$1"/var/cache/apt "$1"/var/lib/apt/lists/*',
    f'printf "[global]\\ncert = {CERTIFICATES}/ca-certificates.crt\\n" > "$1"/etc/pip.conf',
    'mkdir "$1"/etc/uv && printf "native-tls = true\\n" > "$1"/etc/uv/uv.toml',
)
BASE_OPTIONS = (
    "--variant=minbase",
    "--mode=root",
    "--include=python3,python3-venv,ca-certificates",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=force-unsafe-io",
    '--aptopt=Acquire::Languages "none"',
)
BASE_CONFIG = ("--env", "PATH=/usr/local/bin:/usr/bin:/bin", "--env", "LANG=C.UTF-8", "--cmd", "python3")


def _base_key() -> str:
    inputs = (*BASE_OPTIONS, *BASE_HOOKS, *BASE_CONFIG, base_name())
    return hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:12]


def _base_archive() -> Path:
    """The base image's files as a tar archive (two minutes, once)."""
    archive = cache_directory() / "base-images" / f"{_base_key()}.tar"
    if not archive.exists():
        with locked(archive):
            if not archive.exists():
                say(f"building a stand-in for {base_name()} from Debian's packages, once …")
                began = time.monotonic()
                with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".building-") as scratch:
                    output = Path(scratch, "base.tar")
                    hooks = [f"--customize-hook={hook}" for hook in BASE_HOOKS]
                    suite = base_name().rpartition("-")[2]
                    _isolated("mmdebstrap", *BASE_OPTIONS, *hooks, suite, str(output), scratch=Path(scratch))
                    output.replace(archive)
                say(f"built it in {time.monotonic() - began:.0f} s")
    return archive


IN_CHROOT = ("--isolation=chroot", "--pull=never", f"--volume={CERTIFICATES}:{CERTIFICATES}:ro")
"""How `buildah build` runs here: without a runtime or a registry."""


@contextmanager
def buildah_storage() -> Iterator[Path]:
    """The storage of buildah, locked, with the base image under the name that `base_tag` gives."""
    archive = _base_archive()
    storage = cache_directory() / "buildah"
    with locked(storage):
        if storage.exists() and _size(storage) > LARGEST_CACHE:
            shutil.rmtree(storage)
        storage.mkdir(exist_ok=True)
        if not _has(storage, base_tag()):
            container = buildah(storage, "from", "scratch").strip()
            buildah(storage, "add", "--quiet", container, str(archive), "/")
            buildah(storage, "config", *BASE_CONFIG, container)
            buildah(storage, "commit", "--quiet", "--rm", "--format", "oci", container, base_tag())
        yield storage


def base_tag() -> str:
    """What the base image is called in `buildah_storage`."""
    return f"localhost/base:{_base_key()}"


def _build(images: Sequence[Image], layout: Path) -> None:
    """Build the images, and put them and the base into one OCI layout, which stores a shared layer once."""
    with buildah_storage() as storage:
        buildah(storage, "tag", base_tag(), base_name())
        for image in images:
            buildah(
                storage,
                "build", "--quiet", "--layers", "--format", "oci", *IN_CHROOT,
                *(["--target", image.target] if image.target else []),
                "--tag", image.name, str(image.context),
            )  # fmt: skip
        for name in (base_name(), *(image.name for image in images)):
            buildah(storage, "push", "--quiet", "--disable-compression", name, f"oci:{layout}:{name}")


def _has(storage: Path, name: str) -> bool:
    listed = json.loads(buildah(storage, "images", "--json") or "[]") or []
    return any(name in (image.get("names") or ()) for image in listed)


def buildah(storage: Path, command: str, *arguments: str) -> str:
    """Run buildah in a new mount namespace; its output."""
    # It asks whose images to trust even where none is pulled, in /etc or below the home directory.
    trust = storage / ".config" / "containers" / "policy.json"
    trust.parent.mkdir(parents=True, exist_ok=True)
    trust.write_text(json.dumps({"default": [{"type": "insecureAcceptAnything"}]}))
    return _isolated(
        "buildah",
        "--root", f"{storage}/root",
        "--runroot", f"{storage}/run",
        "--storage-driver", "overlay",
        command,
        *arguments,
        scratch=storage,
        environment={"HOME": str(storage), "CONTAINERS_REGISTRIES_CONF": os.devnull},
    )  # fmt: skip


def _isolated(*command: str, scratch: Path, environment: Mapping[str, str] = NOTHING) -> str:
    """Run a program that mounts, in a new mount namespace: its mounts end with it."""
    own = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    cover = [sys.executable, "-m", "tests.e2e.node.mounts", str(scratch)]
    done = subprocess.run(
        ["nice", *own, *cover, *command],
        text=True,
        capture_output=True,
        env=packages.environment() | {"TMPDIR": str(scratch)} | dict(environment),
        cwd=REPOSITORY,
    )
    if done.returncode:
        raise BinaryError(f"`{' '.join(command)}` failed:\n{(done.stderr or done.stdout).strip()[-4000:]}")
    return done.stdout


def _import(layout: Path, scratch: Path) -> None:
    """Let a containerd unpack the images of a layout into `scratch/containerd`."""
    _isolated(
        sys.executable, "-m", "tests.e2e.node.unpack", str(layout), str(scratch),
        scratch=scratch,
    )  # fmt: skip


def _forget(stores: Path) -> None:
    """Remove all but the stores that were used last."""
    finished = [path for path in stores.iterdir() if not path.name.startswith(".")]
    for path in sorted(finished, key=lambda it: it.stat().st_mtime)[:-KEPT_STORES]:
        shutil.rmtree(path, ignore_errors=True)


def _size(directory: Path) -> int:
    done = subprocess.run(["du", "-sb", directory], text=True, capture_output=True)
    return int(done.stdout.split()[0]) if done.stdout else 0
