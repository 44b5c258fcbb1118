"""The policy that a command's arguments name: files, standard input or a ConfigMap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from webhook.admission.configuration import Config
from webhook.cli.terminal import print_note
from webhook.config.load import load
from webhook.config.location import CONFIG_MAP, INSTALLED, NoPolicy, config_map, read_config_map, read_files

if TYPE_CHECKING:
    from webhook.kube.api import ApiServer

BUILT_IN: Final = "built-in"
"""The name of the defaults in a comparison of two policies."""


def read_policy(
    where: str | None, profile: str | None = None, kubeconfig: str | None = None, context: str | None = None
) -> Config:
    """The policy at one of the places of `location.WHERE`; None for the built-in one.

    Raises:
        UserError: it can't be read, or does not load.
    """
    files: Mapping[str, str] = {}
    if where is not None and where.startswith(CONFIG_MAP):
        config_map(where)  # reports a wrong form before any connection
        from webhook.cli.connection import connected

        with connected(kubeconfig, context) as (api, wait):
            files = wait(read_config_map(api, where))
    elif where is not None:
        files = read_files(where)
    config = load(files)
    return config if profile is None else config.with_profile(profile)


async def policy_files(api: ApiServer, where: str | None) -> tuple[str, Mapping[str, str]]:
    """The place and the files of the named policy, or else of the one installed in the cluster; both empty if
    there is none."""
    if where and not where.startswith(CONFIG_MAP):
        return where, read_files(where)
    try:
        return where or INSTALLED, await read_config_map(api, where or INSTALLED)
    except NoPolicy as error:
        if where:
            raise
        print_note(f"using the built-in policy: {error}")
        return "", {}


async def policy_of(api: ApiServer, where: str | None) -> tuple[Config, str]:
    """The named policy, or the installed one, or the built-in one, with a description of its place."""
    place, files = await policy_files(api, where)
    if not place:
        return load({}), "the built-in one"
    if place.startswith(CONFIG_MAP):
        description = f"the ConfigMap {place.removeprefix(CONFIG_MAP)}"
    else:
        description = "the one on standard input" if place == "-" else f"the one in {place}"
    print_note(f"the policy is {description}")
    return load(files), description
