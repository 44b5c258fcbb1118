"""First-party servers: model servers, and programs that the user wrote.

Rules about missing or strict probes warn only about these. The vendor of a database, a dashboard or a
controller chooses its probes, and a simulator or an example needs no warning. An image from a public registry
is first-party only if the manifest shows a model or an interpreted program.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Final

from pydantic import Field

from policies.containers.commands import command_without_pod
from policies.core.data import load_one
from policies.core.facts import Facts
from policies.core.settings import Model
from policies.core.target import PodTemplate
from policies.kube.group_kinds import DAEMON_SET
from policies.kube.images import glob_of, image_matches, repository
from policies.kube.json import mapping, maps, text
from policies.kube.pods import Container
from policies.probes.serving import recognised

_INTERPRETED: Final = (
    "python",
    "uvicorn",
    "gunicorn",
    "hypercorn",
    "fastapi",
    "flask",
    "streamlit",
    "torchrun",
)
"""Interpreters of the user's programs; also prefixes of `python3.12` and the like."""
_THIRD_PARTY_MODULES: Final = {"http.server", "-c", "jupyter", "notebook"}
"""Arguments with which Python runs no server that the user wrote."""
_MODEL_FLAGS: Final = ("--model", "--model-path", "--model-dir", "--model-id", "--model_path", "--model_dir")
_MODEL_VARIABLES: Final = frozenset(
    {"HF_TOKEN", "HF_HOME", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE"}
    | {"MODEL_PATH", "MODEL_DIR", "MODEL_URI", "TORCH_HOME"}
)
_MODEL_MOUNTS: Final = ("/models", "/mnt/models", "/model", "/data/models", "/root/.cache/huggingface")
_CONTROLLER_PORTS: Final = frozenset(
    {"metrics", "http-metrics", "https-metrics", "metrics-port", "prometheus", "webhook", "webhook-server"}
    | {"https-webhook", "webhook-https", "profiling", "pprof", "debug", "health", "healthz", "http-health"}
)
"""Names of ports of controllers, which serve no users."""
_WEBHOOK_PORT: Final = 9443
"""The port of controller-runtime's webhook server."""


class ThirdParty(Model):
    """The content of `third_party.yaml`."""

    images: tuple[str, ...] = Field(description="globs of images, by the end of their path")
    words: frozenset[str] = Field(description="words in an image's name that mark a simulator or an example")
    projects: tuple[str, ...] = Field(description="globs of public projects on registries of many projects")
    registries: frozenset[str] = Field(description="hosts from which anybody may pull")


@cache
def third_party() -> ThirdParty:
    return load_one(ThirdParty, __package__, "third_party.yaml")


def is_first_party(template: PodTemplate, container: Container, facts: Facts) -> bool:
    """Whether the user of the manifest is likely to choose the probes of a serving container."""
    if not container.image or _is_third_party(container.image) or _is_example(container.image):
        return False
    if recognised(container, facts) is not None:
        return True
    if _has_only_controller_ports(container):
        return False
    if requests_device(container):
        return True
    if template.workload is not None and template.workload.gk == DAEMON_SET:
        return False
    return _is_private(container.image) or _runs_code(container) or _has_a_model(container)


def requests_device(container: Container) -> bool:
    """Whether a container requests an extended resource, such as an accelerator, or claims a device."""
    resources = mapping(container.spec, "resources")
    named = (name for kind in ("limits", "requests") for name in mapping(resources, kind))
    return any("/" in name for name in named) or bool(maps(resources, "claims"))


def _has_only_controller_ports(container: Container) -> bool:
    ports = container.tcp_ports
    return bool(ports) and all(
        name in _CONTROLLER_PORTS or number == _WEBHOOK_PORT for number, name in ports.items()
    )


@lru_cache(maxsize=1024)
def _is_third_party(image: str) -> bool:
    return image_matches(image, third_party().images)


@lru_cache(maxsize=1024)
def _is_example(image: str) -> bool:
    name = repository(image).rpartition("/")[2].lower()
    words = name.replace("_", "-").replace(".", "-").split("-")
    return not third_party().words.isdisjoint(words)


@lru_cache(maxsize=1024)
def _is_private(image: str) -> bool:
    """Whether an image is in a private registry or project."""
    host, slash, path = image.partition("/")
    if not slash or not ("." in host or ":" in host):
        return False  # Docker Hub
    if host.endswith((".gcr.io", ".pkg.dev")) or host == "gcr.io":
        project = path.partition("/")[0]
        return not any(glob_of(glob).fullmatch(project) for glob in third_party().projects)
    return host not in third_party().registries


def _runs_code(container: Container) -> bool:
    """Whether a container's command runs an interpreted program."""
    return any(
        command.name.startswith(_INTERPRETED) and not set(command.argv[1:4]) & _THIRD_PARTY_MODULES
        for command in command_without_pod(container).commands
    )


def _has_a_model(container: Container) -> bool:
    """Whether a flag, a variable or a mount gives the container a model."""
    if any(word.partition("=")[0] in _MODEL_FLAGS for word in container.argv):
        return True
    if any(text(each, "name") in _MODEL_VARIABLES for each in maps(container.spec, "env")):
        return True
    return any(
        text(each, "mountPath").startswith(_MODEL_MOUNTS) for each in maps(container.spec, "volumeMounts")
    )
