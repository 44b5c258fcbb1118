"""The cluster that a command reads: the one that kubectl would, or the one whose pod it runs in."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from webhook.errors import UserError
from webhook.kube.api import ApiServer, NoApiServer
from webhook.kube.calls import ApiError
from webhook.kube.own_pod import in_cluster

RETRIES: Final = 10
"""How often a request is repeated that the API server answers with 429."""

Wait = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine to its end in the event loop of the connection."""


def selected_namespace(args: argparse.Namespace, api: ApiServer) -> str:
    """The namespace that the flags choose; empty for all."""
    return "" if args.all_namespaces else args.namespace or api.namespace


@contextmanager
def connected(kubeconfig: str | None, context: str | None) -> Iterator[tuple[ApiServer, Wait]]:
    """A connection, and a function that runs a coroutine on it. UserError if the cluster can't be read.

    The event loop runs only while a coroutine is awaited, so that a generator may fetch pages of objects
    while their results are printed.
    """
    found = _kubeconfig(kubeconfig)
    with asyncio.Runner() as runner:
        connection = ApiServer.connect(found, context, RETRIES)
        try:
            api = runner.run(connection.__aenter__())
        except NoApiServer as error:
            source = found or "the pod's account"
            raise UserError(f"{source} can't be used: {' '.join(str(error).split())}") from None
        try:
            yield api, runner.run
        except ApiError as error:
            raise UserError(f"the cluster can't be read: {error}") from None
        finally:
            runner.run(connection.__aexit__(None, None, None))


def _kubeconfig(given: str | None) -> str | None:
    """The kubeconfig that kubectl would use; None for the account of the pod that this command runs in."""
    if given:
        if not Path(given).is_file():
            raise UserError(f"{given}: there is no such kubeconfig")
        return given
    default = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    found = os.pathsep.join(path for path in default.split(os.pathsep) if Path(path).is_file())
    if not found and not in_cluster():
        raise UserError("no cluster to read: there is no kubeconfig, and this command isn't running in a pod")
    return found or None
