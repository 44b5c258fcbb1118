"""Reads the policy that a command names: a directory, a file, standard input (`-`), or a ConfigMap."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from webhook.errors import UserError

if TYPE_CHECKING:
    from webhook.kube.api import ApiServer

# Other imports are in the functions: `chassis serve --help` does not need them.

WHERE: Final = "a directory, a file, - for standard input, or configmap:NAMESPACE/NAME"
CONFIG_MAP: Final = "configmap:"
INSTALLED: Final = "configmap:mlchassis-system/mlchassis-policy"
"""The policy that the shipped manifests install."""


def config_map(value: str) -> tuple[str, str]:
    """Namespace and name in `configmap:NS/NAME`. UserError if one is missing."""
    namespace, _, name = value.removeprefix(CONFIG_MAP).partition("/")
    if not namespace or not name or "/" in name:
        raise UserError(f"the policy {value!r} must be configmap:NAMESPACE/NAME")
    return namespace, name


def read_files(where: str, stdin: Callable[[], str] = lambda: sys.stdin.read()) -> Mapping[str, str]:
    """The policy in a directory, a file or standard input (`-`), as key -> YAML text.

    A directory contains a file for each key. A file is one of those, by its name, or contains manifests with
    one policy: the ConfigMap with the policy label, or the only ConfigMap. UserError if there is none.
    """
    from policies.core.annotations import POLICY_LABEL
    from policies.kube.group_kinds import CONFIG_MAP as CONFIG_MAP_KIND
    from policies.kube.group_kinds import kind_of
    from policies.kube.metadata import labels_of
    from webhook.config.config_maps import as_text, keys
    from webhook.config.load import models
    from webhook.config.source import EmptyDirectoryError, read_policy
    from webhook.manifests.files import read

    path = Path(where)
    try:
        if where != "-" and path.is_dir():
            return read_policy(path)
        if path.name in models():
            return {path.name: as_text(path.read_bytes())}
    except EmptyDirectoryError:
        raise UserError(
            f"{where}: the directory has no file of a policy. A policy has a file for each key, such as "
            "rules.yaml or standard-probes.yaml"
        ) from None
    except OSError as error:
        raise UserError(f"{where}: {error.strerror or error}") from None
    documents = read([where], stdin, lenient=True)
    for document in documents:
        if document.duplicate_keys:
            raise UserError(f"{document.source}: {document.duplicate_keys[0]}")
    found = [each.obj for each in documents if kind_of(each.obj) == CONFIG_MAP_KIND]
    labelled = [obj for obj in found if labels_of(obj).get(POLICY_LABEL) == "true"]
    candidates = labelled or found
    if len(candidates) != 1:
        what = "standard input" if where == "-" else where
        many = f"{len(candidates)} ConfigMaps" if candidates else "no ConfigMap"
        raise UserError(
            f"{what}: it contains {many}. A policy is one ConfigMap (labelled {POLICY_LABEL}=true), a file "
            "named like one of its keys, such as rules.yaml, or a directory of such files"
        )
    return keys(candidates[0])


async def read_config_map(api: ApiServer, where: str) -> Mapping[str, str]:
    """The policy in a ConfigMap of the cluster (`configmap:NS/NAME`), merged with `mlchassis-override`.

    NoPolicy if the ConfigMap does not exist or may not be read.
    """
    from webhook.config import config_maps
    from webhook.config.config_maps import keys
    from webhook.kube import paths
    from webhook.kube.calls import ApiError

    namespace, name = config_map(where)
    found = []
    for each in (name, config_maps.OVERRIDE_NAME):
        try:
            found.append(await api.get(paths.one("v1", "configmaps", each, namespace)))
        except ApiError as error:
            if error.status != 403:
                raise
            raise NoPolicy(f"you may not read the ConfigMap {namespace}/{each}") from None
    below, above = found
    if below is None:
        raise NoPolicy(f"there is no ConfigMap {namespace}/{name}")
    return config_maps.merged(keys(below), keys(above or {}))


class NoPolicy(UserError):
    """The ConfigMap does not exist, or may not be read."""
