"""Kills a server, or a command on its folder, before each of its steps or at a random moment."""

from __future__ import annotations

import random
import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import httpx2 as httpx

from tests.support.crashing_process import Faults
from tests.support.fault_harness import (
    Counts,
    Delivery,
    FolderContents,
    Process,
    Sender,
    ServerProcess,
    compare,
    read_folder,
)

DEATH_LINE = re.compile(r"died at \d+: (.*)")


class KillResult(NamedTuple):
    """The result of some kills, and the steps at which they happened."""

    counts: Counts
    steps: Counter[str]
    folders: tuple[Path, ...] = ()  # with problems

    def plus(self, other: KillResult) -> KillResult:
        """The sum of both."""
        return KillResult(self.counts.plus(other.counts), self.steps + other.steps, self.folders + other.folders)


NO_KILLS = KillResult(Counts(), Counter())


class KillScenario:
    """A folder before any fault, the deliveries to it, and its contents when nothing goes wrong."""

    def __init__(self, scratch: Path, before: Path, load: list[Delivery], twin: FolderContents) -> None:
        self.scratch, self.before, self.load, self.twin = scratch, before, load, twin
        self._number = 0

    def folder(self) -> Path:
        """A copy of the folder for faults."""
        self._number += 1
        return Path(shutil.copytree(self.before, self.scratch / f"harmed-{self._number}"))

    def finish(self, folder: Path, sender: Sender, steps: Iterable[str], faults: int = 1) -> KillResult:
        """Sends the rest to a server without faults and compares the folder, which is removed when it is correct."""
        with ServerProcess(folder) as served:
            assert sender.send(served.client), (sender.answers, served.log)
        counts = compare(read_folder(folder), self.twin, sender.acknowledged, faults)
        log = folder / "steps.log"
        log.unlink(missing_ok=True)
        if counts.is_clean:
            shutil.rmtree(folder)
        return KillResult(counts, Counter(steps), () if counts.is_clean else (folder,))

    def kill_server_at(self, *steps: int) -> KillResult | None:
        """Sends to each server until it dies at its step. None if the last one did not reach its step."""
        folder, sender, died = self.folder(), Sender(self.load), []
        for step in steps:
            log = folder.with_suffix(".log")
            served = ServerProcess(folder, faults=Faults(die_at=step, log=str(log)))
            if served.listens:
                sender.send(served.client)
                _ask(served)
            code = served.stop()
            deaths = DEATH_LINE.findall(log.read_text())
            log.unlink()
            if code == 0:
                shutil.rmtree(folder)
                return None
            assert code == -9, served.log
            died += deaths
        return self.finish(folder, sender, died, len(steps))

    def kill_server_at_random(self, chance: random.Random, times: int = 3) -> KillResult:
        """Kills one server after the other at a random moment of its first seconds."""
        folder, sender = self.folder(), Sender(self.load)
        for _ in range(times):
            served = ServerProcess(folder)
            killer = _later(chance.uniform(0.0, 1.2), served.kill_now)
            if served.listens:
                while served.process.is_alive() and sender.send(served.client, most=chance.randint(1, 8)):
                    if not sender.left:
                        break
            killer()
            served.end()
        return self.finish(folder, sender, ["any moment"] * times, times)


def _ask(served: ServerProcess) -> None:
    """Has the ledger built, unless the server is already dead."""
    with suppress(httpx.TransportError):
        served.client.get("/api/v1/cost", params={"all": "1"})


def _later(seconds: float, work: Callable[[], object]) -> Callable[[], None]:
    timer = threading.Timer(seconds, work)
    timer.start()
    return timer.join


def kill_at_every_step(
    make: Callable[[], Path],
    arguments: Callable[[Path], list[str]],
    check: Callable[[Path], Counts],
    *,
    every: int = 1,
    faults: Faults = Faults(),  # noqa: B008 - it never changes
    ends: tuple[int, ...] = (0,),
    step: int = 0,
) -> tuple[KillResult, int]:
    """Kills a command before each of its steps, runs it again without faults and checks the folder.

    Also returns the number of its steps."""
    killed = NO_KILLS
    while True:
        folder = make()
        log = folder.with_suffix(".log")
        code = Process(*arguments(folder), faults=faults._replace(die_at=step, log=str(log))).end()
        if code != -9:
            steps = int(log.read_text().split()[-1])
            shutil.rmtree(folder)
            log.unlink()
            return killed, steps
        died = DEATH_LINE.findall(log.read_text())
        log.unlink()
        again = Process(*arguments(folder), faults=faults)
        code = again.end()
        counts = check(folder).plus(Counts(wrong=int(code not in ends)))
        if counts.is_clean:
            shutil.rmtree(folder)
        killed = killed.plus(KillResult(counts, Counter(died), () if counts.is_clean else (folder,)))
        step += every
