"""One worker: it starts the server and the background tasks, and runs until the drain.

Law: a failed background task does not stop the server. The task is restarted, and the server answers from its
present state.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import AsyncExitStack
from typing import Final

import structlog
import uvloop

from policies.core.data import load_tables
from policies.core.facts import NoCluster
from policies.kube.group_kinds import kind_of
from webhook.admission import engine
from webhook.admission.envelope import Request
from webhook.admission.review import Review
from webhook.config.load import load, models, rules
from webhook.config.source import LivePolicy
from webhook.errors import UserError
from webhook.kube.api import load_client
from webhook.server.admission_server import Readiness, listen
from webhook.server.assembly import Work, assemble, metric_kinds
from webhook.server.connections import raise_descriptor_limit
from webhook.server.metrics import remove_gauges
from webhook.server.server_flags import ServerOptions
from webhook.server.shared_memory import SharedRecords
from webhook.server.supervisor import stopping_signals, supervise

log = structlog.get_logger()

RESTART_SECONDS = 5.0
TURN_SECONDS = 1.0
USAGE = 2
"""Exit status for flags that can't be used."""
POLICY_PATIENCE = 15.0
"""Seconds after which the server is ready although it could not read its policy: a webhook that observes is
better than one that an unreachable API server keeps out of service."""


def serve(options: ServerOptions) -> int:
    """Serve until SIGTERM or SIGINT; the exit status."""
    raise_descriptor_limit()
    try:
        listener = listen(options.host, options.port)
    except OSError as error:
        raise UserError(
            f"can't listen on {options.host or '*'}:{options.port}: {error.strerror or error}"
        ) from None

    def serve_one(listener: socket.socket, shared: SharedRecords) -> int:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(_serve(options, listener, shared))
        except UserError as error:
            for problem in error.problems:  # the worker never returns to the command line
                print(f"chassis: {problem}", file=sys.stderr, flush=True)
            return USAGE

    _preload(options)
    return supervise(options.workers, listener, serve_one, remove_gauges)


def _preload(options: ServerOptions) -> None:
    """Load all tables and modules before the first fork, so that a restarted worker serves at once."""
    metric_kinds()
    config = load(dict.fromkeys(models(), ""))  # builds what checks a policy, too
    rules()
    load_tables()
    engine.decide(Review(Request("", kind_of(_SAMPLE), "CREATE", object=_SAMPLE), config, NoCluster()))
    if options.uses_cluster:
        load_client()


_SAMPLE: Final = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "spec": {
        "template": {
            "spec": {
                "initContainers": [{"name": "wait", "command": ["curl", "http://models"]}],
                "containers": [
                    {
                        "name": "server",
                        "image": "vllm/vllm-openai",
                        "args": ["--model", "meta-llama/Llama-3-8B"],
                        "resources": {"limits": {"nvidia.com/gpu": 1}},
                    },
                    {
                        "name": "own",
                        "image": "own",
                        "livenessProbe": {"exec": {"command": ["sh", "-c", "pgrep own | wc -l"]}},
                        "readinessProbe": {"tcpSocket": {"port": 80}},
                    },
                ],
            }
        }
    },
}
"""Its review loads what is not a table, such as compiled patterns."""


async def _serve(options: ServerOptions, listener: socket.socket, shared: SharedRecords) -> int:
    stopped = asyncio.Event()
    for number in stopping_signals():
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    turning = asyncio.create_task(_count_turns(shared, stopped))
    async with AsyncExitStack() as stack:
        parts = await assemble(options, shared, stack)
        await parts.server.start(listener, lambda: parts.certificate.context)
        shared.state.serving = 1
        host, port = listener.getsockname()[:2]
        log.info("listening", host=host, port=port, pid=os.getpid())
        tasks = [asyncio.create_task(_keep_running(name, work)) for name, work in parts.background]
        tasks.append(asyncio.create_task(_await_policy(parts.policy, parts.readiness)))
        await stopped.wait()
        log.info("draining", grace=options.drain_grace)
        await parts.server.drain(options.drain_grace)
        if parts.namer:
            await parts.namer.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    turning.cancel()
    log.info("stopped")
    return 0


async def _count_turns(shared: SharedRecords, stopped: asyncio.Event) -> None:
    """Show the supervisor that the event loop turns. Stop if the supervisor has exited."""
    supervisor = os.getppid()
    while True:
        shared.state.turns += 1
        if os.getppid() != supervisor:
            stopped.set()
        await asyncio.sleep(TURN_SECONDS)


async def _keep_running(name: str, work: Work) -> None:
    while True:
        try:
            await work()
        except Exception:
            log.exception("background task failed, starting it again", task=name)
        await asyncio.sleep(RESTART_SECONDS)


async def _await_policy(policy: LivePolicy, readiness: Readiness) -> None:
    try:
        async with asyncio.timeout(POLICY_PATIENCE):
            await policy.read.wait()
    except TimeoutError:
        log.warning("the policy can't be read yet: observing until it can")
    readiness.policy = True
