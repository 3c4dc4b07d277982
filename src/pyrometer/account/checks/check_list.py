"""Verifies a data folder: the list of checks and their order. The checks are in the modules `check_*`.

A check is a function that returns problems. To add one, write a function and add a line here. Checks of parts run part
by part, and each file is read once. Checks of the folder may read everything, and run only if every file can be read.
All are linear in the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyrometer.account.checks import check_folder, check_ledger, check_parts
from pyrometer.account.checks.check_parts import Problem
from pyrometer.store import Store, catalog
from pyrometer.store.catalog import Part
from pyrometer.store.errors import READ_ERRORS, first_line

Progress = Callable[[int, int], None]

# Checks of one part against the catalog.
PART_CHECKS: tuple[Callable[[Store, Part], Iterator[Problem]], ...] = (
    check_parts.as_listed,
    check_parts.columns,
    check_parts.order,
    check_parts.keys,
    check_ledger.laws,
    check_ledger.energy,
    check_ledger.sums,
)
# Checks of the catalog. They read no rows.
CATALOG_CHECKS: tuple[Callable[[Store], Iterator[Problem]], ...] = (
    check_ledger.overlaps,
    check_folder.manifest,
    check_folder.hot_tables,
    check_folder.marks,
)
# Checks of all rows together.
ROW_CHECKS: tuple[Callable[[Store], Iterator[Problem]], ...] = (
    check_ledger.lives,
    check_folder.restatements,
    check_folder.findings,
)
# Checks of derived records against facts. They need a ledger that was just brought up to date.
DERIVED_CHECKS: tuple[Callable[[Store], Iterator[Problem]], ...] = (check_ledger.made_together, check_ledger.capacity)


def problems(store: Store, progress: Progress = lambda done, total: None) -> Iterator[Problem]:
    """The problems of a data folder."""
    parts = store.parts()
    store.expose_all(["node", "slot"])
    unread, digests = False, catalog.digests(store.connection)
    for done, part in enumerate(parts):
        progress(done, len(parts))
        try:
            if check_parts.is_damaged(store, part, digests.get(part.path)):  # its contents may be anything
                unread = True
                yield Problem(f"{part.path} is damaged: its bytes are not those that were written.", part)
                continue
            for check in PART_CHECKS:
                yield from check(store, part)
        except FileNotFoundError:
            unread = True
            yield Problem(f"{part.path} is listed and missing: {part.row_count} {part.kind} rows are lost.", part)
        except READ_ERRORS as error:
            unread = True
            yield Problem(f"{part.path} cannot be read: {first_line(error)}.", part)
    for of_all in CATALOG_CHECKS if unread else (*CATALOG_CHECKS, *ROW_CHECKS):
        yield from of_all(store)
    progress(len(parts), len(parts))


def derived_problems(store: Store) -> Iterator[Problem]:
    """The problems of an up-to-date ledger in a folder without other problems."""
    for check in DERIVED_CHECKS:
        yield from check(store)
