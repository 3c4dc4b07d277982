"""`diverged`: training continued after its loss became NaN or infinite.

Needs the SDK, which sees every loss. The recorded batches add which samples came before. Without the SDK, see
`diverged_suspected`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Proposal, Scope
from pyrometer.model.human import counted, duration
from pyrometer.model.states import CLAIMS
from pyrometer.model.units import MS_PER_HOUR

MAX_SAMPLES = 5
MAX_RANKS = 2


def detect(evidence: Evidence) -> Iterable[Proposal]:
    """One finding for each stretch of training with a non-finite loss."""
    for episode in evidence.episodes("diverged"):
        where = evidence.ask(
            "SELECT DISTINCT event.run, event.attempt, event.rank, event.step "
            "FROM event JOIN the_run USING (run, attempt) "
            "WHERE event.kind = 'nonfinite_loss' AND list_contains($1, the_run.pod_uid) "
            "AND event.time_ms BETWEEN $2 - 5000 AND $3 "
            "QUALIFY event.step IS NOT DISTINCT FROM min(event.step) OVER () ORDER BY ALL",
            list(episode.pods),
            episode.from_ms,
            episode.to_ms,
        )
        first = where[0][3] if where else None
        alone = len(where) == 1 and _later_ranks(evidence, *where[0][:2])
        at_step = ("" if first is None else f" at step {first:,}") + (f" on rank {where[0][2]} alone" if alone else "")
        yield Proposal(
            cause="diverged",
            owner_uid=episode.owner_uid,
            from_ms=episode.from_ms,
            to_ms=episode.to_ms,
            states=CLAIMS["diverged"],
            scope=tuple(Scope(pod, episode.from_ms, episode.to_ms) for pod in episode.pods),
            headline=(
                f"trained for {duration(episode.to_ms - episode.from_ms)} after its loss became non-finite, "
                f"since {evidence.time(episode.from_ms)}"
            ),
            evidence=(f"its loss became NaN or infinite{at_step}", *_batches(evidence, where)),
            suggestion=(
                (
                    "Stop it and go"
                    if evidence.is_ongoing("diverged", *episode)
                    else "Make it stop at the first NaN and go"
                )
                + " back to an earlier checkpoint, "
                + ("without those samples." if alone else "with a lower learning rate or clipped gradients.")
            ),
            confidence=0.95,
            detectable_ms=episode.from_ms,  # reported by the first step with a non-finite loss
        )


def _later_ranks(evidence: Evidence, run: str, attempt: int) -> bool:
    """Whether other ranks reported a non-finite loss at a later step.

    This means nothing if only one rank reports its loss.
    """
    ((ranks,),) = evidence.ask(
        "SELECT count(DISTINCT rank) FROM event WHERE kind = 'nonfinite_loss' AND run = $1 AND attempt = $2",
        run,
        attempt,
    )
    return bool(ranks > 1)


def _batches(evidence: Evidence, where: list[tuple[Any, ...]]) -> Iterator[str]:
    """The batches of the first step with a non-finite loss, for the ranks that reported it."""
    if not where or where[0][3] is None or not evidence.has("batch"):
        return
    # the time of a batch is when it was drawn, and data loaders draw ahead
    evidence.store.expose(["batch"], evidence.window.from_ms - MS_PER_HOUR, evidence.window.to_ms)
    run, attempt, _, step = where[0]
    rows = evidence.ask(
        "SELECT rank, flatten(list(coalesce(samples, rows::VARCHAR[]) ORDER BY micro_batch, loader)), "
        "any_value(dataset) FROM batch WHERE run = $1 AND attempt = $2 AND step = $3 AND list_contains($4, rank) "
        "AND coalesce(samples, rows::VARCHAR[]) IS NOT NULL GROUP BY rank ORDER BY rank",
        run,
        attempt,
        step,
        [rank for *_, rank, _ in where],
    )
    for rank, samples, dataset in rows[:MAX_RANKS]:
        more = ", …" if len(samples) > MAX_SAMPLES else ""
        of = f" of {dataset}" if dataset else ""
        yield f"step {step:,}: samples {', '.join(samples[:MAX_SAMPLES])}{more}{of} on rank {rank}"
    if len(rows) > MAX_RANKS:
        yield f"and the samples of {counted(len(rows) - MAX_RANKS, 'other rank')}"
