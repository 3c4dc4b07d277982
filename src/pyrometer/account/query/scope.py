"""Limits a store to one team, experiment or workload: queries cannot see anything else.

The bill (`holder_name`) decides who a pod belongs to, and everything else follows from pods. A query per record kind
keeps the rows in scope. A kind without a query is empty, so a new kind shows nothing until it has one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyrometer.account.closing.charge_basis import was_charged
from pyrometer.account.query.groupings import PLATFORM
from pyrometer.account.query.names import open_names
from pyrometer.store import StoreReader


class ScopeNotFoundError(LookupError):
    """A team, an experiment or a workload that does not hold anything and never did."""


# Ranks are identified by run, attempt and number. A rank that is also reported by others is not in scope.
_SCOPE = """
CREATE OR REPLACE TEMP TABLE scope_pod AS
SELECT pod_uid FROM holder_name
WHERE ($team IS NULL OR team = $team) AND ($experiment IS NULL OR experiment = $experiment)
    AND ($workload IS NULL OR coalesce(workload_uid, pod_uid) = $workload);

CREATE OR REPLACE TEMP TABLE scope_workload AS
SELECT DISTINCT workload_uid FROM holder_name SEMI JOIN scope_pod USING (pod_uid) WHERE workload_uid IS NOT NULL
UNION
SELECT workload_uid FROM the_workload ANTI JOIN holder_name USING (workload_uid)  -- it has no pod yet
WHERE ($team IS NULL OR coalesce(team, queue, namespace) = $team)
    AND ($experiment IS NULL OR coalesce(experiment, name) = $experiment)
    AND ($workload IS NULL OR workload_uid = $workload);

CREATE OR REPLACE TEMP TABLE scope_part AS
SELECT DISTINCT pipeline_run_id, trial_uid, sweep_uid FROM holder_name SEMI JOIN scope_pod USING (pod_uid);

CREATE OR REPLACE TEMP TABLE scope_rank AS
WITH reported AS (
    SELECT run, attempt, rank, CASE
        WHEN pod_uid IS NOT NULL THEN pod_uid IN (SELECT pod_uid FROM scope_pod)
        WHEN workload_uid IS NOT NULL THEN workload_uid IN (SELECT workload_uid FROM scope_workload)
        END AS ours
    FROM run
)
SELECT run, attempt, rank, coalesce(bool_and(ours), false) AS ours FROM reported GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE scope_attempt AS
SELECT run, attempt FROM scope_rank GROUP BY ALL HAVING bool_and(ours);

CREATE OR REPLACE TEMP TABLE scope_hold AS
SELECT DISTINCT node_uid, slot_index, instance, from_ms, coalesce(held.to_ms, ended_ms, 9223372036854775807) AS to_ms,
    pod_uid IN (SELECT pod_uid FROM scope_pod) AS ours
FROM (
    SELECT * FROM allocation QUALIFY row_number() OVER (
        PARTITION BY pod_uid, node_uid, slot_index, instance, from_ms ORDER BY time_ms DESC) = 1
) held
LEFT JOIN (
    SELECT pod_uid, ended_ms FROM pod QUALIFY row_number() OVER (PARTITION BY pod_uid ORDER BY time_ms DESC) = 1
) ended USING (pod_uid);

CREATE OR REPLACE TEMP TABLE scope_node AS
SELECT node_uid FROM scope_hold WHERE ours
UNION SELECT pod_node_uid FROM holder_name SEMI JOIN scope_pod USING (pod_uid)
UNION SELECT node_uid FROM run JOIN scope_rank USING (run, attempt, rank) WHERE ours
UNION SELECT node_uid FROM node WHERE $with_platform;

