"""What `make docs` makes of the pages in docs/: files of the repository's root join them, and links have titles."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
OF_THE_ROOT = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
_NAMED = re.compile(r"\[([\w/-]+\.md)\]\((\1)((?:#[\w-]+)?)\)")  # [prices.md](prices.md), as it is read in a checkout
_TITLE = re.compile(r"# (.+)")
_SOURCE_LINK = re.compile(r"\[([^\]]+)\]\(\.\./([\w./-]+)\)")  # a file of the checkout, which the site does not have


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds them, with links as they are from inside of docs/."""
    for name, original in OF_THE_ROOT.items():
        text = (ROOT / original).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=re.sub(r"\]\(docs/", "](", text)))
    return files


def on_page_markdown(markdown: str, files: Files, **_: Any) -> str:
    """Shows the title of a page for a link with its file name, and the path for a link to a file of the checkout."""

    def titled(link: re.Match[str]) -> str:
        file = files.get_file_from_path(link[2])
        title = _TITLE.match(file.content_string) if file else None
        return f"[{title[1]}]({link[2]}{link[3]})" if title else link[0]

    markdown = _SOURCE_LINK.sub(r"`\2`", markdown)
    return _NAMED.sub(titled, re.sub(r"\[docs/([\w/-]+\.md)\]", r"[\1]", markdown))
