"""The page about one model server, made from its preset for docs/servers and for `chassis explain`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from policies.core.reasons import in_words
from policies.probes.preset import Preset, Protocol, known_presets
from webhook.cli.server_manifest import server_manifest

_WATCHED: Final = " The webhook adds the livenessProbe, which checks progress."
_RULES: Final = "../rules"


def server_markdown(name: str) -> str:
    """The page of a server. KeyError if there is no preset with this name."""
    preset = known_presets()[name]
    sections = (
        ("Recognised by", _recognition(preset)),
        ("Probes", _probes(preset)),
        ("Start", _start(preset)),
        ("Models and their cache", _cache(preset)),
        ("Data", _data(preset)),
        ("Accelerators and memory", _memory(preset)),
        ("Variables", _variables(preset)),
        ("Stop", _stop(preset)),
        ("Hangs", _hangs(preset)),
        ("Scaling", _scaling(preset)),
        ("Pitfalls", _pitfalls(preset)),
    )
    parts = [f"# {name} on Kubernetes", f"Source: <{preset.source}>"]
    if preset.checked:
        parts.append(f"Versions that were read: {preset.checked}.")
    for title, facts in sections:
        found = list(facts)
        if found:
            parts += [f"## {title}", "\n".join(f"- {fact}" for fact in found)]
    manifest = server_manifest(name, preset)
    if manifest:
        parts += [
            "## A complete manifest",
            "`chassis review` reports nothing in it. The sizes are examples: set the model, the memory, "
            "and the size and StorageClass of the claim." + (_WATCHED if preset.progress is not None else ""),
            f"```yaml\n{manifest}```",
        ]
    return "\n\n".join(parts) + "\n"


def server_names() -> tuple[str, ...]:
    """The servers that have a page; a worker of a group serves nobody."""
    return tuple(name for name, preset in known_presets().items() if not preset.worker)


def _recognition(preset: Preset) -> Iterator[str]:
    if preset.images:
        yield f"images: {_code(preset.images)}"
    if preset.commands:
        yield f"commands: {_code(preset.commands)}"
    if preset.variables:
        yield f"variables: {_code(preset.variables)}"


def _probes(preset: Preset) -> Iterator[str]:
    if preset.doubt:
        yield f"no probe is injected: {preset.doubt}"
    if preset.port:
        flags = (*preset.port_flags, *preset.port_env)
        yield f"port {preset.port}" + (f", set by {_code(flags)}" if flags else "")
        for name, images in preset.other_port_env.items():
            yield (
                f"in the images {_code(images)}, `{name}` takes precedence; in other images it must not "
                "differ"
            )
    if preset.protocol is Protocol.GRPC:
        yield "liveness and readiness: the gRPC health check"
    elif preset.live_socket:
        yield "liveness: only whether the port is open, because the health endpoint waits behind inferences"
    elif preset.live_path:
        yield f"liveness: `GET {preset.live_path}`{_patience(preset)}"
    if preset.ready_path and preset.protocol is Protocol.HTTP:
        since = f", since version {preset.since}" if preset.since not in (None, "first") else ""
        yield f"readiness: `GET {preset.ready_path}`{since}" + _cited(preset.since_source)
    for older in preset.older:
        paths = _code(filter(None, (older.live_path, older.ready_path))) or "no endpoint"
        if older.live_socket:
            paths = f"liveness checks whether the port is open, readiness `GET {older.ready_path}`"
        yield f"before version {older.before}: {paths}"
    for asks in preset.asks:
        yield f"not for liveness: `{asks.path}` checks {asks.of}"
    if preset.loopback:
        yield f"listens only on 127.0.0.1 by default: set {_code((*preset.host_flags, *preset.host_env))}"
    if preset.unless_flags or preset.unless_env:
        yield f"no probe is injected with {_code((*preset.unless_flags, *preset.unless_env))}"


def _patience(preset: Preset) -> str:
    """How long liveness waits for an answer or for a success, if that is longer than usual."""
    if preset.live_timeout:
        return f", which may take {in_words(preset.live_timeout)}, because it waits behind inferences"
    if preset.live_silence:
        flags = (
            f" ({_code(preset.live_silence_flags)} can make it longer)" if preset.live_silence_flags else ""
        )
        return f", which may fail for {in_words(preset.live_silence)} during one long step{flags}"
    return ""


def _start(preset: Preset) -> Iterator[str]:
    if preset.expected_start:
        yield f"usual start: {in_words(preset.expected_start)} until a usual model is served"
    if preset.loads_model:
        yield (
            "loads its model before it serves, so the number of parameters in the model's name determines "
            "the startup budget"
        )
    for slow in preset.slow_starts:
        yield (
            f"`{slow.env}` {slow.why}: a start takes {in_words(slow.seconds)} or longer{_cited(slow.source)}"
        )
    names = (*preset.model_flags, *preset.model_env)
    if names:
        yield f"the model is named by {_code(names)}"


def _cache(preset: Preset) -> Iterator[str]:
    cache = preset.cache
    if cache is None:
        return
    yield f"stores models in `{cache.directory}` in images {_code(cache.images)}{_cited(cache.source)}"
    for other in cache.others:
        yield f"in images {_code(other.images)} in `{other.directory}`{_cited(other.source)}"
    if cache.env or cache.flags:
        yield f"the directory is set by {_code((*cache.env, *cache.flags))}"
    if cache.in_home:
        yield f"a user without a home directory can't write there ([rule]({_RULES}/cache-not-writable.md))"
    yield f"without a volume there, each restart repeats the download ([rule]({_RULES}/model-cache-lost.md))"


def _data(preset: Preset) -> Iterator[str]:
    data = preset.data
    if data is None:
        return
    moved = f", unless {_code(data.unless_env)} names another place" if data.unless_env else ""
    yield f"keeps its data in `{data.directory}`{moved}{_cited(data.source)}"
    yield f"without a volume there, a restart deletes it ([rule]({_RULES}/state-on-ephemeral-volume.md))"


def _memory(preset: Preset) -> Iterator[str]:
    if preset.needs is not None:
        error = f" (`{preset.needs.error}`)" if preset.needs.error else ""
        without = "computes on the CPU" if preset.needs.falls_back else "does not start"
        yield (
            f"{without} without an accelerator in images "
            f"{_code(preset.needs.images)}{error}{_cited(preset.needs.source)}"
        )
    if preset.parallelism is not None:
        flags = [flag for factor in preset.parallelism.spread for flag in (*factor.flags, *factor.variables)]
        if flags:
            yield f"its number of accelerators is set by {_code(flags)}{_cited(preset.parallelism.source)}"
        yield (
            "on several GPUs it needs a volume of medium Memory at `/dev/shm` "
            f"([rule](../rules/shared-memory-too-small.md)){_cited(preset.parallelism.source)}"
        )
    for reserved in preset.reserves:
        each = " for each accelerator's process" if reserved.each else ""
        until = f", before version {reserved.before}" if reserved.before else ""
        options = _code(reserved.key[-1:] or (*reserved.flags, *reserved.env))
        what = "memory" if reserved.directory_env is None else "disk space"
        default = (
            f", {reserved.default} by default from version {reserved.since} on" if reserved.default else ""
        )
        yield f"takes {what} of the node{each}: {options}{until}{default}{_cited(reserved.source)}"
    for shared in preset.shared_memory:
        when = (
            _code((*shared.images, *shared.flags, *shared.values))
            or "several processes on more than 32 processors"
        )
        yield (f"needs more than 64 MiB of /dev/shm with {when}, because {shared.why}{_cited(shared.source)}")
    for region in preset.shared_regions:
        option = _code(region.key[-1:] or region.flags)
        when = f" with {_code(region.texts)}" if region.texts else ""
        since = f" since version {region.since}" if region.since else ""
        yield f"keeps {region.what} in /dev/shm{when}{since}, as large as {option}{_cited(region.source)}"


def _variables(preset: Preset) -> Iterator[str]:
    for link in preset.link_variables:
        name = link.name.removesuffix("_PORT").lower().replace("_", "-")
        since = f", since version {link.since}" if link.since else ""
        several = ", if it computes on several accelerators" if link.several else ""
        yield (
            f"reads `{link.name}`, which a Service named `{name}` sets to a URL{since}{several}"
            f"{_cited(link.source)}"
        )
    for variable in preset.port_env:
        # No Service has a name that ends with a hyphen.
        if variable.endswith("_PORT") and not variable.endswith("__PORT"):
            name = variable.removesuffix("_PORT").lower().replace("_", "-")
            yield f"reads its port from `{variable}`, which a Service named `{name}` sets to a URL"


def _stop(preset: Preset) -> Iterator[str]:
    drain = preset.drain
    if drain is None:
        return
    settings = (*drain.flags, *drain.env)
    since = f" since version {drain.since}" if drain.since else ""
    since += " if its arguments or variables name a model" if drain.with_model else ""
    if drain.seconds == 0:
        default = " by default" if settings else ""
        yield f"aborts open requests at SIGTERM{default}{since}{_cited(drain.source)}"
    elif drain.seconds is not None:
        yield f"finishes open requests for {drain.seconds} s after SIGTERM{since}{_cited(drain.source)}"
    if settings:
        yield f"the time is set by {_code(settings)}{_cited(drain.source)}"


def _pitfalls(preset: Preset) -> Iterator[str]:
    if preset.lacks is not None:
        since = f" since version {preset.lacks.since}" if preset.lacks.since else ""
        unless = f", except for tags with {_code(preset.lacks.unless_tag)}" if preset.lacks.unless_tag else ""
        yield (
            f"its images lack {_code(preset.lacks.programs)}{since}{unless} "
            f"([rule](../rules/program-missing.md)){_cited(preset.lacks.source)}"
        )
    for refused in preset.refused_options:
        when = f"from version {refused.since} on" if refused.since else f"up to version {refused.newer_than}"
        yield (
            f"ends when it starts with {_code(refused.flags)}, {when} "
            f"([rule](../rules/option-refused.md)){_cited(refused.source)}"
        )
    for need in preset.compute_needs:
        what = _code((*need.flags[:1], *need.values, *need.images))
        yield (
            f"ends with {what} on accelerators with a compute capability below {need.least} "
            f"([rule](../rules/option-refused.md)){_cited(need.source)}"
        )
    if preset.peer_address is not None:
        peer = preset.peer_address
        yield (
            f"gives the address in `{peer.env}` to servers in other pods: set it to that of the pod "
            f"([rule](../rules/rendezvous-at-localhost.md)){_cited(peer.source)}"
        )
    if preset.busy is not None:
        yield (
            f"under load its health endpoint {preset.busy.why}: give probes a timeout of 10 s or "
            f"more{_cited(preset.busy.source)}"
        )
        if preset.busy.least:
            yield (
                f"every answer of its health endpoint takes {preset.busy.least} s or longer since version "
                f"{preset.busy.least_since}: a probe with this timeout always fails"
                f"{_cited(preset.busy.source)}"
            )
    if preset.long_answers is not None:
        yield (
            f"a normal answer may take {preset.long_answers.seconds} s or longer: raise the timeouts of "
            f"gateways{_cited(preset.long_answers.source)}"
        )
    if preset.request_limit is not None:
        limit = preset.request_limit
        unless = f", unless {_code(limit.unless_flags[:1])} is set" if limit.unless_flags else ""
        time = f"{limit.seconds} s" if limit.seconds else f"{_code(limit.flags[:1])} gives a request"
        yield (
            f"health checks wait behind requests{unless}: give liveness more time than {time}"
            f"{_cited(limit.source)}"
        )
    if preset.root_only is not None:
        only = preset.root_only
        yield (
            f"runs only as root from version {only.since} on, since the {only.what} of its image is in "
            f"`/root`{_cited(only.source)}"
        )
    for home in preset.home_directories:
        if not home.in_home:
            yield (
                f"must be able to create `{home.name}`, for which any user but root needs a volume there"
                f"{_cited(home.source)}"
            )
            continue
        env = f": set {_code(home.env[:1])} or `HOME`" if home.env else ": set `HOME`"
        yield (
            f"must be able to create `{home.name}` in its home directory, which is `/` for a user without "
            f"one{env}{_cited(home.source)}"
        )
    if preset.memory_share is not None:
        share = preset.memory_share
        yield (
            f"takes {share.share:.0%} of a GPU's memory, no matter what the model needs; on shared GPUs, "
            f"set {_code((*share.flags, *share.env))}{_cited(share.source)}"
        )


def _hangs(preset: Preset) -> Iterator[str]:
    progress = preset.progress
    if progress is None:
        return
    if progress.like:
        yield f"like [{progress.like}]({progress.like}.md)"
        if progress.since is None:
            return
        yield f"before {progress.since}, only the endpoint is checked"
        progress = progress.of(known_presets()[progress.like].progress or progress)
    asked = _code(each.path for each in progress.canaries)
    by = f"work is finished, by `{progress.page}`"
    if progress.connections:
        by = f"clients or {asked} get answers" if asked else "connections are accepted"
    yield (
        "its liveness endpoint does not notice all hangs; a program in the container checks that "
        f"{by}{_cited(progress.source)}"
    )
    for flag in progress.unless_flags:
        known = progress.harmless_values.get(flag, {})
        but = "".join(f", unless its `{field}` is one of {_code(names)}" for field, names in known.items())
        yield f"with `{flag}`, only the endpoint is checked{but}"
    if progress.unless_env:
        yield f"with {_code(progress.unless_env)}, only the endpoint is checked"


def _scaling(preset: Preset) -> Iterator[str]:
    workers = preset.workers
    if workers is not None:
        yield (
            f"computes in as many processes as {_code((*workers.env, *workers.flags))} sets, "
            f"{workers.default} by default, each on about one processor{_cited(workers.source)}"
        )
    if preset.load_metrics is not None:
        metrics = preset.load_metrics
        yield f"metrics that show its load: {_code(metrics.names)}{_cited(metrics.source)}"
        if not metrics.of_router:
            yield (
                "these disappear with the last pod, so they can't start one from zero "
                "([rule](../rules/autoscaler-stays-at-zero.md))"
            )
    if preset.single_state is not None:
        state = preset.single_state
        yield f"one replica only, because it keeps {state.what}{_cited(state.source)}"


def _code(words: Iterable[str | None]) -> str:
    return ", ".join(f"`{word}`" for word in dict.fromkeys(words) if word)


def _cited(source: str | None) -> str:
    """A link to a source, to the first of several."""
    first = (source or "").partition(", ")[0]
    return f" ([source]({first}))" if first.startswith("https://") else ""
