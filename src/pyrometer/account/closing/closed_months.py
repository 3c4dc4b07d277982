"""Closed months in the data folder: `closed/2026-10.json` describes one, and a Parquet file next to it has its charges.
They are written once, never changed, and not subject to retention.

A month is closed once its `.json` exists. Each `.json` contains the digest of the previous one, so `pyrometer check`
finds a month that was replaced later.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, tzinfo
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import duckdb

from pyrometer.account.query.energy import Tariff
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.store import StoreError, files
from pyrometer.store.grammar import (
    ChargesFile,
    Count,
    Decimals,
    GrammarError,
    Int,
    Month,
    Sha256,
    Text,
    TimeMs,
    read_json,
    record_of,
    shown,
)
from pyrometer.store.reader import quoted

FOLDER = "closed"

# The names of a charge: who held which slot, in which state.
NAMES = (
    "adjusts",
    "day",
    "cluster",
    "pool",
    "node_uid",
    "node",
    "gpu_model",
    "team",
    "experiment",
    "workload_uid",
    "workload_kind",
    "workload_namespace",
    "workload_name",
    "namespace",
    "user",
    "queue",
    "pod_uid",
    "pod",
    "state",
)
AMOUNTS = ("usd_micro_per_hour", "gpu_ms", "energy_mj", "energy_gpu_ms", "energy_estimated_gpu_ms")


class ClosedMonth(NamedTuple):
    """One closed month. `ledger` and `adjustments` are amounts in the form of answers, with `unpriced_gpu_ms`."""

    month: Month
    timezone: Text
    from_ms: TimeMs
    to_ms: TimeMs
    closed_ms: TimeMs
    closed_by: Text
    pyrometer: Text
    file: ChargesFile  # in the same folder
    sha256: Sha256  # of that file
    row_count: Count
    total: dict[str, Any]
    ledger: dict[str, Any]
    adjustments: dict[str, Any]
    price_book_sha256: Text | None  # of the price book when the month was closed
    tariff: dict[str, Decimals | None]  # what energy cost and emitted
    ledger_digests: dict[str, str]  # of the ledger that was charged, by month up to this one
    previous_sha256: str | None  # of the `.json` of the month that was closed before

    @property
    def zone(self) -> tzinfo:
        """The time zone of its days."""
        return UTC if self.timezone == "UTC" else ZoneInfo(self.timezone)

    @property
    def energy_tariff(self) -> Tariff:
        """The tariff when the month was closed."""
        values = {name: None if text is None else Fraction(text) for name, text in self.tariff.items()}
        return Tariff(values["usd_per_kwh"], values["carbon_g_per_kwh"], values["pue"] or Fraction(1))


class _Amounts(NamedTuple):
    """The part of every sum that is checked."""

    gpu_ms: Int


def read_closed_months(folder: Path) -> list[ClosedMonth]:
    """The closed months of a data folder, oldest first."""
    return sorted((_read(path) for path in (folder / FOLDER).glob("*.json")), key=lambda closed: closed.from_ms)


def closed_until_ms(folder: Path) -> int:
    """The end of the last closed month, rounded up to a full hour, because the ledger is cut at hours. 0 if none is
    closed."""
    end_ms = max((closed.to_ms for closed in read_closed_months(folder)), default=0)
    return -(-end_ms // MS_PER_HOUR) * MS_PER_HOUR


def revision_of(folder: Path) -> str:
    """A text that changes when a month is closed."""
    return " ".join(sorted(path.name for path in (folder / FOLDER).glob("*.json")))


def path_of(folder: Path, closed: ClosedMonth) -> Path:
    """The path of its charges."""
    return folder / FOLDER / closed.file


def digest_of(path: Path) -> str:
    """SHA-256 of a file."""
    return files.sha256(path)


def write(
    folder: Path, connection: duckdb.DuckDBPyConnection, relation: str, month: str, fields: Mapping[str, Any]
) -> ClosedMonth:
    """Writes the charges of a relation, then the `.json`. From then on the month is closed."""
    into = folder / FOLDER
    into.mkdir(exist_ok=True)
    for left in into.glob(f"{month}*"):  # leftovers of an unfinished closing, because the `.json` comes last
        left.unlink()
    temporary = into / f"{month}.parquet.tmp"
    # explicit types: a column with only NULLs would have none
    columns = ", ".join(
        [*(f'"{name}"::VARCHAR AS "{name}"' for name in NAMES), *(f"{name}::BIGINT AS {name}" for name in AMOUNTS)]
    )
    connection.execute(
        f"COPY (SELECT {columns} FROM {relation} ORDER BY ALL) TO '{quoted(temporary)}' "
        "(FORMAT parquet, COMPRESSION zstd)"
    )
    ((row_count,),) = connection.execute(f"SELECT count(*) FROM read_parquet('{quoted(temporary)}')").fetchall()
    digest = digest_of(temporary)
    final = into / f"{month}-{digest[:12]}.parquet"
    files.publish(temporary, final)
    earlier = sorted(into.glob("*.json"))
    closed = ClosedMonth(
        month=month,
        file=final.name,
        sha256=digest,
        row_count=row_count,
        previous_sha256=digest_of(earlier[-1]) if earlier else None,
        **fields,
    )
    files.write_text(into / f"{month}.json", json.dumps(closed._asdict(), indent=1) + "\n")
    return closed


def problems(folder: Path, connection: duckdb.DuckDBPyConnection) -> Iterator[str]:
    """What is wrong with the closed months, one sentence each."""
    try:
        months = read_closed_months(folder)
    except StoreError as error:
        yield str(error)
        return
    for closed in months:
        path = path_of(folder, closed)
        shown = f"{FOLDER}/{closed.file}"
        if not path.is_file():
            yield f"{shown} is missing: the charges of {closed.month}, which is closed, are lost."
        elif digest_of(path) != closed.sha256:
            yield f"{shown} was changed after {closed.month} was closed: its digest is another."
        else:
            ((gpu_ms, rows, usd_micro_ms),) = connection.execute(
                "SELECT coalesce(sum(gpu_ms), 0)::BIGINT, count(*), sum(gpu_ms::HUGEINT * usd_micro_per_hour) "
                f"FROM read_parquet('{quoted(path)}')"
            ).fetchall()
            made_of = closed.ledger["gpu_ms"] + closed.adjustments["gpu_ms"]
            usd_micro = int(usd_micro_ms or 0) // MS_PER_HOUR
            if (gpu_ms, rows, gpu_ms) != (closed.total["gpu_ms"], closed.row_count, made_of) or (
                abs((closed.total["usd_micro"] or 0) - usd_micro) > 1  # rounded once
            ):
                yield f"{shown} does not add up to what {FOLDER}/{closed.month}.json says."
    for before, after in pairwise(months):
        if digest_of(folder / FOLDER / f"{before.month}.json") != after.previous_sha256:
            yield f"{FOLDER}/{before.month}.json was changed after {after.month} was closed: its digest is another."


def _read(path: Path) -> ClosedMonth:
    """Reads a closed month. Its file may come from a backup or a lake, so its names are checked before they are
    used."""
    try:
        closed = record_of(ClosedMonth, read_json(path.read_bytes()))
        if closed.month != path.stem or not closed.file.startswith(f"{closed.month}-"):
            raise GrammarError(f"month is {shown(closed.month)}")
        for name in ("total", "ledger", "adjustments"):
            record_of(_Amounts, {"gpu_ms": getattr(closed, name).get("gpu_ms")}, name)
        if closed.tariff.keys() != set(Tariff._fields):
            raise GrammarError("tariff has other fields")
        return closed
    except (OSError, GrammarError):
        raise StoreError(f"{path} cannot be read: it says what was closed. Bring it back from a backup.") from None
