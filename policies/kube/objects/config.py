"""ConfigMaps and Namespaces."""

from __future__ import annotations

from collections.abc import Mapping

from policies.kube.objects.base import EMPTY
from policies.kube.objects.metadata import Object


class ConfigMap(Object):
    data: Mapping[str, str] = EMPTY


class Namespace(Object):
    pass
