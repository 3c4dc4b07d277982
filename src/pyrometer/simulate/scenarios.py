"""Scenarios: the jobs of a cluster, where they run, and their faults.

`overnight` is the default. `quiet` is the same cluster with harmless patterns only. `gpu_only` and `kube_only` are the
same night with less evidence. `scale` has any size. `kubeflow` has pipelines and a sweep. Every cause has a scenario.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import NamedTuple

from pyrometer.model.units import MS_PER_HOUR as HOUR
from pyrometer.model.units import MS_PER_MINUTE as MINUTE
from pyrometer.simulate import benign_patterns, ordinary_jobs
from pyrometer.simulate import kubeflow as kubeflow_jobs
from pyrometer.simulate.draft import USERS, Draft, NoRoomError
from pyrometer.simulate.faults import FAULTS
from pyrometer.simulate.hardware import A100, H100, H200, Machine, Pool, machines_of
from pyrometer.simulate.jobs import Job, Night, Outage, PodPlacement

FROM_MS = round(datetime(2026, 10, 8, 20, tzinfo=UTC).timestamp() * 1000)
FAULTS_PER_NIGHT = 8
MIN_GPUS = 80
SECOND_PIPELINE_HOURS = 6  # minimum length of a night with a second pipeline run


class JobTemplate(NamedTuple):
    """A kind of job that a team keeps running, with `pods` pods of `gpus` GPUs."""

    name: str
    kind: str
    team: str
    pool: str
    pods: int
    gpus: int
    instrumented: bool = True


# About 300 GPUs. The remaining ones are free or used by faults.
POOLS = (
    Pool("h100", H100, 20, "p5.48xlarge"),
    Pool("h200", H200, 10, "p5en.48xlarge"),
    Pool("a100", A100, 8, "p4de.24xlarge"),
)
JOBS = (
    JobTemplate("llama-70b-sft", "PyTorchJob", "foundation", "h100", 8, 8),
    JobTemplate("ranker-large", "TrainJob", "search", "h100", 3, 8),
    JobTemplate("vit-huge", "RayJob", "vision", "h100", 2, 8),
    JobTemplate("asr-conformer", "PyTorchJob", "speech", "h100", 2, 8),
    JobTemplate("policy-rl", "Job", "robotics", "h100", 1, 8, instrumented=False),
    JobTemplate("clip-filter", "Job", "vision", "h100", 1, 8, instrumented=False),
    JobTemplate("moe-16x7b", "TrainJob", "foundation", "h200", 6, 8),
    JobTemplate("video-diffusion", "PyTorchJob", "vision", "h200", 2, 8),
    JobTemplate("chat-api", "Deployment", "search", "h200", 1, 8, instrumented=False),
    JobTemplate("tts-multi", "PyTorchJob", "speech", "a100", 1, 8),
    JobTemplate("dedup-embed", "Job", "search", "a100", 1, 8, instrumented=False),
    JobTemplate("protein-fold", "Job", "robotics", "a100", 1, 8, instrumented=False),
    JobTemplate("segment-3d", "Job", "robotics", "a100", 1, 4),
    JobTemplate("explore-amara", "Notebook", "vision", "a100", 1, 2, instrumented=False),
    JobTemplate("explore-jonas", "Notebook", "speech", "a100", 1, 2, instrumented=False),
    JobTemplate("scratch-ines", "Notebook", "foundation", "h100", 1, 4, instrumented=False),
    JobTemplate("scratch-farid", "Notebook", "search", "h100", 1, 4, instrumented=False),
)
# On large clusters, eight blocks train one large model together instead of one each.
GIANT = JobTemplate("frontier-1t", "TrainJob", "foundation", "h100", 64, 8)
GIANT_BLOCKS = GIANT.pods // JOBS[0].pods
SWEEP_LANES = 16  # GPUs that run short trials one after another

SMALL_POOLS = (Pool("h100", H100, 10, "p5.48xlarge"),)
SMALL_JOBS = (
    JobTemplate("llama-8b-sft", "PyTorchJob", "foundation", "h100", 2, 8),
    JobTemplate("vit-large", "TrainJob", "vision", "h100", 2, 8),
    JobTemplate("asr-base", "Job", "speech", "h100", 1, 8),
    JobTemplate("policy-rl", "Job", "robotics", "h100", 1, 8, instrumented=False),
    JobTemplate("scratch-ines", "Notebook", "foundation", "h100", 1, 2, instrumented=False),
)
SMALL_LANES = 4


def overnight(seed: int, gpus: int | None = None, hours: int = 12, name: str = "overnight") -> Night:
    """A night with about eight faults with different causes."""
    draft = _draft(name, seed, gpus, hours)
    causes = list(FAULTS)
    draft.chance.shuffle(causes)
    blocks = max(1, len(draft.night.machines) // sum(pool.machines for pool in POOLS))
    max_faults = FAULTS_PER_NIGHT * blocks
    planted = 0
    for cause in causes * blocks:
        if planted < max_faults and _plant(draft, cause):
            planted += 1
    return draft.night


def quiet(seed: int, gpus: int | None = None, hours: int = 12) -> Night:
    """A night with harmless patterns and no fault. Every third seed has slow image pulls."""
    draft = _draft("quiet", seed, gpus, hours, benign_patterns.LONG_PULLS_MS if seed % 3 == 0 else None)
    draft.chance = Random(f"{seed} habits")  # noqa: S311 - a simulation, no secret
    benign_patterns.add_benign_patterns(
        draft, max(1, len(draft.night.machines) // sum(pool.machines for pool in POOLS))
    )
    return draft.night


def scale(seed: int, gpus: int | None = None, hours: int = 24) -> Night:
    """A large cluster, sampled every minute."""
    night = overnight(seed, gpus or 10_000, hours, "scale")
    night.sample_every_ms = night.window_ms = MINUTE
    night.trace_every_ms, night.traced_ranks = 4 * HOUR, 8
    return night


def kubeflow(seed: int, gpus: int | None = None, hours: int = 8) -> Night:
    """A small cluster with two pipeline runs, a sweep, and a TrainJob that reports its progress."""
    draft = _draft("kubeflow", seed, gpus or 120, hours)
    from_ms = draft.night.from_ms
    try:
        kubeflow_jobs.add_pipeline(draft, "x2k9d", "nightly 2026-10-08", from_ms + 20 * MINUTE, retried=True)
        if hours >= SECOND_PIPELINE_HOURS:
            kubeflow_jobs.add_pipeline(draft, "b7qwz", "nightly 2026-10-08, again", from_ms + 3 * HOUR, retried=False)
        kubeflow_jobs.add_sweep(draft, from_ms + 40 * MINUTE)
        kubeflow_jobs.add_controller_job(draft, from_ms + 70 * MINUTE)
    except NoRoomError:
        raise NoRoomError("Too few GPUs for pipelines and a sweep. Pass --gpus 120 or more.") from None
    return draft.night


def one_cause(cause: str) -> Callable[..., Night]:
    """A small cluster with one fault, planted twice if there is room."""

    def scenario(seed: int, gpus: int | None = None, hours: int = 8) -> Night:
        draft = _draft(cause, seed, gpus or 80, hours)
        if not _plant(draft, cause):
            raise NoRoomError(
                f"No room for {cause} in {hours} hours on {gpus or 80} GPUs. Pass more --hours or --gpus."
            )
        _plant(draft, cause)
        return draft.night

    return scenario


def _plant(draft: Draft, cause: str) -> bool:
    """Plants a fault. Returns whether there was room for it."""
    spare, troubled, jobs = list(draft.spare), set(draft.troubled), len(draft.night.jobs)
    try:
        FAULTS[cause](draft)
    except NoRoomError:
        draft.spare, draft.troubled = spare, troubled
        del draft.night.jobs[jobs:]
        return False
    return True


class Scenario(NamedTuple):
    """A night by name, and the best level of evidence in its records."""

    make: Callable[..., Night]
    evidence: str
    summary: str


SCENARIOS: dict[str, Scenario] = {
    "overnight": Scenario(overnight, "sdk", "about 300 GPUs from 20:00 to 08:00, about eight faults"),
    "quiet": Scenario(quiet, "sdk", "the same cluster with harmless patterns and no fault"),
    "gpu_only": Scenario(overnight, "gpu", "the same night without the training SDK"),
    "kube_only": Scenario(overnight, "kubernetes", "the same night with Kubernetes alone"),
    "scale": Scenario(scale, "sdk", "10,000 GPUs (or --gpus) for 24 hours"),
    "kubeflow": Scenario(kubeflow, "sdk", "120 GPUs, two pipeline runs, a sweep, a TrainJob that reports progress"),
    **{cause: Scenario(one_cause(cause), "sdk", f"80 GPUs, {cause} planted") for cause in FAULTS},
}


# -- ordinary nights --------------------------------------------------------------------------------------------------


def _draft(name: str, seed: int, gpus: int | None, hours: int, pulls_ms: tuple[int, int] | None = None) -> Draft:
    """A cluster with its healthy jobs, in as many blocks as fit. The remaining machines are spare."""
    small = gpus is not None and gpus < sum(pool.machines * pool.gpus for pool in POOLS)
    pools, jobs, lanes = (SMALL_POOLS, SMALL_JOBS, SMALL_LANES) if small else (POOLS, JOBS, SWEEP_LANES)
    block_gpus = sum(pool.machines * pool.gpus for pool in pools)
    blocks = max(1, (gpus or block_gpus) // block_gpus)
    more = max(0, -(-((gpus or block_gpus) - blocks * block_gpus) // 8))
    grown = tuple(
        pool._replace(machines=pool.machines * blocks + (more if number == 0 else 0))
        for number, pool in enumerate(pools)
    )
    night = Night(name, seed, FROM_MS, FROM_MS + hours * HOUR, machines_of(grown))
    draft = Draft(night, Random(f"{seed} pyrometer"), pulls_ms=pulls_ms)  # noqa: S311 - a simulation, no secret
    free = {pool.name: [machine for machine in night.machines if machine.pool.name == pool.name] for pool in grown}
    giants = 0 if small else blocks // GIANT_BLOCKS
    for number in range(giants):
        _live(
            draft,
            GIANT,
            [PodPlacement(free["h100"].pop(0), tuple(range(8))) for _ in range(GIANT.pods)],
            f"-{number + 1}",
        )
    for block in range(blocks):
        suffix = f"-{block + 1}" if blocks > 1 else ""
        _fill(draft, jobs[1:] if block < giants * GIANT_BLOCKS else jobs, lanes, free, suffix)
    draft.spare = [machine for machines in free.values() for machine in machines]
    draft.chance.shuffle(draft.spare)
    if len(draft.spare) > 3 and draft.chance.random() < 0.6:  # maintenance: a driver update
        from_ms = draft.moment(room_ms=2 * HOUR)
        to_ms = from_ms + draft.chance.randint(30 * MINUTE, 100 * MINUTE)
        night.outages.append(Outage("cordon", draft.machine(), from_ms, to_ms))
    return draft


def _fill(draft: Draft, jobs: tuple[JobTemplate, ...], lanes: int, free: dict[str, list[Machine]], suffix: str) -> None:
    partly: dict[str, tuple[Machine, int]] = {}  # machines that small pods share, and the number of GPUs in use
    for template in jobs:
        machines = free[template.pool]
        if template.gpus == 8:
            places = [PodPlacement(machines.pop(0), tuple(range(8))) for _ in range(template.pods)]
        else:
            if template.pool not in partly or partly[template.pool][1] + template.gpus > 8:
                partly[template.pool] = (machines.pop(0), 0)
            machine, used = partly[template.pool]
            places = [PodPlacement(machine, tuple(range(used, used + template.gpus)))]
            partly[template.pool] = (machine, used + template.gpus)
        _live(draft, template, places, suffix)
    pool = jobs[-1].pool if len(free) == 1 else "a100"
    for lane in range(0, lanes, 8):
        machine = free[pool].pop(0)
        for gpu in range(min(8, lanes - lane)):
            _sweep(draft, PodPlacement(machine, (gpu,)), f"{lane + gpu + 1:02}{suffix}")


def _live(draft: Draft, template: JobTemplate, places: list[PodPlacement], suffix: str) -> None:
    """Adds a job of a team. Most jobs are already running when the night starts."""
    chance, night = draft.chance, draft.night
    began_ms = night.from_ms - chance.randint(2 * HOUR, 60 * HOUR)
    job = Job(
        name=template.name + suffix,
        kind=template.kind,
        namespace=f"team-{template.team}",
        team=template.team,
        experiment=template.name.removesuffix("-sft") if template.kind != "Notebook" else template.name,
        user=template.name.rpartition("-")[2] if template.kind == "Notebook" else chance.choice(USERS),
        queue=f"{template.team}-queue",
        pods=template.pods,
        gpus=template.gpus,
        created_ms=began_ms,
        instrumented=template.instrumented,
        gang=template.kind not in ("Deployment", "Notebook"),
        serves=template.kind == "Deployment",
        step_ms=chance.uniform(350, 2400),
        data_share=chance.uniform(0.004, 0.018),
        comm_share=chance.uniform(0.03, 0.06) + 0.008 * template.pods,
        checkpoint_ms=chance.randint(4_000, 14_000),
        checkpoint_every_ms=chance.randint(14, 40) * MINUTE,
        first_step=chance.randint(2_000, 60_000),
        loss=(chance.uniform(1.2, 2.4), chance.uniform(4, 9), chance.uniform(0.1, 0.2)),
        digest=f"{chance.getrandbits(64):016x}" if template.instrumented else "",
        until_ms=night.to_ms,
        intensity=chance.choice((0.3, 0.6, 0.85, 1.0)),
        swing=chance.choice((0.0, 0.1, 0.25)),
        swing_ms=chance.randint(12, 200) * MINUTE,
    )
    night.jobs.append(job)
    late = template.kind not in ("Deployment", "Notebook") and chance.random() < 0.3  # starts or ends tonight
    if late and chance.random() < 0.5:
        began_ms = job.created_ms = night.from_ms + chance.randint(8 * MINUTE, 80 * MINUTE)
    elif late:
        job.until_ms, job.continues = night.to_ms - chance.randint(20 * MINUTE, 150 * MINUTE), False
    attempt = ordinary_jobs.begin(chance, job, places, began_ms, pulls_ms=_pulls(draft, template.pods))
    if template.instrumented:
        ordinary_jobs.finish(chance, job, attempt)
        return
    if template.kind == "Notebook":
        ordinary_jobs.tinker(chance, attempt, job.until_ms)
    else:
        ordinary_jobs.work_on(attempt, "serve" if job.serves else "busy", job.until_ms)
    if not job.continues:
        ordinary_jobs.end(attempt, job.until_ms, "Succeeded")


def _sweep(draft: Draft, place: PodPlacement, lane: str) -> None:
    """Adds trials that run one after another on one GPU."""
    chance, night = draft.chance, draft.night
    now_ms = night.from_ms + chance.randint(30_000, 25 * MINUTE)
    number = 0
    while now_ms < night.to_ms - 40 * MINUTE:
        number += 1
        until_ms = min(now_ms + chance.randint(55 * MINUTE, 170 * MINUTE), night.to_ms)
        job = Job(
            name=f"lr-sweep-{lane}-{number}",
            kind="Job",
            namespace="team-speech",
            team="speech",
            experiment="lr-sweep",
            user="hana",
            queue="speech-queue",
            pods=1,
            gpus=1,
            created_ms=now_ms,
            gang=False,
            step_ms=chance.uniform(120, 300),
            comm_share=0.0,
            data_share=chance.uniform(0.005, 0.02),
            checkpoint_ms=chance.randint(700, 2_000),
            checkpoint_every_ms=chance.randint(15, 30) * MINUTE,
            loss=(chance.uniform(1.5, 3.0), chance.uniform(4, 9), chance.uniform(0.1, 0.25)),
            digest=f"{chance.getrandbits(64):016x}",
            until_ms=until_ms,
            continues=until_ms >= night.to_ms,
        )
        night.jobs.append(job)
        pulls_ms = _pulls(draft, 1) or [chance.randint(3_000, 9_000)]
        attempt = ordinary_jobs.begin(chance, job, [place], now_ms, pulls_ms=pulls_ms)
        ordinary_jobs.finish(chance, job, attempt)
        now_ms = until_ms + chance.randint(20_000, 6 * MINUTE)


def _pulls(draft: Draft, pods: int) -> list[int] | None:
    """Durations of the image pulls, if all of them are slow."""
    return draft.pulls_ms and [draft.chance.randint(*draft.pulls_ms) for _ in range(pods)]
