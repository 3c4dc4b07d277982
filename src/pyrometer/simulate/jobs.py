"""The data model of a simulated night: jobs, attempts, the activities of each attempt, and planted findings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyrometer.simulate.hardware import Machine


class PodPlacement(NamedTuple):
    """The machine of a pod and the indices of its GPUs there."""

    machine: Machine
    gpus: tuple[int, ...]


class Activity(NamedTuple):
    """An interval in which all ranks of an attempt do the same.

    Kinds: `startup`, `steps`, `checkpoint`, `evaluate`, `hang` (asleep), `spin` (hung in a spinning kernel), `idle`,
    `serve`; for uninstrumented jobs also `busy` and `pause`.
    """

    kind: str
    from_ms: int
    to_ms: int


class Effect(NamedTuple):
    """An interval in which steps, or their telemetry, differ from the usual.

    `data`: waits for batches that last `size` of a step. `work`: `size` times as much computation. `slow`: a phase of
    these ranks takes `size` of a step longer. `comm`: communication takes `size` times as long. `clock`: the ranks'
    GPUs run at `size` of their clock. `nan`: values are NaN. `flat`: the loss does not change. `unused`: the ranks'
    GPUs are never used. `memory`: memory use grows.
    """

    kind: str
    from_ms: int
    to_ms: int
    size: float = 1.0
    ranks: tuple[int, ...] | None = None
    phase: str = ""


@dataclass
class JobAttempt:
    """One generation of a job's pods."""

    number: int
    places: list[PodPlacement]
    scheduled_ms: list[int]  # of each pod
    started_ms: list[int]  # its containers
    activities: list[Activity]
    ended_ms: int | None = None  # None: still running when the night ends
    phase: str = "Running"
    reason: str | None = None
    resumes: bool = False  # from the last checkpoint of the attempt before
    lost_from_ms: int | None = None  # the next attempt repeats the steps from here on
    effects: list[Effect] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)  # of its ranks and pods, besides the usual ones
    outcome: str | None = None  # as the SDK reports it
    created_ms: int | None = None  # when the pods were created, if they had to wait

    @property
    def complete_ms(self) -> int:
        """When its last pod was scheduled."""
        return max(self.scheduled_ms)

    @property
    def first_step_ms(self) -> int | None:
        """When its first step starts; None if it never trains."""
        return next((s.from_ms for s in self.activities if s.kind in ("steps", "busy", "serve")), None)

    def last_checkpoint_ms(self, before_ms: int) -> int | None:
        """The end of its last checkpoint before a time."""
        saves = [s.to_ms for s in self.activities if s.kind == "checkpoint" and s.to_ms < before_ms]
        return saves[-1] if saves else None


@dataclass
class Job:
    """A workload and its true properties."""

    name: str
    kind: str
    namespace: str
    team: str
    experiment: str
    user: str
    queue: str
    pods: int
    gpus: int  # of each pod
    created_ms: int
    instrumented: bool = True
    gang: bool = True
    serves: bool = False
    step_ms: float = 800.0
    data_share: float = 0.01
    comm_share: float = 0.06
    checkpoint_ms: int = 9_000
    checkpoint_every_ms: int = 1_800_000
    intensity: float = 1.0  # uninstrumented jobs: the share of the device that they use,
    swing: float = 0.0  # how much that share varies,
    swing_ms: int = 1_800_000  # and with which period
    loss: tuple[float, float, float] = (1.7, 6.0, 0.12)  # floor, scale and exponent of its power law
    first_step: int = 0
    digest: str = ""  # of its configuration, data and seed
    until_ms: int = 0  # when it finishes, or the end of the night
    continues: bool = True  # after the night
    attempts: list[JobAttempt] = field(default_factory=list)
    part: dict[str, Any] = field(default_factory=dict)  # pod columns of its pipeline step or trial

    @property
    def uid(self) -> str:
        """The UID of the object."""
        return f"{self.kind.lower()}-{self.name}"

    @property
    def ranks(self) -> int:
        """The number of ranks: one per GPU."""
        return self.pods * self.gpus

    def pod_uid(self, attempt: JobAttempt, pod: int) -> str:
        """The UID of a pod."""
        return f"{self.uid}-{attempt.number}-{pod}"

    def pod_name(self, attempt: JobAttempt, pod: int) -> str:
        """The name of a pod, in the style of its kind."""
        if self.kind == "PyTorchJob":
            return f"{self.name}-{'master-0' if pod == 0 else f'worker-{pod - 1}'}"
        if self.kind == "Notebook":
            return f"{self.name}-0"
        return f"{self.name}-{attempt.number}-{pod}"

    def device_of(self, attempt: JobAttempt, rank: int) -> tuple[Machine, int]:
        """The machine of a rank and the index of its GPU there."""
        place = attempt.places[rank // self.gpus]
        return place.machine, place.gpus[rank % self.gpus]


@dataclass
class Outage:
    """An interval with a broken device, missing telemetry, or a machine in maintenance."""

    kind: str  # device, telemetry, cordon
    machine: Machine
    from_ms: int
    to_ms: int
    gpu: int | None = None
    reason: str = ""


def slots_of(outage: Outage) -> list[int]:
    """The slots of an outage: one device or a whole machine."""
    slots = outage.machine.slots
    return list(slots) if outage.gpu is None else [slots[outage.gpu]]


class PlantedClaim(NamedTuple):
    """Time of a planted finding: of a job, or of a machine (unheld or unobserved time)."""

    states: tuple[str, ...]
    from_ms: int
    to_ms: int
    attempts: tuple[int, ...] | None = None  # None: all
    ranks: tuple[int, ...] | None = None  # None: all
    part: float = 1.0  # the excess over the usual, as a part of the time
    machine: Machine | None = None


@dataclass
class PlantedFinding:
    """A finding to be detected. Its GPU time and cost are summed while the night is simulated."""

    cause: str
    job: Job | None
    from_ms: int
    to_ms: int
    claims: list[PlantedClaim]
    culprit: dict[str, Any] | None = None
    needs: str = "kubernetes"  # the minimum evidence that shows it: kubernetes, gpu, sdk
    gpu_cause: str | None = None  # the cause that GPU telemetry alone suggests
    gpu_ms: float = 0.0
    usd: float = 0.0


@dataclass
class Night:
    """A simulated cluster over a time range."""

    name: str
    seed: int
    from_ms: int
    to_ms: int
    machines: list[Machine]
    jobs: list[Job] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    planted: list[PlantedFinding] = field(default_factory=list)
    sample_every_ms: int = 30_000
    window_ms: int = 30_000
    trace_every_ms: int = 1_200_000  # between traced steps of a run
    traced_ranks: int = 64
    records: list[Any] = field(default_factory=list)  # further records of its sources
