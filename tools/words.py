"""Checks that names and texts use plain American English: `python tools/words.py`, `make words`.

`tools/words.toml` lists the words and phrases that this repository does not use, each with where it counts, what to
write and why. Every use of one is printed with its place, and the exit status is 1. Only the standard library is needed.

    python tools/words.py --summary                       # counts per folder and per word
    python tools/words.py --path src/pyrometer/serve docs  # only there
    python tools/words.py --find MOST                      # only the bans whose pattern contains this
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parent.parent
BANS = Path(__file__).with_suffix(".toml")
SCOPES = ("names", "classes", "files", "prose", "page", "docs")
PROSE = ("prose", "page", "docs")  # where a ban counts that does not say it

# What a file consists of, as far as it matters here. Strings come before names, because of prefixes such as r"…".
_NAME = r"(?P<class>\bclass\s+[^\W\d]\w*)|(?P<name>[^\W\d]\w*)"
_STRINGS = r"'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\""
_SLASHES = r"(?P<comment>//[^\n]*(?:\n[ \t]*//[^\n]*)*|/\*.*?\*/)"
_HASHES = r"(?P<comment>(?:(?<=\s)|^)\#[^\n]*(?:\n[ \t]*\#[^\n]*)*)"
_TRIPLE = r"'''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\""
LEXERS = {
    language: re.compile(pattern, re.DOTALL | re.MULTILINE)
    for language, pattern in {
        "py": rf"{_HASHES}|(?P<string>(?:\b[rRbBuUfF]{{1,2}})?(?:{_TRIPLE}|{_STRINGS}))|{_NAME}",
        "js": rf"{_SLASHES}|(?P<string>`(?:\\.|[^`\\])*`|{_STRINGS})|{_NAME}",
        "sql": r"(?P<comment>--[^\n]*(?:\n[ \t]*--[^\n]*)*)|(?P<string>'(?:''|[^'])*')|(?P<class>(?!))|(?P<name>[^\W\d]\w*)",
        "css": rf"{_SLASHES}|(?P<string>(?!))|(?P<class>(?!))|(?P<name>(?!))",
        "html": r"(?P<comment><!--.*?-->|(?<=>)[^<>]+(?=<))|(?P<string>(?!))|(?P<class>(?!))|(?P<name>(?!))",
        "yaml": rf"{_HASHES}|(?P<string>{_STRINGS})|(?P<class>(?!))|(?P<name>(?!))",
    }.items()
}
LANGUAGES = {
    ".py": "py",
    ".js": "js",
    ".mjs": "js",
    ".sql": "sql",
    ".css": "css",
    ".html": "html",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".toml": "yaml",
    ".sh": "yaml",
    ".md": "md",
    "Makefile": "yaml",
    "Containerfile": "yaml",
}
SQL = re.compile(r"\b(?:SELECT|INSERT INTO|CREATE (?:OR|TEMP|TABLE)|DELETE FROM|UPDATE|GROUP BY|LEFT JOIN)\b")
EXPRESSION = re.compile(r"\$?\{([^{}]*)\}")  # in an f-string, or in a template of JavaScript
GAP = re.compile(r"\s+(?:(?:#|//|--)\s+)*")  # between two words, even in comments of several lines
CODE_OF_MARKDOWN = re.compile(r"^ *(```+).*?^ *\1 *$|`[^`\n]+`|\]\([^)\n]*\)|<[^>\n]+>", re.DOTALL | re.MULTILINE)


class Ban(NamedTuple):
    """A word or a phrase that is not used."""

    find: str
    write: str
    because: str
    scopes: tuple[str, ...]
    pattern: re.Pattern[str]


class Use(NamedTuple):
    """Where something is used that should not be."""

    path: str
    line: int
    scope: str
    text: str
    ban: Ban


class Bans:
    """All bans, by scope; finds the first one that begins at a word."""

    def __init__(self, bans: Iterable[Ban]) -> None:
        self._of_scope = {scope: [ban for ban in bans if scope in ban.scopes] for scope in SCOPES}
        # Tried together first: nearly all texts have none of them.
        self._any_of = {
            scope: re.compile(rf"\b(?:{'|'.join(f'(?:{_cased(ban.find)})' for ban in of_scope) or '(?!)'})")
            for scope, of_scope in self._of_scope.items()
        }

    def find(self, scope: str, text: str) -> list[tuple[re.Match[str], Ban]]:
        """The uses in a text."""
        found = []
        for match in self._any_of[scope].finditer(text):
            ban = next(ban for ban in self._of_scope[scope] if ban.pattern.match(text, match.start()))
            found.append((match, ban))
        return found


def load(path: Path = BANS) -> tuple[list[Ban], list[dict[str, str]], list[str]]:
    """The bans, the exceptions, and the paths to skip."""
    read = tomllib.loads(path.read_text(encoding="utf-8"))
    bans = [
        Ban(one["find"], one["write"], one["because"], tuple(one.get("in", PROSE)), re.compile(_cased(one["find"])))
        for one in read["ban"]
    ]
    unknown = {scope for ban in bans for scope in ban.scopes} - set(SCOPES)
    unknown |= {one["find"] for one in read.get("exception", ())} - {ban.find for ban in bans}
    if unknown:
        raise SystemExit(f"{path}: unknown scopes or patterns: {', '.join(sorted(unknown))}")
    return bans, read.get("exception", []), read["skip"]


def _cased(find: str) -> str:
    has_capitals = re.search(r"[A-Z]", re.sub(r"\\.|\[[^\]]*\]", "", find)) is not None
    return find if has_capitals else f"(?i:{find})"


@cache
def split(name: str) -> str:
    """The words of an identifier: `_row_of` and `RowOf` become `row of` and `Row Of`."""
    return " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name))


def parts_of(text: str, language: str, scope: str, first_line: int = 1) -> Iterator[tuple[str, int, str]]:
    """Every name, class and piece of prose of a file: its scope, its line and its text."""
    if language == "md":
        yield "docs", first_line, CODE_OF_MARKDOWN.sub(lambda code: re.sub(r"\S", "·", code[0]), text)
        return
    line, position = first_line, 0
    for match in LEXERS[language].finditer(text):
        line += text.count("\n", position, match.start())
        position, piece = match.start(), match[0]
        if match["name"]:
            yield "names", line, split(piece)
        elif match["comment"]:
            yield scope, line, piece
        elif match["class"]:
            yield "classes", line, split(piece.removeprefix("class").strip())
        elif " " in piece and SQL.search(piece):
            yield from parts_of(EXPRESSION.sub(" ", piece.strip("rf'\"")), "sql", scope, line)
        else:
            if "{" in piece and language in ("py", "js"):
                for inner in EXPRESSION.finditer(piece):
                    yield from ((("names", line, split(name))) for name in re.findall(r"[^\W\d]\w*", inner[1]))
                piece = EXPRESSION.sub("…", piece)
            if " " in piece:
                yield scope, line, piece.lstrip("rbufRBUF").strip("'\"`")


def uses_in(path: str, text: str, bans: Bans) -> Iterator[Use]:
    """What is banned in a file and in its name."""
    name = Path(path)
    for match, ban in bans.find("files", split(name.stem)):
        yield Use(path, 1, "files", match[0], ban)
    language = LANGUAGES.get(name.suffix) or LANGUAGES.get(name.name)
    if language is None:
        return
    known: dict[tuple[str, str], list[tuple[re.Match[str], Ban]]] = {}
    for scope, line, part in parts_of(text, language, "page" if language == "js" else "prose"):
        if scope in ("names", "classes"):
            if (scope, part) not in known:
                known[scope, part] = bans.find(scope, part)
            found = known[scope, part]
            yield from (Use(path, line, scope, part.replace(" ", "_"), ban) for _, ban in found[:1])
        else:
            plain = GAP.sub(" ", part)
            for match, ban in bans.find(scope, plain):
                yield Use(path, line + _lines_before(part, plain, match.start()), scope, match[0], ban)


def _lines_before(part: str, plain: str, position: int) -> int:
    gaps = plain.count(" ", 0, position)
    start = next((gap.end() for number, gap in enumerate(GAP.finditer(part), 1) if number == gaps), 0)
    return part.count("\n", 0, start)


def all_uses(paths: Iterable[str] = ("",)) -> list[Use]:
    """What is banned in the repository, without exceptions; an exception that is not needed is an error."""
    listed, exceptions, skipped = load()
    bans, needed, found = Bans(listed), set(), []
    command = ["git", "-C", str(REPOSITORY), "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    for path in sorted(set(files)):
        if not path.startswith(tuple(paths)) or any(fnmatch(path, one) for one in skipped):
            continue
        if (Path(path).suffix or Path(path).name) not in LANGUAGES or not (REPOSITORY / path).is_file():
            continue
        for use in uses_in(path, (REPOSITORY / path).read_text(encoding="utf-8"), bans):
            excuse = next(
                (n for n, one in enumerate(exceptions) if one["find"] == use.ban.find and fnmatch(path, one["path"])),
                None,
            )
            if excuse is None:
                found.append(use)
            needed.add(excuse)
    if not any(paths) and (unneeded := set(range(len(exceptions))) - needed):
        raise SystemExit(f"{BANS}: exceptions that excuse nothing: {[exceptions[n] for n in sorted(unneeded)]}")
    return found


def summarize(uses: Iterable[Use]) -> Iterator[str]:
    """Counts per folder and scope, and per pattern."""
    uses = list(uses)
    folders = Counter("/".join(Path(use.path).parts[:-1][:3]) or "." for use in uses)
    for folder, count in sorted(folders.items()):
        scopes = Counter(use.scope for use in uses if ("/".join(Path(use.path).parts[:-1][:3]) or ".") == folder)
        yield f"{count:>7}  {folder:<28} {', '.join(f'{scope} {scopes[scope]}' for scope in SCOPES if scopes[scope])}"
    yield ""
    for (find, write), count in Counter((use.ban.find, use.ban.write) for use in uses).most_common():
        yield f"{count:>7}  {find if len(find) <= 48 else find[:47] + '…':<48}  {write}"
    yield f"{len(uses):>7}  in {len({use.path for use in uses})} files"


def main() -> None:
    """Prints what is banned."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--summary", action="store_true", help="counts per folder and per word")
    parser.add_argument("--path", nargs="+", default=[""], metavar="PREFIX", help="only files whose path begins so")
    parser.add_argument("--scope", nargs="+", choices=SCOPES, default=SCOPES, help="only there; default: everywhere")
    parser.add_argument("--find", default="", metavar="WORD", help="only the bans whose pattern contains this")
    args = parser.parse_args()
    found = [use for use in all_uses(args.path) if use.scope in args.scope and args.find in use.ban.find]
    if args.summary:
        print("\n".join(summarize(found)))
    else:
        for use in found:
            print(f"{use.path}:{use.line}: {use.scope}: {use.text!r}: write {use.ban.write} ({use.ban.because})")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
