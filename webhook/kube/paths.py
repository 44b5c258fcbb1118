"""The paths of API requests. No other module builds them.

Law: each text becomes one segment of a path, validated by the rules of its kind and quoted. Groups, names and
resources come from objects and discovery answers, which others control: with slashes, dots or a question mark
they could make this process read other objects with its own rights.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

from policies.kube.names import is_api_version, is_label, is_path_segment, is_subdomain
from webhook.kube.calls import ApiError

_RESOURCE: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
"""A plural in lower case, without a subresource."""


def group(name: str) -> str:
    """The path that lists the versions of a named API group."""
    return f"/apis/{_segment(name, is_subdomain, 'an API group')}"


def root(api_version: str) -> str:
    """The path that lists the resources of a version of an API group; `v1` is the core group."""
    if not is_api_version(api_version):
        raise _refused(api_version, "an apiVersion")
    of_group, _, version = api_version.rpartition("/")
    return f"{group(of_group)}/{quote(version, safe='')}" if of_group else f"/api/{quote(version, safe='')}"


def collection(api_version: str, resource: str, namespace: str = "") -> str:
    path = root(api_version)
    if namespace:
        path += f"/namespaces/{_segment(namespace, is_label, 'a namespace')}"
    return f"{path}/{_segment(resource, _is_resource, 'a resource')}"


def one(api_version: str, resource: str, name: str, namespace: str = "", subresource: str = "") -> str:
    """One object or its subresource; without a namespace, of a cluster-scoped resource."""
    path = f"{collection(api_version, resource, namespace)}/{_segment(name, is_path_segment, 'a name')}"
    return f"{path}/{_segment(subresource, _is_resource, 'a subresource')}" if subresource else path


def proxied(pod: str, namespace: str, port: int, path: str) -> str:
    """A path on a port of a pod, through the API server's proxy; `path` must be a constant."""
    return f"{one('v1', 'pods', pod, namespace)}:{port}/proxy/{path}"


def within(path: str, namespace: str) -> str:
    """The path of a collection of all namespaces, narrowed to one."""
    above, _, resource = path.rpartition("/")
    return f"{above}/namespaces/{_segment(namespace, is_label, 'a namespace')}/{resource}"


def _is_resource(text: str) -> bool:
    return _RESOURCE.fullmatch(text) is not None


def _segment(text: str, allowed: Callable[[str], bool], what: str) -> str:
    if not allowed(text):
        raise _refused(text, what)
    return quote(text, safe="")


def _refused(text: str, what: str) -> ApiError:
    return ApiError(0, "BadPath", f"{text[:80]!r} is not {what}")
