"""Counts constructions that make English hard to read, per 10,000 words of each top-level folder.

    python -m tests.english [FILE|FOLDER...]

Without arguments: a table of all folders. With arguments: each place. The text that counts: prose of Markdown
files without code; comments and strings of Python files (in tests: comments, docstrings and names of tests);
comments and sentences of YAML and TOML files.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent

MARKERS: Final = {
    "beside": r"\bbeside\b",
    "anew": r"\banew\b",
    "alone": r"(?<!left )(?<!leave )(?<!it )(?<!them )\balone\b",
    "stands": r"\b(?:stands?|stood)\b(?!-| in for| by\b)",
    "all the same": r"\ball the same\b",
    "amid": r"\bamid(?:st)?\b",
    "of its own": r"\bof (?:its|their|his|our|my|your|one's) own\b",
    "whatever": r"\b(?:whoever|whatever|whichever)\b",
    "tells, says": r"\b(?:tells?|told|says?|said)\b",
    "what is": (
        r"\bwhat (?:is|are|was|were|may|can|could|would|must|has|had|have|comes?|came|goes|makes?|holds?"
        r"|runs?|stays?|one|nobody|nothing|somebody|only|leads|belongs|follows|differs|depends|else)\b"
    ),
    "nothing as a subject": (
        r"(?:^|[.;:,(\"'#]\s*|\b(?:if|that|when|where|and|but|so|which|because|since|while|for|or|as|than)\s+)"
        r"(?:nothing|nobody)\b"
    ),
    "to be had": r"\bto be had\b|\bhow to have it\b",
}
"""Constructions by name. Names of things in the code and quotations are left out by `code_free`."""

_SUFFIXES: Final = {".md", ".py", ".yaml", ".yml", ".toml"}
_MARKER: Final = re.compile("|".join(f"(?:{pattern})" for pattern in MARKERS.values()), re.IGNORECASE)
_WORD: Final = re.compile(r"[A-Za-z]{2,}|\b[aI]\b")
_CODE: Final = re.compile(r"`[^`\n]*`|https?://\S+")
_FENCE: Final = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Text:
    """A piece of prose: where it begins, and its words."""

    path: Path
    line: int
    words: str

    def markers(self) -> Iterator[tuple[int, str]]:
        """(line, text) of each construction."""
        for found in _MARKER.finditer(self.words):
            yield self.line + self.words.count("\n", 0, found.start()), found.group().strip(" .;:,(\"'#\n")


def code_free(text: str) -> str:
    """The text without inline code and addresses; lines stay where they are."""
    return _CODE.sub(" ", text)


def texts(path: Path) -> Iterator[Text]:
    """The prose of a file; empty for a file of another kind."""
    if path.suffix not in _SUFFIXES:
        return
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        without = _FENCE.sub(lambda block: "\n" * block.group().count("\n"), source)
        yield Text(path, 1, code_free(without))
    elif path.suffix == ".py":
        yield from _python(path, source, tests="tests" in path.relative_to(ROOT).parts[:1])
    elif path.suffix in {".yaml", ".yml", ".toml"} and "tests" not in path.relative_to(ROOT).parts[:1]:
        for number, line in enumerate(source.splitlines(), 1):
            if "#" in line or line.count(" ") > line[: len(line) - len(line.lstrip())].count(" ") + 3:
                yield Text(path, number, code_free(line))


def _python(path: Path, source: str, *, tests: bool) -> Iterator[Text]:
    """Comments and strings. Of tests only docstrings and names: their other strings are mostly data."""
    previous = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        docstring = token.type == tokenize.STRING and previous in _BEFORE_DOCSTRING
        if (
            token.type == tokenize.COMMENT
            or docstring
            or (token.type in _STRINGS and not tests and " " in token.string.strip())
        ):
            yield Text(path, token.start[0], code_free(token.string))
        elif tests and token.type == tokenize.NAME and token.string.startswith("test_"):
            yield Text(path, token.start[0], token.string.replace("_", " "))
        if token.type not in {tokenize.NL, tokenize.COMMENT}:
            previous = token.type


_BEFORE_DOCSTRING: Final = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
_STRINGS: Final = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


@dataclass(frozen=True)
class Tally:
    """The constructions in a folder."""

    words: int
    markers: int

    @property
    def rate(self) -> float:
        """Constructions per 10,000 words."""
        return self.markers * 10_000 / max(self.words, 1)


def files(*below: Path) -> list[Path]:
    """The files of this tree at or below these paths, without those that programs write."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    names = listed.stdout.split("\n") if not listed.returncode else []
    paths = [ROOT / name for name in names if name] or [path for path in ROOT.rglob("*") if path.is_file()]
    return [
        path
        for path in paths
        if path.is_file() and any(path.is_relative_to(each) for each in below or (ROOT,))
    ]


def tallies() -> dict[str, Tally]:
    """By top-level folder; files of the root by their names."""
    counted: dict[str, Tally] = {}
    for path in files():
        found = list(texts(path))
        if found:
            top = path.relative_to(ROOT).parts[0]
            old = counted.get(top, Tally(0, 0))
            words = sum(len(_WORD.findall(text.words)) for text in found)
            counted[top] = Tally(
                old.words + words, old.markers + sum(len(list(text.markers())) for text in found)
            )
    return counted


def main(argv: Sequence[str]) -> int:
    """Print the table, or the places below the given paths."""
    if argv:
        for path in files(*(Path(name).resolve() for name in argv)):
            lines = path.read_text(encoding="utf-8").splitlines() if path.suffix in _SUFFIXES else []
            for line, marker in (each for text in texts(path) for each in text.markers()):
                print(f"{path.relative_to(ROOT)}:{line}: [{marker}] {lines[line - 1].strip()}")
    else:
        for name, tally in sorted(tallies().items(), key=lambda item: -item[1].markers):
            print(f"{name:24} {tally.words:7} words {tally.markers:5} markers {tally.rate:6.0f} per 10,000")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
