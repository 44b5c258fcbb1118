"""A page for each rule, docs/rules/<id>.md, and their index.

The texts are the rule's own. To them come the incidents that it catches, from
tests/incidents, and how often it fires in public manifests, from noise.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import yaml

from policies.core.contracts import Family, Rule
from policies.core.data import load_one
from policies.core.settings import Field, Model
from release.generated import GENERATED, table_row
from webhook.cli import explain
from webhook.config.load import rules

DIRECTORY: Final = "rules"
INCIDENTS: Final = Path("tests/incidents")
FEW: Final = 5
"""How many incidents a page names."""
ON_A_NODE: Final = (Family.DEADLOCK, Family.CASCADE)
"""The families whose rules all have a row in docs/evidence.md."""


class Noise(Model):
    """noise.yaml: how often rules fire in public manifests."""

    repositories: int
    workloads: int
    rules: Mapping[str, float] = Field(description="findings for each 100 workloads, by the rule's id")


def pages() -> dict[str, str]:
    """Every page, by its path below docs/."""
    return {f"{DIRECTORY}/{rule.id}.md": _page(rule) for rule in rules().values()}


def index() -> str:
    """docs/rules/README.md."""
    parts = [
        "# Rules\n",
        "Each rule finds specs that can hang forever, restart everything at once, or lose work. The profile "
        "sets the mode of each rule; `standard` is the default, and `observe` sets every rule but "
        "`policy-config-invalid` to `audit`. If a row has two modes, the second is for findings that are "
        "likely but not certain. If the facts do not decide a finding, it only warns.\n",
        "Modes, thresholds and exemptions are set in [the configuration](../configuration.md); one object is "
        'exempted by the annotation `mlchassis.dev/exempt: "<rule>=<reason>"`.\n',
    ]
    for family, (title, common) in explain.FAMILIES.items():
        parts += [f"## {title}\n", f"{common}\n", "| rule | standard | strict | flags |\n|---|---|---|---|"]
        for rule in explain.of_family(family):
            cells = (
                f"[`{rule.id}`]({rule.id}.md)",
                explain.mode_under(rule, strict=False),
                explain.mode_under(rule, strict=True),
                rule.document.what,
            )
            parts.append(table_row(*cells))
        parts.append("")
    return "\n".join(parts)


def caught(rule_id: str) -> tuple[str, ...]:
    """The incidents that a rule catches, as Markdown links to their public reports, the newest first."""
    return tuple(link for _, link in sorted(_all_caught().get(rule_id, ()), reverse=True))


def _page(rule: Rule) -> str:
    document = rule.document
    evidence = document.evidence or f"[On a real node](evidence.md#{rule.id})."
    parts = [
        f"# {rule.id}",
        document.what,
        f"**Mode:** {explain.mode_under(rule, strict=False)} in the profile `standard`, "
        f"{explain.mode_under(rule, strict=True)} in `strict`. {explain.doubt(rule)}".strip(),
        f"**Looks at:** {explain.kinds(rule)}.",
        f"**Why.** {document.why}",
        f"**Fix.** {document.remediation}",
        f"**Shown.** {_from_rules(evidence)}" if document.evidence or document.family in ON_A_NODE else "",
        *_incidents(rule),
        *_noise(rule),
        f"Flagged:\n\n```yaml\n{document.bad.strip()}\n```",
        f"Fixed:\n\n```yaml\n{document.good.strip()}\n```",
        f'Exempt one object with the annotation `mlchassis.dev/exempt: "{rule.id}=<reason>"`.'
        if document.exemptable
        else "It can't be exempted.",
        f"Source: {_link(document.source)}. Since {document.since}. [All rules](README.md).",
    ]
    return GENERATED + "\n\n".join(filter(None, parts)) + "\n"


def _from_rules(markdown: str) -> str:
    """Markdown below docs/ as it is written below docs/rules/."""
    return re.sub(r"\]\((?!https?:)", "](../", markdown)


def _link(source: str) -> str:
    return f"<{source}>" if source.startswith("https://") and " " not in source else source


def _incidents(rule: Rule) -> Iterator[str]:
    links = caught(rule.id)
    if links:
        more = f"; {len(links) - FEW} more in [incidents](../incidents.md)" if len(links) > FEW else ""
        yield f"**Reported.** {'; '.join(links[:FEW])}{more}."


def _noise(rule: Rule) -> Iterator[str]:
    noise = load_one(Noise, "release", "noise.yaml")
    if (figure := noise.rules.get(rule.id)) is not None:
        yield (
            f"**In public manifests.** {figure:.2f} findings for each 100 of {noise.workloads:,} workloads "
            f"in {noise.repositories} repositories ([measured](../noise.md))."
        )


@cache
def _all_caught() -> dict[str, list[tuple[int, str]]]:
    found: dict[str, list[tuple[int, str]]] = {}
    for file in sorted(INCIDENTS.glob("*/*/incident.yaml")):
        report = yaml.safe_load(file.read_text("utf-8"))
        if "missed" not in report:
            link = f"[{report['title'].rstrip('.')}]({report['source']}) ({report['year']})"
            for expectation in report["expect"]:
                found.setdefault(expectation, []).append((report["year"], link))
    return found
