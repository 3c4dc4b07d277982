"""One answer over several clusters of a lake: each is summed by itself, with its own names, and the sums are added.

Sums are integers, so it does not matter which cluster, piece of time or machine a part comes from: they are added, and
rounded once. The engine decides where they are computed (`store/engines`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, tzinfo
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pyrometer.account.build.ledger import LedgerCoverage
from pyrometer.account.closing.charge_basis import LEDGER, ChargeBasis, basis_json, basis_of, charged_sums
from pyrometer.account.closing.charges import charges_json, groupings
from pyrometer.account.query.cost import CostAnswer, cost_json, drawn_by_all, energy_read, rounded_rows
from pyrometer.account.query.energy import EnergyUse, Site, Tariff, drawn_whole, plus
from pyrometer.account.query.groupings import HELD, PRICE, TIME_GROUPINGS
from pyrometer.account.query.names import open_names
from pyrometer.account.query.scope import ScopeNotFoundError, only
from pyrometer.account.query.sharing import NONE, Pot, is_platform, merged, parts_of, pot_groupings, shared
from pyrometer.account.query.sums import Sum, sums
from pyrometer.account.query.time_range import TimeRange
from pyrometer.store.catalog import Part
from pyrometer.store.engines import Engine, Progress
from pyrometer.store.lake import Cache, LakeReader, LakeStorage, Manifest

ROWS_OF_A_PIECE = 2_000_000  # of the ledger: half a second of work, so a lost worker loses little
MIXED = "mixed"  # some clusters have closed the month, others have not


class LakeCluster(NamedTuple):
    """A cluster of a lake: what a worker needs to read it, without secrets."""

    url: str
    manifest: Manifest
    cache_folder: str
    cache_bytes: int
    threads: int | None = None  # of DuckDB; None: one per core

    @property
    def name(self) -> str:
        """The name of the cluster."""
        return self.manifest.cluster

    @property
    def covered(self) -> LedgerCoverage:
        """The coverage of its ledger."""
        return LedgerCoverage(self.manifest.from_ms, self.manifest.end_ms, 0)

    def reading(self) -> LakeReader:
        """Opens the cluster for reading in this process."""
        return LakeReader(
            LakeStorage(self.url), self.manifest, Cache(Path(self.cache_folder), self.cache_bytes), threads=self.threads
        )


class LakeQuestion(NamedTuple):
    """A question about one cluster: small, and the same for every engine."""

    time_range: TimeRange
    by: tuple[str, ...]
    zone: tzinfo
    price_usd_micro: int | None = None
    team: str | None = None
    experiment: str | None = None
    energy: bool = False


class ClusterSums(NamedTuple):
    """The answer of one cluster: small, too."""

    groups: list[Sum]
    whole: EnergyUse


MAX_OPEN_CLUSTERS = 4
_open: dict[tuple[str, str, int], LakeReader] = {}  # the clusters that this process was asked about last, oldest first


def _reading(cluster: LakeCluster) -> LakeReader:
    """The open cluster in this process, with its names. It is kept for the next question."""
    key = (cluster.url, cluster.name, cluster.manifest.written_ms)
    found = _open.pop(key, None)
    if found is None:
        found = cluster.reading()
        open_names(found)
    _open[key] = found
    while len(_open) > MAX_OPEN_CLUSTERS:
        _open.pop(next(iter(_open))).close()
    return found


def summed(cluster: LakeCluster, question: LakeQuestion) -> ClusterSums:
    """Sums the ledger of a cluster. An engine can run it anywhere."""
    if question.team is None and question.experiment is None:
        return _summed(_reading(cluster), question)
    with cluster.reading() as reading:  # a reader of its own, which is limited to the scope
        try:
            with only(reading, question.team, question.experiment):
                open_names(reading)
                return _summed(reading, question)
        except ScopeNotFoundError:
            return ClusterSums([], EnergyUse())


def _summed(reading: LakeReader, question: LakeQuestion) -> ClusterSums:
    energy = energy_read(reading, question.time_range, question.by, question.zone) if question.energy else ""
    groups = sums(
        reading,
        question.time_range,
        question.by,
        zone=question.zone,
        price_usd_micro=question.price_usd_micro,
        energy=energy,
    )
    whole = (
        drawn_by_all(reading, question.time_range, question.by, [group.drawn for group in groups])
        if energy
        else EnergyUse()
    )
    return ClusterSums(groups, whole)


class Fleet:
    """Several clusters of a lake, and the engine that computes their sums."""

    def __init__(
        self, clusters: Sequence[LakeCluster], engine: Engine, progress: Progress = lambda done, total: None
    ) -> None:
        self.clusters = list(clusters)
        self._engine = engine
        self._progress = progress

    @property
    def covered(self) -> LedgerCoverage:
        """The coverage of all ledgers together."""
        return LedgerCoverage(
            min(m.covered.from_ms for m in self.clusters), max(m.covered.end_ms for m in self.clusters), 0
        )

    def cost(self, question: LakeQuestion, tariffs: Sequence[Tariff], share: str = NONE) -> dict[str, Any]:
        """The answer of `pyrometer cost`. `tariffs` are those of the clusters, in order."""
        answer, sites = self._answer(question._replace(energy=True), tariffs, share)
        return cost_json(answer, question.by, question.time_range, question.zone, sites)

    def charges(self, question: LakeQuestion, share: str = NONE) -> dict[str, Any]:
        """The ledger as charges, for FOCUS."""
        price = question.price_usd_micro
        answer, _ = self._answer(question._replace(by=groupings(price)), [Tariff()] * len(self.clusters), share)
        return charges_json(answer, question.time_range, question.zone, price)

    def _answer(self, question: LakeQuestion, tariffs: Sequence[Tariff], share: str) -> tuple[CostAnswer, list[Site]]:
        bases = self._bases(question)
        parts: dict[str | None, int] = {}
        pots: list[Pot | None] = [None] * len(self.clusters)
        if share != NONE:
            parts, pots = self._pots(question, bases, share)
        by = question.by if share == NONE else (*question.by, HELD)
        groups = self._groups(question._replace(by=by), bases)
        unit = 1 if share == NONE else Pot(parts, []).unit
        found = [
            one.groups if pot is None else shared(one.groups, question.by, pot, question.team)
            for one, pot in zip(groups, pots, strict=True)
        ]
        named = [_called(one, question.by, cluster.name) for one, cluster in zip(found, self.clusters, strict=True)]
        united_groups = united(named, question.by)
        rows, total, amounts = rounded_rows(united_groups, question.by, unit)
        keys = [repr(group.key) for group in united_groups]
        sites: dict[Tariff, Site] = {}  # clusters with the same tariff are one site, so their energy is rounded once
        for one, of_member, basis, tariff in zip(named, groups, bases, tariffs, strict=True):
            drawn = {repr(group.key): group.drawn for group in one}
            closed = basis.closed if basis.kind == "closed" else None
            whole = drawn_whole([group.drawn for group in one], 1) if closed or share != NONE else of_member.whole
            site = Site(
                closed.energy_tariff if closed else tariff, [drawn.get(key, EnergyUse()) for key in keys], whole
            )
            known = sites.get(site.tariff)
            sites[site.tariff] = site if known is None else _both(known, site)
        if share != NONE:
            sites = {tariff: site._replace(whole=drawn_whole([site.whole], unit)) for tariff, site in sites.items()}
        return CostAnswer(rows, total, _books(bases, amounts)), list(sites.values())

    # -- answers of each cluster
    # ----------------------------------------------------------------------------------------

    def _bases(self, question: LakeQuestion) -> list[ChargeBasis]:
        """The basis of each cluster: some may have closed the month, and others not."""
        self._refuse_unknown_scope(question)
        found = []
        for cluster in self.clusters:
            if not cluster.manifest.beside:
                found.append(LEDGER._replace(team=question.team, experiment=question.experiment))
                continue
            with cluster.reading() as reading:
                reading.fetch_beside()
                found.append(
                    basis_of(
                        reading, question.time_range, question.by, question.zone, question.team, question.experiment
                    )
                )
        return found

    def _refuse_unknown_scope(self, question: LakeQuestion) -> None:
        """Raises an error for a team or an experiment that no cluster knows."""
        if question.team is None and question.experiment is None:
            return
        not_found: ScopeNotFoundError | None = None
        for cluster in self.clusters:
            with cluster.reading() as reading:
                reading.fetch_beside()
                try:
                    with only(reading, question.team, question.experiment):
                        return
                except ScopeNotFoundError as error:
                    not_found = error
        if not_found is not None:
            raise not_found

    def _groups(self, question: LakeQuestion, bases: Sequence[ChargeBasis]) -> list[ClusterSums]:
        """Exact sums of each cluster, by groupings and by the month that is adjusted, as in its own answer."""
        from_ledger = [m for m, basis in zip(self.clusters, bases, strict=True) if basis.kind != "closed"]
        pieces = {m.name: self._pieces(m, question.time_range) for m in from_ledger}
        work = [(m, question._replace(time_range=piece)) for m in from_ledger for piece in pieces[m.name]]
        results = iter(self._engine.map(summed, work, self._progress))
        found = []
        for cluster, basis in zip(self.clusters, bases, strict=True):
            mine = [next(results) for _ in pieces.get(cluster.name, ())]
            groups = consecutive([one.groups for one in mine], question.by)
            whole = plus(*(one.whole for one in mine))
            in_ledger = [group._replace(key=(*group.key, None)) for group in groups]
            found.append(ClusterSums(in_ledger + _charged(cluster, basis, question), whole))
        return found

    def _pieces(self, cluster: LakeCluster, time_range: TimeRange) -> list[TimeRange]:
        return pieces(cluster.manifest.parts, time_range) if self._engine.splits else [time_range]

    def _pots(
        self, question: LakeQuestion, bases: Sequence[ChargeBasis], how: str
    ) -> tuple[dict[str | None, int], list[Pot | None]]:
        """The share of each team in time without a holder, and that time in each cluster."""
        everybody = question._replace(team=None, experiment=None)
        of_all = [basis._replace(team=None, experiment=None) for basis in bases]
        by_team = self._groups(everybody._replace(by=("team", HELD), energy=False), of_all)
        parts = parts_of(united([one.groups for one in by_team], ("team", HELD)), how)
        pot_question = everybody._replace(
            by=pot_groupings(question.by), energy=question.energy and PRICE not in question.by
        )
        platform = self._groups(pot_question, of_all)
        return parts, [Pot(parts, is_platform(one.groups)) for one in platform]


def _charged(cluster: LakeCluster, basis: ChargeBasis, question: LakeQuestion) -> list[Sum]:
    """The charges of a cluster in addition to its ledger. There are few, so they are read in this process."""
    if basis.kind not in ("closed", "open"):
        return []
    with cluster.reading() as reading:
        reading.fetch_beside()
        try:
            with only(reading, question.team, question.experiment):
                return charged_sums(
                    reading, basis, question.by, zone=question.zone, price_usd_micro=question.price_usd_micro
                )
        except ScopeNotFoundError:
            return []


def pieces(parts: Iterable[Part], time_range: TimeRange) -> list[TimeRange]:
    """Cuts a time range between parts of the ledger, so that each part is read once and pieces have similar sizes."""
    listed = [
        p for p in parts if p.kind == "ledger_row" and p.from_ms < time_range.to_ms and p.to_ms > time_range.from_ms
    ]
    cuts: list[int] = []
    rows = 0
    for part in sorted(listed, key=lambda p: p.from_ms):
        if rows and rows + part.row_count > ROWS_OF_A_PIECE and time_range.from_ms < part.from_ms:
            cuts.append(part.from_ms)
            rows = 0
        rows += part.row_count
    edges = [time_range.from_ms, *cuts, time_range.to_ms]
    return [TimeRange(*edge) for edge in pairwise(edges)]


# -- combining sums ---------------------------------------------------------------------------------------------------


def consecutive(found: Sequence[list[Sum]], by: Sequence[str]) -> list[Sum]:
    """Combines the sums of consecutive pieces of time, in the order of an undivided answer."""
    if len(found) == 1:
        return found[0]
    groups = merged([group for piece in found for group in piece])
    if set(by) & set(TIME_GROUPINGS):
        return sorted(groups, key=lambda group: _in_time(group.key, by))
    return sorted(groups, key=_most_expensive_first)


def united(found: Sequence[list[Sum]], by: Sequence[str]) -> list[Sum]:
    """Combines the sums of several clusters, whose keys end with the month that is adjusted: ordered by time, or
    most expensive first."""
    if len(found) == 1:
        return found[0]
    groups = merged([group for of_cluster in found for group in of_cluster])
    if not set(by) & set(TIME_GROUPINGS):
        return sorted(groups, key=lambda group: (group.key[-1] is not None, *_most_expensive_first(group)))
    return sorted(groups, key=lambda group: (group.key[-1] is not None, _in_time(group.key, by), _keys(group.key[-1:])))


def _in_time(key: tuple[Any, ...], by: Sequence[str]) -> list[tuple[bool, Any]]:
    """The sort key of a group: the groupings in order, with times in order of time."""
    return _keys(_moment(value) if name == "hour" else value for name, value in zip(by, key, strict=False))


def _both(one: Site, other: Site) -> Site:
    rows = [plus(mine, theirs) for mine, theirs in zip(one.rows, other.rows, strict=True)]
    return Site(one.tariff, rows, plus(one.whole, other.whole))


def _most_expensive_first(group: Sum) -> tuple[Any, ...]:
    return (-group.ms_price, -group.gpu_ms, _keys(group.key))


def _keys(values: Iterable[Any]) -> list[tuple[bool, Any]]:
    """A sort key like in a database: absent values come last."""
    return [
        (value is None, _keys(value.values()) if isinstance(value, dict) else "" if value is None else value)
        for value in values
    ]


def _moment(label: str) -> float:
    """The time of an hour label. Where clocks are set back, two labels have the same digits."""
    return datetime.fromisoformat(label).timestamp()


def _called(groups: list[Sum], by: Sequence[str], name: str) -> list[Sum]:
    """Replaces the cluster in groups by its name in the lake, which may differ from its records."""
    if "cluster" not in by:
        return groups
    place = list(by).index("cluster")
    return merged([group._replace(key=(*group.key[:place], name, *group.key[place + 1 :])) for group in groups])


def _books(bases: Sequence[ChargeBasis], amounts: dict[str, Any]) -> dict[str, Any] | None:
    """The `books` of an answer over several clusters."""
    closing = [basis for basis in bases if basis.closed is not None]
    if not closing:
        return None
    if len({(basis.kind, basis.month) for basis in bases}) == 1:
        latest = max(closing, key=lambda basis: basis.closed.closed_ms if basis.closed else 0)
        touches = any(basis.touches_closed for basis in closing)
        left_out = any(basis.left_out for basis in closing)
        return basis_json(latest._replace(touches_closed=touches, left_out=left_out), amounts)
    return (basis_json(closing[0], amounts) or {}) | {
        "basis": MIXED,
        "month": None,
        "closed": None,
        "closed_time": any(b.touches_closed for b in bases),
        "adjustments_left_out": any(b.left_out for b in bases),
    }
