"""Assigns wasted milliseconds to findings.

Findings claim ledger rows in the order of their causes, and no millisecond is claimed twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from pyrometer.account.query.sums import Sum, added
from pyrometer.findings.continuity import SEARCHED_UNTIL, named, recorded
from pyrometer.findings.counterfactual import NOT_SAVABLE, caught
from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import ClaimedFinding, Detector, Proposal
from pyrometer.model.states import IMMEDIATE_CAUSES
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE, usd_micro

# Each claim is part of one ledger row. A row that several findings claim goes to the first one, for the time of the
# minute that is in its scope. The next finding gets what is left.
_CLAIM = """
CREATE OR REPLACE TEMP TABLE claim AS
WITH touched AS (
    SELECT ledger.*, scope.proposal, scope.cause, max(permille) AS permille,
        sum(least(scope.to_ms, minute_ms + 60000) - greatest(scope.from_ms, minute_ms)) AS scope_ms
    FROM ledger_row ledger
    JOIN scope
        -- a pod's time by its pod, the platform's by its node
        ON coalesce(scope.pod_uid, scope.node_uid) = coalesce(ledger.pod_uid, ledger.node_uid)
        AND (scope.pod_uid IS NULL) = (ledger.pod_uid IS NULL) AND scope.state = ledger.state
        AND scope.from_ms < ledger.minute_ms + 60000 AND scope.to_ms > ledger.minute_ms
        AND coalesce(scope.node_uid = ledger.node_uid, true) AND coalesce(scope.slot_index = ledger.slot_index, true)
    WHERE minute_ms >= {from_ms} AND minute_ms < {to_ms}
    GROUP BY ALL
),
wanted AS (
    SELECT * EXCLUDE (permille, scope_ms), least(scope_ms, ms) * permille // 1000 AS want_ms FROM touched
),
running AS (
    SELECT *, sum(want_ms) OVER (
        PARTITION BY minute_ms, node_uid, slot_index, pod_uid, attempt, state, evidence, usd_micro_per_hour
        ORDER BY proposal) AS so_far
    FROM wanted
)
SELECT * EXCLUDE (want_ms, so_far, ms), ms AS row_ms, (least(so_far, ms) - least(so_far - want_ms, ms))::INTEGER AS ms
FROM running WHERE so_far - want_ms < ms
"""


_SCOPE = {
    "proposal": "INTEGER",
    "cause": "VARCHAR",
    "state": "VARCHAR",
    "pod_uid": "VARCHAR",
    "from_ms": "BIGINT",
    "to_ms": "BIGINT",
    "node_uid": "VARCHAR",
    "slot_index": "SMALLINT",
    "permille": "SMALLINT",
}

# Without proposals: the same table, without reading the ledger.
_NO_CLAIM = """
CREATE OR REPLACE TEMP TABLE claim AS
SELECT * EXCLUDE (ms), 0 AS proposal, '' AS cause, ms AS row_ms, ms FROM ledger_row WHERE false
"""


def find(evidence: Evidence, detectors: Sequence[Detector]) -> list[ClaimedFinding]:
    """The findings of a time range, most expensive first.

    Creates the table `claim`, which lists what each of them claims.
    """
    proposals = [proposal for detector in detectors for proposal in detector(evidence)]
    if not proposals:
        evidence.ask(_NO_CLAIM)
        return []
    _scope_table(evidence, proposals)
    evidence.ask(_CLAIM.format(from_ms=evidence.window.from_ms, to_ms=evidence.window.to_ms))
    kept, dropped = [], []
    for number, claimed in _claimed(evidence).items():
        whole = added((), claimed)
        if _is_reportable(whole, evidence, at_once=_keeps_costing(proposals[number], evidence)):
            kept.append(_finding(evidence, proposals[number], whole, claimed))
        else:
            dropped.append(number)
    if dropped:
        evidence.store.connection.execute("DELETE FROM claim WHERE list_contains($1, proposal)", [dropped])
    return sorted(_named(evidence, kept), key=lambda f: (-f.ms_price, -f.gpu_ms, f.proposal.from_ms, f.id))


def _named(evidence: Evidence, findings: Sequence[ClaimedFinding]) -> list[ClaimedFinding]:
    names = named(
        [finding.proposal for finding in findings],
        recorded(evidence.store, *evidence.window),
        int(evidence.store.meta(SEARCHED_UNTIL) or 0),
    )
    return [finding._replace(id=name.id, seen_ms=name.seen_ms) for finding, name in zip(findings, names, strict=True)]


def _scope_table(evidence: Evidence, proposals: Iterable[Proposal]) -> None:
    rows = [
        (number, proposal.cause, state, *scope)
        for number, proposal in enumerate(proposals)
        for scope in proposal.scope
        for state in proposal.states
    ]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * len(_SCOPE)
    unnested = ", ".join(f"unnest(${n})::{kind} AS {name}" for n, (name, kind) in enumerate(_SCOPE.items(), start=1))
    evidence.ask(f"CREATE OR REPLACE TEMP TABLE scope AS SELECT {unnested}", *columns)


def _claimed(evidence: Evidence) -> dict[int, list[Sum]]:
    """What each proposal claims, in order of time, and whether that could have been saved."""
    rows = evidence.ask(
        "SELECT proposal, minute_ms // $2 * $2, NOT list_contains($1, state), sum(ms), "
        "coalesce(sum(ms * usd_micro_per_hour), 0), "
        "coalesce(sum(ms) FILTER (WHERE usd_micro_per_hour IS NULL), 0) FROM claim GROUP BY ALL ORDER BY 1, 2, 3",
        list(NOT_SAVABLE),
        _part_ms(evidence),
    )
    claimed: dict[int, list[Sum]] = defaultdict(list)
    for number, minute_ms, saves, gpu_ms, ms_price, unpriced in rows:
        claimed[number].append(Sum((minute_ms, saves), int(gpu_ms), int(ms_price), int(unpriced)))
    return claimed


def _finding(evidence: Evidence, proposal: Proposal, whole: Sum, claimed: Sequence[Sum]) -> ClaimedFinding:
    at_once = proposal.cause in IMMEDIATE_CAUSES
    if_caught = caught(
        claimed,
        _part_ms(evidence),
        proposal.from_ms,
        proposal.to_ms,
        proposal.detectable_ms,
        lambda so_far: _is_reportable(so_far, evidence, at_once=at_once),
    )
    return ClaimedFinding(
        id="",
        proposal=proposal,
        gpu_ms=whole.gpu_ms,
        ms_price=whole.ms_price,
        unpriced_gpu_ms=whole.unpriced_gpu_ms,
        caught=if_caught,
    )


def _part_ms(evidence: Evidence) -> int:
    """The length of the parts in which claims are summed: minutes, or longer if the time range is long."""
    length_ms = evidence.window.to_ms - evidence.window.from_ms
    return MS_PER_MINUTE if length_ms <= 2 * MS_PER_DAY else MS_PER_HOUR // 4


def _keeps_costing(proposal: Proposal, evidence: Evidence) -> bool:
    """Causes that do not end by themselves are reported while they are still cheap."""
    return proposal.cause in IMMEDIATE_CAUSES and evidence.is_ongoing(*proposal.subject)


def _is_reportable(claimed: Sum, evidence: Evidence, *, at_once: bool) -> bool:
    if claimed.gpu_ms < evidence.settings.finding_min_ms:
        return False
    priced = claimed.unpriced_gpu_ms < claimed.gpu_ms
    return at_once or not priced or usd_micro(claimed.ms_price) >= evidence.min_usd_micro
