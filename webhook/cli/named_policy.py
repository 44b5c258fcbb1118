"""The policy that a command's arguments name: files, standard input or a ConfigMap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from webhook.admission.configuration import Config
from webhook.cli.tell import tell
from webhook.config.load import load
from webhook.config.location import CONFIG_MAP, INSTALLED, NoPolicy, config_map, read_config_map, read_files

if TYPE_CHECKING:
    from webhook.kube.api import ApiServer

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


async def policy_files(api: ApiServer, where: str | None) -> tuple[str, Mapping[str, str]]:
    """The place and the files of the policy that is asked for, or else of the one installed in the cluster;
    both are empty if none is."""
    if where and not where.startswith(CONFIG_MAP):
        return where, read_files(where)
    try:
        return where or INSTALLED, await read_config_map(api, where or INSTALLED)
    except NoPolicy as why:
        if where:
            raise
        tell(f"the policy is the built-in one: {why}")
        return "", {}


async def policy_of(api: ApiServer, where: str | None) -> tuple[Config, str]:
    """The policy that is asked for, or the one installed in the cluster, or the built-in one; and which of
    them it is."""
    found, files = await policy_files(api, where)
    if not found:
        return load({}), "the built-in one"
    spelled = _spelled(found)
    tell(f"the policy is {spelled}")
    return load(files), spelled


def _spelled(where: str) -> str:
    if where.startswith(CONFIG_MAP):
        return f"the ConfigMap {where.removeprefix(CONFIG_MAP)}"
    return "the one on standard input" if where == "-" else f"the one in {where}"
