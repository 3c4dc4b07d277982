"""`slow_checkpoint`: blocking saves that take much longer than the run's others, or a larger share than the fleet's.

Needs the SDK; samples of the nodes add how fast they wrote meanwhile.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from pyrometer.causes import _node_load
from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Proposal, Scope
from pyrometer.model.human import counted, duration, percent, rate
from pyrometer.model.states import CLAIMS
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE, MS_PER_SECOND

SLOWER = 1.5  # times the usual save
SLOWER_MS = 5 * MS_PER_SECOND
NOISE = 5  # times the usual difference between consecutive saves
SINGLE_SAVE_SLOWER = 3  # times the usual: a single long save is often a larger one, or the first
SINGLE_SAVE_SLOWER_MS = MS_PER_MINUTE
TWO_SLOWER = 5  # times the usual, or as slow as a single one must be: chance makes two long ones in a row
ENOUGH_USUAL = 2  # saves needed to know what is usual for a run
HIGH_SHARE, LOW_SHARE = 0.08, 0.02  # of a run's time: always slow, while others are below the low one
MIN_OTHER_RUNS = 3  # runs needed to know what is usual for the fleet
VERY_HIGH_SHARE = 0.20  # without a comparison
ENOUGH_SAVES = 3  # of a run that is always slow

# The saves of each run, as seen by the rank that spent the most time on them. A window with steps has one save;
# consecutive windows without steps are one save.
_SAVES = """
WITH piece AS MATERIALIZED (
    SELECT coalesce(workload_uid, holder_name.pod_uid) AS owner_uid, run, attempt, rank, time_ms, to_ms, steps,
        checkpoint_ms
    FROM step_window JOIN holder_name USING (pod_uid)
    WHERE checkpoint_ms > 0 AND to_ms > time_ms AND to_ms > $1 AND time_ms < $2
        AND list_contains($3, coalesce(workload_uid, holder_name.pod_uid))
),
speaks AS (
    SELECT owner_uid, run, arg_max(rank, (spent, -rank)) AS rank
    FROM (SELECT owner_uid, run, rank, sum(checkpoint_ms) AS spent FROM piece GROUP BY owner_uid, run, rank)
    GROUP BY owner_uid, run
),
numbered AS (
    SELECT *, sum(begins) OVER (PARTITION BY owner_uid, run ORDER BY time_ms) AS save
    FROM (
        SELECT piece.*, (steps > 0 OR coalesce(lag(steps) OVER in_time > 0, true)
            OR time_ms - lag(to_ms) OVER in_time > 1000)::INTEGER AS begins
        FROM piece SEMI JOIN speaks USING (owner_uid, run, rank)
        WINDOW in_time AS (PARTITION BY owner_uid, run ORDER BY time_ms)
    )
)
SELECT owner_uid, run, min(time_ms), max(to_ms), sum(checkpoint_ms)::BIGINT
FROM numbered GROUP BY owner_uid, run, save ORDER BY owner_uid, run, 3
"""


class _Save(NamedTuple):
    from_ms: int
    to_ms: int
    took_ms: int


class _SlowSaves(NamedTuple):
    """A stretch of slow saves of one run."""

    owner_uid: str
    run: str
    saves: list[_Save]  # the slow ones
    permille: int  # the excess over the usual, of all saving in the stretch
    usual_ms: int | None  # per save; None if the run is compared with others
    share: float  # of the run's time in the whole time range
    compared: str
    confidence: float
    detectable_ms: int | None

    @property
    def from_ms(self) -> int:
        return self.saves[0].from_ms

    @property
    def to_ms(self) -> int:
        return self.saves[-1].to_ms


def detect(evidence: Evidence) -> Iterable[Proposal]:
    """One finding for each stretch in which a run's saves were slow."""
    shares = _shares(evidence)
    suspects = [owner for owner, (saved_ms, _) in shares.items() if saved_ms >= evidence.settings.finding_min_ms]
    worth = evidence.worth("checkpoint") & frozenset(suspects)
    if not worth or not _slow_saves(evidence, sorted(worth), shares):
        return
    found = _slow_saves(evidence, suspects, shares)  # other runs were slow at the same time
    for slow in found:
        if slow.owner_uid in worth:
            with_it = {s.owner_uid for s in found if s.from_ms < slow.to_ms and s.to_ms > slow.from_ms}
            yield _proposal(evidence, slow, len(with_it) - 1)


def _slow_saves(evidence: Evidence, owners: list[str], shares: dict[str, tuple[int, float]]) -> list[_SlowSaves]:
    """The stretches in which runs of some workloads saved slowly."""
    runs: dict[tuple[str, str], list[_Save]] = defaultdict(list)
    for owner, run, *save in evidence.ask(_SAVES, evidence.window.from_ms - MS_PER_HOUR, evidence.window.to_ms, owners):
        runs[owner, run].append(_Save(*save))
    found: list[_SlowSaves] = []
    for (owner, run), saves in runs.items():
        slow = list(_slower_than_before(evidence, owner, run, saves, shares[owner][1]))
        found += slow or _slower_than_others(evidence, owner, run, saves, shares)
    return found


