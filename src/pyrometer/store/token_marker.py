"""Whether a data folder ever had a token. If so, its server stays closed when the tokens are gone."""

from __future__ import annotations

from pathlib import Path

from pyrometer.store import files

TOKENS = "tokens.json"
MARKER = "tokens-required"
_TEXT = """\
This folder has had a token, so `pyrometer serve` answers nobody without one.
Create a token with `pyrometer token create NAME`, or serve without authentication with `pyrometer serve --open`.
"""


def had_tokens(folder: Path) -> bool:
    """Whether there are tokens, or were. An empty list of tokens counts."""
    return (folder / TOKENS).exists() or (folder / MARKER).exists()


def mark(folder: Path) -> None:
    """Records that there are tokens, so that deleting them does not open the server."""
    if not (folder / MARKER).exists():
        files.write_text(folder / MARKER, _TEXT)
