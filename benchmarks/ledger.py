"""Records → ledger → questions: build, query and `why` time, peak memory and bytes at 1,000 to 100,000 GPUs × 24 h.

Every GPU has one sample per minute; 85% are held by pods of 1 to 64 GPUs; half of those send one step window per
minute. A few percent stall, idle or hang. Each size runs in a process of its own, so that its peak memory is its own.

    python benchmarks/ledger.py [--gpus 1000 10000] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC
from pathlib import Path

HOUR_MS = 3_600_000
START_MS = 1_790_000_000_000 // HOUR_MS * HOUR_MS

QUESTION = """
SELECT workload_uid, state, sum(ms)::BIGINT, sum(ms::HUGEINT * usd_micro_per_hour)
FROM ledger_row LEFT JOIN (SELECT DISTINCT pod_uid, workload_uid FROM pod) USING (pod_uid)
GROUP BY ALL ORDER BY ALL
"""


def generate(store, gpus: int, hours: int) -> int:
    """Fills the store hour by hour; says how many rows it wrote."""
    con = store.connection
    con.execute(f"SET VARIABLE gpus = {gpus}; SET VARIABLE start_ms = {START_MS}; SET VARIABLE hours = {hours}")
    con.execute(_SLOTS)
    rows = 0
    objects = {kind: _table(con, kind, query) for kind, query in _OBJECTS.items()}
    store.append_tables(objects)
    rows += sum(table.num_rows for table in objects.values())
    store.seal()
    for hour in range(hours):
        con.execute(f"SET VARIABLE hour_ms = {START_MS + hour * HOUR_MS}")
        for kind, query in _MEASURED.items():
            table = _table(con, kind, query)
            store.append_tables({kind: table})
            rows += table.num_rows
        store.seal()
    con.execute("DROP TABLE slots")
    return rows


def _table(con, kind: str, query: str):
    """Rows of a kind; columns that the query does not say are absent values."""
    from pyrometer.model.columns import SCHEMAS

    given = con.sql(query).columns
    absent = [f"NULL::{c.duckdb_type} AS {c.name}" for c in SCHEMAS[kind].columns if c.name not in given]
    return con.sql(f"SELECT {', '.join(['*', *absent])} FROM ({query})").to_arrow_table()


# A slot's job: node // (1 to 8 nodes); 15 % of the nodes are free. hash() gives every slot its own, repeatable noise.
_SLOTS = """
CREATE OR REPLACE TEMP TABLE slots AS
SELECT 'node-' || lpad((i // 8)::VARCHAR, 6, '0') AS node_uid, (i % 8)::SMALLINT AS slot_index, i,
    (i // 8) // (1 + (i // 64) % 8) AS job_in_block, 'job-' || (i // 512) || '-' || job_in_block AS job,
    hash((i // 8) * 7919) % 100 >= 15 AS held, hash(i // 512) % 2 = 0 AS instrumented,
    hash(i * 31) % 100 AS fate
FROM range(getvariable('gpus')) t(i)
"""

_OBJECTS = {
    "node": """
        SELECT getvariable('start_ms')::BIGINT AS time_ms, 'bench' AS cluster, node_uid, node_uid AS name,
            count(*)::SMALLINT AS gpu_count, 'NVIDIA H100 80GB HBM3' AS gpu_model, 'pool' AS pool,
            NULL::VARCHAR AS instance_type, 'on_demand' AS purchase, true AS ready, true AS schedulable, true AS present
        FROM slots GROUP BY node_uid""",
    "workload": """
        SELECT DISTINCT getvariable('start_ms')::BIGINT AS time_ms, 'bench' AS cluster, job AS workload_uid,
            'PyTorchJob' AS kind, 'team-' || (hash(job) % 12) AS namespace, job AS name, 'kubeflow.org' AS api_group,
            'exp-' || (hash(job) % 60) AS experiment, NULL::VARCHAR AS experiment_rule,
            'team-' || (hash(job) % 12) AS team, NULL::VARCHAR AS team_rule,
            NULL::VARCHAR AS "user", NULL::VARCHAR AS queue, NULL::INTEGER AS gang_pods, false AS serves,
            NULL::BIGINT AS created_ms, NULL::VARCHAR AS labels_json
        FROM slots WHERE held""",
    "pod": """
        SELECT getvariable('start_ms')::BIGINT AS time_ms, 'bench' AS cluster, 'pod-' || node_uid AS pod_uid,
            'ns' AS namespace, 'pod-' || node_uid AS name, 'Running' AS phase, any_value(job) AS workload_uid,
            1::SMALLINT AS attempt,
            NULL::INTEGER AS rank, node_uid, NULL::VARCHAR AS "user", NULL::VARCHAR AS queue,
            NULL::BIGINT AS created_ms, getvariable('start_ms')::BIGINT AS scheduled_ms,
            getvariable('start_ms') + 45000 AS started_ms,
            NULL::BIGINT AS ended_ms, NULL::VARCHAR AS reason, NULL::BIGINT AS gpu_share, NULL::VARCHAR AS labels_json
        FROM slots WHERE held GROUP BY node_uid""",
    "allocation": """
        SELECT getvariable('start_ms')::BIGINT AS time_ms, 'pod-' || node_uid AS pod_uid, node_uid, slot_index,
            getvariable('start_ms')::BIGINT AS from_ms, NULL::BIGINT AS to_ms, 2520000000 AS share,
            -1::SMALLINT AS instance, 'kubernetes' AS source
        FROM slots WHERE held""",
}

_MEASURED = {
    "gpu_sample": """
        SELECT getvariable('hour_ms') + minute * 60000 + hash(i) % 900 AS time_ms, node_uid, slot_index,
            -1::SMALLINT AS instance,
            CASE WHEN busy THEN 900 + (noise % 90) ELSE 0 END::SMALLINT AS gpu_util_permille,
            CASE WHEN busy THEN 780 + (noise % 70) ELSE 0 END::SMALLINT AS sm_active_permille,
            NULL::SMALLINT AS graphics_active_permille,
            CASE WHEN busy THEN 230 + (noise % 40) ELSE 0 END::SMALLINT AS tensor_active_permille,
            CASE WHEN busy THEN 400 + (noise % 50) ELSE 0 END::SMALLINT AS dram_active_permille,
            NULL::INTEGER AS memory_used_mib,
            CASE WHEN busy THEN 640 + (noise % 50) ELSE 110 + noise % 6 END::SMALLINT AS power_w,
            NULL::BIGINT AS energy_j, NULL::SMALLINT AS temperature_c, NULL::SMALLINT AS sm_clock_mhz,
            NULL::BIGINT AS throttle_reasons, NULL::INTEGER AS xid
        FROM (
            SELECT *, (hash(i, minute, getvariable('hour_ms')) % 1000)::INTEGER AS noise,
                held AND NOT (fate < 3) AND NOT (fate < 8 AND (minute // 10) % 3 = 0) AS busy
            FROM slots, range(60) t(minute)
        ) ORDER BY i, minute""",
    "step_window": """
        SELECT time_ms, time_ms + 60000 AS to_ms, job AS run, 1::SMALLINT AS attempt, i::INTEGER AS rank, node_uid,
            slot_index, 'pod-' || node_uid AS pod_uid, (time_ms // 60000) * 100 AS first_step, 100 AS steps,
            (300 + noise % 400)::INTEGER AS data_ms, 200 AS copy_ms, 15000 AS forward_ms, 30000 AS backward_ms,
            (2000 + noise % 900)::INTEGER AS comm_ms, 5000 AS optimizer_ms,
            (CASE WHEN minute % 20 = 7 THEN 9000 ELSE 0 END)::INTEGER AS checkpoint_ms,
            0 AS evaluate_ms, 0 AS compile_ms, 0 AS garbage_ms, 600000 AS step_p50_us, 700000 AS step_max_us,
            NULL::BIGINT AS samples, NULL::BIGINT AS tokens, NULL::BIGINT AS flops, NULL::INTEGER AS memory_peak_mib,
            NULL::INTEGER AS memory_reserved_mib, NULL::BIGINT[] AS step_lengths
        FROM (
            SELECT *, getvariable('hour_ms') + minute * 60000 + 17 AS time_ms,
                (hash(i, minute, getvariable('hour_ms')) % 1000)::INTEGER AS noise
            FROM slots, range(60) t(minute) WHERE held AND instrumented AND fate >= 3
        ) ORDER BY i, minute""",
}


def measure(gpus: int, hours: int, folder: Path) -> dict[str, float]:
    """One size, in this process."""
    from pyrometer.store import Store

    with Store(folder, create=True) as store:
        started = time.perf_counter()
        rows = generate(store, gpus, hours)
        generated_s = time.perf_counter() - started
    return {"gpus": gpus, "hours": hours, "rows": rows, "generate_s": generated_s, **_build_and_ask(folder, hours)}


def _build_and_ask(folder: Path, hours: int) -> dict[str, float]:
    from pyrometer.account.build.ledger import build
    from pyrometer.account.query.time_range import TimeRange
    from pyrometer.answers.why import why
    from pyrometer.model.settings import Settings
    from pyrometer.store import Store

    settings = Settings()
    with Store(folder) as store:
        started = time.perf_counter()
        build(store, settings, now_ms=START_MS + 400 * HOUR_MS)
        build_s = time.perf_counter() - started
        store.expose_all(["ledger_row", "pod"])
        query_times_s = []
        for _ in range(3):
            started = time.perf_counter()
            answer = store.connection.execute(QUESTION).fetchall()
            query_times_s.append(time.perf_counter() - started)
        started = time.perf_counter()
        why(store, TimeRange(START_MS, START_MS + hours * HOUR_MS), settings, zone=UTC)
        why_s = time.perf_counter() - started
        parts = store.parts("ledger_row")
        return {
            "build_s": build_s,
            "query_s": sorted(query_times_s)[1],
            "why_s": why_s,
            "answer_rows": len(answer),
            "ledger_rows": sum(part.row_count for part in parts),
            "ledger_bytes": sum(part.bytes for part in parts),
            "record_bytes": sum(part.bytes for part in store.parts()) - sum(part.bytes for part in parts),
            "sample_bytes": sum(part.bytes for part in store.parts("gpu_sample")),
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.hours, args.folder)))
        return
    results = []
    print(
        f"{'GPUs':>8} {'records':>12} {'build':>9} {'query':>9} {'why':>8} {'peak mem':>9} "
        f"{'ledger rows':>12} {'ledger':>9} {'B/GPU-day samples':>18}"
    )
    for gpus in args.gpus:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--one", str(gpus), "--hours", str(args.hours), "--folder", folder]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
        one = json.loads(done.stdout.splitlines()[-1])
        results.append(one)
        print(
            f"{one['gpus']:>8,} {one['rows']:>12,} {one['build_s']:>7.1f} s {one['query_s']:>7.2f} s "
            f"{one['why_s']:>6.1f} s {one['peak_memory_mb']:>6,.0f} MB {one['ledger_rows']:>12,} "
            f"{one['ledger_bytes'] / 1e6:>6,.0f} MB {one['sample_bytes'] / gpus * 24 / args.hours:>18,.0f}",
            flush=True,
        )
    first = results[0]
    for one in results[1:]:
        more = one["gpus"] / first["gpus"]
        print(
            f"{more:.0f}× the GPUs: {one['build_s'] / first['build_s']:.1f}× the build time, "
            f"{one['query_s'] / first['query_s']:.1f}× the query time, {one['why_s'] / first['why_s']:.1f}× that of why"
        )
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
