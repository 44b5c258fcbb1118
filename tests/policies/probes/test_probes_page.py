"""The presets are complete, and docs/probes.md has a table of them, which `make golden` writes."""

import itertools
import re
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from policies.core.data import parsed
from policies.core.facts import Facts
from policies.kube.pods import containers
from policies.kube.yaml_text import load_all
from policies.probes.preset import Older, Preset, Protocol, known_presets
from policies.probes.recognition import release
from policies.probes.serving import recognised
from tests.tables import table

PAGE = Path(__file__).parents[3] / "docs" / "probes.md"
PRESETS = known_presets()
BLOCK = re.compile(r"(<!-- presets: begin [^>]*-->\n).*?(<!-- presets: end -->)", re.DOTALL)


def row(name: str, preset: Preset) -> str:
    names = dict.fromkeys((*preset.commands, *preset.images, *preset.mirrors))
    frozen = f"frozen, last version {preset.frozen}" if preset.frozen else ""
    end = (
        f"{', '.join(f'`{each}`' for each in names)} | {'; '.join(filter(None, (preset.checked, frozen)))} |"
    )
    if preset.worker:
        return f"| [{name}]({preset.source}) | nothing, and no warning: a worker | | | {end}"
    if preset.doubt:
        return f"| [{name}]({preset.source}) | nothing: {preset.doubt} | | | {end}"
    ready = "" if preset.ready_path == preset.live_path else f", `{preset.ready_path}`"
    asked = "gRPC health" if preset.protocol is Protocol.GRPC else f"`{preset.live_path}`{ready}"
    if preset.live_socket:
        asked = f"a tcpSocket, `{preset.ready_path}`" if preset.ready_path else "accepts connections"
    since = f" since {preset.since}" if preset.since not in (None, "first") else ""
    older = "".join(f"; before {each.before} {had(each)}" for each in preset.older)
    port = preset.port or "its flag"
    start = f"{preset.expected_start} s" if preset.expected_start else ""
    return f"| [{name}]({preset.source}) | {asked}{since}{older} | {port} | {start} | {end}"


def had(older: Older) -> str:
    if older.live_socket:
        return f"a tcpSocket, `{older.ready_path}`"
    paths = ", ".join(f"`{path}`" for path in dict.fromkeys((older.live_path, older.ready_path)) if path)
    return f"{paths} only" if paths else "nothing"


def written_table() -> str:
    lines = [
        "| server | liveness, readiness | port | usual start | recognised by | versions that were read |",
        "|---|---|---|---|---|---|",
        *(row(name, preset) for name, preset in PRESETS.items()),
        "",
        "These endpoints check more than the process. `liveness-external-dependency` warns about a "
        "livenessProbe that asks one of them:",
        "",
        "| server | endpoint | checks | liveness uses instead |",
        "|---|---|---|---|",
        *(
            f"| {name} | `{each.path}` | {each.of} | {instead(preset)} |"
            for name, preset in PRESETS.items()
            for each in preset.asks
        ),
    ]
    return "".join(f"{line}\n" for line in lines)


def instead(preset: Preset) -> str:
    if preset.live_socket:
        return "a tcpSocket on its port"
    return f"`{preset.live_path}`" if preset.live_path else str(preset.alive)


