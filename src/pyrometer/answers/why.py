"""The answer of `pyrometer why`: cost by state, and the findings.

Reports and the API show it without adding anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import tzinfo
from typing import Any

from pyrometer.account.query.answer_json import amounts, iso, time_and_money, workload_json
from pyrometer.account.query.sums import Sum, added, rounded
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.burn import BurnSummary, wasted, with_waste
from pyrometer.answers.fleet.queue_waits import progress, queues, waited_ms
from pyrometer.causes.registry import DETECTORS
from pyrometer.findings import claims
from pyrometer.findings.counterfactual import total_savings, what_if
from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import ClaimedFinding
from pyrometer.findings.run_failures import failure_json, first_failures
from pyrometer.model.settings import Settings
from pyrometer.model.states import STATE
from pyrometer.model.units import gpu_hours, usd
from pyrometer.store import StoreReader

MAX_WORKLOADS = 20
MAX_FAILURES = 20


def why(
    store: StoreReader, window: TimeRange, settings: Settings, *, zone: tzinfo, price_usd_micro: int | None = None
) -> dict[str, Any]:
    """The cost of a time range, and why."""
    evidence = Evidence(store, window, settings, zone, price_usd_micro=price_usd_micro)
    burned = BurnSummary(store, window, zone)
    findings = _findings(evidence, claims.find(evidence, DETECTORS), price_usd_micro)
    totals = burned.totals(settings, price_usd_micro)
    unexplained = _unexplained(evidence)
    return {
        **totals,
        "findings": findings,
        "failures": _failures(evidence),
        "saved_if_caught": total_savings(evidence, findings),
        "waste": _waste(totals, unexplained),
        "unexplained": unexplained,
        "timeline": {"bucket_ms": evidence.bucket_ms, "rows": _timeline(evidence)},
        "teams": burned.teams(),
        "queues": queues(evidence),
        "workloads": _workloads(evidence, burned),
        "workloads_total": evidence.ask(
            "SELECT count(DISTINCT workload_uid) FROM burn JOIN holder_name USING (pod_uid)"
        )[0][0],
    }


def _failures(evidence: Evidence) -> list[dict[str, Any]]:
    """Runs with a failed attempt, each with its last failure, newest first."""
    named = dict(
        evidence.ask(
            "SELECT run, any_value(coalesce(workload_name, run)) FROM the_run LEFT JOIN holder_name USING (pod_uid) "
            "GROUP BY run"
        )
    )
    reported: dict[str, dict[str, Any]] = {}
    for failure in first_failures(evidence.store, evidence.window):
        if failure.run in reported:
            reported[failure.run]["attempts"] += 1
        elif len(reported) < MAX_FAILURES:
            who = {"run": failure.run, "name": named.get(failure.run, failure.run), "attempts": 1}
            reported[failure.run] = {**who, **failure_json(failure, evidence.zone)}
    return list(reported.values())


def _unexplained(evidence: Evidence) -> list[dict[str, Any]]:
    """Unexplained waste by state, most expensive first."""
    rows = evidence.ask(
        "SELECT state, sum(ms), sum(ms * usd_micro_per_hour::HUGEINT), "
        "coalesce(sum(ms) FILTER (WHERE usd_micro_per_hour IS NULL), 0) "
        "FROM (SELECT state, ms, usd_micro_per_hour FROM burn "
        f"UNION ALL SELECT state, -ms, {evidence.price} FROM claim) GROUP BY state HAVING sum(ms) > 0"
    )
    groups = [
        Sum((state,), int(ms), int(ms_price or 0), int(unpriced))
        for state, ms, ms_price, unpriced in rows
        if STATE[state].family == "waste"
    ]
    reported = [{"state": g.key[0]} | amounts(g, micro) for g, micro in zip(groups, rounded(groups), strict=True)]
    return sorted(reported, key=lambda row: (-(row["usd_micro"] or 0), -row["gpu_ms"], row["state"]))


def _waste(totals: dict[str, Any], unexplained: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The waste, split into the part that findings explain and the rest. The two parts add up to the whole."""
    rows = [row for row in totals["states"] if row["family"] == "waste"]
    gpu_ms, rest_ms = (sum(row["gpu_ms"] for row in part) for part in (rows, unexplained))
    is_priced = totals["total"]["usd_micro"] is not None
    micro, rest = _micro(rows, is_priced=is_priced), _micro(unexplained, is_priced=is_priced)
    if micro is not None:
        rest = min(rest or 0, micro)  # each amount is rounded separately
    return {
        **time_and_money(gpu_ms, micro),
        "explained": time_and_money(gpu_ms - rest_ms, None if micro is None or rest is None else micro - rest),
        "unexplained": time_and_money(rest_ms, rest),
    }


def _micro(rows: Sequence[dict[str, Any]], *, is_priced: bool) -> int | None:
    """The sum of their money; None if none is priced. Zero if there are no rows and anything has a price."""
    priced = [row["usd_micro"] for row in rows if row["usd_micro"] is not None]
    return sum(priced) if priced or (is_priced and not rows) else None


