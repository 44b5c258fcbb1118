"""The policy that a command's arguments name: files, standard input or a ConfigMap."""

from __future__ import annotations

from typing import Final

from webhook.admission.configuration import Config
from webhook.config.load import load
from webhook.config.location import CONFIG_MAP, config_map, read_config_map, read_files

BUILT_IN: Final = "built-in"
"""How the defaults are named where two policies are compared."""


def read_policy(
    where: str | None, profile: str | None = None, kubeconfig: str | None = None, context: str | None = None
) -> Config:
    """The policy at one of the places of `location.WHERE`, or the built-in one (None).

    UserError if it can't be had.
    """
    if where is None:
        config = load({})
    else:
        if where.startswith(CONFIG_MAP):
            config_map(where)  # before a cluster is looked for
            from webhook.cli.connection import connected

            with connected(kubeconfig, context) as (api, wait):
                config = load(wait(read_config_map(api, where)))
        else:
            config = load(read_files(where))
    return config if profile is None else config.with_profile(profile)
