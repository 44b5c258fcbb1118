"""The page of `-o html` in Chromium: no request, no error in the console, and working filters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.webhook.cli.browser import Tab, needs_chromium
from tests.webhook.cli.scanned import RULE, Chassis
from tests.webhook.cli.test_html import HAZARDS, HOSTILE
from webhook.cli.output.html.view import WORDS

CONTRAST = Path(__file__).with_name("contrast.js").read_text()

pytestmark = [needs_chromium, pytest.mark.e2e]


@pytest.fixture
def report(tmp_path: Path, chassis: Chassis) -> Path:
    (tmp_path / "hazards.yaml").write_text(HAZARDS)
    metadata = {"name": HOSTILE, "namespace": HOSTILE, "labels": {"app": HOSTILE}}
    probe = {"exec": {"command": ["curl", f"http://payments/{HOSTILE}"]}, "timeoutSeconds": 5}
    container = {"name": HOSTILE, "image": HOSTILE, "ports": [{"containerPort": 80}], "livenessProbe": probe}
    exempted = {**metadata, "name": "let-in", "annotations": {"mlchassis.dev/exempt": f"{RULE}={HOSTILE}"}}
    for number, each in enumerate((metadata, exempted)):
        spec = {"containers": [container]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": each, "spec": spec}
        (tmp_path / f"pod-{number}.json").write_text(json.dumps(pod))
    made = tmp_path / "report.html"
    made.write_text(chassis("review", tmp_path, "-o", "html").out)
    return made


async def open_cards(tab: Tab, report: Path) -> None:
    """Open the page and the cards of all objects."""
    await tab.open(report)
    await tab.ask("document.getElementById('open').click()")
    await tab.until("document.querySelectorAll('.w > .card').length === 4")


async def test_it_fetches_nothing_and_complains_of_nothing(tab: Tab, report: Path) -> None:
    await open_cards(tab, report)
    await tab.ask("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    asked = [url for url in tab.requests if url != "about:blank"]
    assert set(asked) == {report.as_uri()}
    assert tab.complaints == []
    assert await tab.ask("document.title") != "owned"
    assert await tab.ask("document.querySelectorAll('main script:not([type])').length") == 0
    marked = await tab.ask(
        "[...document.querySelectorAll('.card mark')].map((it) => it.textContent).join('\\n')"
    )
    assert HOSTILE.replace('"', '\\"') in marked or HOSTILE in marked


async def test_foreign_scripts_do_not_run(tab: Tab, report: Path) -> None:
    await tab.open(report)
    await tab.ask(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))"
    )
    await tab.ask("document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:1/x'}))")
    await tab.until(f"{len(tab.complaints)} || true")
    assert await tab.ask("window.ran") is None
    assert any("Content Security Policy" in str(each) for each in tab.complaints)


async def test_the_filters_narrow_the_list(tab: Tab, report: Path) -> None:
    await tab.open(report)
    everything = await tab.shown()
    assert sorted(everything) == sorted(["bad", "llm", "let-in", HOSTILE])
    for values, expected in (
        ({"ns": "=shop"}, ["bad"]),
        ({"kind": "=Pod", "show": "=exempted"}, ["let-in"]),
        ({"show": "=refused"}, ["bad", HOSTILE]),
        ({"rule": f"={RULE}"}, ["bad", "let-in", HOSTILE]),
        ({"show": "=changed", "ns": "=ml"}, ["llm"]),
        ({"text": "VLLM/VLLM"}, ["llm"]),
        ({"text": "payments/health"}, ["bad"]),
        ({"ns": f"={HOSTILE}", "show": "=refused"}, [HOSTILE]),
    ):
        await tab.filter(**values)
        assert sorted(await tab.shown()) == sorted(expected), values
        assert await tab.ask("document.getElementById('shown').textContent") == f"{len(expected)} of 4 shown"
    await tab.ask("document.querySelector('#filter button[type=reset]').click()")
    assert await tab.shown() == everything


async def test_a_filter_is_part_of_the_address(tab: Tab, report: Path) -> None:
    await tab.open(report)
    await tab.filter(ns="=shop", show="=refused")
    address = await tab.ask("location.hash")
    await tab.open(report, address)
    assert await tab.shown() == ["bad"]


async def test_an_anchor_opens_what_it_names(tab: Tab, report: Path) -> None:
    await tab.open(report)
    name = await tab.ask("document.querySelector('section[data-ns=shop] .w').id")
    await tab.open(report, f"#{name}")
    await tab.until(f"!!document.querySelector('#{name} > .card')")
    await tab.open(report, "#ns-shop")
    assert await tab.ask("document.getElementById('ns-shop').getBoundingClientRect().top < innerHeight")


async def test_the_keyboard_opens_a_card(tab: Tab, report: Path) -> None:
    await tab.open(report)
    await tab.ask("document.querySelector('section[data-ns=shop] summary').focus()")
    for kind in ("keyDown", "keyUp"):
        enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        await tab.call("Input.dispatchKeyEvent", type=kind, **enter)
    await tab.until("!!document.querySelector('section[data-ns=shop] .w > .card')")


async def test_a_screen_reader_finds_landmarks_and_names(tab: Tab, report: Path) -> None:
    await open_cards(tab, report)
    await tab.ask("document.querySelector('section[data-ns=ml] .probes').scrollIntoView()")
    nodes = (await tab.call("Accessibility.getFullAXTree"))["nodes"]
    visible = [node for node in nodes if not node["ignored"]]
    found = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in visible]
    roles = {role for role, _ in found}
    assert {"banner", "navigation", "main", "search", "contentinfo", "status", "heading"} <= roles
    named = {"link", "button", "searchbox", "combobox", "region"}
    assert [role for role, name in found if role in named and not name] == []
    assert ("searchbox", "Text") in found
    words = " ".join(name for role, name in found if role == "StaticText")
    assert "The kubelet kills it if it hasn't answered" in words, "the bars in words"


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_has_enough_contrast(tab: Tab, report: Path, scheme: str) -> None:
    """WCAG 2.1, 1.4.3: 4.5 to 1; for large text (24 px, or 18.66 px bold) 3 to 1."""
    await tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    await open_cards(tab, report)
    assert await tab.ask(CONTRAST) == []


async def test_nothing_overflows_a_narrow_screen(tab: Tab, report: Path) -> None:
    await tab.call(
        "Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True
    )
    await open_cards(tab, report)
    wide = await tab.ask(
        "[...document.querySelectorAll('body *')].filter((it) => it.getBoundingClientRect().right > 391"
        " && !it.closest('.scroll, pre')).map((it) => `${it.tagName}.${it.className}`)"
    )
    assert wide == []


CLIPPED = """[...document.querySelectorAll('main *')]
  .filter((it) => it.checkVisibility() && !it.closest('.scroll, pre, svg, #filter'))
  .filter((it) => it.getBoundingClientRect().right > document.documentElement.clientWidth + 1
    || (it.scrollWidth > it.clientWidth + 1 && getComputedStyle(it).overflowX !== 'visible'
      && it.clientWidth > 0))
  .map((it) => it.tagName + '.' + it.className)"""
"""The elements that are wider than the page, or whose own text is cut off."""


@pytest.mark.parametrize(("width", "columns"), [(390, 2), (768, 3), (1280, 6)])
async def test_nothing_is_clipped_at_any_width(tab: Tab, report: Path, width: int, columns: int) -> None:
    await tab.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
    )
    await open_cards(tab, report)
    assert await tab.ask("document.documentElement.scrollWidth") <= width
    assert await tab.ask(CLIPPED) == []
    tiles = await tab.ask(
        "new Set([...document.querySelectorAll('.tile')].map((it) => it.getBoundingClientRect().left)).size"
    )
    assert tiles == columns
    plan = "document.querySelector('.plan').closest('.scroll')"
    assert await tab.ask(f"{plan}.scrollWidth - {plan}.clientWidth") == 0, "the plan needs no scrolling"


async def test_each_state_has_one_name_and_one_colour(tab: Tab, report: Path) -> None:
    await tab.open(report)
    colours = await tab.ask(
        "[...document.querySelectorAll('#plan .legend rect')].map((it) => getComputedStyle(it).fill)"
    )
    assert len(set(colours)) == len(colours) == 5
    names = await tab.ask(
        "[...document.querySelectorAll('#plan .legend li')].map((it) => it.textContent.trim())"
    )
    assert names == list(WORDS.values())
    heads = await tab.ask("[...document.querySelectorAll('.plan thead th.n')].map((it) => it.textContent)")
    assert [each.lower() for each in heads[:5]] == names
    tiles = await tab.ask("[...document.querySelectorAll('.tile .what')].map((it) => it.textContent)")
    assert tiles[:5] == names
