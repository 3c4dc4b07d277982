"""Deaths: a server, or a command on its folder, is killed before each of its steps, or at any moment."""

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
from tests.support.fault_harness import Counts, Delivery, Found, Process, Sender, Served, compare, look

WHERE = re.compile(r"died at \d+: (.*)")


class Killed(NamedTuple):
    """What came of some deaths, and in which steps they were."""

    counts: Counts
    steps: Counter[str]
    folders: tuple[Path, ...] = ()  # in which something is wrong

    def plus(self, other: Killed) -> Killed:
        """Both together."""
        return Killed(self.counts.plus(other.counts), self.steps + other.steps, self.folders + other.folders)


NOBODY = Killed(Counts(), Counter())


class Scene:
    """A folder as it is before, what is sent to it, and what it has when nothing goes wrong."""

    def __init__(self, scratch: Path, before: Path, load: list[Delivery], twin: Found) -> None:
        self.scratch, self.before, self.load, self.twin = scratch, before, load, twin
        self._number = 0

    def folder(self) -> Path:
        """A copy of the folder, to be harmed."""
        self._number += 1
        return Path(shutil.copytree(self.before, self.scratch / f"harmed-{self._number}"))

    def survived(self, folder: Path, sender: Sender, steps: Iterable[str], faults: int = 1) -> Killed:
        """A server without faults gets the rest, and the folder is looked at. One that is well is removed."""
        with Served(folder) as served:
            assert sender.send(served.client), (sender.answers, served.log)
        counts = compare(look(folder), self.twin, sender.acknowledged, faults)
        log = folder / "steps.log"
        log.unlink(missing_ok=True)
        if counts.is_clean:
            shutil.rmtree(folder)
        return Killed(counts, Counter(steps), () if counts.is_clean else (folder,))

    def server_dies_at(self, *steps: int) -> Killed | None:
        """One server after the other is sent to until it dies at its step; None: the last one did not come to it."""
        folder, sender, died = self.folder(), Sender(self.load), []
        for step in steps:
            log = folder.with_suffix(".log")
            served = Served(folder, faults=Faults(die_at=step, log=str(log)))
            if served.listens:
                sender.send(served.client)
                _ask(served)
            code = served.stop()
            said = WHERE.findall(log.read_text())
            log.unlink()
            if code == 0:
                shutil.rmtree(folder)
                return None
            assert code == -9, served.log
            died += said
        return self.survived(folder, sender, died, len(steps))

    def server_dies_sometime(self, chance: random.Random, times: int = 3) -> Killed:
        """Servers are killed at any moment of the first seconds, one after the other."""
        folder, sender = self.folder(), Sender(self.load)
        for _ in range(times):
            served = Served(folder)
            killer = _later(chance.uniform(0.0, 1.2), served.kill_now)
            if served.listens:
                while served.process.is_alive() and sender.send(served.client, most=chance.randint(1, 8)):
                    if not sender.left:
                        break
            killer()
            served.end()
        return self.survived(folder, sender, ["any moment"] * times, times)


def _ask(served: Served) -> None:
    """Has the ledger built, unless it is dead by then."""
    with suppress(httpx.TransportError):
        served.client.get("/api/v1/cost", params={"all": "1"})


def _later(seconds: float, work: Callable[[], object]) -> Callable[[], None]:
    timer = threading.Timer(seconds, work)
    timer.start()
    return timer.join


def every_step(
    make: Callable[[], Path],
    arguments: Callable[[Path], list[str]],
    check: Callable[[Path], Counts],
    *,
    every: int = 1,
    faults: Faults = Faults(),  # noqa: B008 - it never changes
    ends: tuple[int, ...] = (0,),
    step: int = 0,
) -> tuple[Killed, int]:
    """Kills a command before each of its steps, runs it again without faults, and checks; how many steps it has."""
    killed = NOBODY
    while True:
        folder = make()
        log = folder.with_suffix(".log")
        code = Process(*arguments(folder), faults=faults._replace(die_at=step, log=str(log))).end()
        if code != -9:
            steps = int(log.read_text().split()[-1])
            shutil.rmtree(folder)
            log.unlink()
            return killed, steps
        died = WHERE.findall(log.read_text())
        log.unlink()
        again = Process(*arguments(folder), faults=faults)
        code = again.end()
        counts = check(folder).plus(Counts(wrong=int(code not in ends)))
        if counts.is_clean:
            shutil.rmtree(folder)
        killed = killed.plus(Killed(counts, Counter(died), () if counts.is_clean else (folder,)))
        step += every
