"""What happens on the cluster: jobs, their attempts, what each attempt did from when to when, and what was planted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyrometer.simulate.cluster import Machine


class Place(NamedTuple):
    """Where a pod runs: a machine and the indices of its GPUs there."""

    machine: Machine
    gpus: tuple[int, ...]


class Stretch(NamedTuple):
    """What all ranks of an attempt did for a while.

    `startup`, `steps`, `checkpoint`, `evaluate`, `hang` (asleep), `spin` (hung, a kernel spinning), `idle`;
    without instrumentation `busy` and `pause`; `serve`.
    """

    kind: str
    from_ms: int
    to_ms: int


class Effect(NamedTuple):
    """Something that makes steps, or what is seen of them, different for a while.

    `data`: waits for batches, `size` of a step; `work`: there is `size` times as much to compute; `slow`: the ranks'
    phase takes `size` of a step longer; `comm`: all communication takes `size` times as long; `clock`: the ranks' GPUs
    run at `size` of their clock; `nan`: the numbers are no numbers; `flat`: the loss stays where it is; `unused`: the
    ranks' GPUs are never used; `memory`: it grows.
    """

    kind: str
    from_ms: int
    to_ms: int
    size: float = 1.0
    ranks: tuple[int, ...] | None = None
    phase: str = ""


@dataclass
class Attempt:
    """One life of a job's pods."""

    number: int
    places: list[Place]
    scheduled_ms: list[int]  # of each pod
    started_ms: list[int]  # its containers
    stretches: list[Stretch]
    ended_ms: int | None = None  # None: it goes on after the night
    phase: str = "Running"
    reason: str | None = None
    resumes: bool = False  # from the last checkpoint of the attempt before
    lost_from_ms: int | None = None  # the steps from here on were done again by the next attempt
    effects: list[Effect] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)  # of its ranks and pods, beyond the ordinary
    outcome: str | None = None  # as the SDK saw it
    created_ms: int | None = None  # its pods, when they had to wait

    @property
    def complete_ms(self) -> int:
        """When its last pod was there."""
        return max(self.scheduled_ms)

    @property
    def first_step_ms(self) -> int | None:
        """The end of its first step, if it came to that."""
        return next((s.from_ms for s in self.stretches if s.kind in ("steps", "busy", "serve")), None)

    def last_checkpoint_ms(self, before_ms: int) -> int | None:
        """The end of its last save before a time."""
        saves = [s.to_ms for s in self.stretches if s.kind == "checkpoint" and s.to_ms < before_ms]
        return saves[-1] if saves else None


@dataclass
class Job:
    """A workload and all that is known about it."""

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
    intensity: float = 1.0  # of what it does where nobody instruments: how much of the device it uses,
    swing: float = 0.0  # how much that goes up and down,
    swing_ms: int = 1_800_000  # and in what time
    loss: tuple[float, float, float] = (1.7, 6.0, 0.12)  # floor, scale and exponent of its power law
    first_step: int = 0
    digest: str = ""  # of its configuration, data and seed
    until_ms: int = 0  # when it is done, or the end of the night
    goes_on: bool = True  # after the night
    attempts: list[Attempt] = field(default_factory=list)
    part: dict[str, Any] = field(default_factory=dict)  # of a pipeline or a sweep: columns of its pods

    @property
    def uid(self) -> str:
        """Its identity: one object in one cluster."""
        return f"{self.kind.lower()}-{self.name}"

    @property
    def ranks(self) -> int:
        """One a GPU."""
        return self.pods * self.gpus

    def pod_uid(self, attempt: Attempt, pod: int) -> str:
        """The identity of a pod."""
        return f"{self.uid}-{attempt.number}-{pod}"

    def pod_name(self, attempt: Attempt, pod: int) -> str:
        """The name of a pod, as its kind gives them."""
        if self.kind == "PyTorchJob":
            return f"{self.name}-{'master-0' if pod == 0 else f'worker-{pod - 1}'}"
        if self.kind == "Notebook":
            return f"{self.name}-0"
        return f"{self.name}-{attempt.number}-{pod}"

    def place(self, attempt: Attempt, rank: int) -> tuple[Machine, int]:
        """The machine of a rank, and the index of its GPU there."""
        place = attempt.places[rank // self.gpus]
        return place.machine, place.gpus[rank % self.gpus]


@dataclass
class Outage:
    """A device that was broken, telemetry that was gone, or a machine in maintenance, for a while."""

    kind: str  # device, telemetry, cordon
    machine: Machine
    from_ms: int
    to_ms: int
    gpu: int | None = None
    reason: str = ""


def slots_of(outage: Outage) -> list[int]:
    """The slots of a device, or of a whole machine, that is out."""
    slots = outage.machine.slots
    return list(slots) if outage.gpu is None else [slots[outage.gpu]]


class Claim(NamedTuple):
    """Time that a planted finding is about: of a job, or of a machine (what nobody holds, or sees)."""

    states: tuple[str, ...]
    from_ms: int
    to_ms: int
    attempts: tuple[int, ...] | None = None  # None: all
    ranks: tuple[int, ...] | None = None  # None: all
    part: float = 1.0  # of the time: the excess over the usual
    machine: Machine | None = None


@dataclass
class Planted:
    """A finding that should be found; what it claims is summed up while the night is simulated."""

    cause: str
    job: Job | None
    from_ms: int
    to_ms: int
    claims: list[Claim]
    culprit: dict[str, Any] | None = None
    needs: str = "kubernetes"  # the least evidence that shows it: kubernetes, gpu, sdk
    gpu_cause: str | None = None  # what GPU telemetry alone takes it for
    gpu_ms: float = 0.0
    usd: float = 0.0


@dataclass
class Night:
    """All of it."""

    name: str
    seed: int
    from_ms: int
    to_ms: int
    machines: list[Machine]
    jobs: list[Job] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    planted: list[Planted] = field(default_factory=list)
    sample_every_ms: int = 30_000
    window_ms: int = 30_000
    trace_every_ms: int = 1_200_000  # one step of a run, of so many ranks
    traced_ranks: int = 64
    records: list[Any] = field(default_factory=list)  # what else its sources say
