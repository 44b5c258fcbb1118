"""How a command names a policy: a directory, or a ConfigMap as `configmap:NAMESPACE/NAME`."""

from __future__ import annotations

from typing import Final

from webhook.errors import UserError

CONFIG_MAP: Final = "configmap:"


def config_map(value: str) -> tuple[str, str]:
    """Namespace and name in `configmap:NS/NAME`. UserError if they are not there."""
    namespace, _, name = value.removeprefix(CONFIG_MAP).partition("/")
    if not namespace or not name or "/" in name:
        raise UserError(f"--policy {value!r} must be configmap:NAMESPACE/NAME")
    return namespace, name
