"""The ledger with causes: each row split into what a finding claimed and what nobody did."""

from __future__ import annotations

from datetime import tzinfo

from pyrometer.account.time_range import TimeRange
from pyrometer.explain.claims import find
from pyrometer.explain.detectors import DETECTORS
from pyrometer.explain.night import Night
from pyrometer.model.settings import Settings
from pyrometer.store import StoreReader

_KEY = "minute_ms, node_uid, slot_index, pod_uid, attempt, state, evidence, usd_micro_per_hour"


def with_causes(store: StoreReader, window: TimeRange, settings: Settings, zone: tzinfo) -> str:
    """Finds what there is to find, and gives the name of a relation like the ledger's with a column `cause`."""
    find(Night(store, window, settings, zone), DETECTORS)
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
