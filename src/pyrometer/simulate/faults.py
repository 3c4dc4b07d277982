"""Faults, one function per cause. Each changes or adds a job and plants the finding to be detected.

Sizes and times are random: some faults last hours and are obvious, some last minutes or add a fifth to a step.
"""

from __future__ import annotations

from collections.abc import Callable

from pyrometer.model.units import MS_PER_HOUR as HOUR
from pyrometer.model.units import MS_PER_MINUTE as MINUTE
from pyrometer.model.units import MS_PER_SECOND as SECOND
from pyrometer.simulate import ordinary_jobs
from pyrometer.simulate.draft import Draft, NoRoomError
from pyrometer.simulate.hardware import Machine
from pyrometer.simulate.jobs import Activity, Effect, Job, JobAttempt, Outage, PlantedClaim, PodPlacement

STEPPING = ("steps", "checkpoint", "evaluate")


def _whole_machine(machine: Machine) -> PodPlacement:
    return PodPlacement(machine, tuple(range(machine.pool.gpus)))


def _trains(job: Job) -> bool:
    return job.instrumented and job.ranks > 1 and job.attempts[-1].activities[-1].kind in STEPPING


def _trains_together(job: Job) -> bool:
    return _trains(job) and job.pods > 1


def _works_uninstrumented(job: Job) -> bool:
    return not job.instrumented and job.attempts[-1].activities[-1].kind == "busy"


def _to_boundary(attempt: JobAttempt, at_ms: int) -> int:
    """Moves a time behind a checkpoint or evaluation that it would fall into or just after."""
    for activity in attempt.activities:
        if activity.kind in ("checkpoint", "evaluate") and activity.from_ms <= at_ms < activity.to_ms + 40 * SECOND:
            at_ms = activity.to_ms + 41 * SECOND
    return at_ms


def _lost(attempt: JobAttempt, to_ms: int | None = None) -> PlantedClaim:
    """The steps that were lost when the attempt ended."""
    over_ms = to_ms or attempt.ended_ms or 0
    return PlantedClaim(("lost_work",), attempt.lost_from_ms or over_ms, over_ms, (attempt.number,))


def hang(draft: Draft) -> None:
    """A collective never ends. The job is killed after a while."""
    job = draft.victim(_trains_together)
    attempt = job.attempts[-1]
    length = draft.length((7, 16), (40, 90), (120, 300))
    from_ms = _to_boundary(attempt, draft.moment(job, room_ms=length + 8 * MINUTE))
    ordinary_jobs.cut(attempt, from_ms)
    spins = draft.chance.random() < 0.6
    attempt.activities.append(Activity("spin" if spins else "hang", from_ms, from_ms + length))
    rank = draft.chance.randrange(job.ranks)
    silent = draft.chance.random() < 0.4
    for each in range(job.ranks):
        if each == rank and silent:
            continue
        attempt.events.append(
            {
                "kind": "stuck",
                "rank": each,
                "at_ms": from_ms - draft.chance.randint(0, 300),
                "step_offset": -1 if each == rank else 0,
                "reason": ("backward" if spins else "data") if each == rank else "sync",
            }
        )
    machine, gpu = job.device_of(attempt, rank)
    ordinary_jobs.end(attempt, from_ms + length, "Failed", "Error", "killed")
    draft.plant(
        "hang",
        job,
        from_ms,
        from_ms + length,
        PlantedClaim(("hang",), from_ms, from_ms + length, (attempt.number,)),
        culprit={"rank": rank, "node": machine.name, "gpu": gpu},
        needs="gpu" if spins else "sdk",
        gpu_cause=None if spins else "idle_held",
    )
    ordinary_jobs.resume(draft.chance, job, from_ms + length + draft.chance.randint(20, 60) * SECOND)
    lost = _lost(attempt, from_ms)
    draft.plant("lost_work", job, lost.from_ms, from_ms, lost, needs="sdk")


