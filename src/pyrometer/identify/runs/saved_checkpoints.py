"""Checkpoints that the attempts of a run saved, and the step from which a rank resumed."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from pyrometer.identify.runs.launches import RankState

MAX_PATHS = 1_000  # of checkpoints of one run: the newest, from which an attempt may resume


class SavedCheckpoints:
    """The newest checkpoints of each run."""

    def __init__(self) -> None:
        self._saved: dict[str, dict[str, dict[int, tuple[int, int]]]] = {}  # run, path, attempt: time and step

    def add(self, run: str, attempt: int, path: str, time_ms: int, step: int) -> None:
        """Adds a checkpoint that an attempt saved."""
        paths = self._saved.setdefault(run, {})
        if path not in paths and len(paths) >= MAX_PATHS:
            del paths[next(iter(paths))]  # the oldest
        of_path = paths.setdefault(path, {})
        of_path[attempt] = max(of_path.get(attempt, (0, 0)), (time_ms, step))

    def resumed_step(self, run: str, attempt: int, rank: RankState) -> int | None:
        """The step from which a rank resumed: as it reports, else that of the checkpoint that it loaded."""
        if rank.resumed_step is not None or rank.restored is None:
            return rank.resumed_step
        if rank.restored.step is not None:
            return rank.restored.step
        saved = self._saved.get(run, {}).get(rank.restored.message or "", {})
        earlier = [when for number, when in saved.items() if number < attempt]
        return max(earlier)[1] if earlier else None

    def keep(self, runs: AbstractSet[str | None]) -> None:
        """Forgets all other runs."""
        self._saved = {run: saved for run, saved in self._saved.items() if run in runs}
