"""`chassis explain`: the documentation of rules, policies, model servers and kinds as text.

It comes from the fields of a `Rule`, or from the docstring of a policy's module.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator
from typing import Any, Final

from policies.core import registry
from policies.core.contracts import Family, Mutator, Rule
from policies.core.finding import Certainty, Mode, Profile
from policies.core.pydantic_models import fields_of
from policies.kube.names import closest, containing
from webhook.cli import flags, server_pages
from webhook.cli.flags import OK
from webhook.cli.settings_in_words import default_of_field, kind_of_field
from webhook.cli.terminal import WIDTH, wrapped
from webhook.config.load import rules
from webhook.errors import UserError

KINDS: Final = "kinds"

_ITEM: Final = re.compile(r"\s*(?:[-*]|\d+\.)\s+")

FAMILIES: Final = {
    Family.DEADLOCK: ("Deadlock", "Something waits forever."),
    Family.CASCADE: ("Cascade", "One failure restarts or removes everything."),
    Family.JOBS: ("Jobs", "Lost work, lost evidence."),
    Family.SERVERS: ("Model servers", "A server does not start, does not scale, or loses requests."),
}
"""The heading of each family, and the hazard of its rules."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "id",
        nargs="?",
        metavar="RULE|POLICY|SERVER|kinds",
        help=(
            "id of a rule or policy, a model server such as `vllm`, or `kinds` for the kinds whose pods "
            "are read; default: list all rules and policies"
        ),
    )
    flags.add_cluster(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.id == KINDS:
        from webhook.cli import known_kinds  # which loads the client of the API server

        print("\n".join(known_kinds.listing()))
        if args.context or args.kubeconfig:
            print("\n".join(known_kinds.of_cluster(args.kubeconfig, args.context)))
        return OK
    if args.context or args.kubeconfig:
        raise UserError("explain: --context and --kubeconfig can only be used with `kinds`")
    print(explain(args.id) if args.id else overview())
    return OK


_LISTS: Final = "`chassis explain` lists them all, and `chassis explain kinds` the kinds"


def explain(name: str) -> str:
    """The documentation of one rule, policy or model server as text. UserError if the name is unknown."""
    if name in rules():
        return "\n".join(_rule_text(rules()[name]))
    if name in registry.mutators():
        return "\n".join(_policy_text(registry.mutators()[name]))
    if name in server_pages.server_names():
        return "\n".join(_reflowed(_plain_links(server_pages.server_markdown(name))))
    if name in registry.retired_rules():
        raise UserError(f"explain: {registry.retired_rules()[name].note}")
    every = [*registry.mutators(), *rules(), *server_pages.server_names()]
    part = containing(name, every)
    if len(part) == 1:
        return explain(part[0])
    close = closest(name, [*every, "kinds"])
    meant = " or ".join(part[:4]) or close
    hint = f", did you mean {meant}?" if meant else f"; {_LISTS}"
    raise UserError(f"there is no rule, policy or server {name!r}{hint}")


def overview() -> str:
    """A list of every policy and rule, with modes and one sentence."""
    lines = [
        "chassis explain NAME tells the reason, the fix and an example.",
        "(warn / enforce): a rule's modes under the profiles standard and strict",
        "",
        "Policies",
        "",
    ]
    for policy in registry.mutators().values():
        lines += _entry(policy.id, "", summary(policy))
    for family, (title, common) in FAMILIES.items():
        lines += ["", f"Rules, {title.lower()}: {common[0].lower()}{common[1:]}", ""]
        for rule in of_family(family):
            lines += _entry(rule.id, modes(rule), _first_sentence(rule.document.what))
    return "\n".join(lines)


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.) (?=[A-Z])", text, maxsplit=1)[0]


def of_family(family: Family) -> Iterator[Rule]:
    return (rule for rule in rules().values() if rule.document.family is family)


def summary(policy: Mutator[Any]) -> str:
    line = registry.documentation(policy.id).partition("\n\n")[0]
    return sentence(" ".join(line.split()))


def sentence(text: str) -> str:
    """Text with a capital letter and a full stop."""
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."


def modes(rule: Rule) -> str:
    """A rule's modes under the profiles standard and strict, such as `enforce or warn / enforce`."""
    return f"{mode_under(rule, strict=False)} / {mode_under(rule, strict=True)}"