def lost_work(draft: Draft) -> None:
    """The program fails long after its last checkpoint."""
    job = draft.victim(_trains)
    attempt = job.attempts[-1]
    at_ms = _to_boundary(attempt, draft.moment(job, room_ms=12 * MINUTE))
    attempt.events.append({"kind": "exception", "rank": 0, "at_ms": at_ms, "reason": "RuntimeError"})
    ordinary_jobs.end(attempt, at_ms, "Failed", "Error")
    ordinary_jobs.resume(draft.chance, job, at_ms + draft.chance.randint(30, 90) * SECOND)
    lost = _lost(attempt)
    draft.plant("lost_work", job, lost.from_ms, at_ms, lost, needs="sdk")


def hardware_failure(draft: Draft) -> None:
    """A GPU falls off the bus: the job hangs and restarts on another machine; the device is broken for hours."""
    job = draft.victim(_trains_together)
    attempt = job.attempts[-1]
    at_ms = _to_boundary(attempt, draft.moment(job, room_ms=40 * MINUTE))
    pod = draft.chance.randrange(job.pods)
    broken = attempt.places[pod].machine
    other = draft.machine(lambda machine: machine.pool == broken.pool)
    gpu = draft.chance.choice(attempt.places[pod].gpus)
    rank = pod * job.gpus + attempt.places[pod].gpus.index(gpu)
    hung_ms = draft.chance.randint(3 * MINUTE, 9 * MINUTE)
    xid = draft.chance.choice((79, 79, 48, 95))
    ordinary_jobs.cut(attempt, at_ms)
    attempt.activities.append(Activity("spin", at_ms, at_ms + hung_ms))
    for each in range(job.ranks):
        if each != rank:
            attempt.events.append({"kind": "stuck", "rank": each, "at_ms": at_ms, "step_offset": 0, "reason": "sync"})
    ordinary_jobs.end(attempt, at_ms + hung_ms, "Failed", "Error", "killed")
    back_ms = min(at_ms + draft.length((90, 150), (200, 400)), draft.night.to_ms)
    draft.night.outages.append(Outage("device", broken, at_ms, back_ms, gpu, f"XID {xid}"))
    places = [_whole_machine(other) if place.machine == broken else place for place in attempt.places]
    again_ms = at_ms + hung_ms + draft.chance.randint(20, 80) * SECOND
    ordinary_jobs.resume(draft.chance, job, again_ms, places=places)
    draft.plant(
        "hardware_failure",
        job,
        at_ms,
        back_ms,
        PlantedClaim(("unhealthy",), at_ms, back_ms, machine=broken),
        PlantedClaim(("hang",), at_ms, at_ms + hung_ms, (attempt.number,)),
        _lost(attempt, at_ms),
        culprit={"node": broken.name, "gpu": gpu},
        needs="gpu",
    )


def out_of_memory(draft: Draft) -> None:
    """Memory use grows until the device is full: once, or again after the restart."""
    job = draft.victim(_trains)
    first = attempt = job.attempts[-1]
    rank = draft.chance.randrange(job.ranks)
    at_ms = _to_boundary(attempt, draft.moment(job, room_ms=90 * MINUTE))
    machine, _ = job.device_of(attempt, rank)
    text = "CUDA out of memory. Tried to allocate 2.50 GiB."
    for number in range(draft.chance.choice((1, 2, 3))):
        if number:
            at_ms = attempt.activities[0].to_ms + draft.chance.randint(6 * MINUTE, 11 * MINUTE)
        attempt.effects.append(Effect("memory", at_ms - 25 * MINUTE, at_ms, ranks=(rank,)))
        attempt.events.append(
            {"kind": "exception", "rank": rank, "at_ms": at_ms, "reason": "OutOfMemoryError", "message": text}
        )
        ordinary_jobs.end(attempt, at_ms, "Failed", "Error")
        attempt = ordinary_jobs.resume(draft.chance, job, at_ms + draft.chance.randint(20, 50) * SECOND)
    killed = tuple(range(first.number, attempt.number))
    from_ms = first.lost_from_ms or 0
    draft.plant(
        "out_of_memory",
        job,
        from_ms,
        at_ms,
        PlantedClaim(("lost_work",), from_ms, at_ms, killed),
        PlantedClaim(("startup",), from_ms, at_ms, killed[1:]),  # they saved nothing: their start was wasted
        culprit={"rank": rank, "node": machine.name},
        needs="sdk",
    )


