"""`hang`: processes are alive and make no progress.

The culprit is the rank that stopped reporting, or the one furthest behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pyrometer.causes._stacks import innermost
from pyrometer.findings.episodes import Episode
from pyrometer.findings.evidence import Evidence, RankPlacement
from pyrometer.findings.proposals import Proposal, Scope
from pyrometer.model.human import counted, duration, listed
from pyrometer.model.states import CLAIMS

# The order of phases in a step. Between two steps programs save, evaluate and collect garbage: the last step is
# finished and the next has not begun.
_ORDER = {
    "startup": 0,
    "checkpoint": 1,
    "evaluate": 1,
    "garbage": 1,
    "other": 1,
    "data": 2,
    "copy": 3,
    "compile": 4,
    "forward": 4,
    "backward": 5,
    "comm": 6,
    "sync": 6,
    "optimizer": 7,
}
# How long a rank may make no progress in a phase, as in the SDK; in other phases, ten times its longest steps.
STUCK_AFTER_STEPS = 10
LIMITS_MS = {"startup": 1_800_000, "compile": 1_800_000, "checkpoint": 900_000, "evaluate": 300_000}
_WAITS = ("comm", "sync")
_STOPPED = "stopped by "


# The samples of the slots that hung, while they hung.
_SAMPLES = """
WITH whole_minute AS (
    SELECT DISTINCT node_uid, slot_index, minute_ms FROM owner_ledger
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
    """The last report of a stuck rank: the last step it finished, its phase and its stack."""

    rank: int
    step: int | None
    at_ms: int
    phase: str | None
    stack: str
    stands: bool  # it did not report progress afterwards

    @property
    def behind(self) -> tuple[int, int, int]:
        """The lowest rank is the one that the others wait for. A stopped process comes before its equals."""
        step = 2**62 if self.step is None else self.step
        return step, _ORDER.get(self.phase or "", 8), 0 if _STOPPED in self.stack else 1


class _Verdict(NamedTuple):
    """The culprit, if one can be identified, with its evidence."""

    culprit: dict[str, Any] | None = None
    evidence: tuple[str, ...] = ()
    confidence: float = 0.8


def detect(evidence: Evidence) -> Iterable[Proposal]:
    """One finding for each stretch in which a workload hung."""
    for episode in evidence.episodes("hang"):
        ranks, reports = _reports(evidence, episode)
        verdict = _judged(evidence, ranks, reports)
        reasons = [*verdict.evidence, *_spinning(evidence, episode)]
        yield Proposal(
            cause="hang",
            owner_uid=episode.owner_uid,
            from_ms=episode.from_ms,
            to_ms=episode.to_ms,
            states=CLAIMS["hang"],
            scope=tuple(Scope(pod, episode.from_ms, episode.to_ms) for pod in episode.pods),
            headline=f"hung for {duration(episode.to_ms - episode.from_ms)}, {_when(evidence, episode)}",
            evidence=tuple(reasons) or ("its processes were alive and made no progress",),
            suggestion=_suggestion(
                verdict, alone=_on_one_node(evidence, episode), is_ongoing=evidence.is_ongoing("hang", *episode)
            ),
            culprit=verdict.culprit,
            confidence=verdict.confidence,
            detectable_ms=episode.from_ms + _limit_ms(evidence, episode, reports),
        )


def _limit_ms(evidence: Evidence, episode: Episode, reports: Sequence[_Report]) -> int:
    """How long a rank makes no progress before it reports that it is stuck.

    The SDK waits for ten times the longest steps; some phases may take longer than any step.
    """
    longest_step_us = evidence.ask(
        "SELECT quantile_disc(step_max_us, 0.9) FROM step_window "
        "WHERE list_contains($1, pod_uid) AND steps > 0 AND to_ms <= $2 + 5000",
        list(episode.pods),
        episode.from_ms,
    )[0][0]
    steps_ms = STUCK_AFTER_STEPS * (longest_step_us or 0) // 1000 if reports else 0
    own_ms = min((LIMITS_MS.get(report.phase or "", 0) for report in reports), default=0)
    return max(evidence.settings.hang_limit_ms, steps_ms, own_ms)


def _on_one_node(evidence: Evidence, episode: Episode) -> bool:
    nodes = evidence.ask(
        "SELECT DISTINCT node_uid FROM owner_ledger WHERE list_contains($1, pod_uid)", list(episode.pods)
    )
    return len({evidence.node(uid) for (uid,) in nodes}) == 1


def _judged(evidence: Evidence, ranks: list[RankPlacement], reports: list[_Report]) -> _Verdict:
    """The rank that stopped reporting while most others continued, or the rank furthest behind.

    If several ranks are equally far behind, their node is named if they share one.
    """
    if not reports:
        return _Verdict()
    there, reported = {rank.rank for rank in ranks}, {report.rank for report in reports}
    silent = sorted(there - reported)
    if silent and len(silent) < len(ranks) / 2:
        stated = f"{_named(silent)} stopped reporting while {counted(len(reported), 'other rank')} continued"
        return _blamed(
            evidence, [rank for rank in ranks if rank.rank in silent], None, (stated, _where(reports, silent))
        )
    standing = [report for report in reports if report.stands] or reports
    min_value = min(report.behind for report in standing)
    last = [report for report in standing if report.behind == min_value]
    if len(last) == len(reports) > 1:
        stated = f"{counted(len(last), 'rank')} made no progress{_doing(last[0])}: none is behind the others"
        return _Verdict(None, (stated,))
    first = min(last, key=lambda report: (report.at_ms, report.rank))
    blamed = [report.rank for report in last]
    reasons = [f"{_named(blamed)} made no progress{_doing(first)}, from {evidence.time(first.at_ms)}"]
    reasons += [_where(reports, blamed)] if len(reports) > 1 else []
    reasons += _stood(first) if len(last) == 1 else ()
    return _blamed(evidence, [rank for rank in ranks if rank.rank in blamed], first.phase, tuple(reasons))


def _reports(evidence: Evidence, episode: Episode) -> tuple[list[RankPlacement], list[_Report]]:
    """The ranks of the attempt that hung, and the last report of each stuck rank."""
    rows = evidence.ask(
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
        list(episode.pods),
        episode.from_ms - 5_000,
        episode.to_ms,
    )
    of = rows[0][:2] if rows else None
    ranks = [
        rank for rank in evidence.ranks(episode.pods, episode.from_ms, episode.to_ms) if (rank.run, rank.attempt) == of
    ]
    reports = [
        _Report(rank=rank, step=step, at_ms=at_ms, phase=phase, stack=stack or "", stands=stands)
        for run, attempt, rank, step, at_ms, phase, stack, stands in rows
        if (run, attempt) == of
    ]
    there = {rank.rank for rank in ranks}
    return ranks, [report for report in reports if report.rank in there]


def _blamed(evidence: Evidence, ranks: list[RankPlacement], phase: str | None, reasons: tuple[str, ...]) -> _Verdict:
    """A single rank is named with its GPU, several ranks with the node that they share."""
    nodes = {rank.node_uid for rank in ranks}
    if len(ranks) == 1:
        (who,) = ranks
        culprit = {"rank": who.rank, "node": evidence.node(who.node_uid), "gpu": who.slot_index}
        return _Verdict(culprit | ({"phase": phase} if phase else {}), reasons, 0.95)
    if len(nodes) == 1:
        return _Verdict({"node": evidence.node(nodes.pop())}, reasons, 0.85)
    return _Verdict(None, reasons)


def _where(reports: list[_Report], blamed: Sequence[int]) -> str:
    """The phase of every rank, the blamed ranks first: "rank 2 in data; 3 others wait in gradient synchronization"."""
    by_phase: dict[tuple[bool, str], list[int]] = {}
    for report in reports:
        name = "comm" if report.phase in _WAITS else report.phase or ""
        by_phase.setdefault((report.rank not in blamed, name), []).append(report.rank)
    parts = []
    for (other, phase), ranks in sorted(by_phase.items(), key=lambda group: (group[0][0], -len(group[1]))):
        one = len(ranks) == 1
        who = _named(ranks) if not other or one else f"{len(ranks)} others"
        waits = "waits" if one else "wait"
        does = {"comm": f"{waits} in gradient synchronization", "": f"{waits} for it", "other": "between steps"}.get(
            phase, f"in {phase}"
        )
        parts += [f"{who} {does}"] if other or phase else []
    return "; ".join(parts)


def _named(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {listed([str(rank) for rank in ranks])}"


def _doing(report: _Report) -> str:
    after = "" if report.step is None else f" after step {report.step:,}"
    if report.phase == "other":
        return f"{after}, between steps"
    return after + (f" in {report.phase}" if report.phase else "")


def _stood(report: _Report) -> Iterator[str]:
    """The innermost lines of its stack."""
    if report.stack.startswith(_STOPPED):
        yield f"it was {report.stack.splitlines()[0][:100]}"
    for depth, frame in enumerate(innermost(report.stack)):
        yield f"it was at {frame}" if depth == 0 else f"called by {frame}"


def _spinning(evidence: Evidence, episode: Episode) -> list[str]:
    rows = evidence.ask(_SAMPLES, list(episode.pods), episode.from_ms, episode.to_ms)
    util, active, power, count = rows[0]
    if not count or util is None:
        return []
    drew = "" if power is None else f" at {power:.0f} W"
    if util >= 90 and active is not None and active < 5:
        return [
            f"its GPUs reported {util:.0f}% utilization but only {active:g}% of their SMs were active{drew}: "
            "a spinning kernel"
        ]
    return [f"its GPUs were {util:.0f}% utilized{drew}"]


def _when(evidence: Evidence, episode: Episode) -> str:
    if evidence.is_ongoing("hang", *episode):
        return f"since {evidence.time(episode.from_ms)}"
    return f"from {evidence.time(episode.from_ms)} to {evidence.time(episode.to_ms)}"


def _suggestion(verdict: _Verdict, *, alone: bool, is_ongoing: bool) -> str:
    restart = "Restart it from its last checkpoint"
    culprit = verdict.culprit
    if culprit is None:
        check = "The SDK would report which rank hangs, and where."
        if verdict.evidence:
            check = "Check the stacks of its ranks and the links between them."
        return f"{restart}. {check}" if is_ongoing else f"Set a timeout that ends such hangs. {check}"
    node = culprit["node"]
    check = (
        f"Check the stack of rank {culprit['rank']} and the log of {node}." if "rank" in culprit else f"Check {node}."
    )
    if is_ongoing:
        without = "" if alone else f" without {node}"
        return f"{restart}{without}. {check}"
    return f"Set a timeout that ends such hangs within minutes. {check}"
