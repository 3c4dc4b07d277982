"""Who gets a wasted millisecond.

Findings claim ledger rows in the order of their causes, and no millisecond is claimed twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from pyrometer.account.sums import Sum, added
from pyrometer.explain.findings import Detector, Finding, Proposal
from pyrometer.explain.known import LOOKED, known, named
from pyrometer.explain.night import Night
from pyrometer.explain.what_if import NOT_SAVED, caught
from pyrometer.model.states import IMMEDIATE_CAUSES
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE, usd_micro

# Each claim is part of one ledger row. A row that several findings want goes to the earlier one, up to the time of
# the row's minute that lies in its scope; the next one gets from what is left.
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
    "proposal": "INTEGER", "cause": "VARCHAR", "state": "VARCHAR", "pod_uid": "VARCHAR", "from_ms": "BIGINT",
    "to_ms": "BIGINT", "node_uid": "VARCHAR", "slot_index": "SMALLINT", "permille": "SMALLINT",
}  # fmt: skip

# When nothing is proposed: the same table, without a look at the ledger.
_NO_CLAIM = """
CREATE OR REPLACE TEMP TABLE claim AS
SELECT * EXCLUDE (ms), 0 AS proposal, '' AS cause, ms AS row_ms, ms FROM ledger_row WHERE false
"""


def find(night: Night, detectors: Sequence[Detector]) -> list[Finding]:
    """The findings of a night, most expensive first. Afterwards the table `claim` holds what each of them claims."""
    proposals = [proposal for detector in detectors for proposal in detector(night)]
    if not proposals:
        night.ask(_NO_CLAIM)
        return []
    _scope_table(night, proposals)
    night.ask(_CLAIM.format(from_ms=night.window.from_ms, to_ms=night.window.to_ms))
    kept, dropped = [], []
    for number, claimed in _claimed(night).items():
        whole = added((), claimed)
        if _worth_telling(whole, night, at_once=_goes_on_costing(proposals[number], night)):
            kept.append(_finding(night, proposals[number], whole, claimed))
        else:
            dropped.append(number)
    if dropped:
        night.store.connection.execute("DELETE FROM claim WHERE list_contains($1, proposal)", [dropped])
    return sorted(_named(night, kept), key=lambda f: (-f.ms_price, -f.gpu_ms, f.proposal.from_ms, f.id))


def _named(night: Night, findings: Sequence[Finding]) -> list[Finding]:
    names = named(
        [finding.proposal for finding in findings],
        known(night.store, *night.window),
        int(night.store.meta(LOOKED) or 0),
    )
    return [finding._replace(id=name.id, seen_ms=name.seen_ms) for finding, name in zip(findings, names, strict=True)]


def _scope_table(night: Night, proposals: Iterable[Proposal]) -> None:
    rows = [
        (number, proposal.cause, state, *scope)
        for number, proposal in enumerate(proposals)
        for scope in proposal.scope
        for state in proposal.states
    ]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * len(_SCOPE)
    unnested = ", ".join(f"unnest(${n})::{kind} AS {name}" for n, (name, kind) in enumerate(_SCOPE.items(), start=1))
    night.ask(f"CREATE OR REPLACE TEMP TABLE scope AS SELECT {unnested}", *columns)


def _claimed(night: Night) -> dict[int, list[Sum]]:
    """What each proposal claims, one part of time after the other, and whether that can be saved."""
    rows = night.ask(
        "SELECT proposal, minute_ms // $2 * $2, NOT list_contains($1, state), sum(ms), "
        "coalesce(sum(ms * usd_micro_per_hour), 0), "
        "coalesce(sum(ms) FILTER (WHERE usd_micro_per_hour IS NULL), 0) FROM claim GROUP BY ALL ORDER BY 1, 2, 3",
        list(NOT_SAVED), _part_ms(night),
    )  # fmt: skip
    claimed: dict[int, list[Sum]] = defaultdict(list)
    for number, minute_ms, saves, gpu_ms, ms_price, unpriced in rows:
        claimed[number].append(Sum((minute_ms, saves), int(gpu_ms), int(ms_price), int(unpriced)))
    return claimed


def _finding(night: Night, proposal: Proposal, whole: Sum, claimed: Sequence[Sum]) -> Finding:
    at_once = proposal.cause in IMMEDIATE_CAUSES
    if_caught = caught(
        claimed, _part_ms(night), proposal.from_ms, proposal.to_ms, proposal.known_ms,
        lambda so_far: _worth_telling(so_far, night, at_once=at_once),
    )  # fmt: skip
    return Finding("", proposal, whole.gpu_ms, whole.ms_price, whole.unpriced_gpu_ms, if_caught)


def _part_ms(night: Night) -> int:
    """Minutes; of a month they would be too many to look at one by one."""
    length_ms = night.window.to_ms - night.window.from_ms
    return MS_PER_MINUTE if length_ms <= 2 * MS_PER_DAY else MS_PER_HOUR // 4


def _goes_on_costing(proposal: Proposal, night: Night) -> bool:
    """What does not get better by itself is told while it is still cheap."""
    return proposal.cause in IMMEDIATE_CAUSES and night.goes_on(*proposal.subject)


def _worth_telling(claimed: Sum, night: Night, *, at_once: bool) -> bool:
    if claimed.gpu_ms < night.settings.finding_min_ms:
        return False
    priced = claimed.unpriced_gpu_ms < claimed.gpu_ms
    return at_once or not priced or usd_micro(claimed.ms_price) >= night.least_usd_micro