def crash_loop(draft: Draft) -> None:
    """A job fails shortly after every start."""
    machine = draft.machine()
    at_ms = draft.moment(room_ms=110 * MINUTE)
    job = draft.new_job("reward-model", pods=1, gpus=8, at_ms=at_ms, kind="Job", gang=False)
    from_ms = at_ms
    for number in range(draft.chance.randint(5, 9)):
        attempt = ordinary_jobs.begin(draft.chance, job, [_whole_machine(machine)], at_ms, pulls_ms=[4 * SECOND])
        died_ms = attempt.started_ms[0] + draft.chance.randint(70 * SECOND, 200 * SECOND)
        attempt.events.append({"kind": "exception", "rank": 0, "at_ms": died_ms, "reason": "FileNotFoundError"})
        ordinary_jobs.end(attempt, died_ms, "Failed", "Error")
        attempt.activities[-1] = attempt.activities[-1]._replace(to_ms=died_ms)
        at_ms = died_ms + min(10 * 2**number, 300) * SECOND
    draft.plant("crash_loop", job, from_ms, died_ms, PlantedClaim(("startup",), from_ms, died_ms))


def preempted(draft: Draft) -> None:
    """A job is preempted for a more important one. It resumes later and repeats its last steps."""
    job = draft.victim(_trains)
    attempt = job.attempts[-1]
    away_ms = draft.length((6, 14), (20, 50))
    at_ms = _to_boundary(attempt, draft.moment(job, room_ms=away_ms + 30 * MINUTE))
    for pod in range(job.pods):
        attempt.events.append(
            {"kind": "preempted", "pod": pod, "at_ms": at_ms, "message": "Preempted to make room for a workload."}
        )
    ordinary_jobs.end(attempt, at_ms, "Failed", "Preempted", "killed")
    again = ordinary_jobs.resume(draft.chance, job, at_ms + away_ms)
    lost, startup = _lost(attempt), again.activities[0]
    draft.plant(
        "preempted",
        job,
        lost.from_ms,
        startup.to_ms,
        lost,
        PlantedClaim(("startup",), startup.from_ms, startup.to_ms, (again.number,)),
        needs="sdk",
    )


def diverged(draft: Draft) -> None:
    """The loss becomes NaN and training continues."""
    job = draft.victim(_trains)
    attempt = job.attempts[-1]
    length = draft.length((12, 25), (60, 240))
    at_ms = _to_boundary(attempt, draft.moment(job, room_ms=length))
    to_ms = at_ms + length
    attempt.events.append({"kind": "nonfinite_loss", "rank": 0, "at_ms": at_ms, "step_offset": 0})
    attempt.effects.append(Effect("nan", at_ms, to_ms))
    ordinary_jobs.end(attempt, to_ms, "Failed", "Error", "killed")
    claim = PlantedClaim(("diverged",), at_ms, to_ms, (attempt.number,))
    draft.plant("diverged", job, at_ms, to_ms, claim, needs="sdk", gpu_cause="diverged_suspected")


def diverged_suspected(draft: Draft) -> None:
    """The same in an uninstrumented job: only its power shows it."""
    job = draft.victim(lambda job: _works_uninstrumented(job) and job.kind != "Notebook")
    length = draft.length((50, 90), (120, 300))
    at_ms = draft.moment(job, room_ms=length, after_ms=draft.night.from_ms + 70 * MINUTE)
    attempt = job.attempts[-1]
    attempt.effects.append(Effect("nan", at_ms, at_ms + length))
    ordinary_jobs.end(attempt, at_ms + length, "Failed", "Error")
    claim = PlantedClaim(("active",), at_ms, at_ms + length)
    draft.plant("diverged_suspected", job, at_ms, at_ms + length, claim, needs="gpu")


