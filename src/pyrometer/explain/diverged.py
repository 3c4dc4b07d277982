"""`diverged`: training that went on after its loss had become NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterable

from pyrometer.explain.findings import Proposal, Scope
from pyrometer.explain.night import Night
from pyrometer.explain.words import duration
from pyrometer.model.states import CLAIMS


def detect(night: Night) -> Iterable[Proposal]:
    """One finding for each stretch of training on a loss that is no number."""
    for episode in night.episodes("diverged"):
        first = night.ask(
            "SELECT min(event.step) FROM event JOIN the_run USING (run, attempt) "
            "WHERE event.kind = 'nonfinite_loss' AND list_contains($1, the_run.pod_uid) "
            "AND event.time_ms BETWEEN $2 - 5000 AND $3",
            list(episode.pods), episode.from_ms, episode.to_ms,
        )[0][0]  # fmt: skip
        at_step = "" if first is None else f" at step {first:,}"
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
            evidence=(f"its loss became NaN or infinite{at_step}",),
            suggestion=(
                ("Stop it; go" if night.goes_on(episode.to_ms) else "Let it stop at the first NaN; go")
                + " back to a checkpoint from before, with a lower learning rate or clipped gradients."
            ),
            confidence=0.95,
        )
