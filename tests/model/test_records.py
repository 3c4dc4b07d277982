"""The record kinds, frozen: a change here changes what is on people's disks, so it is made on purpose.

A new column that may be absent is safe: parts written before it read as absent values. Anything else (a column renamed
or removed, another type, key, sort or partition) needs a migration in `store/catalog.py`; for derived kinds
(`ledger_row`, `energy`, `carry`, and sums of them) it is enough that they are built anew.
"""

from __future__ import annotations

import pytest

from pyrometer.model import records
from pyrometer.model.columns import SCHEMAS, Schema
from pyrometer.model.units import MS_PER_HOUR

# kind, how its parts are cut, its key, its order in a part, and its columns; a question mark: may be absent
FROZEN = """
node by day
    key node_uid, time_ms
    sort node_uid, time_ms
    time_ms int64
    cluster string
    node_uid string
    name string
    gpu_count int16
    gpu_model string?
    pool string?
    instance_type string?
    purchase string?
    ready bool
    schedulable bool
    present bool
slot by day
    key node_uid, slot_index, time_ms
    sort node_uid, slot_index, time_ms
    time_ms int64
    node_uid string
    slot_index int16
    uuid string?
    gpu_model string?
    healthy bool
    reason string?
    from_ms int64?
    to_ms int64?
pod by day
    key pod_uid, time_ms
    sort pod_uid, time_ms
    time_ms int64
    cluster string
    pod_uid string
    namespace string
    name string
    phase string
    workload_uid string?
    attempt int16
    rank int32?
    node_uid string?
    user string?
    queue string?
    created_ms int64?
    scheduled_ms int64?
    started_ms int64?
    ended_ms int64?
    reason string?
    gpu_share int64?
    labels_json string?
    pipeline_run string?
    pipeline_step string?
    pipeline_attempt int16?
    trial_uid string?
owner by day
    key object_uid, time_ms
    sort object_uid, time_ms
    time_ms int64
    cluster string
    object_uid string
    api_group string
    kind string
    namespace string
    name string
    controller_uid string?
workload by day
    key workload_uid, time_ms
    sort workload_uid, time_ms
    time_ms int64
    cluster string
    workload_uid string
    kind string
    namespace string
    name string
    api_group string
    experiment string?
    experiment_rule string?
    team string?
    team_rule string?
    user string?
    queue string?
    gang_pods int32?
    serves bool
    created_ms int64?
    labels_json string?
pipeline_run by day
    key run_id, time_ms
    sort run_id, time_ms
    time_ms int64
    cluster string
    run_id string
    workflow_uid string
    namespace string
    name string
    pipeline string
    state string
    started_ms int64?
    ended_ms int64?
pipeline_step by day
    key run_id, step, attempt, time_ms
    sort run_id, step, attempt, time_ms
    time_ms int64
    run_id string
    step string
    attempt int16
    state string
    started_ms int64?
    ended_ms int64?
    message string?
sweep by day
    key sweep_uid, time_ms
    sort sweep_uid, time_ms
    time_ms int64
    cluster string
    sweep_uid string
    namespace string
    name string
    state string
    metric string?
    goal string?
    target float64?
    algorithm string?
    best_trial string?
    started_ms int64?
    ended_ms int64?
trial by day
    key trial_uid, time_ms
    sort trial_uid, time_ms
    time_ms int64
    trial_uid string
    sweep_uid string
    namespace string
    name string
    state string
    parameters_json string?
    value float64?
    metrics_json string?
    started_ms int64?
    ended_ms int64?
allocation by day
    key pod_uid, node_uid, slot_index, instance, from_ms, time_ms
    sort pod_uid, node_uid, slot_index, instance, from_ms, time_ms
    time_ms int64
    pod_uid string
    node_uid string
    slot_index int16
    from_ms int64
    to_ms int64?
    share int64
    instance int16
    source string
gpu_sample by hour
    key node_uid, slot_index, instance, time_ms
    sort node_uid, slot_index, instance, time_ms
    time_ms int64
    node_uid string
    slot_index int16
    instance int16
    gpu_util_permille int16?
    sm_active_permille int16?
    graphics_active_permille int16?
    tensor_active_permille int16?
    dram_active_permille int16?
    memory_used_mib int32?
    power_w int16?
    energy_j int64?
    temperature_c int16?
    sm_clock_mhz int16?
    throttle_reasons int64?
    xid int32?
node_sample by hour
    key node_uid, time_ms
    sort node_uid, time_ms
    time_ms int64
    node_uid string
    cpu_busy_permille int16?
    cpu_wait_permille int16?
    memory_used_permille int16?
    disk_busy_permille int16?
    io_stalled_permille int16?
    disk_read_mib_s int32?
    disk_write_mib_s int32?
    network_rx_mib_s int32?
    network_tx_mib_s int32?
    network_dropped_per_s int32?
run by day
    key run, attempt, rank, time_ms
    sort run, attempt, rank, time_ms
    time_ms int64
    run string
    attempt int16
    rank int32
    started_ms int64
    ranks int32
    launch string?
    cluster string?
    experiment string?
    workload_uid string?
    pod_uid string?
    node_uid string?
    slot_index int16?
    first_step_ms int64?
    ended_ms int64?
    outcome string?
    resumed_step int64?
    framework string?
    source string?
step_window by hour
    key run, attempt, rank, time_ms
    sort run, attempt, rank, time_ms
    time_ms int64
    to_ms int64
    run string
    attempt int16
    rank int32
    node_uid string
    slot_index int16
    pod_uid string?
    first_step int64?
    steps int32
    data_ms int32
    copy_ms int32
    forward_ms int32
    backward_ms int32
    comm_ms int32
    optimizer_ms int32
    checkpoint_ms int32
    evaluate_ms int32
    compile_ms int32
    garbage_ms int32
    step_p50_us int64?
    step_max_us int64?
    samples int64?
    tokens int64?
    flops int64?
    memory_peak_mib int32?
    memory_reserved_mib int32?
    step_lengths list<int64>?
span by hour
    key span_id
    sort trace_id, time_ms
    time_ms int64
    trace_id string
    span_id string
    name string
    duration_us int64
    run string
    attempt int16
    rank int32
    step int64?
    parent_id string?
    attributes_json string?
    after_us int32?
batch by hour
    key run, attempt, rank, loader, epoch, send_index
    sort run, attempt, rank, time_ms
    time_ms int64
    run string
    attempt int16
    rank int32
    loader int16
    epoch int32
    send_index int64
    micro_batch int32
    step int64?
    dataset string?
    samples list<string>?
    rows list<int64>?
metric by hour
    key run, attempt, rank, name, step, time_ms
    sort run, name, time_ms
    time_ms int64
    run string
    attempt int16
    rank int32
    name string
    value float64
    step int64?
    goal string?
    source string?
    first_step int64?
    last_step int64?
event by hour
    key kind, node_uid, slot_index, pod_uid, workload_uid, run, attempt, rank, step, time_ms
    sort kind, time_ms
    time_ms int64
    kind string
    duration_ms int64?
    cluster string?
    node_uid string?
    slot_index int16?
    pod_uid string?
    workload_uid string?
    run string?
    attempt int16?
    rank int32?
    step int64?
    reason string?
    message string?
restatement by day
    key run, attempt, node_uid, slot_index, from_ms, state, time_ms
    sort run, attempt, node_uid, slot_index, from_ms, state, time_ms
    time_ms int64
    run string
    attempt int16
    node_uid string
    slot_index int16
    from_ms int64
    to_ms int64?
    state string
    pod_uid string?
    reason string?
price by day
    key gpu_model, pool, cluster, purchase, from_ms, time_ms, instance_type
    sort gpu_model, pool, cluster, purchase, from_ms, time_ms, instance_type
    time_ms int64
    usd_micro_per_hour int64
    from_ms int64
    to_ms int64?
    gpu_model string?
    pool string?
    cluster string?
    purchase string?
    source string
    assumed bool
    instance_type string?
    per string?
finding by day
    key finding_id, time_ms
    sort finding_id, time_ms
    time_ms int64
    finding_id string
    cause string
    owner_uid string?
    from_ms int64
    to_ms int64
    seen_ms int64
    over_ms int64?
    gpu_ms int64
    usd_micro int64?
    culprit_json string?
ledger_row by hour
    key node_uid, slot_index, minute_ms, pod_uid, attempt, state, evidence, usd_micro_per_hour
    sort node_uid, slot_index, minute_ms, pod_uid, attempt, state, evidence, usd_micro_per_hour
    minute_ms int64
    node_uid string
    slot_index int16
    pod_uid string?
    attempt int16
    state string
    evidence int16
    usd_micro_per_hour int64?
    ms int32
energy by hour
    key node_uid, slot_index, pod_uid, time_ms
    sort node_uid, slot_index, pod_uid, time_ms
    time_ms int64
    node_uid string
    slot_index int16
    pod_uid string?
    energy_mj int64
    ms int32
    estimated_ms int32
hour_sum by hour
    key node_uid, pod_uid, state, evidence, usd_micro_per_hour, time_ms
    sort node_uid, pod_uid, state, evidence, usd_micro_per_hour, time_ms
    time_ms int64
    node_uid string
    pod_uid string?
    state string
    evidence int16
    usd_micro_per_hour int64?
    ms int64
minute_sum by hour
    key state, held, usd_micro_per_hour, time_ms
    sort state, held, usd_micro_per_hour, time_ms
    time_ms int64
    state string
    held bool
    usd_micro_per_hour int64?
    ms int64
minute_use by hour
    key node_uid, pod_uid, usd_micro_per_hour, time_ms
    sort node_uid, pod_uid, usd_micro_per_hour, time_ms
    time_ms int64
    node_uid string
    pod_uid string?
    usd_micro_per_hour int64?
    minutes int16
    ms int64
quarter_use by hour
    key node_uid, pod_uid, time_ms
    sort node_uid, pod_uid, time_ms
    time_ms int64
    node_uid string
    pod_uid string?
    energy_mj int64
    ms int64
    estimated_ms int64
    readings int64
    activity_sum int64
hour_use by hour
    key node_uid, pod_uid, usd_micro_per_hour, time_ms
    sort node_uid, pod_uid, usd_micro_per_hour, time_ms
    time_ms int64
    node_uid string
    pod_uid string?
    usd_micro_per_hour int64?
    ms int64
    energy_mj int64
    energy_ms int64
    estimated_ms int64
    readings int64
    activity_sum int64
carry by hour
    key node_uid, slot_index, pod_uid, instance, time_ms
    sort node_uid, slot_index, pod_uid, instance, time_ms
    time_ms int64
    node_uid string
    slot_index int16
    pod_uid string
    instance int16
    first_active_ms int64?
    pod_active_ms int64?
    active_until_ms int64?
"""