def gang_wait(draft: Draft) -> None:
    """Some pods of a gang are scheduled at once, the others much later."""
    machines = draft.machines(2)
    length = draft.length((9, 18), (30, 75))
    at_ms = draft.moment(room_ms=length + 30 * MINUTE)
    job = draft.new_job("contrastive-xl", pods=2, gpus=8, at_ms=at_ms)
    attempt = ordinary_jobs.begin(draft.chance, job, [_whole_machine(m) for m in machines], at_ms, late_ms=[0, length])
    ordinary_jobs.finish(draft.chance, job, attempt)
    culprit: dict[str, object] = {"pods": [job.pod_name(attempt, 1)]}
    claim = PlantedClaim(("gang_wait",), at_ms, at_ms + length)
    draft.plant("gang_wait", job, at_ms, at_ms + length, claim, culprit=culprit)


def slow_start(draft: Draft) -> None:
    """One machine pulls the image slowly, and the others wait for it at the rendezvous."""
    machines = draft.machines(2)
    pull_ms = draft.length((11, 18), (22, 40))
    at_ms = draft.moment(room_ms=pull_ms + 30 * MINUTE)
    job = draft.new_job("distil-8b", pods=2, gpus=8, at_ms=at_ms)
    slow = draft.chance.randrange(2)
    pulls = [pull_ms if pod == slow else 70 * SECOND for pod in range(2)]
    attempt = ordinary_jobs.begin(draft.chance, job, [_whole_machine(m) for m in machines], at_ms, pulls_ms=pulls)
    ordinary_jobs.finish(draft.chance, job, attempt)
    startup = attempt.activities[0]
    beyond = PlantedClaim(("startup",), startup.to_ms - pull_ms + 70 * SECOND, startup.to_ms)
    culprit: dict[str, object] = {"node": machines[slow].name}
    draft.plant("slow_start", job, startup.from_ms, startup.to_ms, beyond, culprit=culprit)


def straggler(draft: Draft, job: Job | None = None, at_ms: int | None = None) -> None:
    """One rank is slower than the others in one phase, and all of them wait for it in every step."""
    also = job is not None  # in addition to waiting for data: then another phase is slow
    job = job or draft.victim(_trains_together)
    length = draft.length((14, 28), (50, 110), (150, 320))
    at_ms = at_ms or draft.moment(job, room_ms=length)
    rank = draft.chance.randrange(job.ranks)
    phase = draft.chance.choice(("forward", "backward", "copy") if also else ("forward", "backward", "copy", "data"))
    size = draft.chance.choice((0.2, 0.3, 0.6))
    attempt = job.attempts[-1]
    to_ms = min(at_ms + length, attempt.activities[-1].to_ms)
    attempt.effects.append(Effect(kind="slow", from_ms=at_ms, to_ms=to_ms, size=size, ranks=(rank,), phase=phase))
    machine, gpu = job.device_of(attempt, rank)
    culprit: dict[str, object] = {"rank": rank, "node": machine.name, "gpu": gpu}
    draft.plant(
        "straggler", job, at_ms, to_ms, PlantedClaim(("straggler_wait",), at_ms, to_ms), culprit=culprit, needs="sdk"
    )
    if phase == "data":  # the rank itself waits before the other ranks wait for it
        waits = PlantedClaim(("data_stall",), at_ms, to_ms, ranks=(rank,))
        draft.plant("data_stall", job, at_ms, to_ms, waits, culprit={"node": machine.name}, needs="sdk")


