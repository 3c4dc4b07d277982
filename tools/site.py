"""What `make docs` adds to the pages in docs/: the files of the repository's root that people look for in the site."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
OF_THE_ROOT = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds them, with links as they are from inside of docs/."""
    for name, original in OF_THE_ROOT.items():
        text = (ROOT / original).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=re.sub(r"\]\(docs/", "](", text)))
    return files
