"""How right `why` is, over many simulated nights: precision, recall and culprits by cause, and the error of the states.

python benchmarks/scores.py [--scenario overnight gpu_only] [--seeds 20] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import Any

SCENARIOS = ("overnight", "quiet", "gpu_only", "kube_only")


def one_night(scenario: str, seed: int) -> dict[str, Any]:
    """Simulates a night, accounts for it, explains it, and compares that with its truth."""
    from pyrometer.account.ledger import build
    from pyrometer.explain.score import ledger_cells, score, truth_window
    from pyrometer.explain.why import why
    from pyrometer.model.settings import Settings
    from pyrometer.simulate.night import simulate
    from pyrometer.store import Store

    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder), create=True) as store:
        truth = simulate(store, scenario, seed=seed)
        window = truth_window(truth)
        build(store, Settings(), now_ms=window.to_ms)
        answer = why(store, window, Settings(), zone=UTC)
        scored = score(truth, answer, ledger_cells(store, window))
    largest = max((finding["usd"] or 0 for finding in answer["findings"]), default=0)
    return scored | {"seed": seed, "largest_usd": largest, "seconds": time.perf_counter() - started}


def pooled(nights: list[dict[str, Any]]) -> dict[str, Any]:
    """The nights together: every finding counts the same; the culprits' share is the mean of the nights."""
    causes: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    states: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for night in nights:
        for row in night["causes"]:
            for name in ("found", "planted", "matched"):
                causes[row["cause"]][name] += row[name]
        for row in night["states"]:
            states[row["state"]][0] += row["truth_gpu_ms"]
            states[row["state"]][1] += row["found_gpu_ms"]
    sums = {name: sum(row[name] for row in causes.values()) for name in ("found", "planted", "matched")}
    culprits = [night["culprit"] for night in nights if night["culprit"] is not None]
    return {
        "nights": len(nights),
        "precision": sums["matched"] / sums["found"] if sums["found"] else None,
        "recall": sums["matched"] / sums["planted"] if sums["planted"] else None,
        "culprit": sum(culprits) / len(culprits) if culprits else None,
        "state_error": sum(night["state_error"] for night in nights) / len(nights),
        "largest_usd": max(night["largest_usd"] for night in nights),
        "causes": {cause: dict(row) for cause, row in sorted(causes.items())},
        "states": {state: {"truth_gpu_ms": t, "found_gpu_ms": f} for state, (t, f) in sorted(states.items())},
    }


def run(scenario: str, seeds: range, processes: int = 2) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """All nights of a scenario."""
    with ProcessPoolExecutor(processes) as pool:
        nights = list(pool.map(partial(one_night, scenario), seeds))
    return pooled(nights), nights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", nargs="+", default=SCENARIOS)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="name what was missed and what was wrong")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = {}
    for scenario in args.scenario:
        together, nights = run(scenario, range(args.first, args.first + args.seeds))
        results[scenario] = together
        _print(scenario, together, nights, args.verbose)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


def _print(scenario: str, together: dict[str, Any], nights: list[dict[str, Any]], verbose: bool) -> None:
    def percent(share: float | None) -> str:
        return "–" if share is None else f"{100 * share:.1f} %"

    print(
        f"{scenario}, {together['nights']} seeds (simulated): precision {percent(together['precision'])}, "
        f"recall {percent(together['recall'])}, culprit {percent(together['culprit'])}, "
        f"state error {percent(together['state_error'])}, largest finding ${together['largest_usd']:,.0f}, "
        f"{sum(night['seconds'] for night in nights) / len(nights):.1f} s a night"
    )
    for cause, row in together["causes"].items():
        print(f"  {cause:<20}{row['matched']:>4} right {row['found']:>4} found {row['planted']:>4} planted")
    for night in nights if verbose else ():
        for what in ("missed", "wrong", "wrong_culprit"):
            for finding in night[what]:
                workload = (finding["workload"] or {}).get("name")
                print(
                    f"  seed {night['seed']:>3} {what:<13} {finding['cause']:<18} {workload} "
                    f"{finding['from'][11:19]}–{finding['to'][11:19]} ${finding['usd'] or 0:,.2f} {finding['culprit']}"
                    f" {finding.get('overlap') or finding.get('found') or ''}"
                )


if __name__ == "__main__":
    main()
