"""Repairs a data folder: derived parts are rebuilt, damaged files are set aside, and the catalog lists the files as
they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pyrometer.account.build.ledger import take_down
from pyrometer.account.build.retention import BUILT_KINDS, KEPT_FROM
from pyrometer.account.checks.check_parts import Problem, is_damaged
from pyrometer.store import Store, catalog
from pyrometer.store.catalog import Part
from pyrometer.store.catalog_rebuild import LOST, put_aside, rebuild
from pyrometer.store.errors import READ_ERRORS
from pyrometer.store.parts import describe_part


def replace_catalog(folder: Path) -> Iterator[str]:
    """Replaces a catalog that cannot be read with one from the parts. Returns what it did, in sentences."""
    made = rebuild(folder, BUILT_KINDS, KEPT_FROM)
    yield f"A new catalog lists {made.parts:,} parts with {made.rows:,} rows. The old one is in {LOST}/."
    if made.is_saved:
        yield "Rows that were only in the damaged write-ahead log are lost: at most those of the newest hours."
    else:
        yield "Unsealed rows are lost: measurements of the last two hours, objects of the last day."
    for path in made.unread:
        yield f"{path} cannot be read. It is now in {LOST}/."


def mend(store: Store, found: Iterable[Problem]) -> Iterator[str]:
    """Repairs problems. Returns what it did and what is lost, in sentences."""
    found = list(found)
    yield from dict.fromkeys(problem.mend(store) for problem in found if problem.mend is not None)
    digests = catalog.digests(store.connection)
    for part in dict.fromkeys(problem.part for problem in found if problem.part is not None):
        path = store.folder / part.path
        if part.kind in BUILT_KINDS:
            take_down(store, [part, *_made_with(store, part)])
            yield f"{part.path} is built again."
            continue
        try:
            now = describe_part(store.connection, store.folder, part)
            if is_damaged(store, part, digests.get(part.path)):
                raise OSError("its readable contents may be wrong")
        except (*READ_ERRORS, OSError):
            if path.exists():
                put_aside(store.folder, path)
                where = f", which is now in {LOST}/"
            else:
                where = ""
            store.drop_parts([part])
            yield f"{part.row_count:,} {part.kind} rows are lost with {part.path}{where}."
            continue
        store.relist(part, now)
        yield f"{part.path} is listed as it is: {now.row_count:,} rows, not {part.row_count:,}."


def _made_with(store: Store, part: Part) -> list[Part]:
    """The ledger parts that cover a derived part, or hand it over. If they are dropped, everything is rebuilt."""
    ledger = store.parts("ledger_row") if part.kind != "ledger_row" else []
    return [one for one in ledger if one.from_ms <= part.from_ms <= one.to_ms]
