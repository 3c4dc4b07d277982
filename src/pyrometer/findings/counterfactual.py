"""What early detection would have saved: when a finding was detectable, and what it cost after that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

from pyrometer.account.query.answer_json import amounts, iso
from pyrometer.account.query.sums import Sum, added
from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import ClaimedFinding, Detection
from pyrometer.model.human import dollars, hours
from pyrometer.model.units import MS_PER_SECOND, usd

# A broken device stays broken, and unobserved time may be useful.
NOT_SAVABLE = ("unhealthy", "unobserved")
MIN_SAVED_PART = 10  # a saving of less than one tenth of the cost is not shown


def caught(
    claimed: Sequence[Sum],
    part_ms: int,
    from_ms: int,
    to_ms: int,
    detectable_ms: int | None,
    enough: Callable[[Sum], bool],
) -> Detection:
    """When a finding was detectable: once its evidence sufficed, and at the end of the part (a minute) in which its
    claims became large enough to report. Its claims after that would have been saved.

    `claimed` is in order of time. Its keys are the start of a part and whether it can be saved.
    """
    so_far = accumulate(claimed, lambda before, part: added(part.key, [before, part]))
    enough_ms = next((sum_.key[0] + part_ms for sum_ in so_far if enough(sum_)), to_ms)
    at_ms = max(from_ms, to_ms if detectable_ms is None else detectable_ms, enough_ms)
    left = [part for part in claimed if part.key[1] and part.key[0] >= at_ms] if at_ms < to_ms else []
    return Detection(at_ms, added((), left))


def what_if(
    evidence: Evidence, finding: ClaimedFinding, whole: Sum, usd_micro: int | None, saved: Sum
) -> dict[str, Any]:
    """What early detection of a finding would have saved, as JSON, with a sentence if the saving is large enough."""
    at_ms, proposal = finding.caught.at_ms, finding.proposal
    micro = saved_usd_micro(whole, usd_micro, saved)
    sentence = None
    if _is_worth_a_line(evidence, usd_micro, micro, whole.gpu_ms, saved.gpu_ms):
        instead = f"{_spent(usd_micro, micro or 0, whole.gpu_ms, saved.gpu_ms)} instead of "
        sentence = (
            f"Caught at {evidence.time(at_ms)}, it would have cost {instead}{_spent(usd_micro, 0, whole.gpu_ms, 0)}."
        )
    reported = {
        "detected": iso(at_ms, evidence.zone),
        "detect_s": (at_ms - proposal.from_ms) / MS_PER_SECOND,
        "saved_gpu_ms": saved.gpu_ms,
        "saved_usd_micro": micro,
        "saved_usd": None if micro is None else usd(micro),
        "sentence": sentence,
    }
    elapsed = proposal.elapsed
    return reported | ({} if elapsed is None else {"elapsed_ms": elapsed.ms, "elapsed_without_ms": elapsed.without_ms})


def saved_usd_micro(whole: Sum, usd_micro: int | None, saved: Sum) -> int | None:
    """The saved part of a finding's micro-dollars, rounded down so that it never exceeds the whole."""
    if usd_micro is None or (saved.gpu_ms and saved.unpriced_gpu_ms == saved.gpu_ms):
        return None
    return usd_micro * saved.ms_price // whole.ms_price if whole.ms_price else 0


def total_savings(evidence: Evidence, findings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What early detection of all findings would have saved."""
    what_ifs = [finding["what_if"] for finding in findings]
    gpu_ms, micro = sum(w["saved_gpu_ms"] for w in what_ifs), _added(w["saved_usd_micro"] for w in what_ifs)
    whole_ms, whole_micro = sum(f["gpu_ms"] for f in findings), _added(f["usd_micro"] for f in findings)
    sentence = None
    if _is_worth_a_line(evidence, whole_micro, micro, whole_ms, gpu_ms):
        amount, whole = (hours(gpu_ms), hours(whole_ms)) if not whole_micro else (dollars(micro), dollars(whole_micro))
        sentence = f"Acting as soon as each problem was detectable would have saved {amount} of {whole}."
    return amounts(Sum((), gpu_ms, 0, 0), micro) | {"sentence": sentence}


def _is_worth_a_line(
    evidence: Evidence, usd_micro: int | None, micro: int | None, gpu_ms: int, saved_gpu_ms: int
) -> bool:
    """Whether a saving is large enough to show: in money, or in time if nothing is priced."""
    if usd_micro:
        return (micro or 0) * MIN_SAVED_PART > usd_micro and (micro or 0) > evidence.min_usd_micro
    return saved_gpu_ms * MIN_SAVED_PART > gpu_ms and saved_gpu_ms > evidence.settings.finding_min_ms


def _spent(usd_micro: int | None, less_usd_micro: int, gpu_ms: int, less_gpu_ms: int) -> str:
    return dollars(usd_micro - less_usd_micro) if usd_micro else hours(gpu_ms - less_gpu_ms)


def _added(micros: Iterable[int | None]) -> int | None:
    """The sum of the priced amounts; None if there are none."""
    priced = [micro for micro in micros if micro is not None]
    return sum(priced) if priced else None
