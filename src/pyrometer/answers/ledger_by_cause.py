"""The ledger by cause: each row is split into the parts that findings claim and the part that none claims."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo

from pyrometer.account.query.time_range import TimeRange
from pyrometer.findings.claims import find
from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Detector
from pyrometer.model.settings import Settings
from pyrometer.store import StoreReader

_KEY = "minute_ms, node_uid, slot_index, pod_uid, attempt, state, evidence, usd_micro_per_hour"


def with_causes(
    store: StoreReader, window: TimeRange, settings: Settings, zone: tzinfo, *, detectors: Sequence[Detector]
) -> str:
    """Run the detectors, and return the name of a relation like the ledger with a column `cause`."""
    find(Evidence(store, window, settings, zone), detectors)
    store.connection.execute(
        f"""
        CREATE OR REPLACE TEMP VIEW ledger_with_cause AS
        SELECT {_KEY}, ms, cause FROM claim
        UNION ALL
        SELECT {_KEY}, sum(ms)::BIGINT AS ms, NULL AS cause
        FROM (SELECT {_KEY}, ms FROM ledger_row UNION ALL SELECT {_KEY}, -ms FROM claim)
        GROUP BY {_KEY} HAVING sum(ms) > 0
        """
    )
    return "ledger_with_cause"
