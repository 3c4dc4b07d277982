"""Builds the ledger: rebuilds every chunk of hours whose inputs have changed, and no others.

A chunk is a pure function of the objects that touch it, the measurements in and around it, and the carry of the chunk
before it. So hours can be built in any grouping, repeatedly, with the same result.

A new version of the rules rebuilds only open time. Chunks end where closed months end, and a closed chunk is rebuilt
only if its own inputs change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from pyrometer.account.build import sql
from pyrometer.account.build.chunk_inputs import MEASUREMENTS, Chunk, ChunkInputs
from pyrometer.account.build.pricing import assumes_prices, put_prices
from pyrometer.account.build.retention import kept_from_ms
from pyrometer.account.build.rules import ACCOUNT_RULES, STALE, Provenance, input_code, ledger_settings, short_hash
from pyrometer.account.build.step_inputs import declare, put_near_idle
from pyrometer.account.closing.charge_basis import compare_with_charged
from pyrometer.account.closing.closed_months import closed_until_ms
from pyrometer.account.query.names import billed_to
from pyrometer.model.columns import SCHEMAS
from pyrometer.model.records import Price
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE, MS_PER_QUARTER
from pyrometer.store import Store
from pyrometer.store.catalog import Part, first_row
from pyrometer.store.reader import time_column_of
from pyrometer.store.store import NewPart

OBJECTS = ("node", "slot", "pod", "workload", "allocation", "run", "event", "restatement", "price")
DATED = ("node", "slot", "pod", "allocation", "run", "event", "gpu_sample", "step_window")

# Slot-minutes that are built at once: enough to keep two cores busy, few enough for about one gigabyte.
CHUNK_SLOT_MINUTES = 3_000_000
CHUNK_DAYS = 7
# Minimum slot-minutes of a chunk whose sums are written, too. Fewer rows are summed quickly when they are read.
SUMMED_SLOT_MINUTES = 50_000

Progress = Callable[[int, int], None]


class LedgerCoverage(NamedTuple):
    """The time range that the ledger covers: from the first minute of the first slot to the newest accounted minute."""

    from_ms: int
    end_ms: int
    chunks_built: int


def build(
    store: Store,
    settings: Settings,
    *,
    now_ms: int,
    prices: Iterable[Price] = (),
    progress: Progress = lambda done, total: None,
    chunk_slot_minutes: int = CHUNK_SLOT_MINUTES,
) -> LedgerCoverage | None:
    """Builds the ledger up to now; returns None if there is nothing to account for."""
    if billed_to(store) != settings.bill_to:  # names are resolved when questions are answered, so nothing is rebuilt
        store.set_meta("bill_to", settings.bill_to)
    newest_ms = store.newest_ms(DATED, now_ms)
    if newest_ms is None:
        return None
    end_ms = newest_ms + MS_PER_MINUTE - newest_ms % MS_PER_MINUTE
    prices = tuple(prices)
    fingerprint = _fingerprint(store, settings, prices, newest_ms)
    known = store.meta("ledger_fingerprint")
    if known != fingerprint:
        built = _Build(store, settings, prices, newest_ms, end_ms).run(progress, chunk_slot_minutes)
        compare_with_charged(store)
        store.set_meta("ledger_fingerprint", _fingerprint(store, settings, prices, newest_ms))
    else:
        built = 0
    from_ms = _first_minute(store)
    return None if from_ms is None else LedgerCoverage(from_ms, end_ms, built)


def take_down(store: Store, parts: Iterable[Part]) -> None:
    """Drops derived parts. The next build creates them again."""
    store.set_meta(
        "ledger_fingerprint", ""
    )  # first, so that a crash in between does not leave a fingerprint of a complete build
    store.drop_parts(parts)


def mark_stale(store: Store, parts: Iterable[Part]) -> None:
    """Makes the next build create these derived parts again, whatever their inputs are."""
    store.set_meta("ledger_fingerprint", "")  # first, as in `take_down`
    store.set_digests(dict.fromkeys(parts, STALE))


class _Build:
    """One build of all stale chunks. The temporary tables of the SQL steps are in the store's connection."""

    def __init__(
        self, store: Store, settings: Settings, prices: tuple[Price, ...], newest_ms: int, end_ms: int
    ) -> None:
        self.store = store
        self.closed_until_ms = closed_until_ms(store.folder)
        self.inputs = ChunkInputs(store, settings, newest_ms, self.closed_until_ms)
        self.connection = store.connection
        self.settings = settings
        self.prices = prices
        self.newest_ms = newest_ms
        self.end_ms = end_ms

    def run(self, progress: Progress, chunk_slot_minutes: int) -> int:
        declare(self.connection, self.settings, self.newest_ms, self.end_ms)
        self._read_objects()
        self._split_at_closed_time()
        chunks = self._plan(chunk_slot_minutes)
        found = {Chunk(part.from_ms, part.to_ms): part for part in self.store.parts("ledger_row")}
        needed = {(chunk, self.inputs.settings_for(chunk, found.get(chunk))) for chunk in chunks}
        self.inputs.read_objects(needed | {(chunk, self.settings) for chunk in chunks})
        adopted: dict[Part, str] = {}
        carry = ""
        built = 0
        for done, chunk in enumerate(chunks):
            progress(done, len(chunks))
            part = found.get(chunk)
            digest = self.inputs.valid_digest(chunk, part, carry) if part else None
            if part is None or digest is None:
                self._build_chunk(chunk, str(self.inputs.provenance(chunk, carry)))
                built += 1
            elif digest != part.digest:
                adopted |= dict.fromkeys(self._made_together(part), digest)
            if chunk.to_ms == self.closed_until_ms:
                self.store.set_digests(adopted)  # before open time is built, which may take long
                adopted = {}
            carry = self._carry_digest(chunk.to_ms)
        self.store.set_digests(adopted)
        progress(len(chunks), len(chunks))
        self._drop_ledger_outside(chunks)
        return built

    # -- once per build -----------------------------------------------------------------------------------------

    def _read_objects(self) -> None:
        self.store.expose_all(OBJECTS)
        sql.run(self.connection, sql.RUNS)
        sql.run(self.connection, sql.OBJECTS)
        sql.run(self.connection, sql.GANGS)
        self._restate()
        put_prices(self.store, self.prices)
        assumed = assumes_prices(self.store)
        if assumed or self.store.meta("prices_assumed"):
            self.store.set_meta("prices_assumed", "yes" if assumed else "no")
        put_near_idle(self.connection)

    def _restate(self) -> None:
        """Records what later evidence says about the past, where it differs from earlier restatements."""
        row = first_row(
            self.connection.execute(
                "SELECT min(started_ms), max(started_ms) FROM the_run "
                "WHERE run IN (SELECT run FROM the_run WHERE resumed_step IS NOT NULL)"
            )
        )
        from_ms, to_ms = row if row and row[0] is not None else (0, 0)
        if not to_ms and not self.store.has("restatement") and not self._has_restating_events():
            return
        self.store.expose(["step_window"], from_ms - MS_PER_HOUR, to_ms)
        sql.run(self.connection, sql.RESTATEMENTS)
        fresh = self.connection.sql("FROM restatement_to_append").to_arrow_table()
        if fresh.num_rows:
            self.store.append_tables({"restatement": fresh})
            self.store.expose_all(["restatement"])
            sql.run(self.connection, sql.RUNS)

    def _has_restating_events(self) -> bool:
        """Whether any event reports the start of a restated state."""
        query = "SELECT 1 FROM event SEMI JOIN restating ON event.kind = restating.opens LIMIT 1"
        return self.store.has("event") and first_row(self.connection.execute(query)) is not None

    # -- chunks -------------------------------------------------------------------------------------------------

    def _plan(self, chunk_slot_minutes: int) -> list[Chunk]:
        """The chunks of all hours that have slots: existing chunks, and new ones for the rest."""
        counted = self.connection.execute(
            "SELECT hour_ms, count(DISTINCT slot_id) FROM (SELECT slot_id, "
            f"unnest(range(from_ms // {MS_PER_HOUR} * {MS_PER_HOUR}, to_ms, {MS_PER_HOUR})) AS hour_ms "
            "FROM every_slot_span) WHERE hour_ms >= ? GROUP BY hour_ms ORDER BY hour_ms",
            [kept_from_ms(self.store)],
        ).fetchall()
        hours = {hour_ms for hour_ms, _ in counted}
        built = [
            Chunk(part.from_ms, part.to_ms)
            for part in self.store.parts("ledger_row")
            if (part.from_ms in hours and part.to_ms - MS_PER_HOUR in hours) or part.to_ms <= self.closed_until_ms
        ]
        covered = {hour_ms for chunk in built for hour_ms in range(chunk.from_ms, chunk.to_ms, MS_PER_HOUR)}
        fresh: list[Chunk] = []
        minutes = 0
        for hour_ms, slots in counted:
            if hour_ms in covered:
                continue
            minutes += slots * 60
            grows = (
                fresh
                and fresh[-1].to_ms == hour_ms != self.closed_until_ms
                and hour_ms - fresh[-1].from_ms < CHUNK_DAYS * MS_PER_DAY
                and minutes <= chunk_slot_minutes
                and hour_ms + MS_PER_HOUR
                <= self.end_ms  # the current hour will be built again, so it gets a chunk of its own
            )
            if grows:
                fresh[-1] = fresh[-1]._replace(to_ms=hour_ms + MS_PER_HOUR)
            else:
                fresh.append(Chunk(hour_ms, hour_ms + MS_PER_HOUR))
                minutes = slots * 60
        return sorted(built + fresh)

    def _made_together(self, part: Part) -> list[Part]:
        """A ledger part and the other derived parts of its chunk."""
        return [
            one
            for kind in ("ledger_row", "energy", *sql.SUMMED)
            for one in self.store.parts(kind)
            if (one.from_ms, one.to_ms) == (part.from_ms, part.to_ms)
        ]

    def _split_at_closed_time(self) -> None:
        """Cuts the chunk that extends past the end of closed time: its closed rows stay, its open ones are rebuilt."""
        cut_ms = self.closed_until_ms
        part = next((part for part in self.store.parts("ledger_row") if part.from_ms < cut_ms < part.to_ms), None)
        made = Provenance.parse(part.digest) if part else None
        if part is None or made is None:
            return
        whole = Chunk(part.from_ms, part.to_ms)
        settings = made.settings_over(self.settings)
        self.inputs.read_objects([(whole, settings)])
        before_ms = max((one.to_ms for one in self.store.parts("ledger_row") if one.to_ms <= whole.from_ms), default=0)
        inputs = self.inputs.digest(whole, settings, self._carry_digest(before_ms))
        unchanged = self.inputs.is_unchanged(whole, made, inputs)
        kept = str(made._replace(code="", prices="", inputs="")) if unchanged else STALE
        closed, rest = Chunk(whole.from_ms, cut_ms), Chunk(cut_ms, whole.to_ms)
        self._compute(closed)  # its carry is needed
        new_parts = [self._new_carry(closed)]
        for old in self._made_together(part):
            self.store.expose([old.kind], *whole, suffix="_whole")
            rows = f"FROM {old.kind}_whole WHERE {time_column_of(SCHEMAS[old.kind])}"
            new_parts += [
                NewPart(old.kind, *closed, f"{rows} < {cut_ms}", kept),
                NewPart(old.kind, *rest, f"{rows} >= {cut_ms}", STALE),
            ]
        self.store.replace(new_parts)

    def _carry_digest(self, at_ms: int) -> str:
        """The digest of the carry of the chunk that ends at a time."""
        return next((part.digest or "" for part in self.store.parts("carry") if part.from_ms == at_ms), "")

    def _compute(self, chunk: Chunk) -> bool:
        """Runs the steps of a chunk into temporary tables. Returns whether there was any GPU telemetry."""
        to_ms = min(chunk.to_ms, self.end_ms)
        self.connection.execute(f"SET VARIABLE chunk_from_ms = {chunk.from_ms}::BIGINT")
        self.connection.execute(f"SET VARIABLE chunk_to_ms = {to_ms}::BIGINT")
        self.store.expose(["carry"], chunk.from_ms, chunk.from_ms + 1)
        self.connection.execute(
            "CREATE OR REPLACE TEMP VIEW carried AS FROM carry WHERE time_ms = getvariable('chunk_from_ms')"
        )
        reach_ms = max(self.settings.idle_gap_ms + 2 * MS_PER_MINUTE, MS_PER_QUARTER)
        self.store.expose(MEASUREMENTS, chunk.from_ms - MS_PER_HOUR, chunk.to_ms + reach_ms)
        absent = self._absent(chunk, reach_ms)
        # Temporary tables need no order. Written parts are sorted.
        self.connection.execute("SET preserve_insertion_order = false")
        try:
            for step in sql.CHUNK_STEPS:
                sql.run(self.connection, absent.get(step, step))
        finally:
            self.connection.execute("RESET preserve_insertion_order")
        return sql.ENERGY not in absent

    def _build_chunk(self, chunk: Chunk, digest: str) -> None:
        sampled = self._compute(chunk)
        summed = self._worth_summing(sampled=sampled)
        self.store.replace(
            [
                NewPart("ledger_row", chunk.from_ms, chunk.to_ms, sql.text(sql.LEDGER), digest),
                NewPart("energy", chunk.from_ms, chunk.to_ms, "FROM chunk_energy", digest),
                *(NewPart(kind, chunk.from_ms, chunk.to_ms, sql.text(sql.SUMMED[kind]), digest) for kind in summed),
                self._new_carry(chunk),
            ]
        )

    def _new_carry(self, chunk: Chunk) -> NewPart:
        """The carry of a computed chunk, for the next one."""
        carried = first_row(self.connection.execute("SELECT sum(hash(carry))::VARCHAR FROM chunk_carry carry"))
        query = "FROM chunk_carry ORDER BY node_uid, slot_index"
        return NewPart("carry", chunk.to_ms, chunk.to_ms + MS_PER_HOUR, query, str(carried and carried[0]))

    def _worth_summing(self, *, sampled: bool) -> list[str]:
        """The sums that are written with the chunk. Sums of use contain more than the ledger; the others are for
        speed."""
        row = first_row(self.connection.execute(f"SELECT sum(to_ms - from_ms) // {MS_PER_MINUTE} FROM slot_span"))
        large = row is not None and (row[0] or 0) >= SUMMED_SLOT_MINUTES
        wanted = {"quarter_use": sampled, "hour_use": large and sampled}
        return [kind for kind in sql.SUMMED if wanted.get(kind, large)]

    def _absent(self, chunk: Chunk, reach_ms: int) -> dict[str, str]:
        """Empty tables for steps without input: planning these steps would take longer than everything else."""
        instead = {}
        if not self.store.has("step_window", chunk.from_ms - MS_PER_HOUR, chunk.to_ms + reach_ms):
            instead[sql.WINDOWS] = sql.NO_WINDOWS
        handed_over = any(part.row_count for part in self.store.parts("carry") if part.from_ms == chunk.from_ms)
        sampled = self.store.has("gpu_sample", chunk.from_ms - MS_PER_HOUR, chunk.to_ms + reach_ms)
        if not sampled:
            instead |= {sql.ENERGY: sql.NO_ENERGY, sql.ACTIVITY: sql.NO_ACTIVITY}
            if not handed_over:
                instead[sql.SAMPLES] = sql.NO_SAMPLES
        return instead

    def _drop_ledger_outside(self, chunks: list[Chunk]) -> None:
        """Drops parts of hours that later evidence shows to have no slots, and carries where no chunk ends."""
        kept = set(chunks)
        ends = {chunk.to_ms for chunk in chunks}
        self.store.drop_parts(
            [
                part
                for kind in ("ledger_row", "energy", *sql.SUMMED)
                for part in self.store.parts(kind)
                if Chunk(part.from_ms, part.to_ms) not in kept
            ]
            + [part for part in self.store.parts("carry") if part.from_ms not in ends]
        )


def _first_minute(store: Store) -> int | None:
    first = min((part.from_ms for part in store.parts("ledger_row") if part.row_count), default=0)
    store.expose(["ledger_row"], first, first + 1)
    row = first_row(store.connection.execute("SELECT min(minute_ms) FROM ledger_row"))
    return row[0] if row else None


def _fingerprint(store: Store, settings: Settings, prices: Iterable[Price], newest_ms: int) -> str:
    """A text that changes with every input of a build."""
    rules = [ACCOUNT_RULES, ledger_settings(settings), input_code(), closed_until_ms(store.folder)]
    everything = store.fingerprint((*OBJECTS, *MEASUREMENTS), -(2**62), 2**62)
    return short_hash([repr(rules), everything, repr(list(prices)), str(newest_ms)])
