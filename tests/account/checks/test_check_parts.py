"""Checks of single parts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyrometer.account.checks import check_parts
from pyrometer.account.checks.check_parts import is_damaged
from pyrometer.store import Store, catalog, files
from tests.support.histories import BASE, folder, samples


@pytest.fixture
def store() -> Iterator[Store]:
    """A store with one part of samples."""
    with folder() as store:
        store.append(samples("busy", BASE, BASE + 600_000))
        store.seal()
        yield store


def test_a_correct_part_has_no_problems(store: Store) -> None:
    (part,) = store.parts()
    for check in (check_parts.as_listed, check_parts.columns, check_parts.order, check_parts.keys):
        assert list(check(store, part)) == []


def test_as_listed_reports_each_difference(store: Store) -> None:
    (part,) = store.parts()
    wrong = part._replace(row_count=1, bytes=2, newest_ms=3)
    texts = [problem.text for problem in check_parts.as_listed(store, wrong)]
    assert len(texts) == 3
    assert "2 are listed: it was changed" in texts[0]
    assert "20 rows, 1 are listed" in texts[1]


def test_columns_reports_the_difference(store: Store) -> None:
    (part,) = store.parts()
    wrong = part._replace(columns=part.columns.replace("power_w", "power_kw"))
    (problem,) = check_parts.columns(store, wrong)
    assert problem.text.endswith("has other columns than are listed: power_kw, power_w.")


def test_is_damaged_compares_the_bytes_with_their_digest(store: Store) -> None:
    (part,) = store.parts()
    path = store.folder / part.path
    digest = catalog.digests(store.connection)[part.path]
    assert digest == files.sha256(path)
    assert not is_damaged(store, part, digest)
    assert not is_damaged(store, part, None)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert is_damaged(store, part, digest)