def test_the_page_lists_the_servers(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text()
    wanted = BLOCK.sub(lambda found: found[1] + written_table() + found[2], page)
    if request.config.getoption("--update-golden", default=False):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted


def shown_version(source: str) -> tuple[int, ...] | str | None:
    """The version in the address of a page: the tag of a file on GitHub, or a number. A merged pull request
    does not change either."""
    if found := re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(blob|pull)/([\w.-]+)(/.+)?", source):
        return found[2] if found[1] == "pull" else release(re.sub(r"^[a-z-]+-(?=[0-9])", "", found[2]))
    if found := re.fullmatch(
        r"https://(?:docs\.rs/crate|nvidia\.github\.io)/[\w-]+/([0-9][\w.]*)/.+", source
    ):
        return release(found[1])
    return None


NUMBERED_OTHERWISE = {
    "llama.cpp": "a pull request",
    "llama.cpp-by-arguments": "a pull request",
    "nim": "the version of the operator, which asks both paths of 1.0.3",
    "triton": "v2.0.0 is in the container 20.06",
    "triton-launcher": "v2.0.0 is in the container 20.06",
    "triton-grpc": "v2.31.0 is in the container 23.02",
}


@pytest.mark.parametrize(
    ("source", "version"),
    [
        ("https://github.com/acme/served/blob/v1.2.3/server.py", (1, 2, 3)),
        ("https://github.com/acme/served/blob/served-2.0.0/server.py", (2, 0, 0)),
        ("https://docs.rs/crate/served/0.5.0/source/src/lib.rs", (0, 5, 0)),
        ("https://github.com/acme/served/pull/12", "12"),
        ("https://github.com/acme/served/blob/main/server.py", ()),
        ("https://docs.acme.example/latest/health.html", None),
    ],
)
def test_only_some_pages_show_a_version(source: str, version: tuple[int, ...] | str | None) -> None:
    assert shown_version(source) == version


@table("name", PRESETS)
def test_a_preset_is_complete(name: str) -> None:
    preset = PRESETS[name]
    assert (preset.source or "").startswith("https://")
    assert preset.images or preset.commands
    if preset.worker or preset.doubt:
        assert (preset.live_path, preset.ready_path, preset.port) == (None, None, 0)
        assert preset.worker or preset.advice, "the warning shows what to write"
        return
    assert preset.port or preset.port_flags
    if preset.live_socket and preset.live_path is None:
        assert preset.progress, "it runs other people's code, and its connections show whether it hangs"
        return
    assert preset.expected_start
    if preset.protocol is Protocol.HTTP:
        assert all((path or "").startswith("/") for path in (preset.live_path, preset.ready_path))
    versions = [release(older.before) for older in preset.older]
    assert all(versions)
    assert versions == sorted(versions)
    assert preset.since
    assert preset.since_source
    shown = shown_version(preset.since_source)
    assert shown, "the page changes later"
    if preset.since != "first" and name not in NUMBERED_OTHERWISE:
        since = tuple(int(part) for part in preset.since.split("."))
        assert isinstance(shown, tuple)
        assert shown[: len(since)] == since
        assert not any(shown[len(since) :]), "the first patch of that version"
    if preset.older:
        other = any(it.unless_flags or it.live_socket for it in preset.older)
        assert preset.since == preset.older[-1].before or other
        written = parsed(files("policies").joinpath(f"servers/{name}.yaml").read_text())
        assert "unversioned" in written, "the endpoints of an unknown version are decided"


def test_no_path_that_liveness_must_not_ask_is_injected() -> None:
    for preset in PRESETS.values():
        paths = [each.path for each in preset.asks]
        assert preset.live_path not in paths
        assert not paths or preset.live_path or preset.alive


def test_a_frozen_server_has_its_last_version() -> None:
    frozen = {name: preset.frozen for name, preset in PRESETS.items() if preset.frozen}
    assert frozen == {
        "fastchat": "0.2.36, February 2024",
        "jetstream": "0.3, December 2024; archived in January 2026",
        "jetstream-http": "0.3, December 2024; archived in January 2026",
        "torchserve": "0.12.0, September 2024",
    }


def test_no_two_presets_claim_the_same_and_so_no_order_decides() -> None:
    commands = Counter(command for preset in PRESETS.values() for command in preset.commands)
    images = Counter(
        image for preset in PRESETS.values() if not preset.commands_need_image for image in preset.images
    )
    assert [claim for claims in (commands, images) for claim, count in claims.items() if count > 1] == []


def test_each_preset_has_a_golden_case() -> None:
    cases = (Path(__file__).parent / "standard-probes").glob("*/input.yaml")
    pods = itertools.chain.from_iterable(load_all(case.read_text()) for case in cases)
    servers = [recognised(each, Facts()) for pod in pods for each in containers(pod)]
    assert set(PRESETS) <= {server.name for server in servers if server is not None}
    assert set(NUMBERED_OTHERWISE) <= set(PRESETS)


@table(
    ("tag", "version"),
    [
        ("v0.9.1", (0, 9, 1)),
        ("0.10", (0, 10)),
        ("2.9.0-gpu", (2, 9, 0)),
        ("25.06-py3", (25, 6)),
        ("latest", ()),
        ("", ()),
        ("nightly-2024.1", ()),
        ("20240101", ()),
        ("v2", ()),
        ("main-v1.75.0-stable", (1, 75, 0)),
        ("cpu-1.7", ()),
        ("1.2.3.4.5", (1, 2, 3, 4)),
    ],
)
def test_release_a_tag(tag: str, version: tuple[int, ...]) -> None:
    assert release(tag) == version


@pytest.mark.parametrize(
    ("image", "ready"),
    [
        ("kserve/sklearnserver:v0.9.0", None),
        ("kserve/sklearnserver:v0.10.0", "/v2/health/ready"),
        ("kserve/sklearnserver:v0.15.2", "/v2/health/ready"),
        ("kserve/sklearnserver:latest", "/v2/health/ready"),
        ("kserve/sklearnserver@sha256:0123", "/v2/health/ready"),
        ("kserve/sklearnserver", "/v2/health/ready"),
    ],
)
def test_a_version_that_is_known_to_be_older_gets_what_it_has(image: str, ready: str | None) -> None:
    [container] = containers({"spec": {"containers": [{"name": "m", "image": image}]}})
    server = recognised(container, Facts())
    assert server is not None
    assert server.preset.live_path == "/v2/health/live"
    assert server.preset.ready_path == ready
    assert PRESETS["kserve"].ready_path == "/v2/health/ready", "the table stays"
