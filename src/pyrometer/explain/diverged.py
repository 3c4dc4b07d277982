"""`diverged`: training that went on after its loss had become NaN or infinite.

Needs the SDK, which sees every loss; its batches add which samples came before. Without it, see `diverged_suspected`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyrometer.explain.findings import Proposal, Scope
from pyrometer.explain.night import Night
from pyrometer.model.human import counted, duration
from pyrometer.model.states import CLAIMS
from pyrometer.model.units import MS_PER_HOUR

MOST_SAMPLES = 5
MOST_RANKS = 2


def detect(night: Night) -> Iterable[Proposal]:
    """One finding for each stretch of training on a loss that is no number."""
    for episode in night.episodes("diverged"):
        where = night.ask(
            "SELECT DISTINCT event.run, event.attempt, event.rank, event.step "
            "FROM event JOIN the_run USING (run, attempt) "
            "WHERE event.kind = 'nonfinite_loss' AND list_contains($1, the_run.pod_uid) "
            "AND event.time_ms BETWEEN $2 - 5000 AND $3 "
            "QUALIFY event.step IS NOT DISTINCT FROM min(event.step) OVER () ORDER BY ALL",
            list(episode.pods), episode.from_ms, episode.to_ms,
        )  # fmt: skip
        first = where[0][3] if where else None
        alone = len(where) == 1 and _others_later(night, *where[0][:2])
        at_step = ("" if first is None else f" at step {first:,}") + (f" on rank {where[0][2]} alone" if alone else "")
        yield Proposal(
            cause="diverged",
            owner_uid=episode.owner_uid,
            from_ms=episode.from_ms,
            to_ms=episode.to_ms,
            states=CLAIMS["diverged"],
            scope=tuple(Scope(pod, episode.from_ms, episode.to_ms) for pod in episode.pods),
            headline=(
                f"trained on for {duration(episode.to_ms - episode.from_ms)} after its loss was no longer a number, "
                f"since {night.time(episode.from_ms)}"
            ),
            evidence=(f"its loss became NaN or infinite{at_step}", *_batches(night, where)),
            suggestion=(
                ("Stop it; go" if night.goes_on("diverged", *episode) else "Let it stop at the first NaN; go")
                + " back to a checkpoint from before, "
                + ("without those samples." if alone else "with a lower learning rate or clipped gradients.")
            ),
            confidence=0.95,
            known_ms=episode.from_ms,  # the first step without a number says so
        )


def _others_later(night: Night, run: str, attempt: int) -> bool:
    """Whether other ranks said the same, at a later step: where only one looks at its loss, that means nothing."""
    ((ranks,),) = night.ask(
        "SELECT count(DISTINCT rank) FROM event WHERE kind = 'nonfinite_loss' AND run = $1 AND attempt = $2",
        run,
        attempt,
    )
    return bool(ranks > 1)


def _batches(night: Night, where: list[tuple[Any, ...]]) -> Iterator[str]:
    """The data behind the first step without a number, of the ranks that said so."""
    if not where or where[0][3] is None or not night.has("batch"):
        return
    # a batch has the time at which it was drawn, and loaders draw ahead
    night.store.expose(["batch"], night.window.from_ms - MS_PER_HOUR, night.window.to_ms)
    run, attempt, _, step = where[0]
    rows = night.ask(
        "SELECT rank, flatten(list(coalesce(samples, rows::VARCHAR[]) ORDER BY micro_batch, loader)), "
        "any_value(dataset) FROM batch WHERE run = $1 AND attempt = $2 AND step = $3 AND list_contains($4, rank) "
        "AND coalesce(samples, rows::VARCHAR[]) IS NOT NULL GROUP BY rank ORDER BY rank",
        run, attempt, step, [rank for *_, rank, _ in where],
    )  # fmt: skip
    for rank, samples, dataset in rows[:MOST_RANKS]:
        more = ", …" if len(samples) > MOST_SAMPLES else ""
        of = f" of {dataset}" if dataset else ""
        yield f"step {step:,}: samples {', '.join(samples[:MOST_SAMPLES])}{more}{of} on rank {rank}"
    if len(rows) > MOST_RANKS:
        yield f"and those of {counted(len(rows) - MOST_RANKS, 'other rank')}"
