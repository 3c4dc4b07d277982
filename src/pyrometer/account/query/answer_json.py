"""Times, amounts and workloads in the JSON of answers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, tzinfo
from typing import Any

from pyrometer.account.query.sums import Sum, added, is_priced
from pyrometer.account.query.time_range import TimeRange
from pyrometer.model.units import gpu_hours, usd, usd_micro


def iso(time_ms: int, zone: tzinfo) -> str:
    """A time in ISO 8601 with its offset."""
    text = datetime.fromtimestamp(time_ms / 1000, zone).isoformat(
        timespec="milliseconds" if time_ms % 1000 else "seconds"
    )
    return text.replace("+00:00", "Z") if text.endswith("+00:00") else text


def time_range_json(time_range: TimeRange, zone: tzinfo) -> dict[str, str]:
    """A time range as JSON."""
    return {"from": iso(time_range.from_ms, zone), "to": iso(time_range.to_ms, zone)}


def workload_json(
    uid: str | None, kind: str | None, namespace: str | None, name: str | None
) -> dict[str, str | None] | None:
    """A workload as JSON; None if there is none."""
    return {"uid": uid, "kind": kind, "namespace": namespace, "name": name} if uid else None


def amounts(group: Sum, micro: int | None) -> dict[str, Any]:
    """Time and money of one row as JSON."""
    return time_and_money(group.gpu_ms, micro)


def time_and_money(gpu_ms: int, micro: int | None) -> dict[str, Any]:
    """Time and money as JSON."""
    return {
        "gpu_ms": gpu_ms,
        "gpu_hours": gpu_hours(gpu_ms),
        "usd_micro": micro,
        "usd": None if micro is None else usd(micro),
    }


def total(groups: Iterable[Sum]) -> dict[str, Any]:
    """The total of an answer as JSON."""
    whole = added((), list(groups))
    micro = usd_micro(whole.ms_price) if is_priced(whole) else None
    return amounts(whole, micro) | {"unpriced_gpu_ms": whole.unpriced_gpu_ms}
