"""`chassis unregister`: delete the webhook configurations before the webhook.

While the webhook is removed, API servers must not call it: with failurePolicy Fail they would refuse requests
without an answer. `helm uninstall` runs this in a hook, because Helm deletes webhook configurations last.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Final

from webhook.errors import UserError
from webhook.kube import paths
from webhook.kube.api import ADMISSION_REGISTRATION, ApiServer
from webhook.kube.calls import ApiError
from webhook.server.ca_bundle import RESOURCES

SETTLE_SECONDS: Final = 10.0
"""API servers watch webhook configurations: they follow a deletion within a second, a busy one later."""
RETRIES: Final = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.description = (
        "Delete the webhook configurations, and wait until the API servers no longer call the webhook, so "
        "that removing it doesn't refuse requests. Exit status 0 even if there are none."
    )
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help="default: the pod's own account")
    parser.add_argument(
        "--webhook-configurations",
        default="chassis.mlchassis.dev",
        metavar="NAME",
        help="name of the MutatingWebhookConfiguration and the ValidatingWebhookConfiguration (%(default)s)",
    )
    parser.add_argument(
        "--settle",
        type=float,
        default=SETTLE_SECONDS,
        metavar="SECONDS",
        help="time to wait after the deletion (%(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Delete the configurations and wait. UserError if no API server answers, or it refuses."""
    try:
        asyncio.run(_unregister(args.kubeconfig, args.webhook_configurations, args.settle))
    except ApiError as error:
        raise UserError(str(error)) from error
    return 0


async def _unregister(kubeconfig: Path | None, name: str, settle: float) -> None:
    deleted = False
    async with ApiServer.connect(kubeconfig, retries=RETRIES) as api:
        for resource in RESOURCES:
            path = paths.one(ADMISSION_REGISTRATION, resource, name)
            found = await api.unless_conflict("DELETE", path, {})
            deleted = deleted or found
            print(f"{resource} {name}: {'deleted' if found else 'not found'}")
    if deleted:
        await asyncio.sleep(settle)