def data_stall(draft: Draft) -> None:
    """Storage is too slow: every rank waits for its next batch. Sometimes one rank is slow as well."""
    job = draft.victim(_trains)
    length = draft.length((12, 25), (60, 200))
    at_ms = draft.moment(job, room_ms=length)
    attempt = job.attempts[-1]
    attempt.effects.append(Effect("data", at_ms, at_ms + length, draft.chance.choice((0.2, 0.35, 0.6))))
    claim = PlantedClaim(("data_stall",), at_ms, at_ms + length)
    draft.plant("data_stall", job, at_ms, at_ms + length, claim, needs="sdk")
    if job.pods > 1 and length > 50 * MINUTE and draft.chance.random() < 0.5:
        straggler(draft, job, at_ms + length // 2)


def comm_stall(draft: Draft) -> None:
    """A link runs at a fraction of its rate: every all-reduce takes several times as long."""
    job = draft.victim(_trains_together)
    length = draft.length((35, 60), (90, 250))
    at_ms = draft.moment(job, room_ms=length, after_ms=draft.night.from_ms + 45 * MINUTE)
    size = draft.chance.uniform(2.8, 6.0)
    job.attempts[-1].effects.append(Effect("comm", at_ms, at_ms + length, size))
    claim = PlantedClaim(("comm_stall",), at_ms, at_ms + length, part=1 - 1 / size)
    draft.plant("comm_stall", job, at_ms, at_ms + length, claim, needs="sdk")


def slow_checkpoint(draft: Draft) -> None:
    """The storage for checkpoints is busy: each save blocks for minutes instead of seconds."""
    job = draft.victim(_trains)
    attempt = job.attempts[-1]
    from_ms = draft.moment(job, room_ms=100 * MINUTE)
    to_ms = from_ms + draft.length((130, 170), (200, 300))
    size = draft.chance.uniform(6, 15)
    shifted: list[Activity] = []
    delay, slow = 0, []
    for activity in attempt.activities:
        begin, over = activity.from_ms + delay, activity.to_ms + delay
        if activity.kind == "checkpoint" and from_ms <= begin < to_ms:
            more = round((activity.to_ms - activity.from_ms) * (size - 1))
            over += more
            delay += more
            slow.append((begin, over))
        shifted.append(Activity(activity.kind, begin, over))
    end_ms = attempt.activities[-1].to_ms
    slow = [save for save in slow if save[1] < end_ms]
    if len(slow) < 2:
        raise NoRoomError
    attempt.activities = shifted
    ordinary_jobs.cut(attempt, end_ms)
    claim = PlantedClaim(("checkpoint",), slow[0][0], slow[-1][1], (attempt.number,), part=1 - 1 / size)
    draft.plant("slow_checkpoint", job, slow[0][0], slow[-1][1], claim, needs="sdk")


def unused_device(draft: Draft) -> None:
    """A program holds eight devices and uses seven."""
    job = draft.victim(lambda job: _works_uninstrumented(job) and job.pods == 1 and job.gpus > 2 and job.kind == "Job")
    attempt = job.attempts[-1]
    rank = draft.chance.randrange(job.gpus)
    attempt.effects.append(Effect("unused", 0, draft.night.to_ms * 2, ranks=(rank,)))
    machine, gpu = job.device_of(attempt, rank)
    from_ms = max(attempt.first_step_ms or 0, draft.night.from_ms)
    claim = PlantedClaim(("unused_device",), from_ms, attempt.activities[-1].to_ms)
    culprit: dict[str, object] = {"node": machine.name, "gpu": gpu}
    draft.plant("unused_device", job, from_ms, attempt.activities[-1].to_ms, claim, culprit=culprit, needs="gpu")


def idle_held(draft: Draft) -> None:
    """An abandoned notebook, or a program that ended in a pod that keeps running."""
    if draft.chance.random() < 0.6:
        job = draft.victim(lambda job: job.kind == "Notebook")
        attempt = job.attempts[-1]
        at_ms = draft.chance.randint(draft.night.from_ms + 21 * MINUTE, draft.night.from_ms + 110 * MINUTE)
        ordinary_jobs.cut(attempt, at_ms)
        ordinary_jobs.work_on(attempt, "idle", draft.night.to_ms)
        claim = PlantedClaim(("idle_held",), at_ms, draft.night.to_ms)
        culprit: dict[str, object] = {"pod": job.pod_name(attempt, 0), "user": job.user}
        draft.plant("idle_held", job, at_ms, draft.night.to_ms, claim, culprit=culprit, needs="gpu")
        return
    job = draft.victim(lambda job: _trains(job) and job.pods == 1)
    attempt = job.attempts[-1]
    length = draft.length((40, 80), (100, 300))
    at_ms = _to_boundary(attempt, draft.moment(job, room_ms=length))
    ordinary_jobs.cut(attempt, at_ms)
    ordinary_jobs.work_on(attempt, "idle", at_ms + length)
    attempt.events += [{"kind": "loop_ended", "rank": rank, "at_ms": at_ms} for rank in range(job.ranks)]
    ordinary_jobs.end(attempt, at_ms + length, "Succeeded")
    claim = PlantedClaim(("idle_held",), at_ms, at_ms + length)
    culprit = {"pod": job.pod_name(attempt, 0)}
    draft.plant("idle_held", job, at_ms, at_ms + length, claim, culprit=culprit, needs="gpu")


def starved(draft: Draft) -> None:
    """Bursts and pauses: the GPUs wait for something that is not measured."""
    job = draft.victim(lambda job: _works_uninstrumented(job) and job.kind == "Job")
    attempt = job.attempts[-1]
    length = draft.length((60, 110), (150, 300))
    at_ms = draft.moment(job, room_ms=length)
    before, to_ms = attempt.activities[-1], at_ms + length
    ordinary_jobs.cut(attempt, at_ms)
    now_ms, kind = at_ms, "pause"
    while now_ms < min(to_ms, before.to_ms):
        piece = min(draft.chance.randint(3 * MINUTE, 7 * MINUTE), before.to_ms - now_ms)
        attempt.activities.append(Activity(kind, now_ms, now_ms + piece))
        now_ms, kind = now_ms + piece, "busy" if kind == "pause" else "pause"
    to_ms = max(activity.to_ms for activity in attempt.activities if activity.kind == "pause")
    if now_ms < before.to_ms:
        attempt.activities.append(Activity("busy", now_ms, before.to_ms))
    draft.plant("starved", job, at_ms, to_ms, PlantedClaim(("starved",), at_ms, to_ms), needs="gpu")


def throttled(draft: Draft) -> None:
    """A hot GPU runs at a reduced clock, or all GPUs of a machine do because its fans failed."""
    job = draft.victim(lambda job: _works_uninstrumented(job) and job.kind == "Job")
    attempt = job.attempts[-1]
    length = draft.length((100, 150), (180, 330))
    at_ms = draft.moment(job, room_ms=length)
    rank = draft.chance.randrange(job.ranks)
    size = draft.chance.choice((0.55, 0.65, 0.78))
    ranks = tuple(range(job.ranks)) if rank % 2 and job.pods == 1 else (rank,)
    attempt.effects.append(Effect("clock", at_ms, at_ms + length, size, ranks))
    machine, gpu = job.device_of(attempt, rank)
    claim = PlantedClaim(("active",), at_ms, at_ms + length, ranks=ranks, part=1 - size)
    culprit: dict[str, object] = {"node": machine.name} | ({"gpu": gpu} if len(ranks) == 1 else {})
    draft.plant("throttled", job, at_ms, at_ms + length, claim, culprit=culprit, needs="gpu")


def plateau(draft: Draft) -> None:
    """The loss stops falling hours before the run ends."""
    job = draft.victim(lambda job: _trains(job) and job.until_ms >= draft.night.to_ms and len(job.attempts) == 1)
    at_ms = draft.moment(after_ms=draft.night.from_ms + 2 * HOUR, room_ms=5 * HOUR)
    attempt = job.attempts[-1]
    # early in training, so that the loss falls until then
    job.first_step, job.loss = (draft.chance.randint(500, 3_000), (1.4, 9.0, 0.3))
    for other in draft.night.jobs:
        if other.digest == job.digest:  # a duplicate of this job
            other.loss = job.loss
    attempt.effects.append(Effect("flat", at_ms, draft.night.to_ms))
    claim = PlantedClaim(("train",), at_ms, draft.night.to_ms)
    draft.plant("plateau", job, at_ms, draft.night.to_ms, claim, needs="sdk")


def duplicate_run(draft: Draft) -> None:
    """A user starts a run a second time: same code, configuration, data and seed."""
    twin = draft.victim(lambda job: _trains(job) and job.until_ms >= draft.night.to_ms)
    machine = draft.machine()
    length = draft.length((60, 120), (150, 320))
    at_ms = draft.moment(room_ms=length, after_ms=(twin.attempts[0].first_step_ms or 0) + 10 * MINUTE)
    job = draft.new_job(f"{twin.name}-again", pods=1, gpus=8, at_ms=at_ms, experiment=twin.experiment)
    job.digest, job.loss, job.until_ms, job.continues = twin.digest, twin.loss, at_ms + length, False
    attempt = ordinary_jobs.begin(draft.chance, job, [_whole_machine(machine)], at_ms)
    ordinary_jobs.finish(draft.chance, job, attempt)
    from_ms = attempt.first_step_ms or at_ms
    claim = PlantedClaim(("train",), from_ms, job.until_ms)
    draft.plant("duplicate_run", job, from_ms, job.until_ms, claim, culprit={"run": twin.uid}, needs="sdk")


def stranded(draft: Draft) -> None:
    """A pod waits although enough GPUs are free, because its queue has no quota left."""
    length = draft.length((20, 45), (60, 180))
    at_ms = draft.moment(room_ms=length + 20 * MINUTE)
    machine = draft.machine()
    job = draft.new_job("tokenizer-ablation", pods=1, gpus=8, at_ms=at_ms, kind="Job", gang=False)
    attempt = ordinary_jobs.begin(draft.chance, job, [_whole_machine(machine)], at_ms + length)
    attempt.created_ms = at_ms
    attempt.events.append(
        {
            "kind": "failed_scheduling",
            "pod": 0,
            "at_ms": at_ms + 2 * SECOND,
            "message": f"{job.queue} exceeds its quota.",
        }
    )
    ordinary_jobs.finish(draft.chance, job, attempt)
    claim = PlantedClaim(("free",), at_ms, at_ms + length, machine=machine)
    draft.plant("stranded", job, at_ms, at_ms + length, claim, culprit={"queue": job.queue})


def telemetry_lost(draft: Draft) -> None:
    """The exporter of a machine dies, so its uninstrumented jobs are not observed any more."""
    job = draft.victim(lambda job: _works_uninstrumented(job) and job.gpus == 8)
    machine = job.attempts[-1].places[0].machine
    length = draft.length((25, 60), (90, 250))
    at_ms = draft.moment(job, room_ms=length)
    draft.night.outages.append(Outage("telemetry", machine, at_ms, at_ms + length))
    claim = PlantedClaim(("unobserved",), at_ms, at_ms + length, machine=machine)
    draft.plant("telemetry_lost", None, at_ms, at_ms + length, claim, culprit={"node": machine.name}, needs="gpu")


FAULTS: dict[str, Callable[[Draft], None]] = {
    fault.__name__: fault
    for fault in (
        hardware_failure,
        out_of_memory,
        crash_loop,
        hang,
        preempted,
        lost_work,
        diverged,
        diverged_suspected,
        gang_wait,
        slow_start,
        straggler,
        data_stall,
        comm_stall,
        slow_checkpoint,
        unused_device,
        idle_held,
        starved,
        throttled,
        plateau,
        duplicate_run,
        stranded,
        telemetry_lost,
    )
}