def _timeline(evidence: Evidence) -> list[dict[str, Any]]:
    buckets: dict[int, dict[str, int]] = defaultdict(dict)
    for bucket, state, ms in evidence.ask("SELECT minute_ms, state, sum(ms) FROM burn GROUP BY ALL ORDER BY ALL"):
        buckets[bucket][state] = int(ms)
    return [{"from": iso(bucket, evidence.zone), "states": states} for bucket, states in buckets.items()]


def _workloads(evidence: Evidence, burned: BurnSummary) -> list[dict[str, Any]]:
    groups = burned.sums("workload", "experiment", "team")
    reported = [
        (group, micro) for group, micro in zip(groups, rounded(groups), strict=True) if group.key[0] is not None
    ]
    reported = reported[:MAX_WORKLOADS]
    lost: dict[str, list[Sum]] = defaultdict(list)
    for group in wasted(burned.sums("workload", "experiment", "team", "state")):
        lost[str(group.key[:3])].append(group)
    wastes = [added(group.key, lost[str(group.key)]) for group, _ in reported]
    states = _states(evidence, [group.key[0]["uid"] for group, _ in reported])
    waited, done = waited_ms(evidence), progress(evidence)
    return [
        {"workload": group.key[0], "experiment": group.key[1], "team": group.key[2]}
        | with_waste(group, micro, waste, waste_micro)
        | {"states": states[group.key[0]["uid"]]}
        | {"waited_ms": waited.get(group.key[0]["uid"]), "progress": done.get(group.key[0]["uid"])}
        for (group, micro), waste, waste_micro in zip(reported, wastes, rounded(wastes), strict=True)
    ]


def _states(evidence: Evidence, workloads: Sequence[str]) -> dict[str, dict[str, int]]:
    """The states of each of these workloads, most expensive first."""
    states: dict[str, dict[str, int]] = defaultdict(dict)
    if workloads:
        rows = evidence.ask(
            "SELECT owner_uid, state, sum(ms)::BIGINT FROM owner_burn WHERE list_contains($1, owner_uid) "
            "GROUP BY owner_uid, state HAVING sum(ms) > 0 "
            "ORDER BY coalesce(sum(ms * usd_micro_per_hour::HUGEINT), 0) DESC, sum(ms) DESC, state",
            list(workloads),
        )
        for owner, state, ms in rows:
            states[owner][state] = ms
    return states


def _findings(evidence: Evidence, found: Sequence[ClaimedFinding], price_usd_micro: int | None) -> list[dict[str, Any]]:
    groups = [_priced(Sum((f.id,), f.gpu_ms, f.ms_price, f.unpriced_gpu_ms), price_usd_micro) for f in found]
    return [
        _finding(evidence, finding, micro)
        | {"what_if": what_if(evidence, finding, whole, micro, _priced(finding.caught.saved, price_usd_micro))}
        for finding, whole, micro in zip(found, groups, rounded(groups), strict=True)
    ]


def _priced(group: Sum, price_usd_micro: int | None) -> Sum:
    """A sum at the ledger's own prices, or at one requested price for everything."""
    return group if price_usd_micro is None else Sum(group.key, group.gpu_ms, group.gpu_ms * price_usd_micro, 0)


def _finding(evidence: Evidence, finding: ClaimedFinding, micro: int | None) -> dict[str, Any]:
    proposal = finding.proposal
    rows = evidence.ask(
        "SELECT workload_uid, workload_kind, workload_namespace, workload_name, experiment, team, pod FROM holder_name "
        "WHERE workload_uid = $1 OR pod_uid = $1 LIMIT 1",
        proposal.owner_uid,
    )
    uid, kind, namespace, name, experiment, team, pod = rows[0] if rows else (None,) * 7
    subject = name or pod or proposal.owner_uid
    return {
        "id": finding.id,
        "cause": proposal.cause,
        "workload": workload_json(uid, kind, namespace, name),
        "owner_uid": proposal.owner_uid,
        "experiment": experiment,
        "team": team if subject else "platform",
        "culprit": proposal.culprit,
        "from": iso(proposal.from_ms, evidence.zone),
        "to": iso(proposal.to_ms, evidence.zone),
        "ongoing": evidence.is_ongoing(*proposal.subject),
        "ended": evidence.has_ended(*proposal.subject),
        "seen": None if finding.seen_ms is None else iso(finding.seen_ms, evidence.zone),
        "gpu_ms": finding.gpu_ms,
        "gpu_hours": gpu_hours(finding.gpu_ms),
        "usd_micro": micro,
        "usd": None if micro is None else usd(micro),
        "confidence": proposal.confidence,
        "title": f"{subject} {proposal.headline}" if subject else proposal.headline,
        "evidence": list(proposal.evidence),
        "suggestion": proposal.suggestion,
    }
