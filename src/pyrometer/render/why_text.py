"""The answer of `why` as text for a terminal of 80 columns: the total, a bar per state, the findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from pyrometer.findings.run_failures import failure_text
from pyrometer.model.human import (
    counted,
    coverage,
    date_time,
    dollars,
    duration,
    emission,
    energy,
    hours,
    percent,
    wrapped,
)
from pyrometer.model.states import state_title
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.render.amounts import Measure

WIDTH = 80
BAR = 14
MAX_FINDINGS = 8
MAX_UNEXPLAINED = 3
MAX_QUEUES = 2
MAX_FAILURES = 5
MIN_WAIT_SHOWN_MS = 600_000  # shorter waits are not shown

NOTHING = "No GPU time is recorded in this time range. Use --all for all recorded data."

COLORS = {"useful": "green", "overhead": "yellow", "waste": "red", "platform": "bright_black", "unknown": "cyan"}

Style = Callable[..., str]


def plain(text: str, **_: object) -> str:
    """No colors, for files and pipes."""
    return text


def render_text(answer: dict[str, Any], style: Style = plain) -> str:
    """The report. `style` is `click.style` on a terminal."""
    if not answer["total"]["gpu_ms"]:
        return "\n".join([next(head(answer, style)), NOTHING]) + "\n"
    parts = (
        head(answer, style),
        _bars(answer, style),
        _findings(answer, style),
        _failures(answer),
        _foot(answer, style),
    )
    return "\n".join(line for part in parts for line in part) + "\n"


def head(answer: dict[str, Any], style: Style = plain) -> Iterator[str]:
    """The time range and its cost."""
    total = answer["total"]
    from_time, to_time = (datetime.fromisoformat(answer["window"][edge]) for edge in ("from", "to"))
    same_day = from_time.date() == to_time.date()
    until = f"{to_time:%H:%M}" if same_day else date_time(to_time)
    length = duration(round((to_time - from_time).total_seconds() * 1000))
    origin = f", {answer['origin']}" if answer["origin"] else ""
    yield style(f"{date_time(from_time, year=True)} – {until} {answer['timezone']} ({length}){origin}", dim=True)
    spent = hours(total["gpu_ms"])
    if total["usd_micro"] is not None:
        spent = f"{dollars(total['usd_micro'])} for {spent}"
    wasted = [row for row in answer["states"] if row["family"] == "waste"]
    waste_ms = sum(row["gpu_ms"] for row in wasted)
    waste, share = hours(waste_ms), percent(waste_ms, total["gpu_ms"])
    if total["usd_micro"]:
        waste_usd_micro = sum(row["usd_micro"] or 0 for row in wasted)
        waste, share = dollars(waste_usd_micro), percent(waste_usd_micro, total["usd_micro"])
    verdict = f"{waste} wasted ({share})" if waste_ms else "no waste found"
    yield style(f"{spent}, {verdict}", bold=True)
    if waste_ms:
        parts = [answer["waste"][part] for part in ("explained", "unexplained")]
        explained, unexplained = (
            dollars(part["usd_micro"] or 0) if total["usd_micro"] else hours(part["gpu_ms"]) for part in parts
        )
        yield style(f"Findings explain {explained} of the waste; {unexplained} is unexplained.", dim=True)
    if total["energy_wh"] is not None:
        emitted = "" if total["co2e_g"] is None else f", {emission(total['co2e_g'])}"
        yield style(f"{energy(total['energy_wh'])}{emitted}", dim=True)
    yield ""


def _bars(answer: dict[str, Any], style: Style) -> Iterator[str]:
    measure = Measure.of(answer["total"])
    whole = answer["total"][measure.key]
    for row in answer["states"]:
        recorded = row[measure.key] is not None
        filled = _bar((row[measure.key] or 0) / whole if whole else 0)
        color = COLORS[row["family"]]
        money = dollars(row["usd_micro"]) if measure.is_money else ""
        share = percent(row[measure.key], whole) if recorded else "–"
        spent = _compact_hours(row["gpu_ms"])
        yield (
            f"  {state_title(row['state']):<23}{style(filled.ljust(BAR), fg=color)} {share:>6}"
            f" {spent:>12} {money:>10}  {row['family']}"
        ).rstrip()
    yield ""


def _bar(share: float) -> str:
    eighths = round(share * BAR * 8)
    if share > 0 and eighths == 0:
        eighths = 1
    full, part = divmod(eighths, 8)
    return "█" * full + ("▏▎▍▌▋▊▉"[part - 1] if part else "")


def _compact_hours(gpu_ms: int) -> str:
    if gpu_ms < MS_PER_MINUTE:
        return f"{gpu_ms / 1000:,.1f} s" if gpu_ms >= 1000 else f"{gpu_ms} ms"
    return f"{gpu_ms / MS_PER_HOUR:,.1f} h" if gpu_ms >= MS_PER_HOUR else f"{gpu_ms / MS_PER_MINUTE:,.1f} min"


def _findings(answer: dict[str, Any], style: Style) -> Iterator[str]:
    findings = answer["findings"]
    if not findings:
        yield "No waste with an identifiable cause."
        yield ""
        return
    end = datetime.fromisoformat(answer["window"]["to"])
    for finding in findings[:MAX_FINDINGS]:
        price = "unpriced" if finding["usd_micro"] is None else dollars(finding["usd_micro"])
        notes = [finding["team"], f"ongoing at {end:%H:%M}" if finding["ongoing"] else None]
        who = f" [{', '.join(filter(None, notes))}]" if any(notes) else ""
        yield from _wrapped(f"{price:>9}  ", f"{finding['title']}{who}.", style, bold=True)
        reported = [_sentence(finding["evidence"]), finding["what_if"]["sentence"]]
        yield from _wrapped(" " * 11, " ".join(filter(None, reported)), style)
        yield from _wrapped(" " * 9 + "→ ", finding["suggestion"], style, dim=True)
    left = findings[MAX_FINDINGS:]
    if left:
        rest = sum(finding["usd_micro"] or 0 for finding in left)
        yield f"{dollars(rest):>9}  in {counted(len(left), 'smaller finding')}: `pyrometer why -o json`, or `-o html`."
    if answer["saved_if_caught"]["sentence"]:
        yield from _wrapped(" " * 11, answer["saved_if_caught"]["sentence"], style)
    more = [row for row in answer["unexplained"] if (row["usd_micro"] or 0) > 0]
    rest_usd_micro = sum(row["usd_micro"] for row in more)
    if answer["total"]["usd_micro"] and rest_usd_micro * 100 >= answer["total"]["usd_micro"]:
        largest = ", ".join(
            f"{state_title(row['state'])} {dollars(row['usd_micro'])}" for row in more[:MAX_UNEXPLAINED]
        )
        yield from _wrapped(f"{dollars(rest_usd_micro):>9}  ", f"of the waste is unexplained: {largest}.", style)
    yield ""


def _failures(answer: dict[str, Any]) -> Iterator[str]:
    """Runs that failed, with or without a finding."""
    failures = answer["failures"]
    for failure in failures[:MAX_FAILURES]:
        which = f" (attempt {failure['attempt']})" if failure["attempt"] > 1 else ""
        yield from _wrapped("  ", f"{failure['name']}{which}: {failure_text(failure)}.", plain)
    if len(failures) > MAX_FAILURES:
        yield f"  … and {counted(len(failures) - MAX_FAILURES, 'failed run')} more: `pyrometer runs`."
    if failures:
        yield ""


def _sentence(evidence: list[str]) -> str:
    text = "; ".join(evidence)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _wrapped(first: str, text: str, style: Style, **look: Any) -> Iterator[str]:
    indent = " " * len(first)
    for number, line in enumerate(wrapped(text, WIDTH - len(first))):
        yield (first if number == 0 else indent) + style(line, **look)


def waits(queue: dict[str, Any]) -> bool:
    """Whether a queue is shown: jobs wait in it, or waited long."""
    return bool(queue["waiting"]) or (queue["waited_median_ms"] or 0) >= MIN_WAIT_SHOWN_MS


def _queues(answer: dict[str, Any]) -> Iterator[str]:
    for row in [row for row in answer["queues"] if waits(row)][:MAX_QUEUES]:
        reported = []
        if row["waiting"]:
            since = duration(row["waiting_longest_ms"])
            reported.append(
                f"{counted(row['waiting'], 'job')} waiting for {row['waiting_gpus']:,g} GPUs, the longest for {since}"
            )
        if row["started"]:
            reported.append(f"{row['started']:,} started after a median wait of {duration(row['waited_median_ms'])}")
        yield f"Queue {row['queue']}: {'; '.join(reported)}."


def _foot(answer: dict[str, Any], style: Style) -> Iterator[str]:
    for line in _queues(answer):
        yield from _wrapped("", line, style, dim=True)
    shares = answer["evidence"]
    names = {"kubernetes": "Kubernetes", "gpu": "GPU telemetry", "sdk": "SDK"}
    recorded = ", ".join(f"{names[kind]} {round(100 * share)}%" for kind, share in shares.items())
    yield from _wrapped("", f"Evidence, by share of GPU time: {recorded}.", style, dim=True)
    partly = coverage(answer["total"])
    if partly:
        yield from _wrapped("", partly, style, dim=True)
    if answer["prices_assumed"]:
        text = "Prices are assumed: public list prices. Set your own with --price or a price book."
        yield from _wrapped("", text, style, dim=True)
    unpriced = answer["total"]["unpriced_gpu_ms"]
    if unpriced:
        text = f"No price is known for {hours(unpriced)}. Set one per GPU-hour with --price."
        if not Measure.of(answer["total"]).is_money:
            text += " Shares are of GPU time."
        yield from _wrapped("", text, style, dim=True)
