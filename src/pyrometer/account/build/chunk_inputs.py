"""The inputs of a chunk: their digest, and whether a part that was built from them is still valid."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pyrometer.account.build import sql
from pyrometer.account.build.rules import ACCOUNT_RULES, Provenance, input_code, ledger_settings, short_hash
from pyrometer.account.build.step_inputs import put_table
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_HOUR, MS_PER_QUARTER
from pyrometer.store import Store
from pyrometer.store.catalog import Part

MEASUREMENTS = ("gpu_sample", "step_window")


class Chunk(NamedTuple):
    """Consecutive hours that are built together."""

    from_ms: int
    to_ms: int


class ChunkInputs:
    """Digests of the inputs of chunks. The temporary tables of objects and prices must exist."""

    def __init__(self, store: Store, settings: Settings, newest_ms: int, closed_until_ms: int) -> None:
        self._store = store
        self._connection = store.connection
        self._settings = settings
        self._newest_ms = newest_ms
        self._closed_until_ms = closed_until_ms
        self._objects: dict[tuple[Chunk, int], str] = {}  # digests of objects, by chunk and `idle_gap_ms`
        self._settings_made: dict[tuple[int, ...], Settings] = {}  # by the values that parts record

    def read_objects(self, chunks: Iterable[tuple[Chunk, Settings]]) -> None:
        """Computes the digests of the objects that touch each chunk. The other digests need them."""
        self._objects = {}
        chunks_by_gap: dict[int, set[Chunk]] = {}
        for chunk, settings in chunks:
            chunks_by_gap.setdefault(settings.idle_gap_ms, set()).add(chunk)
        for gap_ms, group in chunks_by_gap.items():
            self._connection.execute(f"SET VARIABLE idle_gap_ms = {gap_ms}::BIGINT")
            put_table(self._connection, "chunk", "from_ms BIGINT, to_ms BIGINT", sorted(group))
            for from_ms, to_ms, digest in sql.run(self._connection, sql.DIGESTS).fetchall():
                self._objects[Chunk(from_ms, to_ms), gap_ms] = digest
        self._connection.execute(f"SET VARIABLE idle_gap_ms = {self._settings.idle_gap_ms}::BIGINT")

    def digest(self, chunk: Chunk, settings: Settings, carry: str) -> str:
        """A digest of all inputs of a chunk."""
        reach_ms = settings.idle_gap_ms + settings.sample_reach_ms + settings.sample_jitter_ms
        reach_ms = max(reach_ms, MS_PER_QUARTER)  # the energy of a quarter ends in the next one
        measured = self._store.fingerprint(MEASUREMENTS, chunk.from_ms - MS_PER_HOUR, chunk.to_ms + reach_ms)
        newest_ms = min(self._newest_ms, chunk.to_ms + reach_ms)
        return short_hash([self._objects[chunk, settings.idle_gap_ms], carry, measured, str(newest_ms)])

    def _prices(self, chunk: Chunk) -> str:
        """A digest of the configured prices for the time of a chunk. It must be the same in every version."""
        rows = self._connection.execute(
            "SELECT gpu_model, pool, cluster, purchase, instance_type, usd_micro_per_hour, per, "
            "greatest(from_ms, $from_ms), least(coalesce(to_ms, $to_ms), $to_ms) FROM every_price "
            "WHERE source IS DISTINCT FROM 'list' AND from_ms < $to_ms AND coalesce(to_ms > $from_ms, true) "
            "ORDER BY from_ms, time_ms, place, gpu_model",
            chunk._asdict(),
        ).fetchall()
        return short_hash(map(repr, rows))[:16]

    def is_closed(self, chunk: Chunk) -> bool:
        """Whether a chunk is in closed time."""
        return chunk.to_ms <= self._closed_until_ms

    def settings_for(self, chunk: Chunk, part: Part | None) -> Settings:
        """The settings for comparing the inputs of a chunk: closed time keeps the settings that it was built with."""
        made = Provenance.parse(part.digest) if part and self.is_closed(chunk) else None
        if made is None:
            return self._settings
        if made.settings not in self._settings_made:
            self._settings_made[made.settings] = made.settings_over(self._settings)
        return self._settings_made[made.settings]

    def is_unchanged(self, chunk: Chunk, made: Provenance, inputs: str) -> bool:
        """Whether neither facts nor prices of a chunk have changed since it was built."""
        if made.inputs == inputs:
            return True
        if made.code == input_code():
            return False
        # Another version computed the recorded digest, so it cannot be compared. The price book is what users change
        # together with the version, and its digest can be compared.
        return made.prices in ("", self._prices(chunk))

    def valid_digest(self, chunk: Chunk, part: Part, carry: str) -> str | None:
        """The digest to record for a part that is still valid; None if the part must be rebuilt."""
        made = Provenance.parse(part.digest)
        if made is None:
            return None
        settings = self.settings_for(chunk, part)
        inputs = self.digest(chunk, settings, carry)
        if not self.is_closed(chunk):
            current = (ACCOUNT_RULES, ledger_settings(settings), inputs)
            return part.digest if (made.rules, made.settings, made.inputs) == current else None
        if not self.is_unchanged(chunk, made, inputs):
            return None
        if made.inputs == inputs:
            return part.digest
        return str(
            made._replace(
                settings=ledger_settings(settings), code=input_code(), prices=self._prices(chunk), inputs=inputs
            )
        )

    def provenance(self, chunk: Chunk, carry: str) -> Provenance:
        """The provenance of a chunk that is built now."""
        inputs = self.digest(chunk, self._settings, carry)
        return Provenance(ACCOUNT_RULES, ledger_settings(self._settings), input_code(), self._prices(chunk), inputs)
