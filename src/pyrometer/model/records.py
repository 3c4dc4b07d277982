"""The records: every fact that sources bring and the store keeps, one NamedTuple a kind.

`time_ms` is when the fact was true (or seen), in milliseconds UTC. Objects that change (nodes, pods, runs…) are kept as
observations: the newest one of an object counts. Absent values are None, never a sentinel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from pyrometer.model.columns import Flag, Float64, Int16, Int32, Int64, IntList, Text, TextList, record

OWN_POD = "run:"  # begins the uid of a pod that stands for a rank outside of Kubernetes
WHOLE_DEVICE = -1  # `instance` of an allocation or a sample that is about the device, not about a MIG instance


@record(key=("node_uid", "time_ms"), every="day")
class Node(NamedTuple):
    """A machine as it was seen at a time. One that is gone is seen once more, with `present` false."""

    time_ms: Int64
    cluster: Text
    node_uid: Text
    name: Text
    gpu_count: Int16  # devices it shows now; its capacity is the highest count it has shown
    gpu_model: Text | None = None
    pool: Text | None = None
    instance_type: Text | None = None
    purchase: Text | None = None  # on_demand, spot, reserved
    ready: Flag = True
    schedulable: Flag = True
    present: Flag = True


@record(key=("node_uid", "slot_index", "time_ms"), every="day")
class Slot(NamedTuple):
    """One GPU's place as it was seen at a time.

    A slot that belongs to no known node (a recording, a trace, a laptop's CPU) says how long it lived, in `from_ms` and
    `to_ms`.
    """

    time_ms: Int64
    node_uid: Text
    slot_index: Int16
    uuid: Text | None = None
    gpu_model: Text | None = None
    healthy: Flag = True
    reason: Text | None = None  # why it is not healthy: "XID 79", "lost"
    from_ms: Int64 | None = None
    to_ms: Int64 | None = None


@record(key=("pod_uid", "time_ms"), every="day")
class Pod(NamedTuple):
    """A pod as it was seen at a time."""

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
    started_ms: Int64 | None = None  # the last of its containers started
    ended_ms: Int64 | None = None
    reason: Text | None = None  # of its end: OOMKilled, Evicted, Error
    gpu_share: Int64 | None = None  # GPUs asked for, in parts of a whole slot
    labels_json: Text | None = None
    pipeline_run: Text | None = None  # the run of a pipeline that it belongs to
    pipeline_step: Text | None = None  # the step of that run
    pipeline_attempt: Int16 | None = None  # which try of that step, from 1; None: a job of its own has its attempts
    trial_uid: Text | None = None  # the trial of a sweep that it belongs to


@record(key=("object_uid", "time_ms"), every="day")
class Owner(NamedTuple):
    """An object in an owner chain, kept after it is deleted: its cost remains."""

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
    """The root object that owns pods, with who it belongs to and which rule said so."""

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
    gang_pods: Int32 | None = None  # pods it needs before it can start; None when it needs no gang
    serves: Flag = False  # it serves a model: its busy time is `infer`
    created_ms: Int64 | None = None
    labels_json: Text | None = None


@record(key=("run_id", "time_ms"), every="day")
class PipelineRun(NamedTuple):
    """One run of a pipeline: an Argo Workflow, of Kubeflow Pipelines or by itself. Only of those that use GPUs."""

    time_ms: Int64
    cluster: Text
    run_id: Text  # what Kubeflow Pipelines calls it, else the Workflow's UID
    workflow_uid: Text
    namespace: Text
    name: Text  # what people call the run
    pipeline: Text  # what it is a run of
    state: Text  # pending, running, succeeded, failed; unknown: its Workflow has not said it
    started_ms: Int64 | None = None
    ended_ms: Int64 | None = None


@record(key=("run_id", "step", "attempt", "time_ms"), every="day")
class PipelineStep(NamedTuple):
    """One try of one step of a pipeline's run, whether it uses GPUs or not, as its Workflow says it."""

    time_ms: Int64
    run_id: Text
    step: Text
    attempt: Int16  # from 1: a retry is another one
    state: Text  # pending, running, succeeded, failed, skipped, cached
    started_ms: Int64 | None = None
    ended_ms: Int64 | None = None
    message: Text | None = None


@record(key=("sweep_uid", "time_ms"), every="day")
class Sweep(NamedTuple):
    """A search for the best parameters: Katib's Experiment. Only of those that use GPUs."""

    time_ms: Int64
    cluster: Text
    sweep_uid: Text
    namespace: Text
    name: Text
    state: Text  # created, running, restarting, succeeded, failed
    metric: Text | None = None  # what is to be as small or as large as it can be
    goal: Text | None = None  # min, max
    target: Float64 | None = None  # from which on it is good enough
    algorithm: Text | None = None
    best_trial: Text | None = None  # the name of the best one so far, as Katib says it
    started_ms: Int64 | None = None
    ended_ms: Int64 | None = None


@record(key=("trial_uid", "time_ms"), every="day")
class Trial(NamedTuple):
    """One trial of a sweep: the parameters it was given, and what came of it."""

    time_ms: Int64
    trial_uid: Text
    sweep_uid: Text
    namespace: Text
    name: Text
    state: Text  # created, running, succeeded, failed, killed, early_stopped, metrics_unavailable
    parameters_json: Text | None = None
    value: Float64 | None = None  # of the sweep's metric: the best, the last or whichever its strategy says
    metrics_json: Text | None = None  # of each metric: its least, its greatest and its last value
    started_ms: Int64 | None = None
    ended_ms: Int64 | None = None


@record(key=("pod_uid", "node_uid", "slot_index", "instance", "from_ms", "time_ms"), every="day")
class Allocation(NamedTuple):
    """A pod's hold on a slot, or on a share of it. Open while `to_ms` is None."""

    time_ms: Int64
    pod_uid: Text
    node_uid: Text
    slot_index: Int16
    from_ms: Int64
    to_ms: Int64 | None
    share: Int64  # parts of a whole slot
    instance: Int16 = WHOLE_DEVICE
    source: Text = "kubernetes"  # how the device is known: kubernetes, pod_resources, dcgm, count, trace, sdk


@record(key=("node_uid", "slot_index", "instance", "time_ms"))
class GpuSample(NamedTuple):
    """One slot at one time: what DCGM or NVML said. Ratios are in thousandths: whole numbers compress."""

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
    """One node in one minute, which begins at `time_ms`: what node_exporter said of the machine around the GPUs.

    Rates are those of the minute; what is summed is summed over physical devices.
    """

    time_ms: Int64
    node_uid: Text
    cpu_busy_permille: Int16 | None = None  # of all CPUs, on average
    cpu_wait_permille: Int16 | None = None  # idle while something waited for its disks
    memory_used_permille: Int16 | None = None  # what programs could not get any more: caches do not count
    disk_busy_permille: Int16 | None = None  # of the busiest disk
    io_stalled_permille: Int16 | None = None  # all that wanted to run waited for disks
    disk_read_mib_s: Int32 | None = None
    disk_write_mib_s: Int32 | None = None
    network_rx_mib_s: Int32 | None = None
    network_tx_mib_s: Int32 | None = None
    network_dropped_per_s: Int32 | None = None  # packets that came and found no room


@record(key=("run", "attempt", "rank", "time_ms"), every="day")
class Run(NamedTuple):
    """One rank of one attempt of a run, as its process saw it; the ranks together are the run."""

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
    first_step_ms: Int64 | None = None  # end of the first step: until then it starts up
    ended_ms: Int64 | None = None
    outcome: Text | None = None  # succeeded, failed, killed; unknown: a log that breaks off
    resumed_step: Int64 | None = None  # the first step that it did again or anew after a restore
    framework: Text | None = None
    source: Text | None = None  # the tracker that told of it: it says nothing of states; None: its own processes


@record(key=("run", "attempt", "rank", "time_ms"), sort=("run", "attempt", "rank", "time_ms"))
class StepWindow(NamedTuple):
    """Consecutive steps of one rank, folded. `time_ms` is its beginning; the amounts are milliseconds inside it.

    Windows of one run close at the same steps on every rank. A window without steps holds what happens between them:
    an evaluation, a checkpoint.
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
    data_ms: Int32 = 0  # waits for the next batch
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
    step_lengths: IntList | None = None  # µs, steps that took so long, µs, steps, …; None: only the median is known


@record(key=("span_id",), sort=("trace_id", "time_ms"))
class Span(NamedTuple):
    """A piece of one step of one rank, with sub-millisecond duration."""

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
    after_us: Int32 | None = None  # how much later than `time_ms` it began; None: within that millisecond


@record(
    key=("run", "attempt", "rank", "loader", "epoch", "send_index"),
    sort=("run", "attempt", "rank", "time_ms"),
    delta_coded=True,
)
class Batch(NamedTuple):
    """The data behind one micro-batch: which samples, consumed by which step.

    Samples are kept as numbers (`rows`) where all of them are, else as texts (`samples`): `named_samples` divides them.
    A batch with neither is one whose samples are not known.
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
    """Lengths of steps as the column of a window that takes them."""
    counts = Counter(max(us, 1) for us in took_us)
    return tuple(number for us in sorted(counts) for number in (us, counts[us]))


def named_samples(samples: Iterable[int | str]) -> dict[str, Any]:
    """Samples as the column of a batch that takes them. Numbers are smaller, and found in a third of the time."""
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
    source: Text | None = None  # what reported it: backward, pyrometer, transformers, lightning, wandb, mlflow, …
    first_step: Int64 | None = None  # the training steps that the value covers, numbered like batches and windows
    last_step: Int64 | None = None  # included; None: not known


@record(
    key=(
        "kind",
        "node_uid",
        "slot_index",
        "pod_uid",
        "workload_uid",
        "run",
        "attempt",
        "rank",
        "step",
        "time_ms",
    ),
    sort=("kind", "time_ms"),
)
class Event(NamedTuple):
    """Something that happened once: a kind from `events.py`, what it happened to, and its words."""

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
    """Later evidence about the past: this slot was in another state. Open while `to_ms` is None; the newest one of a
    beginning counts, and one that ends where it begins takes it back."""

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


@record(
    key=("gpu_model", "pool", "cluster", "purchase", "from_ms", "time_ms", "instance_type"),
    every="day",
)
class Price(NamedTuple):
    """Micro-dollars per hour of a GPU, or of a whole node. None in a selector means any; the price with the most
    selectors set wins."""

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
    per: Text | None = None  # gpu, node: a node's price is divided among its GPUs; None: gpu


@record(key=("finding_id", "time_ms"), every="day", derived=True)
class Finding(NamedTuple):
    """What was found, as a server that looks all the time saw it: written when it opens, when it is over, and once a
    day in between, so that what is found again keeps its name."""

    time_ms: Int64  # of the ledger that was looked at: its newest minute
    finding_id: Text
    cause: Text
    owner_uid: Text | None  # the workload, or the pod that belongs to none; None: nobody's but the platform's
    from_ms: Int64
    to_ms: Int64  # so far; what is not over goes on
    seen_ms: Int64  # when it was first found
    over_ms: Int64 | None = None  # when it was found to be over
    gpu_ms: Int64 = 0
    usd_micro: Int64 | None = None
    culprit_json: Text | None = None


@record(
    key=(
        "node_uid",
        "slot_index",
        "minute_ms",
        "pod_uid",
        "attempt",
        "state",
        "evidence",
        "usd_micro_per_hour",
    ),
    derived=True,
)
class LedgerRow(NamedTuple):
    """The ledger: this many milliseconds of a slot's minute, held by this pod, went into this state."""

    minute_ms: Int64
    node_uid: Text
    slot_index: Int16
    pod_uid: Text | None  # None: nobody held it, the platform pays
    attempt: Int16
    state: Text
    evidence: Int16  # bits: 1 Kubernetes, 2 GPU telemetry, 4 SDK
    usd_micro_per_hour: Int64 | None  # None: unpriced
    ms: Int32


@record(key=("node_uid", "slot_index", "pod_uid", "time_ms"), derived=True)
class Energy(NamedTuple):
    """What a holder's part of a slot drew in the quarter of an hour from `time_ms` on, as far as telemetry shows."""

    time_ms: Int64
    node_uid: Text
    slot_index: Int16
    pod_uid: Text | None  # None: nobody held it
    energy_mj: Int64
    ms: Int32  # of the holder's time, how much this is known of
    estimated_ms: Int32  # of that, how much by power readings, because there was no counter


@record(key=("node_uid", "pod_uid", "state", "evidence", "usd_micro_per_hour", "time_ms"), derived=True)
class HourSum(NamedTuple):
    """The ledger of the hour from `time_ms` on without its minutes and slots: what most questions add up."""

    time_ms: Int64
    node_uid: Text
    pod_uid: Text | None
    state: Text
    evidence: Int16
    usd_micro_per_hour: Int64 | None
    ms: Int64


@record(key=("state", "held", "usd_micro_per_hour", "time_ms"), derived=True)
class MinuteSum(NamedTuple):
    """The ledger of the minute from `time_ms` on without its slots and holders: what a timeline draws."""

    time_ms: Int64
    state: Text
    held: Flag  # by anybody
    usd_micro_per_hour: Int64 | None
    ms: Int64


@record(key=("node_uid", "pod_uid", "usd_micro_per_hour", "time_ms"), derived=True)
class MinuteUse(NamedTuple):
    """The ledger of a holder on a node without its slots and states, minute by minute from `time_ms` on: minutes of an
    hour that are alike are one row. What is asked of hours that a window cuts."""

    time_ms: Int64
    node_uid: Text
    pod_uid: Text | None
    usd_micro_per_hour: Int64 | None
    minutes: Int16
    ms: Int64  # of each of them


@record(key=("node_uid", "pod_uid", "time_ms"), derived=True)
class QuarterUse(NamedTuple):
    """What a holder drew on a node in the quarter of an hour from `time_ms` on, and how busy its GPUs were, as far as
    telemetry shows."""

    time_ms: Int64
    node_uid: Text
    pod_uid: Text | None  # None: nobody held it
    energy_mj: Int64
    ms: Int64  # of the holder's time, how much the energy is known of
    estimated_ms: Int64  # of that, how much by power readings, because there was no counter
    readings: Int64  # of activity while it held a GPU
    activity_sum: Int64  # of them, in thousandths


@record(key=("node_uid", "pod_uid", "usd_micro_per_hour", "time_ms"), derived=True)
class HourUse(NamedTuple):
    """The hour from `time_ms` on of a holder on a node, without its states: all that is asked most."""

    time_ms: Int64
    node_uid: Text
    pod_uid: Text | None
    usd_micro_per_hour: Int64 | None
    ms: Int64  # of the ledger
    energy_mj: Int64  # this and what follows has no price of its own: it stands in one row of the hour
    energy_ms: Int64
    estimated_ms: Int64
    readings: Int64
    activity_sum: Int64


@record(key=("node_uid", "slot_index", "pod_uid", "instance", "time_ms"), derived=True)
class Carry(NamedTuple):
    """What the accounting of an hour must know of the hours before it; `time_ms` is the hour that reads it."""

    time_ms: Int64
    node_uid: Text
    slot_index: Int16
    pod_uid: Text
    instance: Int16
    first_active_ms: Int64 | None = None  # of this slot
    pod_active_ms: Int64 | None = None  # of any slot that the pod held at the same time
    active_until_ms: Int64 | None = None
