"""Reports the checkpoints that the program saves and restores."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyrometer.train.run.outbox import Outbox
    from pyrometer.train.run.step_numbers import StepNumbers
    from pyrometer.train.steps.recorder import Recorder

SAVES_TOGETHER_NS = 5_000_000_000  # files that are saved within this time of each other are one checkpoint


class _Save(NamedTuple):
    """One file that was saved."""

    at_ns: int  # UTC
    path: str
    duration_ns: int
    size_bytes: int
    step_count: int  # the step, counted in this process


class CheckpointReports:
    """Groups the files of a checkpoint, and reports each checkpoint once."""

    def __init__(self, recorder: Recorder, outbox: Outbox, steps: StepNumbers, identity: dict[str, Any]) -> None:
        self._recorder = recorder
        self._outbox = outbox
        self._steps = steps
        self._identity = identity
        self._saves: list[_Save] = []
        self._restored_from: tuple[str, int | None] | None = None

    def saved(self, path: str, duration_ns: int) -> None:
        """A file was saved. Files before the first step are not checkpoints."""
        recorder = self._recorder
        if recorder.count or recorder.closable:
            size_bytes = _size_bytes(Path(path), self._identity["rank"]) if path else 0
            self._saves.append(_Save(time.time_ns(), path, duration_ns, size_bytes, recorder.count))

    def restored(self, path: str, duration_ms: int, step: int | None) -> None:
        """An optimizer got its state back. After the first step this is not a restart."""
        if self._recorder.count:
            return
        if step is not None and not self._steps.is_known:
            self._steps.begin_at(step)
        if (path, step) != self._restored_from:  # else another optimizer, from the same checkpoint
            self._restored_from = (path, step)
            self._outbox.event("restored", duration_ms=duration_ms, step=step, message=path)

    def report(self, *, final: bool) -> None:
        """Reports checkpoints that are complete. At the end of the rank, all of them are."""
        while self._saves:
            count = self._saves[0].step_count
            saves = [save for save in self._saves if save.step_count == count]
            is_fresh = time.time_ns() - saves[-1].at_ns < SAVES_TOGETHER_NS
            if is_fresh and count == self._recorder.count and not final:
                return
            self._saves = self._saves[len(saves) :]
            self._report_one(saves)

    def _report_one(self, saves: list[_Save]) -> None:
        size_bytes = sum(save.size_bytes for save in saves)
        self._outbox.event(
            "checkpoint_saved",
            at_ms=saves[-1].at_ns // 1_000_000,
            duration_ms=sum(save.duration_ns for save in saves) // 1_000_000,
            step=self._steps.number(saves[-1].step_count),
            reason=str(size_bytes) if size_bytes else None,
            message=_common_path([save.path for save in saves if save.path]),
        )


def _size_bytes(path: Path, rank: int) -> int:
    """The size of a checkpoint. In a folder that all ranks write to, only this rank's files count, if names tell."""
    try:
        if not path.is_dir():
            return path.stat().st_size
        files = [file for file in path.iterdir() if file.is_file()]
        own = [file for file in files if file.name.startswith(f"__{rank}_")]
        return sum(file.stat().st_size for file in own or files)
    except OSError:
        return 0


def _common_path(paths: list[str]) -> str:
    """The path of a single file, or the folder of several."""
    if len(set(paths)) <= 1:
        return paths[0] if paths else ""
    try:
        return os.path.commonpath(paths)
    except ValueError:  # relative and absolute paths
        return paths[-1]
