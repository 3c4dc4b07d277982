"""Records whether a data folder ever had a token. If so, its server still requires one when all tokens are deleted."""

from __future__ import annotations

import os
from pathlib import Path

from pyrometer.store import files

TOKENS = "tokens.json"
MARKER = "tokens-required"
_TEXT = """\
This folder has had a token, so `pyrometer serve` answers only requests with one.
Create a token with `pyrometer token create NAME`, or serve without authentication with `pyrometer serve --open`.
"""


def had_tokens(folder: Path) -> bool:
    """Whether there are or were tokens. An empty list of tokens counts, and so does a link to a missing file."""
    return os.path.lexists(folder / TOKENS) or os.path.lexists(folder / MARKER)


def mark(folder: Path) -> None:
    """Records that there are tokens, so that deleting them does not open the server."""
    if not os.path.lexists(folder / MARKER):
        files.write_text(folder / MARKER, _TEXT)
