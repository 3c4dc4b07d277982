"""The records: every fact that sources report and the store keeps, one NamedTuple per kind.

`time_ms` is when the fact was true or observed, in milliseconds UTC. Objects that change (nodes, pods, runs…) are
stored as observations, and the newest observation of an object counts. Absent values are stored as None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from pyrometer.model.columns import Flag, Float64, Int16, Int32, Int64, IntList, Text, TextList, record

OWN_POD = "run:"  # prefix of the UID of a pod that represents a rank outside Kubernetes
WHOLE_DEVICE = -1  # `instance` of an allocation or sample of a whole device, not of a MIG instance


@record(key=("node_uid", "time_ms"), every="day")
class Node(NamedTuple):
    """A node at a time. A deleted node is recorded once more, with `present` false."""

    time_ms: Int64
    cluster: Text
    node_uid: Text
    name: Text
    gpu_count: Int16  # devices that it has now; its capacity is the highest count so far
    gpu_model: Text | None = None
    pool: Text | None = None
    instance_type: Text | None = None
    purchase: Text | None = None  # on_demand, spot, reserved
    ready: Flag = True
    schedulable: Flag = True
    present: Flag = True


@record(key=("node_uid", "slot_index", "time_ms"), every="day")
class Slot(NamedTuple):
    """One GPU position at a time.

    A slot without a known node (in a recording, a trace, or on a laptop's CPU) has its lifetime in `from_ms` and
    `to_ms`.
    """

    time_ms: Int64
    node_uid: Text
    slot_index: Int16
    uuid: Text | None = None
    gpu_model: Text | None = None
    healthy: Flag = True
    reason: Text | None = None  # why it is unhealthy: "XID 79", "lost"
    from_ms: Int64 | None = None
    to_ms: Int64 | None = None


@record(key=("pod_uid", "time_ms"), every="day")
class Pod(NamedTuple):
    """A pod at a time."""

    time_ms: Int64
    cluster: Text
    pod_uid: Text
    namespace: Text
    name: Text
    phase: Text  # Pending, Running, Succeeded, Failed, Unknown
    workload_uid: Text | None = None
    attempt: Int16 = 1
    rank: Int32 | None = None
    node_uid: Text | None = None
    user: Text | None = None
    queue: Text | None = None
    created_ms: Int64 | None = None
    scheduled_ms: Int64 | None = None
    started_ms: Int64 | None = None  # when the last of its containers started
    ended_ms: Int64 | None = None
    reason: Text | None = None  # of its end: OOMKilled, Evicted, Error
    gpu_share: Int64 | None = None  # requested GPUs, in parts of a whole slot
    labels_json: Text | None = None
    pipeline_run: Text | None = None  # the pipeline run that it belongs to
    pipeline_step: Text | None = None  # the step of that run
    pipeline_attempt: Int16 | None = (
        None  # the attempt of that step, from 1; None: the attempts are those of its own job
    )
    trial_uid: Text | None = None  # the trial of a sweep that it belongs to


@record(key=("object_uid", "time_ms"), every="day")
class Owner(NamedTuple):
    """An object in an owner chain. It is kept after it is deleted, because its cost remains."""

    time_ms: Int64
    cluster: Text
    object_uid: Text
    api_group: Text
    kind: Text
    namespace: Text
    name: Text
    controller_uid: Text | None = None


@record(key=("workload_uid", "time_ms"), every="day")
class Workload(NamedTuple):
    """The root object that owns pods, with its experiment, team and user, and the rules that assigned them."""

    time_ms: Int64
    cluster: Text
    workload_uid: Text
    kind: Text
    namespace: Text
    name: Text
    api_group: Text = ""
    experiment: Text | None = None
    experiment_rule: Text | None = None
    team: Text | None = None
    team_rule: Text | None = None
    user: Text | None = None
    queue: Text | None = None
    gang_pods: Int32 | None = None  # pods that it needs before it can start; None: it is not a gang
    serves: Flag = False  # it serves a model, so its busy time is `infer`
    created_ms: Int64 | None = None
    labels_json: Text | None = None


@record(key=("run_id", "time_ms"), every="day")
class PipelineRun(NamedTuple):
    """One run of a pipeline that uses GPUs: an Argo Workflow, with or without Kubeflow Pipelines."""

    time_ms: Int64
    cluster: Text
    run_id: Text  # the id in Kubeflow Pipelines, else the Workflow's UID
    workflow_uid: Text
    namespace: Text
    name: Text  # the display name
    pipeline: Text  # the name of the pipeline
    state: Text  # pending, running, succeeded, failed; unknown: not reported by its Workflow
    started_ms: Int64 | None = None
    ended_ms: Int64 | None = None


@record(key=("run_id", "step", "attempt", "time_ms"), every="day")
class PipelineStep(NamedTuple):
    """One attempt of one step of a pipeline run, with or without GPUs, as its Workflow reports it."""

    time_ms: Int64
    run_id: Text
    step: Text
    attempt: Int16  # from 1; a retry is a new attempt
    state: Text  # pending, running, succeeded, failed, skipped, cached
    started_ms: Int64 | None = None
    ended_ms: Int64 | None = None
    message: Text | None = None


@record(key=("sweep_uid", "time_ms"), every="day")
class Sweep(NamedTuple):
    """A search for the best parameters that uses GPUs: an Experiment of Katib."""

    time_ms: Int64
    cluster: Text
    sweep_uid: Text
    namespace: Text
    name: Text
    state: Text  # created, running, restarting, succeeded, failed
    metric: Text | None = None  # the metric to minimize or maximize
    goal: Text | None = None  # min, max
    target: Float64 | None = None  # the value that is good enough
    algorithm: Text | None = None
    best_trial: Text | None = None  # the name of the best trial so far, as reported by Katib
    started_ms: Int64 | None = None
    ended_ms: Int64 | None = None


@record(key=("trial_uid", "time_ms"), every="day")
class Trial(NamedTuple):
    """One trial of a sweep: its parameters and its result."""

    time_ms: Int64
    trial_uid: Text
    sweep_uid: Text
    namespace: Text
    name: Text
    state: Text  # created, running, succeeded, failed, killed, early_stopped, metrics_unavailable
    parameters_json: Text | None = None
    value: Float64 | None = None  # best or last value of the metric, according to the strategy of the sweep
    metrics_json: Text | None = None  # the minimum, maximum and last value of each metric
    started_ms: Int64 | None = None
    ended_ms: Int64 | None = None


@record(key=("pod_uid", "node_uid", "slot_index", "instance", "from_ms", "time_ms"), every="day")
class Allocation(NamedTuple):
    """The time that a pod holds a slot or a share of a slot. Open if `to_ms` is absent."""

    time_ms: Int64
    pod_uid: Text
    node_uid: Text
    slot_index: Int16
    from_ms: Int64
    to_ms: Int64 | None
    share: Int64  # parts of a whole slot
    instance: Int16 = WHOLE_DEVICE
    source: Text = "kubernetes"  # of the device assignment: kubernetes, pod_resources, dcgm, count, trace, sdk


@record(key=("node_uid", "slot_index", "instance", "time_ms"))
class GpuSample(NamedTuple):
    """A reading of one slot from DCGM or NVML. Ratios are in thousandths, because integers compress well."""

    time_ms: Int64
    node_uid: Text
    slot_index: Int16
    instance: Int16 = WHOLE_DEVICE
    gpu_util_permille: Int16 | None = None
    sm_active_permille: Int16 | None = None
    graphics_active_permille: Int16 | None = None
    tensor_active_permille: Int16 | None = None
    dram_active_permille: Int16 | None = None
    memory_used_mib: Int32 | None = None
    power_w: Int16 | None = None
    energy_j: Int64 | None = None
    temperature_c: Int16 | None = None
    sm_clock_mhz: Int16 | None = None
    throttle_reasons: Int64 | None = None
    xid: Int32 | None = None


@record(key=("node_uid", "time_ms"))
class NodeSample(NamedTuple):
    """A reading of one node from node_exporter, for the minute that begins at `time_ms`.

    Rates are averages over the minute. Sums cover physical devices.
    """

    time_ms: Int64
    node_uid: Text
    cpu_busy_permille: Int16 | None = None  # of all CPUs, on average
    cpu_wait_permille: Int16 | None = None  # idle while a process waited for disks
    memory_used_permille: Int16 | None = None  # not available to programs; caches do not count as used
    disk_busy_permille: Int16 | None = None  # of the busiest disk
    io_stalled_permille: Int16 | None = None  # every runnable process waited for disks
    disk_read_mib_s: Int32 | None = None
    disk_write_mib_s: Int32 | None = None
    network_rx_mib_s: Int32 | None = None
    network_tx_mib_s: Int32 | None = None
    network_dropped_per_s: Int32 | None = None  # received packets that were dropped


@record(key=("run", "attempt", "rank", "time_ms"), every="day")
class Run(NamedTuple):
    """One rank of one attempt of a run, as its process reported it. All ranks together are the run."""

    time_ms: Int64
    run: Text
    attempt: Int16
    rank: Int32
    started_ms: Int64
    ranks: Int32 = 1
    launch: Text | None = None
    cluster: Text | None = None
    experiment: Text | None = None
    workload_uid: Text | None = None
    pod_uid: Text | None = None
    node_uid: Text | None = None
    slot_index: Int16 | None = None
    first_step_ms: Int64 | None = None  # end of the first step; the time before is `startup`
    ended_ms: Int64 | None = None
    outcome: Text | None = None  # succeeded, failed, killed; unknown: the log ends early
    resumed_step: Int64 | None = None  # the first step after a restore
    framework: Text | None = None
    source: Text | None = None  # the tracker that reported it, which does not report states; None: its own processes


@record(key=("run", "attempt", "rank", "time_ms"), sort=("run", "attempt", "rank", "time_ms"))
class StepWindow(NamedTuple):
    """A fold of consecutive steps of one rank. It begins at `time_ms`; amounts are milliseconds within it.

    The windows of a run end at the same steps on every rank. A window without steps is an evaluation or a checkpoint
    between steps.
    """

    time_ms: Int64
    to_ms: Int64
    run: Text
    attempt: Int16
    rank: Int32
    node_uid: Text
    slot_index: Int16
    pod_uid: Text | None = None
    first_step: Int64 | None = None
    steps: Int32 = 0
    data_ms: Int32 = 0  # waiting for the next batch
    copy_ms: Int32 = 0
    forward_ms: Int32 = 0
    backward_ms: Int32 = 0
    comm_ms: Int32 = 0  # exposed communication: optimizer start − local gradients ready
    optimizer_ms: Int32 = 0
    checkpoint_ms: Int32 = 0
    evaluate_ms: Int32 = 0
    compile_ms: Int32 = 0
    garbage_ms: Int32 = 0
    step_p50_us: Int64 | None = None
    step_max_us: Int64 | None = None
    samples: Int64 | None = None
    tokens: Int64 | None = None
    flops: Int64 | None = None
    memory_peak_mib: Int32 | None = None
    memory_reserved_mib: Int32 | None = None
    step_lengths: IntList | None = None  # pairs: µs, number of steps of that length; None: only the median is known


@record(key=("span_id",), sort=("trace_id", "time_ms"))
class Span(NamedTuple):
    """A phase of one step of one rank, in microseconds."""

    time_ms: Int64
    trace_id: Text
    span_id: Text
    name: Text
    duration_us: Int64
    run: Text
    attempt: Int16
    rank: Int32
    step: Int64 | None = None
    parent_id: Text | None = None
    attributes_json: Text | None = None
    after_us: Int32 | None = None  # its start, relative to `time_ms`; None: within that millisecond


@record(
    key=("run", "attempt", "rank", "loader", "epoch", "send_index"),
    sort=("run", "attempt", "rank", "time_ms"),
    delta_coded=True,
)
class Batch(NamedTuple):
    """The samples of one micro-batch, and the step that consumed it.

    Samples are stored as numbers (`rows`) if all of them are numbers, otherwise as texts (`samples`): see
    `named_samples`. A batch without either has unknown samples.
    """

    time_ms: Int64
    run: Text
    attempt: Int16
    rank: Int32
    loader: Int16
    epoch: Int32
    send_index: Int64
    micro_batch: Int32 = 0
    step: Int64 | None = None
    dataset: Text | None = None
    samples: TextList | None = None
    rows: IntList | None = None


def step_lengths(took_us: Iterable[int]) -> tuple[int, ...]:
    """The lengths of steps as `StepWindow.step_lengths` stores them."""
    counts = Counter(max(us, 1) for us in took_us)
    return tuple(number for us in sorted(counts) for number in (us, counts[us]))


def named_samples(samples: Iterable[int | str]) -> dict[str, Any]:
    """The columns of `Batch` for these samples. Numbers are smaller, and searched in a third of the time."""
    listed = tuple(samples)
    if all(isinstance(sample, int) and -(2**63) <= sample < 2**63 for sample in listed):
        return {"rows": tuple(map(int, listed))}
    return {"samples": tuple(map(str, listed))}


@record(key=("run", "attempt", "rank", "name", "step", "time_ms"), sort=("run", "name", "time_ms"))
class Metric(NamedTuple):
    """One value of one metric of a run, as the training program reported it."""

    time_ms: Int64
    run: Text
    attempt: Int16
    rank: Int32
    name: Text
    value: Float64
    step: Int64 | None = None  # as the program or its framework numbers it
    goal: Text | None = None  # min, max
    source: Text | None = None  # the reporter: backward, pyrometer, transformers, lightning, wandb, mlflow, …
    first_step: Int64 | None = None  # the training steps that the value covers, numbered like batches and windows
    last_step: Int64 | None = None  # inclusive; None: unknown


@record(
    key=("kind", "node_uid", "slot_index", "pod_uid", "workload_uid", "run", "attempt", "rank", "step", "time_ms"),
    sort=("kind", "time_ms"),
)
class Event(NamedTuple):
    """Something that happened once: a kind from `events.py`, the affected object, and a text."""

    time_ms: Int64
    kind: Text
    duration_ms: Int64 | None = None
    cluster: Text | None = None
    node_uid: Text | None = None
    slot_index: Int16 | None = None
    pod_uid: Text | None = None
    workload_uid: Text | None = None
    run: Text | None = None
    attempt: Int16 | None = None
    rank: Int32 | None = None
    step: Int64 | None = None
    reason: Text | None = None
    message: Text | None = None


@record(key=("run", "attempt", "node_uid", "slot_index", "from_ms", "state", "time_ms"), every="day", derived=True)
class Restatement(NamedTuple):
    """Later evidence that a slot was in another state. It is open if `to_ms` is absent. The newest record of a start
    time counts, and a record that ends where it starts withdraws it."""

    time_ms: Int64
    run: Text
    attempt: Int16
    node_uid: Text
    slot_index: Int16
    from_ms: Int64
    to_ms: Int64 | None
    state: Text
    pod_uid: Text | None = None
    reason: Text | None = None


@record(key=("gpu_model", "pool", "cluster", "purchase", "from_ms", "time_ms", "instance_type"), every="day")
class Price(NamedTuple):
    """Micro-dollars per hour of a GPU or of a whole node. An absent selector matches every slot, and the price
    with the most selectors wins."""

    time_ms: Int64
    usd_micro_per_hour: Int64
    from_ms: Int64
    to_ms: Int64 | None = None
    gpu_model: Text | None = None
    pool: Text | None = None
    cluster: Text | None = None
    purchase: Text | None = None
    source: Text = "book"  # book, list
    assumed: Flag = False
    instance_type: Text | None = None
    per: Text | None = None  # gpu, node; None: gpu. The price of a node is divided among its GPUs


@record(key=("finding_id", "time_ms"), every="day", derived=True)
class Finding(NamedTuple):
    """A finding of a running server. It is written when it opens, when it ends, and once per day in between, so that
    its id stays the same when it is found again."""

    time_ms: Int64  # the newest minute of the examined ledger
    finding_id: Text
    cause: Text
    owner_uid: Text | None  # the workload, or a pod without a workload; None: the platform
    from_ms: Int64
    to_ms: Int64  # so far, if it has not ended
    seen_ms: Int64  # when it was first found
    over_ms: Int64 | None = None  # when its end was found
    gpu_ms: Int64 = 0
    usd_micro: Int64 | None = None
    culprit_json: Text | None = None


@record(
    key=("node_uid", "slot_index", "minute_ms", "pod_uid", "attempt", "state", "evidence", "usd_micro_per_hour"),
    derived=True,
)
class LedgerRow(NamedTuple):
    """The ledger: the milliseconds of a slot's minute that this pod held in this state."""

    minute_ms: Int64
    node_uid: Text
    slot_index: Int16
    pod_uid: Text | None  # None: not held by a pod, so the platform pays
    attempt: Int16
    state: Text
    evidence: Int16  # bits: 1 Kubernetes, 2 GPU telemetry, 4 SDK
    usd_micro_per_hour: Int64 | None  # None: unpriced
    ms: Int32


@record(key=("node_uid", "slot_index", "pod_uid", "time_ms"), derived=True)
class Energy(NamedTuple):
    """The energy of a holder's part of a slot in the quarter of an hour from `time_ms` on, if telemetry shows it."""

    time_ms: Int64
    node_uid: Text
    slot_index: Int16
    pod_uid: Text | None  # None: not held by a pod
    energy_mj: Int64
    ms: Int32  # the part of the holder's time that the energy covers
    estimated_ms: Int32  # the part of that time estimated from power readings, without a counter


@record(key=("node_uid", "pod_uid", "state", "evidence", "usd_micro_per_hour", "time_ms"), derived=True)
class HourSum(NamedTuple):
    """The ledger of the hour from `time_ms` on, summed over minutes and slots. Most questions read it."""

    time_ms: Int64
    node_uid: Text
    pod_uid: Text | None
    state: Text
    evidence: Int16
    usd_micro_per_hour: Int64 | None
    ms: Int64


@record(key=("state", "held", "usd_micro_per_hour", "time_ms"), derived=True)
class MinuteSum(NamedTuple):
    """The ledger of the minute from `time_ms` on, summed over slots and holders. Timelines read it."""

    time_ms: Int64
    state: Text
    held: Flag  # by a pod
    usd_micro_per_hour: Int64 | None
    ms: Int64


@record(key=("node_uid", "pod_uid", "usd_micro_per_hour", "time_ms"), derived=True)
class MinuteUse(NamedTuple):
    """The ledger of a holder on a node by minute from `time_ms` on, summed over slots and states. Consecutive equal
    minutes of an hour are one row. It is read for hours that a time range cuts."""

    time_ms: Int64
    node_uid: Text
    pod_uid: Text | None
    usd_micro_per_hour: Int64 | None
    minutes: Int16
    ms: Int64  # of each minute


@record(key=("node_uid", "pod_uid", "time_ms"), derived=True)
class QuarterUse(NamedTuple):
    """The energy and GPU activity of a holder on a node in the quarter of an hour from `time_ms` on, if telemetry shows
    them."""

    time_ms: Int64
    node_uid: Text
    pod_uid: Text | None  # None: not held by a pod
    energy_mj: Int64
    ms: Int64  # the part of the holder's time that the energy covers
    estimated_ms: Int64  # the part of that time estimated from power readings, without a counter
    readings: Int64  # the number of activity readings while it held a GPU
    activity_sum: Int64  # the sum of those readings, in thousandths


@record(key=("node_uid", "pod_uid", "usd_micro_per_hour", "time_ms"), derived=True)
class HourUse(NamedTuple):
    """Time, energy and activity of a holder on a node in the hour from `time_ms` on, summed over states."""

    time_ms: Int64
    node_uid: Text
    pod_uid: Text | None
    usd_micro_per_hour: Int64 | None
    ms: Int64  # of the ledger
    energy_mj: Int64  # from here on without a price: the values are in one row of the hour
    energy_ms: Int64
    estimated_ms: Int64
    readings: Int64
    activity_sum: Int64


@record(key=("node_uid", "slot_index", "pod_uid", "instance", "time_ms"), derived=True)
class Carry(NamedTuple):
    """What accounting of the hour that starts at `time_ms` must know of earlier hours."""

    time_ms: Int64
    node_uid: Text
    slot_index: Int16
    pod_uid: Text
    instance: Int16
    first_active_ms: Int64 | None = None  # of this slot
    pod_active_ms: Int64 | None = None  # of any slot that the pod held at the same time
    active_until_ms: Int64 | None = None
