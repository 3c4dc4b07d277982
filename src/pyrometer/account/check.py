"""Verifies a data folder: what every check is, and in which order they run. The checks themselves lie beside this file.

A check is a function that says what is wrong, in sentences; a new one is a function and a line here. Those of parts run
part by part, with every file read once each; those of the folder may read everything, and run only where every file can
be read. All of them are linear in the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyrometer.account import check_folder, check_ledger, check_parts
from pyrometer.account.check_parts import Problem
from pyrometer.store import Store, catalog
from pyrometer.store.catalog import Part
from pyrometer.store.errors import READ_ERRORS, first_line

Progress = Callable[[int, int], None]

# Of one part: what it has against what is listed.
OF_A_PART: tuple[Callable[[Store, Part], Iterator[Problem]], ...] = (
    check_parts.as_listed,
    check_parts.columns,
    check_parts.order,
    check_parts.keys,
    check_ledger.laws,
    check_ledger.energy,
    check_ledger.sums,
)
# Of the catalogue: no row is read.
OF_THE_CATALOGUE: tuple[Callable[[Store], Iterator[Problem]], ...] = (
    check_ledger.overlaps,
    check_folder.manifest,
    check_folder.hot_tables,
    check_folder.marks,
)
# Of everything together.
OF_ALL_ROWS: tuple[Callable[[Store], Iterator[Problem]], ...] = (
    check_ledger.lives,
    check_folder.restatements,
    check_folder.findings,
)
# Of what is derived from facts, against those: only of a ledger that has just been brought up to date.
OF_WHAT_IS_DERIVED: tuple[Callable[[Store], Iterator[Problem]], ...] = (
    check_ledger.made_together,
    check_ledger.capacity,
)


def problems(store: Store, progress: Progress = lambda done, total: None) -> Iterator[Problem]:
    """What is wrong; nothing when all is well."""
    parts = store.parts()
    store.expose_all(["node", "slot"])
    unread, digests = False, catalog.digests(store.connection)
    for done, part in enumerate(parts):
        progress(done, len(parts))
        try:
            if check_parts.is_damaged(store, part, digests.get(part.path)):  # what is read of it may be anything
                unread = True
                yield Problem(f"{part.path} is damaged: its bytes are not those that were written.", part)
                continue
            for check in OF_A_PART:
                yield from check(store, part)
        except FileNotFoundError:
            unread = True
            yield Problem(f"{part.path} is listed and missing: {part.row_count} {part.kind} rows are lost.", part)
        except READ_ERRORS as error:
            unread = True
            yield Problem(f"{part.path} cannot be read: {first_line(error)}.", part)
    for of_all in OF_THE_CATALOGUE if unread else (*OF_THE_CATALOGUE, *OF_ALL_ROWS):
        yield from of_all(store)
    progress(len(parts), len(parts))


def derived_problems(store: Store) -> Iterator[Problem]:
    """What is wrong with a ledger that is up to date, in a folder whose files are well."""
    for check in OF_WHAT_IS_DERIVED:
        yield from check(store)
