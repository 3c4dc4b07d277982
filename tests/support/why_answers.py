"""Answers of `why` about a cluster of 300 GPUs, for tests of its renderings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyrometer.model.states import STATES
from pyrometer.model.units import MS_PER_HOUR

BEGIN = datetime(2026, 11, 14, 20, tzinfo=UTC)


BUCKET_MS = 900_000
PRICE_USD_MICRO_PER_HOUR = 2_990_001  # odd, so that amounts are rounded


MIX = {"train": 160, "infer": 31, "startup": 7, "data_stall": 19, "hang": 64, "free": 14, "unobserved": 5}


def money(gpu_ms: int, priced: bool = True, prefix: str = "") -> dict:
    usd_micro = gpu_ms * PRICE_USD_MICRO_PER_HOUR // MS_PER_HOUR if priced else None
    usd = round(usd_micro / 1e6, 2) if usd_micro is not None else None
    return {f"{prefix}gpu_ms": gpu_ms, f"{prefix}usd_micro": usd_micro, f"{prefix}usd": usd}


def workload(name: str) -> dict:
    return {"uid": f"uid-{name}", "kind": "PyTorchJob", "namespace": "nlp", "name": name}


def finding(number: int, hours: float, priced: bool) -> dict:
    begin = BEGIN + timedelta(minutes=15 * number)
    return {
        "id": f"f{number}",
        "cause": "hang",
        "workload": workload(f"llama-{number}"),
        "experiment": "llama-sft",
        "team": "nlp",
        "culprit": {"rank": 0, "node": "n12", "gpu": 3, "pod": None},
        "from": begin.isoformat(),
        "to": (begin + timedelta(hours=hours / 4)).isoformat(),
        **money(int(64 * hours * MS_PER_HOUR / (number + 1)), priced),
        "ongoing": number == 0,
        "confidence": 0.97,
        "title": f"llama-{number} has been hung in an all-reduce since 23:41.",
        "evidence": ["No rank has finished a step since 23:41:07."],
        "suggestion": "Delete the pod of rank 5 and cordon n12.",
        "what_if": {"sentence": "Caught at 23:43, it would have cost $12 instead of $2,950." if priced else None},
    }


def why(hours: float = 12, findings: int = 8, priced: bool = True) -> dict:
    """An answer about 300 GPUs, as `pyrometer why -o json` gives it."""
    rows = [
        {
            "from": (BEGIN + timedelta(milliseconds=index * BUCKET_MS)).isoformat(),
            "states": {state: gpus * BUCKET_MS + index for state, gpus in MIX.items()},
        }
        for index in range(int(hours * MS_PER_HOUR / BUCKET_MS))
    ]
    sums = {state: sum(row["states"][state] for row in rows) for state in MIX}
    total_ms = sum(sums.values())
    states = [
        {"state": state.name, "family": state.family, **money(sums[state.name], priced)}
        for state in STATES
        if state.name in sums
    ]
    total = money(total_ms, priced)
    if priced:
        total["usd_micro"] = sum(row["usd_micro"] for row in states)
        total["usd"] = round(total["usd_micro"] / 1e6, 2)
    return {
        "window": {"from": BEGIN.isoformat(), "to": (BEGIN + timedelta(hours=hours)).isoformat()},
        "timezone": "UTC",
        "total": {
            **total,
            "gpu_hours": total_ms / MS_PER_HOUR,
            "unpriced_gpu_ms": 0 if priced else total_ms,
            "energy_wh": 412_000,
            "energy_gpu_ms": total_ms // 2,
            "energy_estimated_gpu_ms": 0,
            "co2e_g": 160_000,
        },
        "origin": None,
        "prices_assumed": False,
        "states": states,
        "findings": [finding(number, hours, priced) for number in range(findings)],
        "saved_if_caught": {"sentence": "Caught in time, $9 of the $10 would have been saved." if priced else None},
        "waste": {
            part: money(sums["hang"] + sums["data_stall"] if part == "explained" else 0, priced)
            for part in ("explained", "unexplained")
        },
        "unexplained": [],
        "failures": [],
        "evidence": {"kubernetes": 1.0, "gpu": 0.96, "sdk": 0.7},
        "timeline": {"bucket_ms": BUCKET_MS, "rows": rows},
        "queues": [
            {
                "queue": "train",
                "started": 3,
                "waited_median_ms": 900_000,
                "waited_longest_ms": 3_600_000,
                "waiting": 2,
                "waiting_gpus": 12.0,
                "waiting_longest_ms": 7_200_000,
            }
        ],
        "teams": [
            {"team": team, **money(total_ms // 3, priced), **money(total_ms // 9, priced, "waste_")}
            for team in ("nlp", "vision", "platform")
        ],
        "workloads": [
            {"workload": name and workload(name), "experiment": None, "team": "nlp"}
            | money(total_ms // 4, priced)
            | money(total_ms // 12, priced, "waste_")
            | {"states": {"train": total_ms // 8, "hang": total_ms // 8}, "waited_ms": 3_600_000, "progress": 0.5}
            for name in ("llama", None)
        ],
    }


def nothing() -> dict:
    return why(hours=0, findings=0) | {
        "window": why()["window"],
        "total": {
            "gpu_ms": 0,
            "gpu_hours": 0.0,
            "usd_micro": None,
            "usd": None,
            "unpriced_gpu_ms": 0,
            "energy_wh": None,
            "energy_gpu_ms": 0,
            "energy_estimated_gpu_ms": 0,
            "co2e_g": None,
        },
        "states": [],
        "waste": {"explained": money(0, False), "unexplained": money(0, False)},
        "teams": [],
        "queues": [],
        "workloads": [],
        "evidence": {"kubernetes": 0.0, "gpu": 0.0, "sdk": 0.0},
    }


def half_priced() -> dict:
    """The `hang` time, a finding, a team and a workload have no price; the rest has."""
    answer = why()
    unpriced = [
        next(row for row in answer["states"] if row["state"] == "hang"),
        answer["findings"][-1],
        answer["teams"][-1],
        answer["workloads"][-1],
    ]
    for row in unpriced:
        row |= {key: None for key in row if "usd" in key}
    answer["total"]["usd_micro"] = sum(row["usd_micro"] or 0 for row in answer["states"])
    answer["total"]["unpriced_gpu_ms"] = unpriced[0]["gpu_ms"]
    return answer
