"""The objects of a night as the Kubernetes API and the training processes report them: machines, workloads with their
owner chains, pods, allocations, runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pyrometer.model.records import Allocation, Node, Owner, Pod, Price, Run, Slot, Workload
from pyrometer.model.units import MS_PER_DAY, SHARE_WHOLE
from pyrometer.simulate.jobs import Job, JobAttempt, Night

CLUSTER = "simulated"
# The owners from a pod up to its workload: kind and API group, the direct owner of the pod first.
CHAINS = {
    "Workflow": [("Workflow", "argoproj.io")],
    "PyTorchJob": [("PyTorchJob", "kubeflow.org")],
    "TrainJob": [("Job", "batch"), ("JobSet", "jobset.x-k8s.io"), ("TrainJob", "trainer.kubeflow.org")],
    "RayJob": [("RayCluster", "ray.io"), ("RayJob", "ray.io")],
    "Job": [("Job", "batch")],
    "Notebook": [("StatefulSet", "apps"), ("Notebook", "kubeflow.org")],
    "Deployment": [("ReplicaSet", "apps"), ("Deployment", "apps")],
}


def objects(night: Night, resumed_step: dict[tuple[str, int], int]) -> Iterator[tuple[Any, ...]]:
    """Yields every object of the night once per change."""
    yield from _prices(night)
    yield from _machines(night)
    yield from night.records
    for job in night.jobs:
        seen_ms = max(job.created_ms, night.from_ms)
        yield from _workload(job, seen_ms)
        for attempt in job.attempts:
            if min(attempt.scheduled_ms) < night.to_ms:
                yield from _pods(night, job, attempt)
                if job.instrumented:
                    yield from _ranks(night, job, attempt, resumed_step.get((job.uid, attempt.number)))


def _prices(night: Night) -> Iterator[Price]:
    for pool in dict.fromkeys(machine.pool for machine in night.machines):
        yield Price(
            night.from_ms,
            pool.model.usd_micro_per_hour,
            night.from_ms - 30 * MS_PER_DAY,
            gpu_model=pool.model.name,
            pool=pool.name,
        )


def _machines(night: Night) -> Iterator[Node | Slot]:
    for machine in night.machines:
        pool = machine.pool
        node = Node(
            time_ms=night.from_ms,
            cluster=CLUSTER,
            node_uid=machine.uid,
            name=machine.name,
            gpu_count=pool.gpus,
            gpu_model=pool.model.name,
            pool=pool.name,
            instance_type=pool.instance_type,
            purchase="reserved",
        )
        yield node
        cordons = [o for o in night.outages if o.kind == "cordon" and o.machine == machine]
        for cordon in cordons:
            yield node._replace(time_ms=cordon.from_ms, schedulable=False)
            yield node._replace(time_ms=cordon.to_ms)
        yield node._replace(time_ms=night.to_ms - 1)
        for gpu in range(pool.gpus):
            uuid = f"GPU-{machine.name}-{gpu}"
            yield Slot(night.from_ms, machine.uid, gpu, uuid, pool.model.name)
    for outage in night.outages:
        if outage.kind == "device" and outage.gpu is not None:
            uuid = f"GPU-{outage.machine.name}-{outage.gpu}"
            model = outage.machine.pool.model.name
            yield Slot(
                time_ms=outage.from_ms,
                node_uid=outage.machine.uid,
                slot_index=outage.gpu,
                uuid=uuid,
                gpu_model=model,
                healthy=False,
                reason=outage.reason,
            )
            if outage.to_ms < night.to_ms:
                yield Slot(outage.to_ms, outage.machine.uid, outage.gpu, uuid, model)


def _workload(job: Job, seen_ms: int) -> Iterator[Workload | Owner]:
    chain = CHAINS[job.kind]
    yield Workload(
        time_ms=seen_ms,
        cluster=CLUSTER,
        workload_uid=job.uid,
        kind=job.kind,
        namespace=job.namespace,
        name=job.name,
        api_group=chain[-1][1],
        experiment=job.experiment,
        experiment_rule="label",
        team=job.team,
        team_rule="queue",
        user=job.user,
        queue=job.queue,
        gang_pods=job.pods if job.gang and job.pods > 1 else None,
        serves=job.serves,
        created_ms=job.created_ms,
        labels_json=json.dumps({"experiment": job.experiment, "kueue.x-k8s.io/queue-name": job.queue}),
    )
    for place, (kind, group) in enumerate(chain):
        last = place == len(chain) - 1
        above = None if last else _owner_uid(job, place + 1)
        name = job.name if last else f"{job.name}-{kind.lower()}"
        yield Owner(
            time_ms=seen_ms,
            cluster=CLUSTER,
            object_uid=_owner_uid(job, place),
            api_group=group,
            kind=kind,
            namespace=job.namespace,
            name=name,
            controller_uid=above,
        )


def _owner_uid(job: Job, place: int) -> str:
    chain = CHAINS[job.kind]
    return job.uid if place == len(chain) - 1 else f"{job.uid}-{chain[place][0].lower()}"


def _seen(night: Night, states: list[Any]) -> Iterator[Any]:
    """The states of an object that are visible in the night: the one at the start, and every later one."""
    before = [state for state in states if state.time_ms <= night.from_ms]
    yield from (state._replace(time_ms=night.from_ms) for state in before[-1:])
    yield from (state for state in states if night.from_ms < state.time_ms < night.to_ms)


def _pods(night: Night, job: Job, attempt: JobAttempt) -> Iterator[Pod | Allocation]:
    for number, place in enumerate(attempt.places):
        uid, scheduled_ms = job.pod_uid(attempt, number), attempt.scheduled_ms[number]
        started_ms, ended_ms = attempt.started_ms[number], attempt.ended_ms
        created_ms = attempt.created_ms or scheduled_ms - 1_000
        pending = Pod(
            time_ms=created_ms,
            cluster=CLUSTER,
            pod_uid=uid,
            namespace=job.namespace,
            name=job.pod_name(attempt, number),
            phase="Pending",
            workload_uid=job.uid,
            attempt=attempt.number,
            rank=None,
            node_uid=None,
            user=job.user,
            queue=job.queue,
            created_ms=created_ms,
            gpu_share=len(place.gpus) * SHARE_WHOLE,
            **job.part,
            pipeline_attempt=attempt.number if job.kind == "Workflow" else None,
        )
        placed = pending._replace(time_ms=scheduled_ms, node_uid=place.machine.uid, scheduled_ms=scheduled_ms)
        states = [pending, placed]
        if ended_ms is None or started_ms < ended_ms:
            states.append(placed._replace(time_ms=started_ms, phase="Running", rank=number, started_ms=started_ms))
        if ended_ms is not None:
            over = states[-1]._replace(time_ms=ended_ms, ended_ms=ended_ms)
            states.append(over._replace(phase=attempt.phase, reason=attempt.reason))
        yield from _seen(night, states)
        for gpu in place.gpus:
            hold = Allocation(
                time_ms=scheduled_ms,
                pod_uid=uid,
                node_uid=place.machine.uid,
                slot_index=gpu,
                from_ms=scheduled_ms,
                to_ms=None,
                share=SHARE_WHOLE,
            )
            yield from _seen(night, [hold] + [hold._replace(time_ms=ms, to_ms=ms) for ms in [ended_ms] if ms])


def _ranks(night: Night, job: Job, attempt: JobAttempt, resumed_step: int | None) -> Iterator[Run]:
    first_ms, ended_ms = attempt.first_step_ms, attempt.ended_ms
    for rank in range(job.ranks):
        machine, gpu = job.device_of(attempt, rank)
        started_ms = attempt.started_ms[rank // job.gpus] + 2_000
        if ended_ms is not None and started_ms >= ended_ms:
            continue
        states = [
            Run(
                time_ms=started_ms,
                run=job.uid,
                attempt=attempt.number,
                rank=rank,
                started_ms=started_ms,
                ranks=job.ranks,
                launch=f"{job.uid}-{attempt.number}",
                cluster=CLUSTER,
                experiment=job.experiment,
                workload_uid=job.uid,
                pod_uid=job.pod_uid(attempt, rank // job.gpus),
                node_uid=machine.uid,
                slot_index=gpu,
                framework="torch",
            )
        ]
        if first_ms is not None and (ended_ms is None or first_ms < ended_ms):
            states.append(states[-1]._replace(time_ms=first_ms, first_step_ms=first_ms, resumed_step=resumed_step))
        if ended_ms is not None:
            states.append(states[-1]._replace(time_ms=ended_ms, ended_ms=ended_ms, outcome=attempt.outcome))
        yield from _seen(night, states)
