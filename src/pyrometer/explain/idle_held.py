"""`idle_held`: allocated, and nothing runs. Forgotten notebooks, finished jobs, sleepers.

Needs GPU telemetry, or the SDK for a program that has left its training loop; Kubernetes adds the pod and its user.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pyrometer.explain.episodes import Episode
from pyrometer.explain.findings import Proposal, Scope
from pyrometer.explain.night import Night
from pyrometer.model.human import counted, duration, listed
from pyrometer.model.states import CLAIMS


def detect(night: Night) -> Iterable[Proposal]:
    """One finding for each stretch in which a workload's GPUs lay idle."""
    for episode in night.episodes("idle_held"):
        names = night.pod_names(episode.pods)
        users = night.ask(
            'SELECT DISTINCT "user" FROM holder_name WHERE list_contains($1, pod_uid) AND "user" IS NOT NULL',
            list(episode.pods),
        )
        said = _said(night, episode)
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
                f"held idle GPUs for {duration(episode.to_ms - episode.from_ms)}, since {night.time(episode.from_ms)}"
            ),
            evidence=(*_seen(night, episode, names, users[0][0] if len(users) == 1 else None), *said.evidence),
            suggestion="Delete it, or give it a time limit; a notebook can be culled when idle.",
            culprit=culprit,
            confidence=0.9,
            known_ms=episode.from_ms + said.after_ms,
        )


class _Said(NamedTuple):
    """What the program said of its end, and how long after it; telemetry alone tells a pause from the end by time."""

    after_ms: int
    evidence: tuple[str, ...] = ()


def _said(night: Night, episode: Episode) -> _Said:
    left = night.ask(
        "SELECT event.kind, event.step FROM event JOIN the_run USING (run, attempt, rank) "
        "WHERE event.kind = 'loop_ended' AND list_contains($1, the_run.pod_uid) "
        "AND event.time_ms BETWEEN $2 - 60000 AND $3",
        list(episode.pods), episode.from_ms, episode.to_ms,
    )  # fmt: skip
    ended = [
        rank
        for rank in night.ranks(episode.pods, 0, episode.to_ms)
        if rank.ended_ms and rank.ended_ms <= episode.from_ms + 60_000
    ]
    if left:
        step = "" if left[0][1] is None else f" after step {left[0][1]:,}"
        return _Said(night.settings.hang_limit_ms, (f"the program had left its training loop{step}",))
    if ended:
        return _Said(0, (f"its training had ended at {night.time(max(rank.ended_ms or 0 for rank in ended))}",))
    return _Said(night.settings.idle_gap_ms)


def _seen(night: Night, episode: Episode, names: list[str], user: str | None) -> Iterable[str]:
    slots = night.ask(
        "SELECT count(DISTINCT (node_uid, slot_index)) FROM night_ledger "
        "WHERE state = 'idle_held' AND list_contains($1, pod_uid) AND minute_ms > $2 - 60000 AND minute_ms < $3",
        list(episode.pods), episode.from_ms, episode.to_ms,
    )[0][0]  # fmt: skip
    by = f" (user {user})" if user else ""
    yield f"{counted(slots, 'GPU')} of {listed(names)}{by} showed no activity"
