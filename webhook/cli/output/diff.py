"""Decisions as a unified diff for each changed object, with its findings as comments above it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Final

from webhook.cli.output.review import Review
from webhook.cli.output.text import Line, change_lines, finding_lines
from webhook.cli.output.yaml import dump


def lines(reviews: Iterable[Review]) -> Iterator[Line]:
    """A unified diff per changed object, its findings as comments above it."""
    for review in reviews:
        findings = list(finding_lines(review))
        before, after = (dump(obj).split("\n")[:-1] for obj in (review.document.obj, review.final))
        name = f"{review.document.place} {review.title}"
        changes = list(difflib.unified_diff(before, after, name, f"{name} (reviewed)", lineterm=""))
        reasons = list(change_lines(review)) if changes else []
        if findings or reasons:
            yield f"# {review.title}", "bold"
            yield from ((f"#{line}", style) for line, style in (*reasons, *findings))
        for line in changes:
            yield line, _DIFF_STYLES.get(line[:1], "") if not line.startswith(("---", "+++")) else "bold"


_DIFF_STYLES: Final = {"+": "green", "-": "red", "@": "cyan"}
