"""The documentation as a site: it builds without warnings, links to every page, and loads nothing external."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from written import PAGES, REPOSITORY

ROOT_FILES = {"changelog.md", "contributing.md"}  # tools/site.py brings them
FETCHED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*?\bsrc=\"([^\"]+)\"|<link\b[^>]*?\bhref=\"([^\"]+)\"")


def navigation(entries: list) -> list[str]:
    found = []
    for entry in entries:
        for below in entry.values():
            found += navigation(below) if isinstance(below, list) else [below]
    return found


def configuration() -> dict:
    return yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())


def test_navigation_has_every_page_once():
    listed = navigation(configuration()["nav"])
    pages = {str(path.relative_to(REPOSITORY / "docs")) for path in PAGES if path.name != "README.md"}
    assert sorted(listed) == sorted(pages | ROOT_FILES)


def test_readme_links_to_existing_pages():
    text = (REPOSITORY / "README.md").read_text()
    named = set(re.findall(r"\]\(((?:docs/|[A-Z])[^)#]+)", text))
    assert named
    assert [path for path in named if not (REPOSITORY / path).exists()] == []


def mkdocs(*arguments: str, folder: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    if importlib.util.find_spec("material") is None:
        pytest.skip("needs mkdocs-material: pip install 'pyrometer[docs]'")
    folder = tmp_path_factory.mktemp("site")
    result = mkdocs("build", "--strict", "--site-dir", str(folder))
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.heavy
def test_every_page_is_built_and_loads_nothing_external(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) == len(navigation(configuration()["nav"])) + 1  # and one for addresses that lead nowhere
    for page in pages:
        text = page.read_text(encoding="utf-8")
        fetched = {one or other for one, other in FETCHED.findall(text)}
        assert fetched
        assert not [address for address in fetched if re.match(r"(?:\w+:)?//", address)], page


@pytest.mark.heavy
@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("link", ["nowhere.md", "other.md#nowhere"])
def test_broken_link_fails_the_build(tmp_path, link):
    """Builds two small pages with the real configuration."""
    changed = configuration() | {"nav": [{"Here": "index.md"}, {"There": "other.md"}], "hooks": [], "extra_css": []}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(changed))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "other.md").write_text("# Other\n")
    (tmp_path / "docs" / "index.md").write_text("# Here\n[there](other.md)\n")
    assert mkdocs("build", "--strict", folder=tmp_path).returncode == 0
    (tmp_path / "docs" / "index.md").write_text(f"# Here\n[there]({link})\n")
    result = mkdocs("build", "--strict", folder=tmp_path)
    assert (result.returncode, result.stderr.count("WARNING")) == (1, 1)
    assert link in result.stderr