CREATE OR REPLACE TEMP TABLE scope_pool AS
SELECT DISTINCT pool FROM node SEMI JOIN scope_node USING (node_uid);
"""

# A run may name another experiment than the bill. The name is then known, although no GPU time is billed to it.
_KNOWN = """
SELECT EXISTS (FROM scope_pod) OR EXISTS (FROM scope_workload) OR EXISTS (
    FROM run LEFT JOIN holder_name USING (pod_uid)
    WHERE $workload IS NULL AND run.experiment = $experiment AND ($team IS NULL OR holder_name.team = $team)
)
"""

_POD = "pod_uid IN (SELECT pod_uid FROM scope_pod)"
_WORKLOAD = "workload_uid IN (SELECT workload_uid FROM scope_workload)"
_RANK = "(run, attempt, rank) IN (SELECT (run, attempt, rank) FROM scope_rank WHERE ours)"
_ATTEMPT = "(run, attempt) IN (SELECT (run, attempt) FROM scope_attempt)"


def _held(time: str, whose: str, *more: str) -> str:
    """SQL that tells whether a slot, or any slot of a node, was held at a time."""
    same = " AND ".join(("hold.node_uid = here.node_uid", *more))
    return f"EXISTS (FROM scope_hold hold WHERE {same} AND {time} >= from_ms AND {time} < to_ms AND {whose})"


_SAME_SLOT = (
    "hold.slot_index = here.slot_index",
    "(here.instance = -1 OR hold.instance = -1 OR hold.instance = here.instance)",
)


def _kept(*, with_platform: bool) -> dict[str, str]:
    """The query of each kind. `with_platform` includes what has no holder."""
    holder = f"{_POD} OR pod_uid IS NULL" if with_platform else _POD
    ours = _held("here.time_ms", "ours", *_SAME_SLOT)
    sampled = f"{ours} OR NOT {_held('here.time_ms', 'true', *_SAME_SLOT)}" if with_platform else ours
    machine = "true" if with_platform else _held("here.time_ms // 60000 * 60000", "ours")
    on_slot = _held("here.time_ms", "ours", "hold.slot_index = here.slot_index")
    on_node = _held("here.time_ms", "ours")
    slot = (
        "true"
        if with_platform
        else "(node_uid, slot_index) IN (SELECT (node_uid, slot_index) FROM scope_hold WHERE ours)"
    )
    of_machine = "true" if with_platform else f"({on_slot} OR (slot_index IS NULL AND {on_node}))"
    happened = f"""
        {_POD}
        OR (pod_uid IS NULL AND run IS NOT NULL AND ({_RANK} OR (rank IS NULL AND {_ATTEMPT})))
        OR (pod_uid IS NULL AND run IS NULL AND {_WORKLOAD})
        OR (coalesce(pod_uid, run, workload_uid) IS NULL AND {of_machine})
    """
    # Texts that are not only about the scope may name others: what preempted a pod, which process a node killed.
    words = """
        CASE WHEN kind != 'preempted' AND coalesce(pod_uid, run, workload_uid, slot_index::VARCHAR) IS NOT NULL
        THEN message END AS message
    """
    found = "owner_uid IN (SELECT pod_uid FROM scope_pod UNION SELECT workload_uid FROM scope_workload)"
    found += " OR owner_uid IS NULL" if with_platform else ""
    return {
        "node": "FROM {rows} WHERE node_uid IN (SELECT node_uid FROM scope_node)",
        "slot": f"FROM {{rows}} WHERE {slot}",
        "pod": f"FROM {{rows}} WHERE {_POD}",
        "owner": "FROM {rows} WHERE object_uid IN (SELECT workload_uid FROM scope_workload)",
        "workload": f"FROM {{rows}} WHERE {_WORKLOAD}",
        "allocation": f"FROM {{rows}} WHERE {_POD}",
        "gpu_sample": f"SELECT * FROM (FROM {{rows}}) here WHERE {sampled}",
        "node_sample": f"SELECT * FROM (FROM {{rows}}) here WHERE {machine}",
        "run": f"FROM {{rows}} WHERE {_RANK}",
        "step_window": f"FROM {{rows}} WHERE {_RANK}",
        "span": f"FROM {{rows}} WHERE {_RANK}",
        "batch": f"FROM {{rows}} WHERE {_RANK}",
        # a metric that a controller reports about its workload is in a run without ranks
        "metric": f"FROM {{rows}} WHERE {_RANK} OR (run IN (SELECT workload_uid FROM scope_workload) "
        "AND (run, attempt, rank) NOT IN (SELECT (run, attempt, rank) FROM scope_rank))",
        "event": f"SELECT * REPLACE ({words}) FROM (FROM {{rows}}) here WHERE {happened}",
        "restatement": f"FROM {{rows}} WHERE {_POD} OR (pod_uid IS NULL AND {_ATTEMPT})",
        "pipeline_run": "FROM {rows} WHERE run_id IN (SELECT pipeline_run_id FROM scope_part)",
        "pipeline_step": "FROM {rows} WHERE run_id IN (SELECT pipeline_run_id FROM scope_part)",
        "sweep": "FROM {rows} WHERE sweep_uid IN (SELECT sweep_uid FROM scope_part)",
        "trial": "FROM {rows} WHERE trial_uid IN (SELECT trial_uid FROM scope_part)",
        "price": "FROM {rows} WHERE pool IS NULL OR pool IN (SELECT pool FROM scope_pool)",
        "finding": f"FROM {{rows}} WHERE {found}",
        "ledger_row": f"FROM {{rows}} WHERE {holder}",
        "energy": f"FROM {{rows}} WHERE {holder}",
        "hour_sum": f"FROM {{rows}} WHERE {holder}",
        "hour_use": f"FROM {{rows}} WHERE {holder}",
        "minute_use": f"FROM {{rows}} WHERE {holder}",
        "quarter_use": f"FROM {{rows}} WHERE {holder}",
        "minute_sum": "FROM {rows} WHERE false",  # sums over all teams
        "carry": f"FROM {{rows}} WHERE {_POD}",
    }


@contextmanager
def only(
    store: StoreReader, team: str | None, experiment: str | None = None, workload: str | None = None
) -> Iterator[None]:
    """Limits the store to a team, an experiment and a workload, if they are given.

    A workload is given by its UID, a pod without a workload by its own.
    """
    if team is None and experiment is None and workload is None:
        yield
        return
    with_platform = team == PLATFORM and experiment is None and workload is None
    open_names(store)
    store.expose_all(["run", "allocation"])
    given = {"team": team, "experiment": experiment, "workload": workload, "with_platform": with_platform}
    for statement in _SCOPE.split(";\n"):
        store.connection.execute(statement, _named(statement, **given))
    (known,) = store.connection.execute(_KNOWN, _named(_KNOWN, **given)).fetchall()
    if not (known[0] or with_platform or (workload is None and was_charged(store, team, experiment))):
        raise ScopeNotFoundError(_words(team, experiment, workload))
    with store.only(_kept(with_platform=with_platform)):
        yield


def _named(statement: str, **values: str | bool | None) -> dict[str, str | bool | None]:
    """The values that a statement uses."""
    return {name: value for name, value in values.items() if f"${name}" in statement}


def _words(team: str | None, experiment: str | None, workload: str | None) -> str:
    if workload is not None:
        return f"Workload {workload!r} not found. List workloads with `pyrometer cost --by workload -o json`."
    if experiment is None:
        return f"There is no team {team!r}. `pyrometer cost --by team` lists them."
    whose = f" of team {team!r}" if team is not None else ""
    return f"There is no experiment {experiment!r}{whose}. `pyrometer cost --by experiment` lists them."
