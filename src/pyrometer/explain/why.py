"""The answer of `pyrometer why`: what burned, by state, and the findings.

Reports and the API show it; they add nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import tzinfo
from typing import Any

from pyrometer.account.energy import drawn_in, energy_total, tariff_of
from pyrometer.account.sums import Sum, Window, amounts, iso, rounded, sums, total, window_json
from pyrometer.explain import claims
from pyrometer.explain.detectors import DETECTORS
from pyrometer.explain.findings import Finding
from pyrometer.explain.night import Night
from pyrometer.explain.queues import progress, queues, waited_ms
from pyrometer.model.settings import Settings
from pyrometer.model.states import EVIDENCE, STATE, STATES
from pyrometer.model.units import gpu_hours, usd
from pyrometer.store import Store

MOST_WORKLOADS = 20


def why(
    store: Store, window: Window, settings: Settings, *, zone: tzinfo, price_usd_micro: int | None = None
) -> dict[str, Any]:
    """What burned in a window, and why."""
    night = Night(store, window, settings, zone, price_usd_micro=price_usd_micro)
    by_state = _sums(night, "state")
    findings = _findings(night, claims.find(night, DETECTORS), price_usd_micro)
    return {
        "window": window_json(window, zone),
        "timezone": str(zone),
        "origin": store.meta("origin"),  # simulated, recorded; None when it is live
        "total": total(by_state) | energy_total(drawn_in(store, *window), tariff_of(settings)),
        "prices_assumed": price_usd_micro is None and _prices_assumed(store),
        "states": _states(by_state),
        "findings": findings,
        "unexplained": _unexplained(night),
        "evidence": _evidence(night),
        "timeline": {"bucket_ms": night.bucket_ms, "rows": _timeline(night)},
        "teams": _teams(night),
        "queues": queues(night),
        "workloads": _workloads(night),
        "workloads_total": night.ask("SELECT count(DISTINCT workload_uid) FROM burn JOIN holder_name USING (pod_uid)")[
            0
        ][0],
    }


def _sums(night: Night, *by: str) -> list[Sum]:
    everything = Window(0, 2**62)  # `burn` is the window already; its buckets may begin before it
    return sums(night.store, everything, by, zone=night.zone, ledger="burn")


def _prices_assumed(store: Store) -> bool:
    """Whether any price came from the bundled list instead of a book."""
    return store.meta("prices_assumed") == "yes"


def _states(by_state: Sequence[Sum]) -> list[dict[str, Any]]:
    order = {state.name: place for place, state in enumerate(STATES)}
    money = dict(zip((group.key[0] for group in by_state), rounded(by_state), strict=True))
    rows = []
    for group in sorted(by_state, key=lambda group: order[group.key[0]]):
        name = group.key[0]
        rows.append({"state": name, "family": STATE[name].family} | amounts(group, money[name]))
    return rows


def _unexplained(night: Night) -> list[dict[str, Any]]:
    """Waste that no finding claims, by state, most expensive first: ordinary friction, or what has no cause yet."""
    rows = night.ask(
        "SELECT state, sum(ms), sum(ms * usd_micro_per_hour::HUGEINT), "
        "coalesce(sum(ms) FILTER (WHERE usd_micro_per_hour IS NULL), 0) "
        "FROM (SELECT state, ms, usd_micro_per_hour FROM burn "
        f"UNION ALL SELECT state, -ms, {night.price} FROM claim) GROUP BY state HAVING sum(ms) > 0"
    )
    groups = [
        Sum((state,), int(ms), int(ms_price or 0), int(unpriced))
        for state, ms, ms_price, unpriced in rows if STATE[state].family == "waste"
    ]  # fmt: skip
    told = [{"state": g.key[0]} | amounts(g, micro) for g, micro in zip(groups, rounded(groups), strict=True)]
    return sorted(told, key=lambda row: (-(row["usd_micro"] or 0), -row["gpu_ms"], row["state"]))


def _evidence(night: Night) -> dict[str, float]:
    """The share of the GPU time that had each kind of evidence."""
    rows = night.ask("SELECT evidence, sum(ms) FROM burn GROUP BY evidence")
    whole = sum(int(ms) for _, ms in rows)
    return {
        name: round(sum(int(ms) for bits, ms in rows if bits & bit) / whole, 4) if whole else 0.0
        for name, bit in EVIDENCE.items()
    }


def _timeline(night: Night) -> list[dict[str, Any]]:
    buckets: dict[int, dict[str, int]] = defaultdict(dict)
    for bucket, state, ms in night.ask("SELECT minute_ms, state, sum(ms) FROM burn GROUP BY ALL ORDER BY ALL"):
        buckets[bucket][state] = int(ms)
    return [{"from": iso(bucket, night.zone), "states": states} for bucket, states in buckets.items()]


def _teams(night: Night) -> list[dict[str, Any]]:
    teams: dict[str, list[Sum]] = defaultdict(list)
    for group in _sums(night, "team", "state"):
        teams[group.key[0]].append(group)
    wholes = [_added((team,), groups) for team, groups in teams.items()]
    wastes = [
        _added((team,), [g for g in groups if STATE[g.key[1]].family == "waste"]) for team, groups in teams.items()
    ]
    rows = []
    for whole, waste, micro, waste_micro in zip(wholes, wastes, rounded(wholes), rounded(wastes), strict=True):
        wasted = None if micro is None else (waste_micro or 0)
        rows.append(
            {"team": whole.key[0]} | amounts(whole, micro) | {
                "unpriced_gpu_ms": whole.unpriced_gpu_ms,
                "waste_gpu_ms": waste.gpu_ms,
                "waste_usd_micro": wasted,
                "waste_usd": None if wasted is None else usd(wasted),
            }
        )  # fmt: skip
    return sorted(rows, key=lambda row: (-(row["usd_micro"] or 0), -row["gpu_ms"]))


def _workloads(night: Night) -> list[dict[str, Any]]:
    states: dict[Any, dict[str, int]] = defaultdict(dict)
    for group in _sums(night, "workload", "state"):
        states[_uid(group.key[0])][group.key[1]] = group.gpu_ms
    groups = _sums(night, "workload", "experiment", "team")
    waited, done = waited_ms(night), progress(night)
    rows = [
        {"workload": group.key[0], "experiment": group.key[1], "team": group.key[2]}
        | amounts(group, micro)
        | {"unpriced_gpu_ms": group.unpriced_gpu_ms, "states": states[_uid(group.key[0])]}
        | {"waited_ms": waited.get(group.key[0]["uid"]), "progress": done.get(group.key[0]["uid"])}
        for group, micro in zip(groups, rounded(groups), strict=True)
        if group.key[0] is not None
    ]
    return rows[:MOST_WORKLOADS]


def _uid(workload: dict[str, str] | None) -> str | None:
    return workload["uid"] if workload else None


def _added(key: tuple[Any, ...], groups: Sequence[Sum]) -> Sum:
    return Sum(
        key,
        sum(g.gpu_ms for g in groups),
        sum(g.ms_price for g in groups),
        sum(g.unpriced_gpu_ms for g in groups),
    )


def _findings(night: Night, found: Sequence[Finding], price_usd_micro: int | None) -> list[dict[str, Any]]:
    groups = [
        Sum((f.id,), f.gpu_ms, f.ms_price, f.unpriced_gpu_ms) if price_usd_micro is None
        else Sum((f.id,), f.gpu_ms, f.gpu_ms * price_usd_micro, 0)
        for f in found
    ]  # fmt: skip
    money = rounded(groups)
    return [_finding(night, finding, micro) for finding, micro in zip(found, money, strict=True)]


def _finding(night: Night, finding: Finding, micro: int | None) -> dict[str, Any]:
    proposal = finding.proposal
    rows = night.ask(
        "SELECT workload_uid, workload_kind, workload_namespace, workload_name, experiment, team, pod FROM holder_name "
        "WHERE workload_uid = $1 OR pod_uid = $1 LIMIT 1",
        proposal.owner_uid,
    )
    uid, kind, namespace, name, experiment, team, pod = rows[0] if rows else (None,) * 7
    subject = name or pod or proposal.owner_uid
    workload = {"uid": uid, "kind": kind, "namespace": namespace, "name": name} if uid else None
    return {
        "id": finding.id,
        "cause": proposal.cause,
        "workload": workload,
        "experiment": experiment,
        "team": team if subject else "platform",
        "culprit": proposal.culprit,
        "from": iso(proposal.from_ms, night.zone),
        "to": iso(proposal.to_ms, night.zone),
        "ongoing": night.goes_on(proposal.to_ms),
        "gpu_ms": finding.gpu_ms,
        "gpu_hours": gpu_hours(finding.gpu_ms),
        "usd_micro": micro,
        "usd": None if micro is None else usd(micro),
        "confidence": proposal.confidence,
        "title": f"{subject} {proposal.headline}" if subject else proposal.headline,
        "evidence": list(proposal.evidence),
        "suggestion": proposal.suggestion,
    }
