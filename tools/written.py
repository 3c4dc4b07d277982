"""The code blocks of README.md and docs/: commands with their output, settings, programs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parent.parent
PAGES = (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md")))
LANGUAGES = ("sh", "console", "cron", "text", "yaml", "python", "promql", "json", "sql", "csv")

_FENCE = re.compile(r"(?P<indent> *)(?P<ticks>```+)(?P<language>\w*) *(?:\{(?P<braces>[^}]*)\})? *(?P<about>.*)")
_TITLE = re.compile(r'title="([^"]+)"')
_INLINE = re.compile(r"(?<!`)`(pyrometer [a-z][^`]*)`(?!`)")


class Command(NamedTuple):
    """A command line, and its output according to the page."""

    text: str
    printed: tuple[str, ...] = ()


class Block(NamedTuple):
    """A code block and its place."""

    page: str
    line: int
    language: str
    title: str  # the name of the file that it shows
    text: str
    printed: tuple[str, ...] = ()  # of `sh`: the block of text right below it

    @property
    def place(self) -> str:
        """Its place in the form that editors open."""
        return f"{self.page}:{self.line}"

    def commands(self) -> list[Command]:
        """The command lines: all of `sh`, what follows a dollar sign in `console`, the five fields in `cron`."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "sh":
            typed = [Command(text) for line in lines if (text := _uncommented(line))]
            return [*typed[:-1], typed[-1]._replace(printed=self.printed)]
        if self.language == "cron":
            return [Command(line.split(maxsplit=5)[5]) for line in lines]
        if self.language != "console":
            return []
        starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
        ends = [*starts[1:], len(lines)]
        return [
            Command(_uncommented(lines[start][2:]), tuple(lines[start + 1 : end]))
            for start, end in zip(starts, ends, strict=True)
        ]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    found: list[Block] = []
    opened, lines, ended = None, [], 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        fence = _FENCE.fullmatch(line)
        if opened is None and fence:
            opened, lines = (number, fence), []
        elif opened and line.strip() == opened[1]["ticks"]:
            at, begun = opened
            title = _TITLE.search(begun["about"] or "")
            text = "\n".join(one.removeprefix(begun["indent"]) for one in lines)
            name = str(page.relative_to(REPOSITORY))
            if begun["language"] == "text" and found and found[-1].language == "sh" and at == ended + 2:
                found[-1] = found[-1]._replace(printed=tuple(lines))
            found.append(Block(name, at, begun["language"], title[1] if title else "", text))
            opened, ended = None, number
        elif opened:
            lines.append(line)
    assert opened is None, f"{page}: the block of line {opened and opened[0]} does not end"
    return found


def all_blocks() -> Iterator[Block]:
    """The blocks of all pages."""
    for page in PAGES:
        yield from blocks(page)


def inline(page: Path) -> list[str]:
    """Commands of Pyrometer inside of sentences and tables."""
    return [one.replace("\\|", "|") for one in _INLINE.findall(page.read_text(encoding="utf-8"))]


def _uncommented(line: str) -> str:
    """A line of a shell without what follows ` #`."""
    return re.split(r"(?:^|\s)#\s", line, maxsplit=1)[0].strip()
