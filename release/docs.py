"""Writes the generated pages of docs/ (`python -m release.docs`), or checks them (`--check`). It also writes
the diagrams of the architecture and the rights of the nightly scan.

The rules' pages come from the rules, the policies' page from their modules' docstrings, the
configuration's page and the JSON Schema from the settings models. None of these texts is written twice.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from policies.core import registry
from policies.core.contracts import Mutator
from policies.core.pydantic_models import fields_of
from policies.core.settings import Model
from policies.probes.preset import Preset, known_presets
from release import kinds_page, rule_pages, scan_role
from release.diagrams import with_diagrams
from release.generated import GENERATED, table_row, text_of, update
from webhook.cli import explain, manifests, server_pages
from webhook.cli.settings_in_words import default_of_field, kind_of_field
from webhook.config.load import models, schema

ROOT: Final = Path("docs")
SERVERS: Final = server_pages.server_names()
"""The model servers that have a page."""
ARCHITECTURE: Final = "architecture.md"
"""A page written by hand, with generated diagrams."""


def pages() -> dict[str, str]:
    """Every generated file: its path below docs/ and its content."""
    return {
        "rules/README.md": GENERATED + rule_pages.index(),
        **rule_pages.pages(),
        **{f"servers/{name}.md": GENERATED + server_pages.server_markdown(name) for name in SERVERS},
        "servers/README.md": GENERATED + _servers_index(),
        "kinds.md": GENERATED + kinds_page.page(),
        "policies.md": _policies_page(),
        "configuration.md": _configuration_page(),
        "policy.schema.json": orjson.dumps(schema(), option=orjson.OPT_INDENT_2).decode() + "\n",
    }


# --- servers -------------------------------------------------------------------------


def _servers_index() -> str:
    presets = known_presets()
    rows = [f"- [{name}]({name}.md): {', '.join(_topics(name, presets[name]))}" for name in SERVERS]
    return "\n".join(
        [
            "# Model servers on Kubernetes",
            "",
            "A page for each known model server, generated from the facts in "
            "[policies/servers](../../policies/servers). `chassis explain vllm` prints the same. A fact "
            "that a page lacks is unknown, and no rule judges it.",
            "",
            *rows,
            "",
        ]
    )


def _topics(name: str, preset: Preset) -> Iterator[str]:
    yield "probes"
    if preset.cache:
        yield "cache"
    if preset.needs or preset.reserves or preset.shared_memory or preset.parallelism:
        yield "memory and accelerators"
    if preset.drain:
        yield "stop"
    if preset.progress:
        yield "hangs"
    if preset.load_metrics:
        yield "scaling"
    if "\n## Pitfalls\n" in server_pages.server_markdown(name):
        yield "pitfalls"
    if preset.example:
        yield "a complete manifest"


# --- policies ------------------------------------------------------------------------


def _policies_page() -> str:
    table = ["| policy | what it does |", "|---|---|"]
    table += [
        table_row(f"[`{policy.id}`](#{policy.id})", explain.summary(policy))
        for policy in registry.mutators().values()
    ]
    sections = "\n".join(_policy_section(policy) for policy in registry.mutators().values())
    intro = (
        "The policies add missing fields to objects, in this order. Fields that you set stay. The mode of "
        "each policy is `enforce`, unless the profile is `observe` or its key sets another mode.\n"
    )
    return "\n".join([f"{GENERATED}# Policies\n", intro, *table, "", sections])


def _policy_section(policy: Mutator[Any]) -> str:
    """A section with the policy's id as its anchor."""
    first, _, rest = registry.documentation(policy.id).partition("\n\n")
    parts = [
        f"## {policy.id}",
        explain.sentence(" ".join(first.split())),
        f"**Looks at:** {explain.kinds(policy)}. "
        f"**Settings:** [`{policy.id}.yaml`](configuration.md#{policy.id}yaml).",
        rest.strip(),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


# --- configuration -----------------------------------------------------------------------------


def _configuration_page() -> str:
    parts = [
        f"{GENERATED}# Configuration\n",
        "The policy is a ConfigMap (or a directory) with one key (file) per policy, plus `rules.yaml` and "
        "`webhook.yaml`. Absent keys and fields have their defaults. Unknown fields "
        "and duplicate keys are errors; `true` and `false` are the only booleans, so `mode: off` is a word. "
        "A bad edit is refused, and the last good policy stays in force. Put changes by hand into the "
        "ConfigMap `mlchassis-override`, which no installer writes to ([emergency-exit.md]"
        "(emergency-exit.md#one-policy-or-one-rule)). "
        "`chassis policy check` finds errors in a policy, "
        "[`chassis policy diff`](scan.md#before-the-policy-is-edited) shows the effect of an edit; "
        "[policy.schema.json](policy.schema.json) is for editors.\n",
        "A *duration* is written as seconds (`90`) or as `90s`, `15m`, `24h`, `7d`, `1h30m`; a *size* as "
        "bytes or as a Kubernetes quantity such as `40Gi` or `500M`.\n",
    ]
    shared: dict[type[Model], None] = {}
    for key, model in sorted(models().items()):
        parts += [f"## {key}\n", *_model_section(model, shared)]
    parts.append("## Types\n")
    described: set[type[Model]] = set()
    while pending := [model for model in shared if model not in described]:
        for used in pending:
            described.add(used)
            parts += [f"### {used.__name__}\n", *_model_section(used, shared)]
    return "\n".join(parts)


def _model_section(model: type[Model], shared: dict[type[Model], None]) -> Iterator[str]:
    """A table of a model's fields; the models among their types are added to `shared`."""
    doc = " ".join((model.__doc__ or "").split())
    if doc and not doc.startswith("Key `"):
        yield f"{doc}\n"
    declared = fields_of(model)
    if not declared:
        yield "It has no fields.\n"
        return
    yield "| field | type | default | meaning |\n|---|---|---|---|"
    for name, field in declared.items():
        kind = kind_of_field(field, shared)
        yield table_row(f"`{field.alias or name}`", kind, default_of_field(field), field.description or "")
    yield ""


# --- writing -----------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Write stale files; with `--check` only list them and exit with 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m release.docs", description="Generate docs/.")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if a page is stale")
    parser.add_argument("--root", type=Path, default=ROOT, help="the docs directory (default: docs)")
    parser.add_argument(
        "--manifests", type=Path, default=manifests.directory(), help="the directory of the manifests"
    )
    args = parser.parse_args(argv)
    files = {args.root / name: content for name, content in pages().items()}
    files[args.manifests / scan_role.FILE] = scan_role.manifest()
    if (architecture := text_of(args.root / ARCHITECTURE)) is not None:
        files[args.root / ARCHITECTURE] = with_diagrams(architecture)
    generated = (args.root / each for each in (rule_pages.DIRECTORY, "servers"))
    leftovers = {page for each in generated for page in each.glob("*.md")} - files.keys()
    return update(files, "docs", check=args.check, leftovers=leftovers)


if __name__ == "__main__":
    sys.exit(main())