def _shares(evidence: Evidence) -> dict[str, tuple[int, float]]:
    """How long each workload saved, and the share of its stepping time that this was."""
    rows = evidence.ask(
        """
        SELECT coalesce(workload_uid, pod_uid), coalesce(sum(ms) FILTER (WHERE state = 'checkpoint'), 0), sum(ms)
        FROM burn JOIN holder_name USING (pod_uid)
        WHERE state IN ('train', 'evaluate', 'checkpoint', 'data_stall', 'straggler_wait', 'comm_stall')
            AND evidence & 4 > 0
        GROUP BY 1
        """
    )
    return {owner: (int(saved), saved / whole) for owner, saved, whole in rows}


def _slower_than_before(
    evidence: Evidence, owner: str, run: str, saves: list[_Save], share: float
) -> Iterator[_SlowSaves]:
    usual = _usual([save.took_ms for save in saves])
    if usual is None:
        return
    usual_ms, slow_ms = usual
    one_slow_ms = max(SINGLE_SAVE_SLOWER * usual_ms, usual_ms + SINGLE_SAVE_SLOWER_MS)
    episodes = list(_episodes(saves, slow_ms))
    alone = [episode for episode in episodes if len(episode) == 1]
    for episode in episodes:
        one = len(episode) == 1
        if one and len(alone) > 2:
            continue  # it saves more now and then by design
        if len(episode) == 2 and min(save.took_ms for save in episode) < min(TWO_SLOWER * usual_ms, one_slow_ms):
            continue
        if one and episode[0].took_ms < one_slow_ms:
            continue
        if episode[-1].to_ms <= evidence.window.from_ms:
            continue
        between = [s for s in saves if episode[0].from_ms <= s.from_ms <= episode[-1].from_ms]
        beyond_ms = sum(save.took_ms - usual_ms for save in episode)
        permille = round(1000 * beyond_ms / sum(save.took_ms for save in between))
        before = sum(save.to_ms <= episode[0].from_ms for save in saves)
        detectable_ms = _detectable_ms(episode, usual_ms, one_slow_ms) if before >= ENOUGH_USUAL else None
        yield _SlowSaves(
            owner_uid=owner,
            run=run,
            saves=episode,
            permille=permille,
            usual_ms=usual_ms,
            share=share,
            compared=f"usually {duration(usual_ms)}",
            confidence=0.9,
            detectable_ms=detectable_ms,
        )


def _detectable_ms(episode: list[_Save], usual_ms: int, one_slow_ms: int) -> int:
    """When the slow saves were detectable, by the rules above."""
    if len(episode) == 1:
        return episode[0].from_ms + one_slow_ms
    two = min(save.took_ms for save in episode[:2]) >= min(TWO_SLOWER * usual_ms, one_slow_ms)
    return episode[1 if two else 2].to_ms