every_kind = pytest.mark.parametrize("kind", sorted(SCHEMAS))


def written(schema: Schema) -> str:
    return "\n".join(
        [
            f"{schema.name} by {'hour' if schema.partition_ms == MS_PER_HOUR else 'day'}",
            f"    key {', '.join(schema.key)}",
            f"    sort {', '.join(schema.sort)}",
            *(f"    {column.name} {column.type}{'?' if column.nullable else ''}" for column in schema.columns),
        ]
    )


def test_record_kinds_are_frozen():
    assert "\n".join(written(schema) for schema in SCHEMAS.values()) == FROZEN.strip()


@every_kind
def test_key_and_sort_are_columns(kind):
    schema = SCHEMAS[kind]
    assert set(schema.key) <= set(schema.column_names)
    assert set(schema.sort) <= set(schema.column_names)
    assert len(set(schema.key)) == len(schema.key)


@every_kind
def test_every_record_has_a_time_that_is_never_absent(kind):
    first = SCHEMAS[kind].columns[0]
    assert first.name == ("minute_ms" if kind == "ledger_row" else "time_ms")
    assert (first.type, first.nullable) == ("int64", False)


@every_kind
def test_column_names_have_their_unit(kind):
    in_ms = [column for column in SCHEMAS[kind].columns if column.name.endswith(("_ms", "_us"))]
    assert all(column.type in ("int64", "int32") for column in in_ms)
    in_permille = [column for column in SCHEMAS[kind].columns if column.name.endswith("_permille")]
    assert all(column.type == "int16" and column.nullable for column in in_permille)


@every_kind
def test_record_kind_is_the_name_of_its_class(kind):
    words = "".join(word.capitalize() for word in kind.split("_"))
    assert getattr(records, words) is SCHEMAS[kind].record
