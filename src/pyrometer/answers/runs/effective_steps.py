"""The history of a run: its attempts, the steps whose updates are in its model, and its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pyrometer.model.events import CHECKPOINT_SAVED, RESTORED
from pyrometer.store import StoreReader

ALL_STEPS = (-(2**62), 2**62)


class RunPart(NamedTuple):
    """The steps of an attempt that are in a model, from `from_step` up to but excluding `to_step`."""

    attempt: int
    from_step: int
    to_step: int | None  # None: up to its last step


class SavedCheckpoint(NamedTuple):
    """A saved model with the updates of the steps before `step`."""

    attempt: int
    step: int
    saved_ms: int
    duration_ms: int | None


class RunHistory(NamedTuple):
    """The attempts of a run that did steps, each with its first step, and the saved checkpoints."""

    begins: dict[int, int]
    checkpoints: tuple[SavedCheckpoint, ...]

    def line(self, attempt: int | None = None, before_step: int | None = None) -> Iterator[RunPart]:
        """The parts of the model of an attempt (None: the last one), newest first.

        An attempt counts from its first step. Earlier steps belong to the attempt that saved the checkpoint that it
        loaded, and so on.
        """
        bound = before_step
        number = max((one for one in self.begins if attempt is None or one <= attempt), default=None)
        while number is not None:
            begin = self.begins[number]
            if bound is None or begin < bound:
                yield RunPart(number, begin, bound)
                bound = begin
            number = self._before(number, bound)

    def _before(self, attempt: int, step: int) -> int | None:
        """The attempt whose model an attempt continued: the one with the newest checkpoint of that step, or the
        previous one."""
        saved = [one.attempt for one in self.checkpoints if one.step == step and one.attempt < attempt]
        return max(
            [one for one in saved if one in self.begins] or [one for one in self.begins if one < attempt], default=None
        )

    def counts(self, attempt: int, step: int) -> bool:
        """Whether the update of an attempt is in the newest model: no later attempt repeated the step."""
        return any(_within(part, attempt, step) for part in self.line())

    def containing(self, attempt: int, step: int) -> list[SavedCheckpoint]:
        """The checkpoints that hold the update that an attempt made at a step, oldest first."""
        return [
            saved
            for saved in self.checkpoints
            if any(_within(part, attempt, step) for part in self.line(saved.attempt, saved.step))
        ]


def _within(part: RunPart, attempt: int, step: int) -> bool:
    return part.attempt == attempt and step >= part.from_step and (part.to_step is None or step < part.to_step)


def history_of(store: StoreReader, run: str) -> RunHistory:
    """The history of a run, from everything that its ranks reported, for any time range."""
    store.expose_all(("run", "event"))
    store.expose(("step_window", "batch"), *ALL_STEPS, suffix="_ever")
    begins = store.connection.execute(
        f"""
        WITH stated AS (
            SELECT attempt, min(resumed_step) AS step FROM run WHERE run = $1 GROUP BY attempt
            UNION ALL SELECT attempt, min(step) FROM event WHERE run = $1 AND kind = '{RESTORED}' GROUP BY attempt
        ), did AS (
            SELECT attempt, min(first_step) AS step FROM step_window_ever WHERE run = $1 AND steps > 0 GROUP BY attempt
            UNION ALL SELECT attempt, min(step) FROM batch_ever WHERE run = $1 GROUP BY attempt
        )
        SELECT attempt, coalesce(min(stated.step), min(did.step))
        FROM did LEFT JOIN stated USING (attempt) GROUP BY attempt
        HAVING min(did.step) IS NOT NULL ORDER BY attempt
        """,
        [run],
    ).fetchall()
    saved = store.connection.execute(
        f"""
        SELECT attempt, step, max(time_ms), max(duration_ms) FROM event
        WHERE run = $1 AND kind = '{CHECKPOINT_SAVED}' AND step IS NOT NULL AND attempt IS NOT NULL
        GROUP BY ALL ORDER BY 3, 1, 2
        """,
        [run],
    ).fetchall()
    return RunHistory(dict(begins), tuple(SavedCheckpoint(*row) for row in saved))