def _usual(lengths: list[int]) -> tuple[int, int] | None:
    """The usual duration of a save and that of a slow one; None if too few are similar."""
    if len(lengths) <= ENOUGH_USUAL:
        return None
    low = sorted(lengths)[ENOUGH_USUAL - 1]
    alike = [length for length in lengths if length <= low + max((SLOWER - 1) * low, SLOWER_MS)]
    # Somewhat below the median: each slow save among few differs from two. Among very few, only those that are alike.
    differences = sorted(abs(a - b) for a, b in pairwise(lengths if len(lengths) > 4 else alike))
    noise = differences[2 * (len(differences) - 1) // 5]
    usual_ms = round(median(alike))
    return usual_ms, round(usual_ms + max((SLOWER - 1) * usual_ms, SLOWER_MS, NOISE * noise))


def _episodes(saves: list[_Save], slow_ms: int) -> Iterator[list[_Save]]:
    """Groups of slow saves with at most one normal save between them."""
    episode: list[_Save] = []
    usual_since = 0
    for save in saves:
        if save.took_ms > slow_ms:
            if episode and usual_since > 1:
                yield episode
                episode = []
            episode.append(save)
            usual_since = 0
        else:
            usual_since += 1
    if episode:
        yield episode


def _slower_than_others(
    evidence: Evidence, owner: str, run: str, saves: list[_Save], shares: dict[str, tuple[int, float]]
) -> Iterator[_SlowSaves]:
    share = shares[owner][1]
    saves = [save for save in saves if save.to_ms > evidence.window.from_ms]
    if share < HIGH_SHARE or len(saves) < ENOUGH_SAVES:
        return
    others = [other for name, (_, other) in shares.items() if name != owner]
    if len(others) >= MIN_OTHER_RUNS:
        usual = median(others)
        if usual >= LOW_SHARE:
            return
        compared, confidence = f"the median of {len(others)} other runs is {percent(round(usual * 1e6), 10**6)}", 0.75
    elif share >= VERY_HIGH_SHARE:
        usual, compared, confidence = LOW_SHARE, f"less than {percent(2, 100)} is usual", 0.5
    else:
        return
    usual = max(usual, LOW_SHARE / 2)
    permille = round(1000 * (1 - (usual / (1 - usual)) / (share / (1 - share)))) if share < 1 else 1000
    yield _SlowSaves(
        owner_uid=owner,
        run=run,
        saves=saves,
        permille=permille,
        usual_ms=None,
        share=share,
        compared=compared,
        confidence=confidence,
        detectable_ms=saves[ENOUGH_SAVES - 1].to_ms,
    )


def _proposal(evidence: Evidence, slow: _SlowSaves, others: int) -> Proposal:
    from_ms, to_ms = max(slow.from_ms, evidence.window.from_ms), min(slow.to_ms, evidence.window.to_ms)
    pods = evidence.ask(
        "SELECT pod_uid, min(time_ms), max(to_ms) FROM step_window "
        "WHERE run = $1 AND checkpoint_ms > 0 AND time_ms < $3 AND to_ms > $2 AND pod_uid IS NOT NULL "
        "GROUP BY pod_uid ORDER BY pod_uid",
        slow.run,
        slow.from_ms,
        slow.to_ms,
    )
    longest = max(save.took_ms for save in slow.saves)
    typical = round(median(save.took_ms for save in slow.saves))
    node_uids, slow_node_uid = _nodes(evidence, slow)
    node = evidence.node(slow_node_uid)
    if slow.usual_ms is None:
        headline = f"spent {round(100 * slow.share)}% of its time saving checkpoints, from {evidence.time(from_ms)}"
        reasons = [f"{counted(len(slow.saves), 'save')} of {duration(typical)} each", slow.compared]
    elif len(slow.saves) == 1:
        headline = f"took {duration(longest)} to save a checkpoint at {evidence.time(from_ms)}"
        reasons = [f"its ranks were blocked for {duration(longest)}, {slow.compared}"]
    else:
        headline = f"saved checkpoints slowly for {duration(to_ms - from_ms)}, from {evidence.time(from_ms)}"
        reasons = [f"{len(slow.saves)} saves blocked it for {duration(typical)} each, {slow.compared}"]
    reasons += _size(evidence, slow)
    if node:
        reasons.append(f"only the ranks on {node} were this slow")
    saves = [(save.from_ms, save.to_ms) for save in slow.saves]
    reasons += _node_load.saving(evidence, [slow_node_uid] if slow_node_uid else node_uids, saves)
    if others:
        reasons.append(f"{counted(others, 'other run')} saved slowly at the same time: they may share the storage")
    return Proposal(
        cause="slow_checkpoint",
        owner_uid=slow.owner_uid,
        from_ms=from_ms,
        to_ms=to_ms,
        states=CLAIMS["slow_checkpoint"],
        scope=tuple(Scope(pod, first_ms, last_ms, permille=slow.permille) for pod, first_ms, last_ms in pods),
        headline=headline,
        evidence=tuple(reasons),
        suggestion=(
            f"Check the disk and network of {node} and its path to the storage."
            if node
            else "Save asynchronously or less often, or let every rank write its own shard."
            if slow.usual_ms is None
            else "Check the storage it saves to (load, quota, other writers), or save asynchronously."
        ),
        culprit={"node": node} if node else None,
        confidence=slow.confidence,
        detectable_ms=slow.detectable_ms,
    )


def _nodes(evidence: Evidence, slow: _SlowSaves) -> tuple[list[str], str | None]:
    """The nodes that saved, and the one whose ranks save slowly, compared with their earlier saves or with others."""
    rows = evidence.ask(
        """
        SELECT node_uid, avg(checkpoint_ms) FILTER (WHERE during), avg(checkpoint_ms) FILTER (WHERE NOT during) FROM (
            SELECT node_uid, checkpoint_ms, time_ms < $3 AND to_ms > $2 AS during FROM step_window
            WHERE run = $1 AND checkpoint_ms > 0
        ) GROUP BY node_uid HAVING count(*) FILTER (WHERE during) > 0
        """,
        slow.run,
        slow.from_ms,
        slow.to_ms,
    )
    node_uids = sorted(node for node, _, _ in rows)
    if len(rows) < 2:
        return node_uids, None
    compare = slow.usual_ms is not None and all(before for _, _, before in rows)
    grown = sorted((float(during / before if compare else during), node) for node, during, before in rows)
    most, node_uid = grown[-1]
    rest = [value for value, _ in grown[:-1]]
    return node_uids, node_uid if most >= SLOWER * max(rest) else None


def _size(evidence: Evidence, slow: _SlowSaves) -> list[str]:
    """The size and the rate of the saves, if they report a size."""
    rows = evidence.ask(
        "SELECT arg_max(message, time_ms) FROM event WHERE kind = 'checkpoint_saved' AND run = $1 "
        "AND time_ms BETWEEN $2 - 60000 AND $3 + 60000 AND message IS NOT NULL",
        slow.run,
        slow.from_ms,
        slow.to_ms,
    )
    stated = re.search(r"(\d+(?:\.\d+)?)\s*([KMGT])i?B", rows[0][0] or "")
    if stated is None:
        return []
    mib = float(stated[1]) * {"K": 2**-10, "M": 1, "G": 2**10, "T": 2**20}[stated[2]]
    return [f"{stated[0]} per save, {rate(mib * 1000 / max(1, median(save.took_ms for save in slow.saves)))}"]
