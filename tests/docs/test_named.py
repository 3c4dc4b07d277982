"""Files and tests that pages name exist in the repository."""

from __future__ import annotations

import re

import pytest
from written import PAGES, REPOSITORY

CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?:[\w.-]+/)+[\w.-]+\.(?:py|yaml|json|sql|css|c|md)|(?:tests|deploy|benchmarks|src|docs)/[\w./-]+")
ROOTS = (
    REPOSITORY,
    REPOSITORY / "src" / "pyrometer",
    REPOSITORY / "tests",
    REPOSITORY / "docs",
    REPOSITORY / "benchmarks",
)
PROJECT_PAGES = tuple(REPOSITORY / name for name in ("CONTRIBUTING.md", "SECURITY.md"))
# Paths that are not of this repository: of a data folder, of a reader's own, of a repository that a page quotes.
ELSEWHERE = ("DIR/", "~/", "inbox/", "parts/", "reports/", "images/", "tooling/")


def named(page) -> set[str]:
    spans = CODE.findall(re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))
    return {span for span in spans if " " not in span}


@pytest.mark.parametrize("page", [*PAGES, *PROJECT_PAGES], ids=lambda page: page.name)
def test_files_named_on_pages_exist(page):
    paths = {span for span in named(page) if PATH.fullmatch(span) and not span.startswith(ELSEWHERE)}
    assert [path for path in sorted(paths) if not any((root / path).exists() for root in ROOTS)] == []


def test_tests_named_on_pages_exist():
    names = {span for page in PAGES for span in named(page) if re.fullmatch(r"test_\w+|Test[A-Z]\w+", span)}
    defined = set()
    for path in (REPOSITORY / "tests").rglob("*.py"):
        defined |= set(re.findall(r"^ *(?:async )?(?:def|class) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    assert names
    assert names - defined == set()
