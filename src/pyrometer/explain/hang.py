"""`hang`: processes alive, no progress. The culprit is the rank that fell silent first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyrometer.explain.findings import Proposal, Scope
from pyrometer.explain.night import Episode, Night
from pyrometer.explain.words import counted, duration
from pyrometer.model.states import CLAIMS


def detect(night: Night) -> Iterable[Proposal]:
    """One finding for each stretch in which a workload hung."""
    for episode in night.episodes("hang"):
        culprit, evidence = _stuck_rank(night, episode)
        evidence += _spinning(night, episode)
        yield Proposal(
            cause="hang",
            owner_uid=episode.owner_uid,
            from_ms=episode.from_ms,
            to_ms=episode.to_ms,
            states=CLAIMS["hang"],
            scope=tuple(Scope(pod, episode.from_ms, episode.to_ms) for pod in episode.pods),
            headline=f"hung for {duration(episode.to_ms - episode.from_ms)}, {_when(night, episode)}",
            evidence=tuple(evidence) or ("its processes were alive and did nothing",),
            suggestion=_suggestion(culprit, alone=len(episode.pods) == 1, goes_on=night.goes_on(episode.to_ms)),
            culprit=culprit,
            confidence=0.95 if culprit else 0.8,
        )


def _stuck_rank(night: Night, episode: Episode) -> tuple[dict[str, Any] | None, list[str]]:
    ranks = night.ranks(episode.pods, episode.from_ms, episode.to_ms)
    reports = night.ask(
        "SELECT event.rank, event.step, event.time_ms, event.reason FROM event "
        "JOIN the_run USING (run, attempt, rank) "
        "WHERE event.kind = 'stuck' AND list_contains($1, the_run.pod_uid) AND event.time_ms BETWEEN $2 AND $3 "
        "ORDER BY event.step NULLS LAST, event.time_ms, event.rank",
        list(episode.pods), episode.from_ms - 5_000, episode.to_ms,
    )  # fmt: skip
    if not reports:
        return None, []
    reported = {rank for rank, *_ in reports}
    silent = [rank for rank in ranks if rank.rank not in reported]
    if silent and len(silent) < len(ranks) / 2:
        who, said = (
            silent[0],
            f"rank {silent[0].rank} fell silent while {counted(len(reported), 'other rank')} reported",
        )
    else:
        rank, step, at_ms, phase = reports[0]
        who = next(r for r in ranks if r.rank == rank)
        after = "" if step is None else f" after step {step:,}"
        doing = f" in {phase}" if phase else ""
        said = f"rank {rank} made no progress{after}{doing}, from {night.time(at_ms)} on"
    evidence = [said]
    if len(ranks) > 1:
        waited, others = len(reported - {who.rank}), len(ranks) - 1
        who_else = "" if waited == others else f"{waited} of "
        evidence.append(f"{who_else}the other {counted(others, 'rank')} waited for it")
    return {"rank": who.rank, "node": night.node(who.node_uid), "gpu": who.slot_index}, evidence


def _spinning(night: Night, episode: Episode) -> list[str]:
    rows = night.ask(
        "SELECT median(gpu_util_permille) / 10, round(median(sm_active_permille) / 10, 1), median(power_w), count(*) "
        "FROM gpu_sample "
        "JOIN (SELECT DISTINCT node_uid, slot_index FROM night_ledger WHERE list_contains($1, pod_uid)) "
        "USING (node_uid, slot_index) WHERE time_ms BETWEEN $2 AND $3",
        list(episode.pods), episode.from_ms, episode.to_ms,
    )  # fmt: skip
    util, active, power, count = rows[0]
    if not count or util is None:
        return []
    drew = "" if power is None else f" at {power:.0f} W"
    if util >= 90 and active is not None and active < 5:
        return [f"its GPUs said {util:.0f} % utilised but {active:g} % of their cores worked{drew}: a kernel spins"]
    return [f"its GPUs were {util:.0f} % utilised{drew}"]


def _when(night: Night, episode: Episode) -> str:
    if night.goes_on(episode.to_ms):
        return f"since {night.time(episode.from_ms)}"
    return f"from {night.time(episode.from_ms)} to {night.time(episode.to_ms)}"


def _suggestion(culprit: dict[str, Any] | None, *, alone: bool, goes_on: bool) -> str:
    begin = "Restart it from its last checkpoint"
    if culprit is None:
        end = "the SDK's steps would tell which rank hangs, and where."
        return f"{begin}; {end}" if goes_on else f"Let a timeout end such hangs; {end}"
    look = f"look at what rank {culprit['rank']} was doing: its stack, the log of {culprit['node']}."
    if goes_on:
        without = "" if alone else f" without {culprit['node']}"
        return f"{begin}{without}; {look}"
    return f"Let a timeout end such hangs within minutes; {look}"
