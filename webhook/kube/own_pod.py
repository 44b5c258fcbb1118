"""The pod that this process runs in. Cheap to import."""

from __future__ import annotations

import os
from pathlib import Path

SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def own_namespace(default: str = "mlchassis-system") -> str:
    try:
        return SERVICE_ACCOUNT_NAMESPACE.read_text().strip() or default
    except OSError:
        return default


def in_cluster() -> bool:
    """Whether this process runs in a pod that can reach its API server."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
