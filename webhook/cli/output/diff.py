"""Decisions as a unified diff of each changed object, with its findings as comments above it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Final

from webhook.cli.output.text import change_lines, finding_lines
from webhook.cli.output.yaml import dump, for_reading
from webhook.cli.reviewed import Reviewed
from webhook.cli.terminal import Line

_STYLES: Final = {"+": "green", "-": "red", "@": "cyan"}


def lines(reviews: Iterable[Reviewed], *, audited: bool = False) -> Iterator[Line]:
    for review in reviews:
        findings = list(finding_lines(review, audited=audited))
        written = review.document.obj
        before, after = (dump(obj).split("\n")[:-1] for obj in (written, for_reading(review.final, written)))
        name = f"{review.document.place} {review.title}"
        changes = list(difflib.unified_diff(before, after, name, f"{name} (reviewed)", lineterm=""))
        reasons = list(change_lines(review)) if changes else []
        if findings or reasons:
            yield f"# {review.title}", "bold"
            yield from ((f"#{line}", style) for line, style in (*reasons, *findings))
        for line in changes:
            yield line, "bold" if line.startswith(("---", "+++")) else _STYLES.get(line[:1], "")
