"""The health of a server: what it still waits for, and what it cannot read, store or deliver."""

from __future__ import annotations

from collections.abc import Sequence

from pyrometer.act.summary_writers import SummaryWriter
from pyrometer.serve.disk import Disk
from pyrometer.serve.ingest.source_readers import Sources
from pyrometer.serve.tasks.lake_copy_task import LakeCopyTask
from pyrometer.serve.tasks.scrub import Scrub


class Health:
    """What `/readyz` and the metrics report."""

    def __init__(
        self,
        sources: Sources,
        disk: Disk,
        scrub: Scrub,
        lake_copy: LakeCopyTask,
        summary_writers: Sequence[SummaryWriter],
    ) -> None:
        self._sources = sources
        self._disk = disk
        self._scrub = scrub
        self._lake_copy = lake_copy
        self._summary_writers = summary_writers

    def waiting_for(self) -> list[str]:
        """What the server waits for until it is ready."""
        return self._sources.waiting_for()

    def shortcomings(self) -> list[str]:
        """What is missing or failing, one sentence each."""
        trouble = self._lake_copy.trouble
        return [
            *self._disk.shortcomings(),
            *self._scrub.shortcomings(),
            *self._sources.cluster_shortcomings(),
            *([f"Nothing is copied into the lake: {trouble}"] if trouble else []),
            *(
                f"The cost of runs is not written into {one.title}: {one.trouble}"
                for one in self._summary_writers
                if one.trouble
            ),
            *self._sources.reader_shortcomings(),
        ]
