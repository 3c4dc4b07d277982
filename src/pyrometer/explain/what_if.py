"""What if it had been caught: when the evidence for a finding sufficed, and what it went on to cost after that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

from pyrometer.account.answer_json import amounts, iso
from pyrometer.account.sums import Sum, added
from pyrometer.explain.findings import Caught, Finding
from pyrometer.explain.night import Night
from pyrometer.model.human import dollars, hours
from pyrometer.model.units import MS_PER_SECOND, usd

# Whoever knows of it, a device that is broken stays broken, and what is not observed may well be at work.
NOT_SAVED = ("unhealthy", "unobserved")
WORTH_A_LINE = 10  # of what it cost, one part at least


def caught(
    claimed: Sequence[Sum], part_ms: int, from_ms: int, to_ms: int, known_ms: int | None, enough: Callable[[Sum], bool]
) -> Caught:
    """When a finding could have been told: once its evidence sufficed, and by the end of the part of time (a minute) in
    which what it had claimed was enough to tell it. What it claimed in the parts after that would have been saved.

    What is claimed is in the order of time; its keys are when its part begins, and whether it can be saved.
    """
    so_far = accumulate(claimed, lambda before, part: added(part.key, [before, part]))
    told_ms = next((sum_.key[0] + part_ms for sum_ in so_far if enough(sum_)), to_ms)
    at_ms = max(from_ms, to_ms if known_ms is None else known_ms, told_ms)
    left = [part for part in claimed if part.key[1] and part.key[0] >= at_ms] if at_ms < to_ms else []
    return Caught(at_ms, added((), left))


def what_if(night: Night, finding: Finding, whole: Sum, usd_micro: int | None, saved: Sum) -> dict[str, Any]:
    """What catching a finding would have saved, as answers write it; a sentence of it where it is worth a line."""
    at_ms, proposal = finding.caught.at_ms, finding.proposal
    micro = saved_usd_micro(whole, usd_micro, saved)
    sentence = None
    if _worth_a_line(night, usd_micro, micro, whole.gpu_ms, saved.gpu_ms):
        instead = f"{_spent(usd_micro, micro or 0, whole.gpu_ms, saved.gpu_ms)} instead of "
        sentence = f"Caught at {night.time(at_ms)} it would have cost {instead}{_spent(usd_micro, 0, whole.gpu_ms, 0)}."
    told = {
        "detected": iso(at_ms, night.zone),
        "detect_s": (at_ms - proposal.from_ms) / MS_PER_SECOND,
        "saved_gpu_ms": saved.gpu_ms,
        "saved_usd_micro": micro,
        "saved_usd": None if micro is None else usd(micro),
        "sentence": sentence,
    }
    elapsed = proposal.elapsed
    return told | ({} if elapsed is None else {"elapsed_ms": elapsed.ms, "elapsed_without_ms": elapsed.without_ms})


def saved_usd_micro(whole: Sum, usd_micro: int | None, saved: Sum) -> int | None:
    """The part of a finding's micro-dollars that would have been saved: rounded down, so never more than all of it."""
    if usd_micro is None or (saved.gpu_ms and saved.unpriced_gpu_ms == saved.gpu_ms):
        return None
    return usd_micro * saved.ms_price // whole.ms_price if whole.ms_price else 0


def saved_if_caught(night: Night, findings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What catching all findings would have saved: the sum of theirs."""
    what_ifs = [finding["what_if"] for finding in findings]
    gpu_ms, micro = sum(w["saved_gpu_ms"] for w in what_ifs), _added(w["saved_usd_micro"] for w in what_ifs)
    whole_ms, whole_micro = sum(f["gpu_ms"] for f in findings), _added(f["usd_micro"] for f in findings)
    sentence = None
    if _worth_a_line(night, whole_micro, micro, whole_ms, gpu_ms):
        amount, whole = (hours(gpu_ms), hours(whole_ms)) if not whole_micro else (dollars(micro), dollars(whole_micro))
        sentence = f"Caught when the evidence sufficed, {amount} of the {whole} in findings would have been saved."
    return amounts(Sum((), gpu_ms, 0, 0), micro) | {"sentence": sentence}


def _worth_a_line(night: Night, usd_micro: int | None, micro: int | None, gpu_ms: int, saved_gpu_ms: int) -> bool:
    """Whether a saving is more than a crumb: of the money, or of the time where nothing is priced."""
    if usd_micro:
        return (micro or 0) * WORTH_A_LINE > usd_micro and (micro or 0) > night.least_usd_micro
    return saved_gpu_ms * WORTH_A_LINE > gpu_ms and saved_gpu_ms > night.settings.finding_min_ms


def _spent(usd_micro: int | None, less_usd_micro: int, gpu_ms: int, less_gpu_ms: int) -> str:
    return dollars(usd_micro - less_usd_micro) if usd_micro else hours(gpu_ms - less_gpu_ms)


def _added(micros: Iterable[int | None]) -> int | None:
    """The sum of what is priced; None where nothing is."""
    priced = [micro for micro in micros if micro is not None]
    return sum(priced) if priced else None
