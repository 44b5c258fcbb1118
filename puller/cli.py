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

from puller import http
from puller.flags import Flags, boolean
from puller.log import LEVELS, logger
from puller.options import Options
from puller.reconcile import Reconciler
from puller.servers.base import ModelServer, Timeouts
from puller.servers.lora import LoraServer, SglangServer
from puller.servers.none import NoServer
from puller.servers.tfserving import TfServing
from puller.servers.v2 import TritonServer, V2Server
from puller.spec import SCHEMES, quantity
from puller.storage.base import DiskBudget, Limits
from puller.storage.cache import Cache
from puller.storage.fetch import Storage

SERVERS = ("v2", "kserve", "triton", "tfserving", "vllm", "sglang", "none")
_ENV = "CHASSIS_PULLER_"


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code: 0, or 1 when the port cannot be had."""
    arguments = parser(os.environ).parse_args(argv)
    logger.configure(arguments.log_level)
    options = options_of(arguments)
    os.umask(0o022)  # the model server may run as another user
    _raise_file_limit()
    return asyncio.run(serve(options, os.environ))


async def serve(options: Options, env: Mapping[str, str]) -> int:
    """The puller, with its HTTP port and its signal handlers."""
    loop = asyncio.get_running_loop()
    threads = 16 + 2 * options.downloads + options.limits.connections  # a request holds one while it waits
    loop.set_default_executor(ThreadPoolExecutor(threads, "puller"))
    server = server_of(options)
    reconciler = Reconciler(options, server, storage_of(options, env))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, reconciler.stop)
    try:
        port = await http.listen(reconciler, options.host, options.port)
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


def storage_of(options: Options, env: Mapping[str, str]) -> Storage:
    """What all downloads share."""
    budget = DiskBudget(options.model_dir, options.max_disk)
    connections = asyncio.Semaphore(options.limits.connections)
    cache = Cache(options.cache_dir, options.cache_size) if options.cache_dir is not None else None
    return Storage(env, options.limits, budget, options.claims_dir, connections, linger=5.0, cache=cache)


def server_of(options: Options) -> ModelServer:
    """The protocol that `--server` names."""
    if options.server == "none":
        return NoServer()
    seen = options.server_model_dir or options.model_dir
    if options.server in ("vllm", "sglang"):
        lora = LoraServer if options.server == "vllm" else SglangServer
        return lora(options.server_url, options.timeouts, options.model_dir, seen, options.server_api_key)
    if options.server == "tfserving":
        return TfServing(options.server_url, options.timeouts, options.model_dir, seen)
    kind = TritonServer if options.server == "triton" else V2Server
    return kind(options.server_url, options.timeouts)


def options_of(arguments: argparse.Namespace) -> Options:
    given = {
        **vars(arguments),
        "claims_dir": arguments.pvc_dir,
        "downloads": arguments.num_workers,
        "loads": arguments.load_workers,
        "server_url": arguments.server_url or f"http://127.0.0.1:{arguments.component_port}",
        "schemes": tuple(dict.fromkeys((*arguments.schemes, *arguments.further_schemes))),
        "plain_registries": frozenset(arguments.plain_registries),
        "max_entries": arguments.max_archive_entries,
        "max_expansion": arguments.max_archive_expansion,
        "timeouts": Timeouts(arguments.probe_timeout, arguments.load_timeout, arguments.unload_timeout),
    }
    return Options(**_of(Options, given), limits=Limits(**_of(Limits, given)))


def _of(kind: type[Options | Limits], given: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: given[field.name] for field in fields(kind) if field.name in given}


def parser(env: Mapping[str, str]) -> argparse.ArgumentParser:
    """Every flag may also be given as CHASSIS_PULLER_<FLAG>; the command line wins."""
    made = argparse.ArgumentParser(
        prog="chassis-puller",
        description="Keeps a pod's models equal to a ConfigMap.",
        allow_abbrev=False,
    )
    flag = _flag(made, Flags(_ENV, env))
    flag("--config-dir", Path, Options.config_dir, "where the model ConfigMap is mounted")
    flag("--model-dir", Path, Options.model_dir, "where models go, one directory each")
    flag("--pvc-dir", Path, Options.claims_dir, "where claims named by pvc:// URIs are mounted")
    flag("--server", str, "v2", "protocol of the model server", choices=SERVERS)
    flag("--server-url", str, "", "the model server (default: http://127.0.0.1:<component port>)")
    flag("--component-port", _port, 8080, "port of the model server, when --server-url is not given")
    flag(
        "--server-model-dir",
        Path,
        None,
        "the model directory as the server sees it (tfserving, vllm, sglang)",
    )
    flag("--server-api-key", _key, "", "API key of the model server (vllm, sglang); better as a variable")
    flag("--host", str, Options.host, "address of the puller's HTTP port (default: all)")
    flag("--port", _port, Options.port, "the puller's HTTP port: /healthz, /readyz, /v1/models, /metrics")
    flag("--ready-when", str, "all", "what /readyz waits for", choices=("first", "all", "any"))
    flag("--schemes", _schemes, ",".join(SCHEMES), "storage schemes that a storageUri may have")
    flag("--further-schemes", _further, "", "schemes to add to these; unknown ones are passed over")
    flag("--plain-registries", _listed, "", "registries, as host:port, that oci:// asks over http")
    flag("--num-workers", _count, Options.downloads, "models downloaded at a time", alias="--workers")
    flag("--load-workers", _count, Options.loads, "load and unload calls at a time")
    flag("--connections", _count, Limits().connections, "storage requests at a time, over all models")
    flag("--max-disk", _size, 0, "most disk space for models, such as 200Gi (0: all free space)")
    flag("--max-memory", _size, 0, "most memory for loaded models, by their spec (0: no limit)")
    flag("--max-archive-entries", _count, Limits().max_entries, "entries of an archive")
    flag("--max-archive-expansion", _count, Limits().max_expansion, "unpacked bytes per byte of archive")
    flag("--resync", _seconds, Options.resync, "seconds between full comparisons")
    flag("--config-poll", _seconds, Options.config_poll, "seconds between reads of the config directory")
    flag("--server-poll", _seconds, Options.server_poll, "seconds between looks at the model server")
    flag("--allow-link-local", boolean, "false", "whether link-local addresses may be downloaded from")
    flag("--connect-timeout", _seconds, Limits().connect_timeout, "seconds to reach the storage")
    flag("--stall-timeout", _seconds, Limits().stall_timeout, "seconds without a byte from the storage")
    flag("--probe-timeout", _seconds, Timeouts().probe, "seconds for a health or ready call")
    flag("--load-timeout", _seconds, Timeouts().load, "seconds for a load, until the model is ready")
    flag("--unload-timeout", _seconds, Timeouts().unload, "seconds for an unload")
    flag("--backoff-initial", _seconds, Options.backoff_initial, "seconds before the first retry")
    flag("--backoff-max", _seconds, Options.backoff_max, "seconds between retries at most")
    flag("--grace", _seconds, Options.grace, "seconds a load in flight may finish in after SIGTERM")
    flag("--pod-uid", str, "", "UID of this pod; a puller that restarts in it is ready if it was before")
    flag("--cache-dir", Path, None, "directory on a volume that pods share, for models (default: none)")
    flag("--cache-size", _size, "0", "bytes, or a quantity, that the cache may take; 0: no limit")
    flag("--supervise", boolean, "false", "restart a crashed puller inside this container")
    flag("--log-level", str, "info", "least level logged", choices=LEVELS)
    made.add_argument(
        "--enable-puller", nargs="?", const="true", help="accepted, as KServe's agent takes it; always on"
    )
    return made


def _flag(made: argparse.ArgumentParser, flags: Flags) -> Callable[..., None]:
    """A line of the table above: name, type, default, help."""

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
        flags.add(made, *names, default=default, help=f"{text}{shown}", **options)

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
    found = _listed(text)
    if not found or not set(found) <= set(SCHEMES):
        raise argparse.ArgumentTypeError(f"must be some of {','.join(SCHEMES)}")
    return found


def _further(text: str) -> tuple[str, ...]:
    """Webhooks of later versions may name schemes that this puller does not know."""
    return tuple(scheme for scheme in _listed(text) if scheme in SCHEMES)


def _listed(text: str) -> tuple[str, ...]:
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
    """A model of a thousand files and a thousand models need more than the usual 1,024 descriptors."""
    with suppress(OSError, ValueError):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 65536 if hard == resource.RLIM_INFINITY else min(65536, hard)
        if soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
