"""ConfigMaps and Namespaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from policies.kube.objects.metadata import EMPTY, Object


class ConfigMap(Object):
    data: Mapping[str, str] = EMPTY


NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
"""The label that the API server sets on every namespace; files lack it."""


class Namespace(Object):
    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels with the one that the API server sets."""
        return {**self.metadata.labels, NAMESPACE_NAME: self.name}
