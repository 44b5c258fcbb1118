"""`chassis-puller`: the command line, and the process around the reconciler."""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from puller import endpoints
from puller.flags import Flags, boolean
from puller.log import LEVELS, logger
from puller.model_config import SCHEMES, quantity
from puller.options import PullerOptions
from puller.reconcile import Reconciler
from puller.servers.base import ModelServer, Timeouts
from puller.servers.lora import LoraServer, SglangServer
from puller.servers.tfserving import TfServing
from puller.servers.v2 import TritonServer, V2Server
from puller.storage.base import Limits
from puller.storage.cache import SharedCache
from puller.storage.connections import Connections
from puller.storage.disk_budget import DiskBudget
from puller.storage.fetch import Storage

SERVERS = ("v2", "kserve", "triton", "tfserving", "vllm", "sglang", "none")
_ENV = "CHASSIS_PULLER_"


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code: 0, or 1 if the port is not available."""
    arguments = parser(os.environ).parse_args(argv)
    logger.configure(arguments.log_level)
    options = options_of(arguments)
    os.umask(0o022)  # the model server may run as another user
    _raise_file_limit()
    return asyncio.run(serve(options, os.environ))


async def serve(options: PullerOptions, env: Mapping[str, str]) -> int:
    """Run the reconciler, its HTTP port and its signal handlers."""
    loop = asyncio.get_running_loop()
    threads = (
        16 + 2 * options.num_workers + options.limits.connections
    )  # a part of a download is written in one
    loop.set_default_executor(ThreadPoolExecutor(threads, "puller"))
    server = server_of(options)
    reconciler = Reconciler(options, server, storage_of(options, env))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, reconciler.stop)
    try:
        port = await endpoints.listen(reconciler, options.host, options.port)
    except OSError as error:
        logger.error("port not available", port=options.port, error=str(error))
        await server.close()
        return 1
    logger.info("listening", address=port.address, server=options.server, models=str(options.model_dir))
    try:
        await reconciler.run()
    finally:
        await server.close()
        await port.close()
    logger.info("stopped")
    return 0


def storage_of(options: PullerOptions, env: Mapping[str, str]) -> Storage:
    """The storage for all downloads."""
    budget = DiskBudget(options.model_dir, options.max_disk)
    connections = Connections(options.limits.connections)
    cache = SharedCache(options.cache_dir, options.cache_size) if options.cache_dir is not None else None
    return Storage(env, options.limits, budget, options.pvc_dir, connections, linger=5.0, cache=cache)


def server_of(options: PullerOptions) -> ModelServer:
    """The client for `--server`."""
    if options.server == "none":
        return ModelServer()
    server_dir = options.server_model_dir or options.model_dir
    if options.server in ("vllm", "sglang"):
        adapters = LoraServer if options.server == "vllm" else SglangServer
        return adapters(
            options.server_url, options.timeouts, options.model_dir, server_dir, options.server_api_key
        )
    if options.server == "tfserving":
        return TfServing(options.server_url, options.timeouts, options.model_dir, server_dir)
    v2 = TritonServer if options.server == "triton" else V2Server
    return v2(options.server_url, options.timeouts)


def options_of(arguments: argparse.Namespace) -> PullerOptions:
    """The settings of parsed arguments."""
    values = {
        **vars(arguments),
        "server_url": arguments.server_url or f"http://127.0.0.1:{arguments.component_port}",
        "schemes": tuple(dict.fromkeys((*arguments.schemes, *arguments.further_schemes))),
        "plain_registries": frozenset(arguments.plain_registries),
        "max_entries": arguments.max_archive_entries,
        "max_expansion": arguments.max_archive_expansion,
        "timeouts": Timeouts(arguments.probe_timeout, arguments.load_timeout, arguments.unload_timeout),
    }
    return PullerOptions(**_fields(PullerOptions, values), limits=Limits(**_fields(Limits, values)))


def _fields(kind: type[PullerOptions | Limits], values: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: values[field.name] for field in fields(kind) if field.name in values}


def parser(env: Mapping[str, str]) -> argparse.ArgumentParser:
    """Each flag can also be set as CHASSIS_PULLER_<FLAG>; the command line has precedence."""
    result = argparse.ArgumentParser(
        prog="chassis-puller",
        description="Keeps a pod's models equal to a ConfigMap.",
        allow_abbrev=False,
    )
    flag = _flag(result, Flags(_ENV, env))
    flag("--config-dir", Path, PullerOptions.config_dir, "mount path of the model ConfigMap")
    flag("--model-dir", Path, PullerOptions.model_dir, "directory of the models, one subdirectory each")
    flag("--pvc-dir", Path, PullerOptions.pvc_dir, "mount path of the claims in pvc:// URIs")
    flag("--server", str, "v2", "protocol of the model server", choices=SERVERS)
    flag("--server-url", str, "", "the model server (default: http://127.0.0.1:<component port>)")
    flag("--component-port", _port, 8080, "port of the model server, without --server-url")
    flag("--server-model-dir", Path, None, "the model directory in the container of the server")
    flag("--server-api-key", _key, "", "API key of the model server (vllm, sglang); set it as a variable")
    flag("--host", str, PullerOptions.host, "address of the puller's HTTP port (default: all)")
    flag(
        "--port", _port, PullerOptions.port, "the puller's HTTP port: /healthz, /readyz, /v1/models, /metrics"
    )
    flag("--ready-when", str, "all", "condition of /readyz", choices=("first", "all", "any"))
    flag("--schemes", _schemes, ",".join(SCHEMES), "allowed schemes of a storageUri")
    flag("--further-schemes", _known_schemes, "", "schemes to add to these; unknown ones are ignored")
    flag("--plain-registries", _items, "", "registries, as host:port, that oci:// calls over http")
    flag("--num-workers", _count, PullerOptions.num_workers, "models downloaded at a time", alias="--workers")
    flag("--load-workers", _count, PullerOptions.load_workers, "load and unload calls at a time")
    flag("--connections", _count, Limits().connections, "storage requests at a time, over all models")
    flag("--max-disk", _size, 0, "maximum disk space for models, such as 200Gi (0: all free space)")
    flag("--max-memory", _size, 0, "maximum memory for loaded models, by their spec (0: no limit)")
    flag("--max-archive-entries", _count, Limits().max_entries, "maximum entries of an archive")
    flag("--max-archive-expansion", _count, Limits().max_expansion, "maximum bytes per byte of archive")
    flag("--resync", _seconds, PullerOptions.resync, "seconds between full comparisons")
    flag(
        "--config-poll", _seconds, PullerOptions.config_poll, "seconds between reads of the config directory"
    )
    flag("--server-poll", _seconds, PullerOptions.server_poll, "seconds between probes of the model server")
    flag("--allow-link-local", boolean, "false", "allow downloads from link-local addresses")
    flag("--connect-timeout", _seconds, Limits().connect_timeout, "seconds to reach the storage")
    flag("--stall-timeout", _seconds, Limits().stall_timeout, "seconds without a byte from the storage")
    flag("--probe-timeout", _seconds, Timeouts().probe, "seconds for a health or ready call")
    flag("--load-timeout", _seconds, Timeouts().load, "seconds for a load, until the model is ready")
    flag("--unload-timeout", _seconds, Timeouts().unload, "seconds for an unload")
    flag("--backoff-initial", _seconds, PullerOptions.backoff_initial, "seconds before the first retry")
    flag("--backoff-max", _seconds, PullerOptions.backoff_max, "maximum seconds between retries")
    flag("--grace", _seconds, PullerOptions.grace, "seconds for a load in flight to finish after SIGTERM")
    flag("--pod-uid", str, "", "UID of this pod; a puller that restarts in it stays ready")
    flag("--cache-dir", Path, None, "directory on a volume that pods share, for models (default: none)")
    flag("--cache-size", _size, "0", "maximum bytes of the cache (0: no limit)")
    flag("--supervise", boolean, "false", "restart a crashed puller in this container")
    flag("--log-level", str, "info", "minimum level of log lines", choices=LEVELS)
    result.add_argument(
        "--enable-puller", nargs="?", const="true", help="accepted for KServe's agent; always on"
    )
    return result


def _flag(parser: argparse.ArgumentParser, flags: Flags) -> Callable[..., None]:
    """A function that adds a flag: name, type, default, help."""

    def flag(
        name: str,
        kind: object,
        default: object,
        text: str,
        *,
        choices: Sequence[str] | None = None,
        alias: str | None = None,
    ) -> None:
        shown = "" if default in (None, "") or "default" in text else f" (default: {default})"
        options = {"choices": choices} if choices else {"type": kind}
        names = [name, alias] if alias else [name]
        flags.add(parser, *names, default=default, help=f"{text}{shown}", **options)

    return flag


def _key(text: str) -> str:
    key = text.strip()
    if not (key.isascii() and key.isprintable()):
        raise argparse.ArgumentTypeError("must be printable ASCII characters")
    return key


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError("must be a port, 0 to 65535")
    return number


def _schemes(text: str) -> tuple[str, ...]:
    found = _items(text)
    if not found or not set(found) <= set(SCHEMES):
        raise argparse.ArgumentTypeError(f"must be some of {','.join(SCHEMES)}")
    return found


def _known_schemes(text: str) -> tuple[str, ...]:
    """Webhooks of later versions may pass schemes that this version does not know."""
    return tuple(scheme for scheme in _items(text) if scheme in SCHEMES)


def _items(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def _seconds(text: str) -> float:
    number = float(text.removesuffix("s"))
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError("must be a number of seconds above 0")
    return number


def _size(text: str) -> int:
    try:
        size = quantity(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return size


def _raise_file_limit() -> None:
    """Many files and connections need more than the usual 1,024 descriptors."""
    with suppress(OSError, ValueError):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 65536 if hard == resource.RLIM_INFINITY else min(65536, hard)
        if soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
