"""`chassis manifests`: the installation as YAML, for installations without a checkout or kustomize.

It supports the part of kustomize that the manifests of this project use (resources, components, JSON patches,
and ConfigMaps of files), and refuses any other field. A test compares it with `kubectl kustomize`.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jsonpatch
import yaml

from policies.core.annotations import POLICY_LABEL
from policies.kube.json import Json, dig, text
from policies.kube.metadata import labels_of
from policies.kube.yaml_text import load_all
from webhook.errors import UserError

NAMESPACE: Final = "mlchassis-system"
"""The namespace in the manifests."""
SUPPORTED: Final = frozenset(
    {"apiVersion", "kind", "resources", "components", "patches", "configMapGenerator"}
)


def directory() -> Path:
    """The directory of the manifests: in the checkout of this module, or in the data of the wheel."""
    checkout = Path(__file__).parents[2] / "manifests"
    installed = Path(sysconfig.get_path("data"), "share", "ml-chassis", "manifests")
    return checkout if (checkout / "base").is_dir() else installed


def choices(kind: str) -> list[str]:
    """The names of the overlays, or of the components."""
    return sorted(path.parent.name for path in (directory() / kind).glob("*/kustomization.yaml"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.description = "Print the installation manifests as YAML: chassis manifests | kubectl apply -f -"
    parser.add_argument("--overlay", choices=choices("overlays"), help="use this overlay instead of the base")
    parser.add_argument(
        "--component",
        action="append",
        default=[],
        choices=choices("components"),
        help="add a component; may be repeated",
    )
    parser.add_argument(
        "--image",
        help="the webhook's image; the sidecar's image is `puller` in the same repository, with the same tag",
    )
    parser.add_argument(
        "--namespace", default=NAMESPACE, help="namespace to install into (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    documents = render(args.overlay, args.component, image=args.image, namespace=args.namespace)
    yaml.safe_dump_all(documents, sys.stdout, sort_keys=False, default_flow_style=False, width=110)
    return 0


def render(
    overlay: str | None = None,
    components: list[str] | None = None,
    *,
    image: str | None = None,
    namespace: str = NAMESPACE,
) -> list[Json]:
    """The objects of the base or of an overlay, with components applied in their order."""
    root = directory()
    objects = _apply(root / "overlays" / overlay if overlay else root / "base", [])
    for name in components or ():
        objects = _apply(root / "components" / name, objects)
    if namespace != NAMESPACE:
        objects = [_renamed(item, namespace) for item in objects]
    return objects if image is None else [_with_image(item, image) for item in objects]


def _with_image(item: Json, image: str) -> Json:
    """The object with the webhook's image, and the sidecar's, which has the same repository and tag."""
    job = dig(item, "spec", "jobTemplate") or item  # the CronJob of a scan
    for container in dig(job, "spec", "template", "spec", "containers") or ():
        container["image"] = image
    repository, _, name = image.rpartition("/")
    _, colon, tag = name.partition(":")
    if labels_of(item).get(POLICY_LABEL) == "true" and colon and "@" not in image:
        puller = f"{repository}/puller:{tag}" if repository else f"puller:{tag}"
        item["data"].setdefault("model-puller.yaml", f"image: {puller}\n")
    return item


def _apply(path: Path, objects: list[Json]) -> list[Json]:
    """The objects after a kustomization, which adds to them and patches them."""
    [kustomization] = load_all((path / "kustomization.yaml").read_text())
    unknown = set(kustomization) - SUPPORTED
    if unknown:
        raise UserError(f"{path.name}: only kustomize supports {', '.join(sorted(unknown))}")
    for entry in kustomization.get("resources", ()):
        objects = [*objects, *_resource(path / entry)]
    for entry in kustomization.get("configMapGenerator", ()):
        objects = [*objects, _config_map(entry, path)]
    for entry in kustomization.get("components", ()):
        objects = _apply(path / entry, objects)
    for patch in kustomization.get("patches", ()):
        objects = list(_patched(objects, patch["target"], next(load_all(patch["patch"]))))
    return objects


def _config_map(entry: Json, path: Path) -> Json:
    options = entry["options"]
    if not options["disableNameSuffixHash"] or set(entry) != {"name", "namespace", "files", "options"}:
        raise UserError(f"{path.name}: only kustomize supports such a ConfigMap")
    metadata = {"name": entry["name"], "namespace": entry["namespace"], "labels": options["labels"]}
    data = {name: (path / name).read_text() for name in entry["files"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _resource(path: Path) -> list[Json]:
    if path.is_dir():
        return _apply(path, [])
    return [document for document in load_all(path.read_text()) if document]


def _patched(objects: list[Json], target: Json, operations: list[Json]) -> Iterator[Json]:
    found = False
    for item in objects:
        if item["kind"] == target["kind"] and text(item, "metadata", "name") == target["name"]:
            found = True
            yield jsonpatch.apply_patch(item, operations)
        else:
            yield item
    if not found:
        raise UserError(f"there is no {target['kind']} {target['name']} to patch")


def _renamed(value: Any, namespace: str) -> Any:
    """Replace the namespace everywhere, also inside values (`configmap:NS/NAME`)."""
    if isinstance(value, dict):
        return {key: _renamed(item, namespace) for key, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item, namespace) for item in value]
    return value.replace(NAMESPACE, namespace) if isinstance(value, str) else value
