"""`tools/words.py` finds banned words in names, texts, pages and documentation, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import words
from words import Bans, load, parts_of, split, uses_in

LISTED, EXCEPTIONS, _ = load()
BANS = Bans(LISTED)

BAD = [
    ("names", "told_usd"),
    ("names", "_said"),
    ("names", "ToldOf"),
    ("names", "heard_ms"),
    ("names", "spoken_of"),
    ("names", "asked"),
    ("names", "wasAsked"),
    ("names", "MOST_BYTES"),
    ("names", "_LEAST_MS"),
    ("names", "LONGEST_BODY"),
    ("names", "nobody_held"),
    ("names", "colours"),
    ("names", "behaviour_of"),
    ("names", "utilisation"),
    ("names", "labelled_rows"),
    ("classes", "Told"),
    ("classes", "_Said"),
    ("classes", "Place"),
    ("classes", "Drawn"),
    ("files", "lives"),
    ("files", "told"),
    ("files", "colours"),
    ("files", "unread"),
    ("files", "asked"),
    ("prose", "findings that were told before"),
    ("prose", "what an exporter said"),
    ("prose", "never heard of it since"),
    ("prose", "time that is spoken for"),
    ("prose", "the time that was asked for"),
    ("prose", "Say --step N"),
    ("docs", "This page is for who keeps it running"),
    ("prose", "what nobody held"),
    ("page", "since when it waits"),
    ("prose", "whose it is"),
    ("prose", "That cursor is none of ours"),
    ("prose", "a part of none"),
    ("prose", "its pause is no `starved`"),
    ("prose", "19 workloads, $12 in all."),
    ("prose", "an hour of it"),
    ("page", "so many GPUs"),
    ("docs", "as long as a run lives"),
    ("prose", "kept for ever"),
    ("prose", "by hand of an admin"),
    ("prose", "a body of 2 kB a rank"),
    ("prose", "one a minute"),
    ("prose", "micro-dollars an hour"),
    ("prose", "facts out, one file a format"),
    ("prose", "the file that is there"),
    ("prose", "lies in the inbox"),
    ("prose", "what stands in a manifest"),
    ("prose", "a server beside it"),
    ("page", "the run goes on"),
    ("prose", "when the run is over."),
    ("docs", "it comes to no end"),
    ("prose", "named otherwise than here"),
    ("docs", "Without a mouse, without eyes. Without any help. Next."),
    ("docs", "the same colour"),
    ("prose", "GPU utilisation"),
    ("prose", "the catalogue of parts"),
]

GOOD = [
    ("names", "reported_usd"),
    ("names", "task"),
    ("names", "masked"),
    ("names", "max_bytes"),
    ("names", "almost"),
    ("names", "most_recent"),
    ("names", "least_squares"),
    ("names", "colors"),
    ("names", "basked"),
    ("classes", "Placement"),
    ("classes", "PriceBook"),
    ("classes", "ToldRow"),
    ("files", "lifecycle"),
    ("files", "price_books"),
    ("prose", "a retold story"),
    ("prose", "there is no run with this name"),
    ("prose", "it is no longer open"),
    ("prose", "if there is none, the platform pays"),
    ("prose", "in all cases"),
    ("prose", "in all of them"),
    ("prose", "because of it"),
    ("prose", "a copy of it"),
    ("prose", "so many that nothing fits"),
    ("prose", "forever"),
    ("prose", "one file per format"),
    ("prose", "2 kB per rank"),
    ("prose", "it relies on a sample"),
    ("prose", "the team is over budget"),
    ("prose", "besides"),
    ("prose", "who pays"),
    ("prose", "a kilometer"),
    ("prose", "analyses of both"),
    ("prose", "it takes a minute"),
    ("prose", "what a node has"),
    ("docs", "Without a token the server refuses every request."),
]


def found(scope: str, text: str) -> list[str]:
    plain = split(text) if scope in ("names", "classes", "files") else text
    return [ban.find for _, ban in BANS.find(scope, plain)]


@pytest.mark.parametrize(("scope", "text"), BAD)
def test_banned_words_are_found(scope, text):
    assert found(scope, text)


@pytest.mark.parametrize(("scope", "text"), GOOD)
def test_allowed_words_are_not_reported(scope, text):
    assert found(scope, text) == []


def test_every_ban_has_a_sample_and_says_why():
    sampled = {find for scope, text in BAD for find in found(scope, text)}
    assert {ban.find for ban in LISTED} == sampled
    assert all(ban.write and ban.because for ban in LISTED)
    assert all(one["because"] for one in EXCEPTIONS)


@pytest.mark.parametrize(
    ("name", "parts"),
    [("told_of", "told of"), ("ToldOf", "Told Of"), ("_MOST_2_BYTES", "MOST 2 BYTES"), ("HTTPToldIt", "HTTP Told It")],
)
def test_identifiers_are_split_into_words(name, parts):
    assert split(name) == parts


PROGRAM = '''"""What was told."""

told_ms = 1  # so many


class Told:
    "no prose: told"

    def read(self, rows):
        """Rows of the ledger, one a
        minute."""
        key = rows["told"]
        text = f"{self.said_by} goes on"
        return self.run("""
            SELECT asked FROM t  -- what nobody held
        """), key, text
'''


def test_python_is_searched_in_names_strings_and_comments():
    seen = [(use.line, use.scope, use.text) for use in uses_in("src/run.py", PROGRAM, BANS)]
    assert seen == [
        (1, "prose", "told"),
        (3, "names", "told_ms"),
        (3, "prose", "so many"),
        (6, "classes", "Told"),
        (7, "prose", "told"),
        (10, "prose", "one a minute"),
        (13, "names", "said_by"),
        (13, "prose", "goes on"),
        (15, "names", "asked"),
        (15, "prose", "nobody"),
    ]


def test_page_scripts_are_searched_in_texts():
    script = 'const told = `${asked(1)} lies in there`; // beside it\nshow("No run goes on.")'
    seen = [(use.line, use.scope, use.text) for use in uses_in("page/x.js", script, BANS)]
    assert seen == [
        (1, "names", "told"),
        (1, "names", "asked"),
        (1, "page", "lies in"),
        (1, "page", "beside"),
        (2, "page", "goes on"),
    ]


def test_markdown_is_searched_outside_of_code():
    text = "# So\nIt goes\non. `told` and\n```sh\ntold --beside\n```\n[text](told.md) is said.\n"
    seen = [(use.line, use.text) for use in uses_in("docs/x.md", text, BANS)]
    assert seen == [(2, "goes on"), (7, "said")]


def test_file_names_are_searched():
    assert [use.scope for use in uses_in("src/pyrometer/act/told.py", "", BANS)] == ["files"]


def test_code_after_an_escaped_string_is_searched():
    parts = list(parts_of(r"""x = 'it\'s' + "a \" b" + rb'\'' ; told = 1""", "py", "prose"))
    assert ("names", 1, "told") in parts


def test_exception_applies_only_to_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for command in (["init", "-q"], ["add", "."]):
        (tmp_path / "a.py").write_text("told = 1\n")
        (tmp_path / "b.py").write_text("told = 1\n")
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    ban = '[[ban]]\nfind = "told"\nin = ["names"]\nwrite = "reported"\nbecause = "x"\n'
    excuse = '[[exception]]\npath = "{}"\nfind = "told"\nbecause = "the game of tolding"\n'
    rules = tmp_path / "words.toml"
    monkeypatch.setattr(words, "REPOSITORY", tmp_path)
    monkeypatch.setattr(words, "load", lambda: load(rules))
    rules.write_text("skip = []\n" + ban + excuse.format("a.py"))
    assert [use.path for use in words.all_uses()] == ["b.py"]
    rules.write_text("skip = []\n" + ban + excuse.format("a.py") + excuse.format("c.py"))
    with pytest.raises(SystemExit, match="excuse nothing"):
        words.all_uses()
    rules.write_text("skip = []\n" + ban + excuse.format("a.py").replace('"told"', '"sold"'))
    with pytest.raises(SystemExit, match="sold"):
        words.all_uses()


def test_command_counts_per_folder_and_exits_with_1():
    command = [sys.executable, words.__file__, "--summary", "--path", "tools/words.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1].endswith("files")
    assert done.returncode == (0 if " 0  in 0 files" in done.stdout else 1)
