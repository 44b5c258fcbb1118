"""The cluster that a command reads: the one that kubectl would, or the one whose pod it runs in."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from webhook.config.location import WHERE
from webhook.errors import UserError
from webhook.kube.api import ApiServer, NoApiServer
from webhook.kube.errors import ApiError
from webhook.kube.own_pod import in_cluster

RETRIES: Final = 10
"""How often a call is made again that the API server puts off, as it does where it has too much to do."""

Wait = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine to its end in the loop that the connection belongs to."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that choose the cluster."""
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, ~/.kube/config, or the pod's own account"
    )
    parser.add_argument("--context", metavar="NAME", help="default: the kubeconfig's current context")


def add_scope(parser: argparse.ArgumentParser) -> None:
    """The flags that choose the cluster, namespaces and the policy."""
    add_namespaces(parser)
    parser.add_argument(
        "--policy", metavar="WHERE", help=f"{WHERE} (default: the one installed, or built-in)"
    )


def add_namespaces(parser: argparse.ArgumentParser) -> None:
    """The flags that choose the cluster and namespaces."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-A", "--all-namespaces", action="store_true", help="of all namespaces")
    where.add_argument("-n", "--namespace", metavar="NS", help="default: the namespace of the context")
    add_arguments(parser)


def chosen_namespace(args: argparse.Namespace, api: ApiServer) -> str:
    """The namespace that the flags choose; empty for all."""
    return "" if args.all_namespaces else args.namespace or api.namespace


@contextmanager
def connected(kubeconfig: str | None, context: str | None) -> Iterator[tuple[ApiServer, Wait]]:
    """A connection, and a function that runs a coroutine on it. UserError where the cluster can't be read.

    The loop runs while a coroutine is waited for and not between, so that a generator may pull pages of
    objects as they are printed.
    """
    found = _kubeconfig(kubeconfig)
    with asyncio.Runner() as runner:
        connection = ApiServer.connect(found, context, RETRIES)
        try:
            api = runner.run(connection.__aenter__())
        except NoApiServer as error:
            what = found or "the pod's account"
            raise UserError(f"{what} can't be used: {' '.join(str(error).split())}") from None
        try:
            yield api, runner.run
        except ApiError as error:
            raise UserError(f"the cluster can't be read: {error}") from None
        finally:
            runner.run(connection.__aexit__(None, None, None))


def _kubeconfig(given: str | None) -> str | None:
    """The kubeconfig that kubectl would take; None for the account of the pod that we run in."""
    if given:
        if not Path(given).is_file():
            raise UserError(f"{given}: there is no such kubeconfig")
        return given
    usual = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    found = os.pathsep.join(path for path in usual.split(os.pathsep) if Path(path).is_file())
    if not found and not in_cluster():
        raise UserError("no cluster to read: there is no kubeconfig, and this is no pod")
    return found or None
