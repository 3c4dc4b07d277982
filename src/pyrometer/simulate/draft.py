"""A night under construction: its jobs, its unused machines, and the planted findings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from pyrometer.model.units import MS_PER_HOUR as HOUR
from pyrometer.model.units import MS_PER_MINUTE as MINUTE
from pyrometer.model.units import MS_PER_SECOND as SECOND
from pyrometer.simulate.hardware import Machine
from pyrometer.simulate.jobs import Job, Night, PlantedClaim, PlantedFinding

MAX_CANDIDATES = 1_000  # jobs that are considered for a fault, at random
USERS = ("amara", "bence", "chiara", "dmitri", "esi", "farid", "goran", "hana", "ines", "jonas")


class NoRoomError(Exception):
    """The night has no job or machine left for this fault."""


@dataclass
class Draft:
    """A night under construction: its jobs, its unused machines, and the jobs that already have a fault."""

    night: Night
    chance: Random
    spare: list[Machine] = field(default_factory=list)
    troubled: set[str] = field(default_factory=set)
    named: dict[str, int] = field(default_factory=dict)
    pulls_ms: tuple[int, int] | None = None  # bounds for every image pull, if all of them are slow

    def victim(self, fits: Callable[[Job], bool]) -> Job:
        """Returns a job without a fault so far."""
        jobs = self.night.jobs
        if len(jobs) > MAX_CANDIDATES:
            jobs = self.chance.sample(jobs, MAX_CANDIDATES)
        found = [job for job in jobs if job.name not in self.troubled and job.attempts and fits(job)]
        if not found:
            raise NoRoomError
        job = self.chance.choice(found)
        self.troubled.add(job.name)
        return job

    def machine(self, fits: Callable[[Machine], bool] = lambda machine: True) -> Machine:
        """Returns an unused machine."""
        found = next((machine for machine in self.spare if fits(machine)), None)
        if found is None:
            raise NoRoomError
        self.spare.remove(found)
        return found

    def machines(self, number: int) -> list[Machine]:
        """Returns unused machines of one pool."""
        for name in sorted({machine.pool.name for machine in self.spare}):
            found = [machine for machine in self.spare if machine.pool.name == name][:number]
            if len(found) == number:
                self.spare = [machine for machine in self.spare if machine not in found]
                return found
        raise NoRoomError

    def moment(self, job: Job | None = None, *, room_ms: int = 0, after_ms: int = 0) -> int:
        """Returns a time at which the job is training, with room after it. It is never a round time."""
        from_ms = max(self.night.from_ms + 10 * MINUTE, after_ms)
        to_ms = self.night.to_ms - 4 * MINUTE - room_ms
        if job is not None:
            attempt = job.attempts[-1]
            from_ms = max(from_ms, (attempt.first_step_ms or from_ms) + 6 * MINUTE)
            to_ms = min(to_ms, attempt.activities[-1].to_ms - 2 * MINUTE - room_ms)
        if to_ms <= from_ms:
            raise NoRoomError
        at_ms = self.chance.randint(from_ms, to_ms)
        return at_ms + 17 * SECOND if at_ms % HOUR < MINUTE else at_ms

    def length(self, *choices_min: tuple[float, float]) -> int:
        """Returns a duration from one of several ranges of minutes, so that some are short."""
        lowest, highest = self.chance.choice(choices_min)
        max_ms = (self.night.to_ms - self.night.from_ms) * 0.45
        return round(min(self.chance.uniform(lowest, highest) * MINUTE, max_ms))

    def plant(
        self,
        cause: str,
        job: Job | None,
        from_ms: int,
        to_ms: int,
        *claims: PlantedClaim,
        culprit: dict[str, object] | None = None,
        needs: str = "kubernetes",
        gpu_cause: str | None = None,
    ) -> None:
        """Plants a finding to be detected."""
        from_ms, to_ms = max(from_ms, self.night.from_ms), min(to_ms, self.night.to_ms)
        self.night.planted.append(PlantedFinding(cause, job, from_ms, to_ms, list(claims), culprit, needs, gpu_cause))

    def new_job(self, name: str, *, pods: int, gpus: int, at_ms: int, **more: object) -> Job:
        """Adds a job of a random team."""
        team = self.chance.choice(("foundation", "vision", "speech", "search"))
        again = self.named[name] = self.named.get(name, 0) + 1
        name = f"{name}-{again}" if again > 1 else name
        job = Job(
            name=name,
            kind="PyTorchJob",
            namespace=f"team-{team}",
            team=team,
            experiment=name,
            user=self.chance.choice(USERS),
            queue=f"{team}-queue",
            pods=pods,
            gpus=gpus,
            created_ms=at_ms,
            until_ms=self.night.to_ms,
            step_ms=self.chance.uniform(350, 2400),
            data_share=self.chance.uniform(0.004, 0.018),
            comm_share=self.chance.uniform(0.03, 0.06) + 0.008 * pods,
            digest=f"{self.chance.getrandbits(64):016x}",
        )
        for key, value in more.items():
            setattr(job, key, value)
        self.night.jobs.append(job)
        self.troubled.add(name)
        return job