def mode_under(rule: Rule, *, strict: bool) -> str:
    """A rule's mode under one profile; `enforce or warn` if a likely finding only warns."""
    profile = Profile.STRICT if strict else Profile.STANDARD
    sure, likely = rule.mode(profile), rule.mode(profile, Certainty.LIKELY)
    return str(sure) if likely is sure or rule.document.likely is None else f"{sure} or {likely}"


def kinds(item: Rule | Mutator[Any]) -> str:
    """The kinds that a rule or policy reads, in words."""
    if not item.kinds:
        return "every kind that holds a pod template"
    return ", ".join(kind.kind for kind in item.kinds)


def _entry(name: str, note: str, what: str) -> list[str]:
    head = f"  {name}  ({note})" if note else f"  {name}"
    first, *rest = textwrap.wrap(head, WIDTH, subsequent_indent="      ", break_on_hyphens=False)
    return [f"  {first.strip()}", *rest, *wrapped(what, "      ")]


def _reflowed(markdown: str) -> Iterator[str]:
    """A markdown text for a terminal: paragraphs and list items are wrapped, code blocks are not."""
    item: list[str] = []
    code = False
    for line in markdown.splitlines():
        fence = line.lstrip().startswith("```")
        begins = _ITEM.match(line) is not None
        if item and (fence or begins or not line.strip()):
            yield from _item(item)
            item = []
        if fence or code or not line.strip():
            yield line
            code ^= fence
        else:
            item.append(line)
    if item:
        yield from _item(item)


def _item(lines: list[str]) -> list[str]:
    bullet = _ITEM.match(lines[0])
    text = " ".join(line.strip() for line in lines)
    hanging = " " * len(bullet[0]) if bullet else ""
    first = " " * (len(lines[0]) - len(lines[0].lstrip()))
    return wrapped(text, first, hanging or first)


def _rule_text(rule: Rule) -> Iterator[str]:
    yield f"{rule.id}: a rule of the family {rule.document.family}"
    for title, text in (
        ("Flags", rule.document.what),
        ("Why", rule.document.why),
        ("Fix", rule.document.remediation),
    ):
        yield f"\n{title}"
        yield from wrapped(text)
    yield "\nMode"
    yield from wrapped(f"standard: {mode_under(rule, strict=False)}; strict: {mode_under(rule, strict=True)}")
    yield from wrapped(doubt(rule))
    yield "\nLooks at"
    yield from wrapped(kinds(rule))
    for title, example in (("Flagged", rule.document.bad), ("Fixed", rule.document.good)):
        yield f"\n{title}"
        yield textwrap.indent(example.strip("\n"), "  ")
    if rule.document.exemptable:
        yield "\nExempt an object with the annotation"
        yield f'  mlchassis.dev/exempt: "{rule.id}=<reason>"'
    yield f"\nSource\n  {rule.document.source}"
    yield f"\nSince\n  {rule.document.since}"


def doubt(rule: Rule) -> str:
    """What happens to findings that are not certain, in one sentence; empty if there is nothing to say."""
    if rule.document.likely is not None:
        return "The second mode is for findings that are likely but not certain; an undecided finding warns."
    denies = Mode.ENFORCE in (rule.document.modes.standard, rule.document.modes.strict)
    return "A finding that can't be decided from the known facts only warns." if denies else ""


def _policy_text(policy: Mutator[Any]) -> Iterator[str]:
    yield f"{policy.id}: a mutating policy\n"
    yield from _reflowed(registry.documentation(policy.id))
    yield f"\nLooks at\n  {kinds(policy)}"
    yield f"\nSettings (key {policy.id}.yaml)"
    for name, field in fields_of(policy.settings).items():
        default = _plain(default_of_field(field))
        note = f"{_plain(kind_of_field(field, {}))}{f'; default {default}' if default else ''}"
        yield from _entry(field.alias or name, note, field.description or "")


def _plain_links(markdown: str) -> str:
    """Text with the addresses of sources and the ids of rules instead of links."""
    first, *others = markdown.split("[")
    return first + "".join(map(_plain_link, others))


def _plain_link(text: str) -> str:
    """A text that began with `[` in markdown."""
    label, link, rest = text.partition("](")
    if not link:
        return f"[{text}"
    address, _, rest = rest.partition(")")
    shown = {"source": address, "rule": address.rpartition("/")[2].removesuffix(".md")}.get(label, label)
    return shown + rest


def _plain(markdown: str) -> str:
    """Text without links and backticks."""
    return re.sub(r"\[(\w+)\]\(#\w+\)", r"\1", markdown).replace("`", "")
