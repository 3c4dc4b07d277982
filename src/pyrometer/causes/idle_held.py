"""`idle_held`: GPUs are allocated and nothing runs on them, as in forgotten notebooks and finished jobs.

Needs GPU telemetry, or the SDK for a program that has left its training loop. Kubernetes adds the pod and its user.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pyrometer.findings.episodes import Episode
from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Proposal, Scope
from pyrometer.model.human import counted, duration, listed
from pyrometer.model.states import CLAIMS


def detect(evidence: Evidence) -> Iterable[Proposal]:
    """One finding for each stretch in which the GPUs of a workload were idle."""
    for episode in evidence.episodes("idle_held"):
        names = evidence.pod_names(episode.pods)
        users = evidence.ask(
            'SELECT DISTINCT "user" FROM holder_name WHERE list_contains($1, pod_uid) AND "user" IS NOT NULL',
            list(episode.pods),
        )
        stated = _last_reports(evidence, episode)
        culprit = {"pod": names[0]} if len(names) == 1 else None
        if len(users) == 1:
            culprit = (culprit or {}) | {"user": users[0][0]}
        yield Proposal(
            cause="idle_held",
            owner_uid=episode.owner_uid,
            from_ms=episode.from_ms,
            to_ms=episode.to_ms,
            states=CLAIMS["idle_held"],
            scope=tuple(Scope(pod, episode.from_ms, episode.to_ms) for pod in episode.pods),
            headline=(
                f"held idle GPUs for {duration(episode.to_ms - episode.from_ms)}, "
                f"since {evidence.time(episode.from_ms)}"
            ),
            evidence=(*_seen(evidence, episode, names, users[0][0] if len(users) == 1 else None), *stated.evidence),
            suggestion="Delete it or set a time limit. Idle notebooks can be culled automatically.",
            culprit=culprit,
            confidence=0.9,
            detectable_ms=episode.from_ms + stated.after_ms,
        )


class _LastReports(NamedTuple):
    """The end that the program reported, and the delay until it counts as idle."""

    after_ms: int
    evidence: tuple[str, ...] = ()


def _last_reports(evidence: Evidence, episode: Episode) -> _LastReports:
    left = evidence.ask(
        "SELECT event.kind, event.step FROM event JOIN the_run USING (run, attempt, rank) "
        "WHERE event.kind = 'loop_ended' AND list_contains($1, the_run.pod_uid) "
        "AND event.time_ms BETWEEN $2 - 60000 AND $3",
        list(episode.pods),
        episode.from_ms,
        episode.to_ms,
    )
    ended = [
        rank
        for rank in evidence.ranks(episode.pods, 0, episode.to_ms)
        if rank.ended_ms and rank.ended_ms <= episode.from_ms + 60_000
    ]
    if left:
        step = "" if left[0][1] is None else f" after step {left[0][1]:,}"
        return _LastReports(evidence.settings.hang_limit_ms, (f"the program had left its training loop{step}",))
    if ended:
        return _LastReports(0, (f"its training ended at {evidence.time(max(rank.ended_ms or 0 for rank in ended))}",))
    return _LastReports(evidence.settings.idle_gap_ms)


def _seen(evidence: Evidence, episode: Episode, names: list[str], user: str | None) -> Iterable[str]:
    slots = evidence.ask(
        "SELECT count(DISTINCT (node_uid, slot_index)) FROM owner_ledger "
        "WHERE state = 'idle_held' AND list_contains($1, pod_uid) AND minute_ms > $2 - 60000 AND minute_ms < $3",
        list(episode.pods),
        episode.from_ms,
        episode.to_ms,
    )[0][0]
    by = f" (user {user})" if user else ""
    yield f"{counted(slots, 'GPU')} of {listed(names)}{by} showed no activity"
