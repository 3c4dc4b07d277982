"""The answer of `why` as one HTML page: no script, no request; readable offline, in mail and on paper.

This module has the order and the wording of the page. Charts are in charts.py, styles in the CSS files. Names and
sentences in the answer come from users and pods and must be escaped.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from pyrometer import __version__
from pyrometer.model.human import duration, emission, energy, percent
from pyrometer.model.states import STATE, cause_title, state_title
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.render import svg
from pyrometer.render.amounts import gpu_hours
from pyrometer.render.html_elements import (
    ReportContext,
    amount_cells,
    amount_heads,
    chart_cell,
    foreign_text,
    gpu_count,
    html_table,
    interval_of,
    spaced,
    state_label,
    text_cell,
    time_ms_of,
    unbroken_duration,
    workload_name,
)
from pyrometer.render.svg import BarPart, escaped, stacked_bar
from pyrometer.render.why_text import MIN_WAIT_SHOWN_MS, waits

LOOKS = ("colors.css", "report.css")
CARDS_SHOWN_OPEN = 12
MAX_BUCKETS_DRAWN = 96
MAX_BUCKETS_IN_TABLE = 31
MAX_UNEXPLAINED = 3

FAMILY_MEANING = {
    "useful": "computing",
    "overhead": "starting, saving",
    "waste": "held, not progressing",
    "platform": "free or broken",
    "unknown": "not observed",
}

# Kind of evidence, its name, what it shows, and (as HTML) what more evidence would add.
EVIDENCE_KINDS = (
    (
        "kubernetes",
        "Kubernetes",
        "Which pod holds a GPU, and from what time: startup, missing peers, broken nodes.",
        "With read access to every cluster, this time has an owner.",
    ),
    (
        "gpu",
        "GPU telemetry",
        "Busy or idle: hangs, forgotten notebooks, devices never used.",
        "With samples of every GPU, this time is split into busy and idle.",
    ),
    (
        "sdk",
        "Training SDK",
        "The steps of every rank: data stalls, stragglers, lost work, divergence.",
        "With the steps of every run, “Busy (purpose unknown)” is split into training and waiting, "
        "and the slow rank is named.",
    ),
)


def render_html(answer: dict[str, Any]) -> str:
    """The whole page, from the `why` answer."""
    page = ReportContext.of(answer)
    css = "".join(files("pyrometer.render").joinpath(name).read_text(encoding="utf-8") for name in LOOKS)
    sections = [_headline(page)]
    if answer["total"]["gpu_ms"] > 0:
        sections += [
            _where_it_went(page),
            _over_time(page),
            _findings(page),
            _teams(page),
            _workloads(page),
            _queues(page),
        ]
    sections.append(_how_we_know(page))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escaped(_summary(page))}</title>\n<style>\n{css}</style>\n</head>\n"
        f"<body>\n{svg.HATCH}\n<main>\n{''.join(sections)}</main>\n</body>\n</html>\n"
    )


def _summary(page: ReportContext) -> str:
    when = page.clock.between(page.window)
    if page.answer["total"]["gpu_ms"] <= 0:
        return f"No GPU time, {when}"
    wasted = page.measure.number(page.families["waste"])
    return f"{page.measure.text(page.total)} burned, {wasted} wasted, {when}"


def _headline(page: ReportContext) -> str:
    """The cost, the waste and the largest finding."""
    answer, wasted = page.answer, page.families["waste"]
    origin = f" · {answer['origin']}" if answer["origin"] else ""
    when = escaped(f"{page.clock.between(page.window, year=True)} {page.clock.name}{origin}")
    brand = f'<p class="brand"><span class="mark"></span>pyrometer<span class="when">{when}</span></p>'
    if answer["total"]["gpu_ms"] <= 0:
        return (
            f"<header>{brand}<h1>No GPU time in this time range.</h1>"
            '<p class="lede">Nothing is recorded for this time range, or no source reports. '
            "Use <code>--all</code> for all recorded data.</p></header>"
        )
    verdict = "no waste found"
    if wasted:
        verdict = f"<em>{escaped(page.measure.number(wasted))}</em> wasted"
    lede = ""
    if answer["findings"]:
        biggest = foreign_text(answer["findings"][0]["title"])
        lede = f'<p class="lede">Largest finding: <a href="#finding-1">{biggest}</a></p>'
    length = unbroken_duration(page.window.to_ms - page.window.from_ms)
    return (
        f"<header>{brand}<h1><b>{escaped(page.measure.text(page.total))}</b> "
        f"burned in {length}, {verdict}.</h1>{lede}{_key_figures(page)}{_price_notes(page)}</header>"
    )


def _key_figures(page: ReportContext) -> str:
    gpu_ms, findings = page.answer["total"]["gpu_ms"], page.answer["findings"]
    named = sum(page.measure.amounts(findings))
    gpus = gpu_count(gpu_ms / max(1, page.window.to_ms - page.window.from_ms))
    figures = [
        ("Wasted", percent(page.families["waste"], page.total), _explained(page)),
        (
            "Useful",
            percent(page.families["useful"], page.total),
            "training, evaluation, serving, or busy for an unknown purpose",
        ),
        ("GPU-hours", gpu_hours(gpu_ms), " · ".join([f"{gpus} GPUs on average", *_energy(page.answer["total"])])),
        ("Findings", str(len(findings)), f"covering {page.measure.text(named)}"),
    ]
    cells = "".join(
        f"<div><dt>{name}</dt><dd>{escaped(figure)}<small>{escaped(detail)}</small></dd></div>"
        for name, figure, detail in figures
    )
    return f'<dl class="figures">{cells}</dl>'


def _explained(page: ReportContext) -> str:
    """How much of the waste is in findings."""
    explained, unexplained = page.measure.amounts(
        [page.answer["waste"]["explained"], page.answer["waste"]["unexplained"]]
    )
    return f"{page.measure.text(explained)} explained by findings, {page.measure.text(unexplained)} unexplained"


def _energy(total: dict[str, Any]) -> Iterator[str]:
    """Energy and emissions, if they are measured."""
    if total["energy_wh"] is not None:
        yield energy(total["energy_wh"])
    if total["co2e_g"] is not None:
        yield emission(total["co2e_g"])


def _price_notes(page: ReportContext) -> str:
    notes, unpriced_ms = [], page.answer["total"]["unpriced_gpu_ms"]
    if not page.measure.is_money:
        notes.append(
            "<b>No price is known</b> for these GPUs: all amounts and shares are GPU time. "
            "<code>pyrometer prices</code> shows what is missing."
        )
    elif unpriced_ms > 0:
        notes.append(
            f"<b>{escaped(gpu_hours(unpriced_ms))} GPU-hours have no price</b> and are not in any dollar amount. "
            "<code>pyrometer prices</code> shows which."
        )
    if page.answer["prices_assumed"]:
        notes.append(
            "<b>Prices are assumed:</b> these are public list prices, not your contract. "
            "Set your own with a price book."
        )
    return "".join(f'<p class="note">{note}</p>' for note in notes)


def _where_it_went(page: ReportContext) -> str:
    """A bar of families, then a bar per state. The numbers add up to the headline."""
    measure, whole = page.measure, page.total
    families = {family: amount for family, amount in page.families.items() if amount > 0}
    shares = {family: f"{family} {percent(amount, whole)}" for family, amount in families.items()}
    parts = [BarPart(svg.family_class(name), amount, shares[name]) for name, amount in families.items()]
    bar = stacked_bar(parts, whole, ", ".join(shares.values()), "bar families")
    legend = "".join(
        f'<div><dt><i class="key {svg.family_class(family)}"></i>{family}</dt>'
        f"<dd>{escaped(measure.number(amount))}"
        f"<small>{escaped(percent(amount, whole))} · {FAMILY_MEANING[family]}</small></dd></div>"
        for family, amount in families.items()
    )
    largest = max(page.states, default=0)
    rows = [
        f'<th scope="row">{state_label(row["state"])}</th>'
        + text_cell(STATE[row["state"]].meaning if row["state"] in STATE else "", "meaning")
        + chart_cell([BarPart(svg.state_class(row["state"]), amount, "")], largest, state_title(row["state"]))
        + amount_cells(page, row, amount)
        + text_cell("–" if row[measure.key] is None else percent(amount, whole))
        for row, amount in zip(page.answer["states"], page.states, strict=True)
    ]
    heads = [("State", ""), ("Meaning", "meaning"), ("Bar", "chart"), *amount_heads(page), ("Share", "n")]
    return (
        f'<section><h2>Where it went</h2>{bar}<dl class="families">{legend}</dl>'
        f"{html_table('states', heads, rows)}</section>"
    )


def _over_time(page: ReportContext) -> str:
    """The states over time, with every finding marked."""
    timeline = page.answer["timeline"]
    rows = [(time_ms_of(row["from"]), row["states"]) for row in timeline["rows"]]
    buckets = svg.merge_buckets(rows, timeline["bucket_ms"], page.window, MAX_BUCKETS_DRAWN)
    if not buckets:
        return ""
    spans = [
        svg.FindingSpan(number, svg.cause_class(row["cause"]), *interval_of(row), row["title"])
        for number, row in enumerate(page.answer["findings"], start=1)
    ]
    lanes = svg.assign_lanes(spans, page.window)
    states = [layer.state for layer in svg.stack_layers(buckets)]
    detail = f"Stacked from the bottom: {', '.join(state_title(state) for state in states)}."
    chart = svg.area_chart(page.window, page.clock, buckets, lanes, "GPUs by state over time", detail)
    hint = f"GPUs in each state, {page.clock.name}. "
    if spans:
        hint += "The numbered lines are the findings below."
    if unmarked := len(spans) - sum(len(lane) for lane in lanes):
        hint += f" {unmarked} more do not fit here."
    legend = "".join(f"<li>{state_label(state)}</li>" for state in states)
    table_buckets = svg.merge_buckets(rows, timeline["bucket_ms"], page.window, MAX_BUCKETS_IN_TABLE)
    return (
        f'<section><h2>Over time</h2><p class="hint">{escaped(hint)}</p><div class="plot">{chart}</div>'
        f'<ul class="legend">{legend}</ul>{_time_table(page, table_buckets, states)}</section>'
    )


def _time_table(page: ReportContext, buckets: list[svg.TimeBucket], states: list[str]) -> str:
    """The numbers of the chart as a table."""
    rows = [
        f'<th scope="row">{escaped(page.clock.minute(bucket.from_ms))}</th>'
        + "".join(f"<td>{gpu_count(bucket.gpus(state))}</td>" for state in states)
        for bucket in buckets
    ]
    heads = [("GPUs from", ""), *((state_title(state), "") for state in states)]
    table = f'<div class="scroll" tabindex="0">{html_table("", heads, rows)}</div>'
    return f'<details class="numbers"><summary>Show as a table</summary>{table}</details>'


def _findings(page: ReportContext) -> str:
    findings = page.answer["findings"]
    if not findings:
        return (
            '<section><h2>Findings</h2><p class="lede">No waste with an identifiable cause. The '
            "remaining waste is too small or too scattered, or needs more evidence.</p></section>"
        )
    largest = max(page.measure.amounts(findings))
    cards = "".join(_card(page, number, finding, largest) for number, finding in enumerate(findings, start=1))
    order = "dollars" if page.measure.is_money else "GPU-hours"
    heading = f"<h2>Findings <small>by {order}, largest first</small></h2>"
    saved = page.answer["saved_if_caught"]["sentence"]
    lede = f'<p class="hint">{foreign_text(saved)}</p>' if saved else ""
    return f"<section>{heading}{lede}{cards}{_unexplained(page)}</section>"


def _unexplained(page: ReportContext) -> str:
    """Unexplained waste, if it is at least 1% of the total."""
    rows = page.answer["unexplained"]
    rest = sum(page.measure.amounts(rows))
    if rest * 100 < page.total:
        return ""
    largest = ", ".join(
        f"{escaped(state_title(row['state']))} {escaped(page.measure.text(amount))}"
        for row, amount in zip(rows[:MAX_UNEXPLAINED], page.measure.amounts(rows), strict=False)
    )
    return f'<p class="note">{escaped(page.measure.text(rest))} of the waste is unexplained: {largest}.</p>'


def _card(page: ReportContext, number: int, finding: dict[str, Any], largest: int) -> str:
    """One finding under a bar of its size. Cards far down the list are collapsed."""
    amount = finding[page.measure.key] or 0
    css_class = svg.cause_class(finding["cause"])
    amount_text = "no price" if finding[page.measure.key] is None else page.measure.text(amount)
    details = [f"{finding['confidence']:.0%} confidence"]
    if page.measure.is_money:
        details.insert(0, f"{gpu_hours(finding['gpu_ms'])} GPU-hours")
    head = (
        f'<span class="number">{number}</span><span class="cause">{escaped(cause_title(finding["cause"]))}</span>'
        f'<span class="amount">{escaped(amount_text)}</span><h3>{foreign_text(finding["title"])}</h3>'
        f'<span class="detail">{escaped(" · ".join(details))}</span>'
    )
    evidence = "".join(f"<li>{foreign_text(sentence)}</li>" for sentence in finding["evidence"])
    body = (
        stacked_bar([BarPart(css_class, amount, "")], largest, f"{percent(amount, largest)} of the largest")
        + f'<div class="body">{_card_facts(page, finding)}<div class="story">'
        + (f"<h4>Evidence</h4><ul>{evidence}</ul>" if evidence else "")
        + (
            f'<p class="if">{foreign_text(finding["what_if"]["sentence"])}</p>'
            if finding["what_if"]["sentence"]
            else ""
        )
        + (f"<h4>What to do</h4><p>{foreign_text(finding['suggestion'])}</p>" if finding["suggestion"] else "")
        + "</div></div>"
    )
    if number <= CARDS_SHOWN_OPEN:
        head, tag = f'<div class="head">{head}</div>', "article"
    else:
        head, tag = f'<summary class="head">{head}</summary>', "details"
    return f'<{tag} class="finding {css_class}" id="finding-{number}">{head}{body}</{tag}>'


def _card_facts(page: ReportContext, finding: dict[str, Any]) -> str:
    interval = interval_of(finding)
    length = unbroken_duration(interval.to_ms - interval.from_ms)
    culprit = [
        f"<span>{'GPU' if key == 'gpu' else escaped(spaced(key))} {foreign_text(value)}</span>"
        for key, value in (finding["culprit"] or {}).items()
        if value is not None
    ]
    facts = [
        ("Culprit", " ".join(culprit)),
        ("When", f"{escaped(page.clock.between(interval))}<small>{length}</small>"),
        ("Workload", workload_name(finding["workload"]) if finding["workload"] else ""),
        ("Experiment", foreign_text(finding["experiment"])),
        ("Team", foreign_text(finding["team"])),
    ]
    rows = "".join(f"<dt>{name}</dt><dd>{fact}</dd>" for name, fact in facts if fact)
    return f'<dl class="facts">{rows}</dl>'


def _teams(page: ReportContext) -> str:
    measure, teams = page.measure, page.answer["teams"]
    if not teams:
        return ""
    spent, wasted = measure.amounts(teams), measure.amounts(teams, "waste_")
    largest = max(spent)
    rows = []
    for team, whole, waste in zip(teams, spent, wasted, strict=True):
        parts = [BarPart("f-waste", waste, "wasted"), BarPart("rest", whole - waste, "the rest")]
        name = team["team"] or "no team"
        label = f"{name}: {measure.text(whole)}, {measure.text(waste)} wasted"
        rows.append(
            f'<th scope="row">{foreign_text(name)}</th>'
            + chart_cell(parts, largest, label)
            + amount_cells(page, team, whole)
            + text_cell(measure.number(waste))
            + text_cell(percent(waste, whole))
        )
    heads = [("Team", ""), ("Bar", "chart"), *amount_heads(page), ("Wasted", "n"), ("Share", "n")]
    table = html_table("teams", heads, rows)
    return f"<section><h2>Teams <small>spent and wasted</small></h2>{table}</section>"


def _workloads(page: ReportContext) -> str:
    """The largest workloads, each with a bar of its states."""
    if not page.answer["workloads"]:
        return ""
    rows = []
    for row in page.answer["workloads"]:
        states, whole = row["states"], sum(row["states"].values())
        order = [*(name for name in STATE if name in states), *(name for name in states if name not in STATE)]
        shares = {name: f"{state_title(name)} {percent(states[name], whole)}" for name in order}
        parts = [BarPart(svg.state_class(name), states[name], shares[name]) for name in order]
        kind = row["workload"]["kind"] if row["workload"] else "free or broken GPUs"
        owner = " · ".join(
            foreign_text(text) for text in (kind, row["experiment"], row["team"], *_standing(row)) if text
        )
        rows.append(
            f'<th scope="row">{workload_name(row["workload"])}<small>{owner}</small></th>'
            + chart_cell(parts, whole, ", ".join(shares.values()))
            + amount_cells(page, row, row[page.measure.key] or 0)
            + text_cell(percent(row["waste_" + page.measure.key] or 0, row[page.measure.key] or 0))
        )
    heads = [("Workload", ""), ("Bar", "chart"), *amount_heads(page), ("Wasted", "n")]
    return (
        "<section><h2>Workloads <small>the largest by GPU time, with their states</small></h2>"
        f"{html_table('workloads', heads, rows)}</section>"
    )


def _standing(row: dict[str, Any]) -> Iterator[str]:
    """How long a workload waited, if that is worth showing, and its progress, if reported."""
    if (row["waited_ms"] or 0) >= MIN_WAIT_SHOWN_MS:
        yield f"waited {duration(row['waited_ms'])}"
    if row["progress"] is not None:
        yield f"{row['progress']:.0%} done"


def _queues(page: ReportContext) -> str:
    """The queues in which jobs waited for GPUs."""
    rows = [
        f'<th scope="row">{foreign_text(row["queue"])}</th>'
        + text_cell(f"{row['started']:,}")
        + text_cell(_waited(row["waited_median_ms"]))
        + text_cell(_waited(row["waited_longest_ms"]))
        + text_cell(f"{row['waiting']:,}" if row["waiting"] else "–")
        + text_cell(f"{row['waiting_gpus']:,g}" if row["waiting"] else "–")
        for row in page.answer["queues"]
        if waits(row)
    ]
    if not rows:
        return ""
    heads = [
        ("Queue", ""),
        ("Jobs started", "n"),
        ("Median wait", "n"),
        ("Longest wait", "n"),
        ("Jobs waiting", "n"),
        ("GPUs requested", "n"),
    ]
    table = html_table("queues", heads, rows)
    return f"<section><h2>Queues <small>jobs that waited for GPUs</small></h2>{table}</section>"


def _waited(ms: int | None) -> str:
    return "–" if ms is None else duration(ms)


def _how_we_know(page: ReportContext) -> str:
    """The available evidence, what more evidence would add, and what the numbers are based on."""
    rows = []
    for key, name, shows, advice in EVIDENCE_KINDS:
        share = page.answer["evidence"].get(key, 0.0)
        missing_ms = page.answer["total"]["gpu_ms"] * (1 - share)
        gain = f"<p>Not covered: {gpu_hours(missing_ms)} GPU-hours. {advice}</p>" if missing_ms >= MS_PER_HOUR else ""
        bar = stacked_bar([BarPart("ink", round(share * 1000), "")], 1000, f"{name}: {share:.0%} of GPU time")
        rows.append(f"<div><dt>{name}<b>{share:.0%}</b></dt><dd>{bar}<p>{shows}</p>{gain}</dd></div>")
    return (
        "<footer><h2>Evidence <small>share of GPU time that each kind covers</small></h2>"
        f'<dl class="evidence">{"".join(rows)}</dl>'
        '<p class="fine">Every GPU-millisecond of the time range is in exactly one state and in at most one '
        "finding. A finding may cover time that is not waste: broken GPUs, slow starts, free GPUs that pods "
        "waited for. Time without sufficient evidence is shown as not observed, never guessed.</p>"
        f'<p class="fine">Made by pyrometer {__version__}: <code>pyrometer why -o html</code></p></footer>'
    )
