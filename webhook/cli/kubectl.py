"""Commands that change an injected field: an annotation for one workload, a setting for all.

Each command runs as printed and then changes nothing: its value is the present one, for the user to edit.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from policies.core.annotations import EXEMPT
from policies.core.target import PodTemplate
from policies.kube.field_paths import Steps
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json, dig, text
from policies.kube.metadata import annotations_of
from policies.kube.yaml_text import BadDocument, load_policy
from webhook.config.config_maps import OVERRIDE_NAME
from webhook.config.location import CONFIG_MAP, config_map

_MAX_VALUE_LENGTH: Final = 200
"""Characters of a setting's value in a command; a longer value is for an editor."""
_IMMUTABLE: Final = ("Job", "Pod")
"""Kinds whose pods can't be changed after their creation."""


class Kubectl(Struct, frozen=True):
    """kubectl with the flags for the cluster of this command."""

    flags: tuple[str, ...] = ()

    def command(self, *arguments: str) -> str:
        return shlex.join(("kubectl", *self.flags, *arguments))


class PodMetadata(Struct, frozen=True):
    """The place of the pods' annotations: an object in the cluster or in a file."""

    obj: Json
    """The object, such as the Deployment above a pod."""
    template: PodTemplate | None
    """The pod template in it; None for a pod without a template."""
    source: str = ""
    """The file of the object; empty in a cluster."""

    @property
    def steps(self) -> Steps:
        """The path of the metadata in the object."""
        if self.template is None or self.template.metadata_path == "metadata":
            return ("metadata",)
        return (*self.template.steps, "metadata")

    @property
    def annotations(self) -> Mapping[str, Any]:
        return annotations_of(dig(self.obj, *self.steps[:-1]) if self.steps[:-1] else self.obj)


class PolicyText(Struct, frozen=True):
    """The place and text of a policy."""

    where: str
    """As in `--policy`; empty for the built-in one."""
    files: Mapping[str, str] = field(default_factory=dict)
    override: Mapping[str, str] = field(default_factory=dict)
    """The data of the ConfigMap mlchassis-override. Installers revert an edit of the policy itself."""


def annotate(place: PodMetadata, key: str, value: str, kubectl: Kubectl) -> str:
    """The command that sets an annotation of one workload's pods, or the place to write it."""
    kind, name = text(place.obj, "kind"), text(place.obj, "metadata", "name")
    path = ".".join(map(str, (*place.steps, "annotations")))
    if place.source:
        return f"in {place.source}, under {path}: {key}: {json.dumps(value)}"
    if kind in _IMMUTABLE:
        return (
            f"before {kind} {name} is created again, under {path} of its manifest: {key}: {json.dumps(value)}"
        )
    namespace = _namespace(text(place.obj, "metadata", "namespace"))
    resource = str(kind_of(place.obj)).lower()
    return kubectl.command(*namespace, "patch", resource, name, *_patch(place, key, value))


def _patch(place: PodMetadata, key: str, value: str) -> tuple[str, str]:
    """A merge patch; a JSON patch if the path contains a list, which a merge patch would replace."""
    steps = (*place.steps, "annotations")
    if all(isinstance(step, str) for step in steps):
        body: Json = {key: value}
        for step in reversed(steps):
            body = {str(step): body}
        return "--type=merge", f"--patch={json.dumps(body)}"
    missing = [steps[:end] for end in range(1, len(steps) + 1) if dig(place.obj, *steps[:end]) is None]
    operations: list[Json] = [{"op": "add", "path": _pointer(path), "value": {}} for path in missing]
    operations.append({"op": "add", "path": _pointer((*steps, key)), "value": value})
    return "--type=json", f"--patch={json.dumps(operations)}"


def _pointer(steps: Sequence[str | int]) -> str:
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


def exempt(place: PodMetadata, policy: str, kubectl: Kubectl) -> str:
    """The command that exempts the pods of one workload from a policy."""
    before = place.annotations.get(EXEMPT)
    own = f"{policy}=give a reason"
    return annotate(place, EXEMPT, f"{before}; {own}" if before else own, kubectl)


def configure(policy: PolicyText, policy_id: str, setting: str, value: object, kubectl: Kubectl) -> str:
    """The command that changes a setting for all workloads, or the place to write it."""
    key = f"{policy_id}.yaml"
    shown = json.dumps(value, default=str)
    if not policy.where.startswith(CONFIG_MAP):
        place = policy.where or "the policy (it is the built-in one)"
        return f"in {place}, key {key}: {setting}: {shown if len(shown) <= _MAX_VALUE_LENGTH else '…'}"
    (namespace, _), name = config_map(policy.where), OVERRIDE_NAME
    edited = with_setting(policy.override.get(key, ""), setting, value)
    if edited is None or len(shown) > _MAX_VALUE_LENGTH:
        return f"{kubectl.command(*_namespace(namespace), 'edit', 'configmap', name)}  # {key}: {setting}"
    patch = ("--type=merge", f"--patch={json.dumps({'data': {key: edited}})}")
    return kubectl.command(*_namespace(namespace), "patch", "configmap", name, *patch)


def with_setting(written: str, setting: str, value: object) -> str | None:
    """The text of a policy's key with one field set; comments and other fields stay. None if that needs an
    editor."""
    line = f"{setting}: {json.dumps(value)}"
    lines = written.split("\n")
    place = next((n for n, text in enumerate(lines) if text.partition(":")[0].rstrip(" \t") == setting), None)
    if place is None:
        edited = f"{written.rstrip()}\n{line}\n".lstrip()
    else:
        edited = "\n".join((*lines[:place], line, *lines[place + 1 :]))
    try:
        before, after = load_policy(written), load_policy(edited)
    except BadDocument:
        return None
    return edited if after == {**(before or {}), setting: value} else None


def _namespace(namespace: str) -> tuple[str, ...]:
    return ("-n", namespace) if namespace else ()
