"""`hang`: processes alive, no progress. The culprit is the rank that is silent, else the one furthest behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pyrometer.explain.episodes import Episode
from pyrometer.explain.findings import Proposal, Scope
from pyrometer.explain.night import Night, Rank
from pyrometer.explain.stacks import innermost
from pyrometer.model.human import counted, duration, listed
from pyrometer.model.states import CLAIMS

# Where in a step somebody stands. Between two steps programs save, evaluate and collect: the last one is over then, the
# next has not begun.
_ORDER = {
    "startup": 0, "checkpoint": 1, "evaluate": 1, "garbage": 1, "other": 1, "data": 2, "copy": 3, "compile": 4,
    "forward": 4, "backward": 5, "comm": 6, "sync": 6, "optimizer": 7,
}  # fmt: skip
# How long a rank may stand still where it is, as the SDK has it; elsewhere ten of its longest steps.
LONGEST_STEPS = 10
LIMITS_MS = {"startup": 1_800_000, "compile": 1_800_000, "checkpoint": 900_000, "evaluate": 300_000}
_WAITS = ("comm", "sync")
_STOPPED = "stopped by "


# The samples of an episode: of slots that hung at that moment, and not of their neighbors or of the time around it.
_SAMPLES = """
WITH whole_minute AS (
    SELECT DISTINCT node_uid, slot_index, minute_ms FROM night_ledger
    WHERE state = 'hang' AND ms = 60000 AND pod_uid IN (SELECT unnest($1))
),
hung AS (
    SELECT node_uid, slot_index, from_ms, to_ms FROM state_interval
    WHERE state = 'hang' AND pod_uid IN (SELECT unnest($1))
    UNION ALL
    SELECT node_uid, slot_index, from_ms, coalesce(to_ms, $3) FROM restated_before
    WHERE state = 'hang' AND pod_uid IN (SELECT unnest($1))
)
SELECT median(gpu_util_permille) / 10, round(median(sm_active_permille) / 10, 1), median(power_w), count(*)
FROM gpu_sample
WHERE time_ms >= $2 AND time_ms < $3 AND (
    (node_uid, slot_index, time_ms // 60000 * 60000) IN (SELECT (node_uid, slot_index, minute_ms) FROM whole_minute)
    OR EXISTS (
        FROM hung
        WHERE hung.node_uid = gpu_sample.node_uid AND hung.slot_index = gpu_sample.slot_index
            AND hung.from_ms <= time_ms AND hung.to_ms > time_ms
    )
)
"""


class _Report(NamedTuple):
    """What a rank that stands still said, or what was said for it: the last step it finished, its phase, its stack."""

    rank: int
    step: int | None
    at_ms: int
    phase: str | None
    stack: str
    stands: bool  # it was not seen to move again

    @property
    def behind(self) -> tuple[int, int, int]:
        """The lowest of all ranks is the one that the others wait for. Who was stopped is behind his equals."""
        step = 2**62 if self.step is None else self.step
        return step, _ORDER.get(self.phase or "", 8), 0 if _STOPPED in self.stack else 1


class _Verdict(NamedTuple):
    """Who is to blame, as far as that can be said, and what it is said by."""

    culprit: dict[str, Any] | None = None
    evidence: tuple[str, ...] = ()
    confidence: float = 0.8


def detect(night: Night) -> Iterable[Proposal]:
    """One finding for each stretch in which a workload hung."""
    for episode in night.episodes("hang"):
        ranks, reports = _reports(night, episode)
        verdict = _judged(night, ranks, reports)
        evidence = [*verdict.evidence, *_spinning(night, episode)]
        yield Proposal(
            cause="hang",
            owner_uid=episode.owner_uid,
            from_ms=episode.from_ms,
            to_ms=episode.to_ms,
            states=CLAIMS["hang"],
            scope=tuple(Scope(pod, episode.from_ms, episode.to_ms) for pod in episode.pods),
            headline=f"hung for {duration(episode.to_ms - episode.from_ms)}, {_when(night, episode)}",
            evidence=tuple(evidence) or ("its processes were alive and did nothing",),
            suggestion=_suggestion(
                verdict, alone=_on_one_node(night, episode), goes_on=night.goes_on("hang", *episode)
            ),
            culprit=verdict.culprit,
            confidence=verdict.confidence,
            known_ms=episode.from_ms + _limit_ms(night, episode, reports),
        )


def _limit_ms(night: Night, episode: Episode, reports: Sequence[_Report]) -> int:
    """How long a rank may stand still before it says that it is stuck; what it says then is since when.

    The SDK waits for ten of the longest steps; some of what a program does takes longer than any step.
    """
    longest_us = night.ask(
        "SELECT quantile_disc(step_max_us, 0.9) FROM step_window "
        "WHERE list_contains($1, pod_uid) AND steps > 0 AND to_ms <= $2 + 5000",
        list(episode.pods), episode.from_ms,
    )[0][0]  # fmt: skip
    steps_ms = LONGEST_STEPS * (longest_us or 0) // 1000 if reports else 0
    own_ms = min((LIMITS_MS.get(report.phase or "", 0) for report in reports), default=0)
    return max(night.settings.hang_limit_ms, steps_ms, own_ms)


def _on_one_node(night: Night, episode: Episode) -> bool:
    nodes = night.ask("SELECT DISTINCT node_uid FROM night_ledger WHERE list_contains($1, pod_uid)", list(episode.pods))
    return len({night.node(uid) for (uid,) in nodes}) == 1


def _judged(night: Night, ranks: list[Rank], reports: list[_Report]) -> _Verdict:
    """The rank that is silent while most others report; else the one furthest behind.

    Where several are equally far behind, none of them is to blame alone: their node is named if they share one.
    """
    if not reports:
        return _Verdict()
    there, reported = {rank.rank for rank in ranks}, {report.rank for report in reports}
    silent = sorted(there - reported)
    if silent and len(silent) < len(ranks) / 2:
        said = f"{_named(silent)} fell silent while {counted(len(reported), 'other rank')} reported"
        return _blamed(night, [rank for rank in ranks if rank.rank in silent], None, (said, _where(reports, silent)))
    standing = [report for report in reports if report.stands] or reports
    least = min(report.behind for report in standing)
    last = [report for report in standing if report.behind == least]
    if len(last) == len(reports) > 1:
        said = f"{counted(len(last), 'rank')} made no progress{_doing(last[0])}: none of them is behind the others"
        return _Verdict(None, (said,))
    first = min(last, key=lambda report: (report.at_ms, report.rank))
    blamed = [report.rank for report in last]
    evidence = [f"{_named(blamed)} made no progress{_doing(first)}, from {night.time(first.at_ms)} on"]
    evidence += [_where(reports, blamed)] if len(reports) > 1 else []
    evidence += _stood(first) if len(last) == 1 else ()
    return _blamed(night, [rank for rank in ranks if rank.rank in blamed], first.phase, tuple(evidence))


def _reports(night: Night, episode: Episode) -> tuple[list[Rank], list[_Report]]:
    """The ranks of the attempt that hung, and the last word of each that is stuck."""
    rows = night.ask(
        """
        SELECT stuck.run, stuck.attempt, stuck.rank, stuck.step, stuck.time_ms, stuck.reason, stuck.message,
            NOT EXISTS (
                FROM event moves WHERE moves.kind = 'unstuck' AND moves.run = stuck.run
                    AND moves.attempt = stuck.attempt AND moves.rank = stuck.rank AND moves.time_ms >= stuck.time_ms
            )
        FROM event stuck JOIN the_run USING (run, attempt, rank)
        WHERE stuck.kind = 'stuck' AND list_contains($1, the_run.pod_uid) AND stuck.time_ms BETWEEN $2 AND $3
        QUALIFY row_number() OVER (PARTITION BY stuck.run, stuck.attempt, stuck.rank ORDER BY stuck.time_ms DESC) = 1
        ORDER BY stuck.attempt DESC, stuck.run, stuck.rank
        """,
        list(episode.pods), episode.from_ms - 5_000, episode.to_ms,
    )  # fmt: skip
    of = rows[0][:2] if rows else None
    ranks = [
        rank for rank in night.ranks(episode.pods, episode.from_ms, episode.to_ms) if (rank.run, rank.attempt) == of
    ]
    reports = [
        _Report(rank, step, at_ms, phase, stack or "", stands)
        for run, attempt, rank, step, at_ms, phase, stack, stands in rows
        if (run, attempt) == of
    ]
    there = {rank.rank for rank in ranks}
    return ranks, [report for report in reports if report.rank in there]


def _blamed(night: Night, ranks: list[Rank], phase: str | None, evidence: tuple[str, ...]) -> _Verdict:
    """One rank is named with its device, several with the node that they share; else nobody."""
    nodes = {rank.node_uid for rank in ranks}
    if len(ranks) == 1:
        (who,) = ranks
        culprit = {"rank": who.rank, "node": night.node(who.node_uid), "gpu": who.slot_index}
        return _Verdict(culprit | ({"phase": phase} if phase else {}), evidence, 0.95)
    if len(nodes) == 1:
        return _Verdict({"node": night.node(nodes.pop())}, evidence, 0.85)
    return _Verdict(None, evidence)


def _where(reports: list[_Report], blamed: Sequence[int]) -> str:
    """Where everybody stands, the blamed first: "rank 2 in data; 3 others wait in gradient synchronisation"."""
    by_phase: dict[tuple[bool, str], list[int]] = {}
    for report in reports:
        name = "comm" if report.phase in _WAITS else report.phase or ""
        by_phase.setdefault((report.rank not in blamed, name), []).append(report.rank)
    parts = []
    for (other, phase), ranks in sorted(by_phase.items(), key=lambda group: (group[0][0], -len(group[1]))):
        one = len(ranks) == 1
        who = _named(ranks) if not other or one else f"{len(ranks)} others"
        waits = "waits" if one else "wait"
        does = {
            "comm": f"{waits} in gradient synchronisation", "": f"{waits} for it", "other": "between two steps",
        }.get(phase, f"in {phase}")  # fmt: skip
        parts += [f"{who} {does}"] if other or phase else []
    return "; ".join(parts)


def _named(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {listed([str(rank) for rank in ranks])}"


def _doing(report: _Report) -> str:
    after = "" if report.step is None else f" after step {report.step:,}"
    if report.phase == "other":
        return f"{after}, between two steps"
    return after + (f" in {report.phase}" if report.phase else "")


def _stood(report: _Report) -> Iterator[str]:
    """The innermost lines of its stack."""
    if report.stack.startswith(_STOPPED):
        yield f"it was {report.stack.splitlines()[0][:100]}"
    for depth, frame in enumerate(innermost(report.stack)):
        yield f"it stood at {frame}" if depth == 0 else f"called by {frame}"


def _spinning(night: Night, episode: Episode) -> list[str]:
    rows = night.ask(_SAMPLES, list(episode.pods), episode.from_ms, episode.to_ms)
    util, active, power, count = rows[0]
    if not count or util is None:
        return []
    drew = "" if power is None else f" at {power:.0f} W"
    if util >= 90 and active is not None and active < 5:
        return [f"its GPUs said {util:.0f}% utilised but {active:g}% of their cores worked{drew}: a kernel spins"]
    return [f"its GPUs were {util:.0f}% utilised{drew}"]


def _when(night: Night, episode: Episode) -> str:
    if night.goes_on("hang", *episode):
        return f"since {night.time(episode.from_ms)}"
    return f"from {night.time(episode.from_ms)} to {night.time(episode.to_ms)}"


def _suggestion(verdict: _Verdict, *, alone: bool, goes_on: bool) -> str:
    begin = "Restart it from its last checkpoint"
    culprit = verdict.culprit
    if culprit is None:
        end = "the SDK's steps would tell which rank hangs, and where."
        if verdict.evidence:
            end = "look at what its ranks were doing: their stacks, and the links between them."
        return f"{begin}; {end}" if goes_on else f"Let a timeout end such hangs; {end}"
    node = culprit["node"]
    who = f"rank {culprit['rank']} was doing: its stack, the log of {node}" if "rank" in culprit else f"{node} does"
    look = f"look at what {who}."
    if goes_on:
        without = "" if alone else f" without {node}"
        return f"{begin}{without}; {look}"
    return f"Let a timeout end such hangs within minutes; {look}"
