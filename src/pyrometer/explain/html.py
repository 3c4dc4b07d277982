"""The `why` answer as one HTML page: no script, no request, readable offline, in mail and on paper.

What belongs here is the order and wording of the page; drawings are made in charts.py, looks in the CSS files here.
Names and sentences in the answer come from people and pods: whatever makes HTML of them escapes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from importlib.resources import files
from typing import Any, NamedTuple

from pyrometer import __version__
from pyrometer.explain import charts
from pyrometer.explain.charts import Part, escaped, stacked_bar
from pyrometer.explain.figures import Measure, gpu_hours
from pyrometer.explain.text import WAITED_MS, waits
from pyrometer.model.human import duration, emission, energy, percent
from pyrometer.model.states import FAMILIES, STATE, cause_title, state_title
from pyrometer.model.units import MS_PER_HOUR, MS_PER_SECOND

LOOKS = ("colours.css", "report.css")
CARDS_SHOWN_OPEN = 12
MOST_BUCKETS_DRAWN = 96
MOST_BUCKETS_IN_TABLE = 31
MOST_UNEXPLAINED = 3

FAMILY_MEANING = {
    "useful": "computing",
    "overhead": "starting, saving",
    "waste": "held, not progressing",
    "platform": "free or broken",
    "unknown": "not observed",
}

# Kind of evidence, its name, what it shows, and (as HTML) what more of it would give.
EVIDENCE_KINDS = (
    (
        "kubernetes",
        "Kubernetes",
        "Who holds a GPU and since when: start-up, missing peers, broken nodes.",
        "With read access to every cluster, that time gets an owner.",
    ),
    (
        "gpu",
        "GPU telemetry",
        "Busy or idle: hangs, forgotten notebooks, devices never used.",
        "With the samples of every GPU, time of which only the holder is known splits into busy and idle.",
    ),
    (
        "sdk",
        "Training SDK",
        "The steps of every rank: data stalls, stragglers, lost work, divergence.",
        "With the steps of every training, its “active” time splits into training and waiting, "
        "with the rank that is to blame.",
    ),
)


class Page(NamedTuple):
    """The answer, with what every section needs to speak of it."""

    answer: dict[str, Any]
    measure: Measure
    clock: charts.Clock
    window: charts.Window
    total: int
    states: list[int]
    families: dict[str, int]

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Page:
        """A family is the sum of its states."""
        measure = Measure.of(answer["total"])
        states = measure.amounts(answer["states"])
        families = dict.fromkeys(FAMILIES, 0)
        for row, amount in zip(answer["states"], states, strict=True):
            family = row["family"] if row["family"] in families else "unknown"
            families[family] += amount
        return cls(
            answer=answer,
            measure=measure,
            clock=charts.Clock.of(answer["timezone"]),
            window=_interval(answer["window"]),
            total=answer["total"][measure.key],
            states=states,
            families=families,
        )


def render_html(answer: dict[str, Any]) -> str:
    """The whole page, from the `why` answer."""
    page = Page.of(answer)
    css = "".join(files("pyrometer.explain").joinpath(name).read_text(encoding="utf-8") for name in LOOKS)
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
        f"<body>\n{charts.HATCH}\n<main>\n{''.join(sections)}</main>\n</body>\n</html>\n"
    )


def _summary(page: Page) -> str:
    when = page.clock.between(page.window)
    if page.answer["total"]["gpu_ms"] <= 0:
        return f"No GPU time, {when}"
    wasted = page.measure.number(page.families["waste"])
    return f"{page.measure.text(page.total)} burned, {wasted} wasted, {when}"


def _headline(page: Page) -> str:
    """What burned, how much of it was wasted, and the biggest reason, in one breath."""
    answer, wasted = page.answer, page.families["waste"]
    origin = f" · {answer['origin']}" if answer["origin"] else ""
    when = escaped(f"{page.clock.between(page.window, '%b %Y')} {page.clock.name}{origin}")
    brand = f'<p class="brand"><span class="mark"></span>pyrometer<span class="when">{when}</span></p>'
    if answer["total"]["gpu_ms"] <= 0:
        return (
            f"<header>{brand}<h1>No GPU time in this window.</h1>"
            '<p class="lede">Nothing was accounted: the window lies outside what is recorded, or nothing '
            "reports. <code>--all</code> asks for everything there is.</p></header>"
        )
    verdict = "none of it wasted that we could see"
    if wasted:
        verdict = f"<em>{escaped(page.measure.number(wasted))}</em> of it wasted"
    lede = ""
    if answer["findings"]:
        biggest = _name(answer["findings"][0]["title"])
        lede = f'<p class="lede">Most of all: <a href="#finding-1">{biggest}</a></p>'
    length = _duration(page.window.to_ms - page.window.from_ms)
    return (
        f"<header>{brand}<h1><b>{escaped(page.measure.text(page.total))}</b> "
        f"burned in {length}, {verdict}.</h1>{lede}{_key_figures(page)}{_price_notes(page)}</header>"
    )


def _key_figures(page: Page) -> str:
    gpu_ms, findings = page.answer["total"]["gpu_ms"], page.answer["findings"]
    named = sum(page.measure.amounts(findings))
    gpus = _gpus(gpu_ms / max(1, page.window.to_ms - page.window.from_ms))
    figures = [
        ("Wasted", percent(page.families["waste"], page.total), _explained(page)),
        (
            "Useful",
            percent(page.families["useful"], page.total),
            "training, evaluating, serving, or busy unseen",
        ),
        ("GPU-hours", gpu_hours(gpu_ms), " · ".join([f"{gpus} GPUs on average", *_energy(page.answer["total"])])),
        ("Findings", str(len(findings)), f"naming {page.measure.text(named)}"),
    ]
    cells = "".join(
        f"<div><dt>{name}</dt><dd>{escaped(figure)}<small>{escaped(detail)}</small></dd></div>"
        for name, figure, detail in figures
    )
    return f'<dl class="figures">{cells}</dl>'


def _explained(page: Page) -> str:
    """How much of the waste is in findings."""
    explained, unexplained = page.measure.amounts(
        [page.answer["waste"]["explained"], page.answer["waste"]["unexplained"]]
    )
    return f"{page.measure.text(explained)} explained by findings, {page.measure.text(unexplained)} unexplained"


def _energy(total: dict[str, Any]) -> Iterator[str]:
    """What the GPUs drew, where their counters say so."""
    if total["energy_wh"] is not None:
        yield energy(total["energy_wh"])
    if total["co2e_g"] is not None:
        yield emission(total["co2e_g"])


def _price_notes(page: Page) -> str:
    notes, unpriced_ms = [], page.answer["total"]["unpriced_gpu_ms"]
    if not page.measure.is_money:
        notes.append(
            "<b>No price is known</b> for these GPUs: all amounts and shares are GPU time. "
            "<code>pyrometer prices</code> shows what is missing."
        )
    elif unpriced_ms > 0:
        notes.append(
            f"<b>{escaped(gpu_hours(unpriced_ms))} GPU-hours have no price</b> and are in no dollar figure. "
            "<code>pyrometer prices</code> shows which."
        )
    if page.answer["prices_assumed"]:
        notes.append(
            "<b>Prices are assumed:</b> public list prices that come with Pyrometer, not your contract. "
            "Dollars become yours with your own price book."
        )
    return "".join(f'<p class="note">{note}</p>' for note in notes)


def _where_it_went(page: Page) -> str:
    """One bar of families, then one bar per state; the numbers beside them add up to the headline."""
    measure, whole = page.measure, page.total
    families = {family: amount for family, amount in page.families.items() if amount > 0}
    shares = {family: f"{family} {percent(amount, whole)}" for family, amount in families.items()}
    parts = [Part(charts.family_class(name), amount, shares[name]) for name, amount in families.items()]
    bar = stacked_bar(parts, whole, ", ".join(shares.values()), "bar families")
    legend = "".join(
        f'<div><dt><i class="key {charts.family_class(family)}"></i>{family}</dt>'
        f"<dd>{escaped(measure.number(amount))}"
        f"<small>{escaped(percent(amount, whole))} · {FAMILY_MEANING[family]}</small></dd></div>"
        for family, amount in families.items()
    )
    most = max(page.states, default=0)
    rows = [
        f'<th scope="row">{_state_name(row["state"])}</th>'
        + _cell(STATE[row["state"]].meaning if row["state"] in STATE else "", "meaning")
        + _chart_cell([Part(charts.state_class(row["state"]), amount, "")], most, state_title(row["state"]))
        + _amount_cells(page, row, amount)
        + _cell("–" if row[measure.key] is None else percent(amount, whole))
        for row, amount in zip(page.answer["states"], page.states, strict=True)
    ]
    heads = [("State", ""), ("Meaning", "meaning"), ("Bar", "chart"), *_amount_heads(page), ("Share", "n")]
    return (
        f'<section><h2>Where it went</h2>{bar}<dl class="families">{legend}</dl>'
        f"{_table('states', heads, rows)}</section>"
    )


def _over_time(page: Page) -> str:
    """The window as an area of states, with every finding marked where it was."""
    timeline = page.answer["timeline"]
    rows = [(_time_ms(row["from"]), row["states"]) for row in timeline["rows"]]
    buckets = charts.merge_buckets(rows, timeline["bucket_ms"], page.window, MOST_BUCKETS_DRAWN)
    if not buckets:
        return ""
    spans = [
        charts.Span(number, charts.cause_class(row["cause"]), *_interval(row), row["title"])
        for number, row in enumerate(page.answer["findings"], start=1)
    ]
    lanes = charts.assign_lanes(spans, page.window)
    states = [layer.state for layer in charts.stack_layers(buckets)]
    detail = f"Stacked from the bottom: {', '.join(state_title(state) for state in states)}."
    chart = charts.area_chart(page.window, page.clock, buckets, lanes, "GPUs by state over time", detail)
    hint = f"GPUs in each state, {page.clock.name}. "
    if spans:
        hint += "The numbered lines are the findings below."
    if unmarked := len(spans) - sum(len(lane) for lane in lanes):
        hint += f" {unmarked} more found no room here."
    legend = "".join(f"<li>{_state_name(state)}</li>" for state in states)
    table_buckets = charts.merge_buckets(rows, timeline["bucket_ms"], page.window, MOST_BUCKETS_IN_TABLE)
    return (
        f'<section><h2>Over time</h2><p class="hint">{escaped(hint)}</p><div class="plot">{chart}</div>'
        f'<ul class="legend">{legend}</ul>{_time_table(page, table_buckets, states)}</section>'
    )


def _time_table(page: Page, buckets: list[charts.Bucket], states: list[str]) -> str:
    """The numbers of the area for those who cannot see it."""
    rows = [
        f'<th scope="row">{escaped(page.clock.minute(bucket.from_ms))}</th>'
        + "".join(f"<td>{_gpus(bucket.gpus(state))}</td>" for state in states)
        for bucket in buckets
    ]
    heads = [("GPUs from", ""), *((state_title(state), "") for state in states)]
    table = f'<div class="scroll" tabindex="0">{_table("", heads, rows)}</div>'
    return f'<details class="numbers"><summary>As a table</summary>{table}</details>'


def _findings(page: Page) -> str:
    findings = page.answer["findings"]
    if not findings:
        return (
            '<section><h2>Findings</h2><p class="lede">Nothing burned that we could name. Waste without a '
            "finding is too small or too scattered to have one cause, or needs more evidence.</p></section>"
        )
    most = max(page.measure.amounts(findings))
    cards = "".join(_card(page, number, finding, most) for number, finding in enumerate(findings, start=1))
    order = "dollars" if page.measure.is_money else "GPU-hours"
    heading = f"<h2>Findings <small>by {order}, biggest first</small></h2>"
    saved = page.answer["saved_if_caught"]["sentence"]
    lede = f'<p class="hint">{_name(saved)}</p>' if saved else ""
    return f"<section>{heading}{lede}{cards}{_unexplained(page)}</section>"


def _unexplained(page: Page) -> str:
    """Waste in no finding, when it is more than a crumb."""
    rows = page.answer["unexplained"]
    rest = sum(page.measure.amounts(rows))
    if rest * 100 < page.total:
        return ""
    largest = ", ".join(
        f"{escaped(state_title(row['state']))} {escaped(page.measure.text(amount))}"
        for row, amount in zip(rows[:MOST_UNEXPLAINED], page.measure.amounts(rows), strict=False)
    )
    return f'<p class="note">{escaped(page.measure.text(rest))} of the waste is in no finding: {largest}.</p>'


def _card(page: Page, number: int, finding: dict[str, Any], most: int) -> str:
    """One finding under a bar of its size; those far down the list are folded to their head."""
    amount = finding[page.measure.key] or 0
    css_class = charts.cause_class(finding["cause"])
    amount_text = "no price" if finding[page.measure.key] is None else page.measure.text(amount)
    details = [f"{finding['confidence']:.0%} confidence"]
    if page.measure.is_money:
        details.insert(0, f"{gpu_hours(finding['gpu_ms'])} GPU-hours")
    head = (
        f'<span class="number">{number}</span><span class="cause">{escaped(cause_title(finding["cause"]))}</span>'
        f'<span class="amount">{escaped(amount_text)}</span><h3>{_name(finding["title"])}</h3>'
        f'<span class="detail">{escaped(" · ".join(details))}</span>'
    )
    evidence = "".join(f"<li>{_name(sentence)}</li>" for sentence in finding["evidence"])
    body = (
        stacked_bar([Part(css_class, amount, "")], most, f"{percent(amount, most)} of the biggest")
        + f'<div class="body">{_card_facts(page, finding)}<div class="story">'
        + (f"<h4>Evidence</h4><ul>{evidence}</ul>" if evidence else "")
        + (f'<p class="if">{_name(finding["what_if"]["sentence"])}</p>' if finding["what_if"]["sentence"] else "")
        + (f"<h4>What to do</h4><p>{_name(finding['suggestion'])}</p>" if finding["suggestion"] else "")
        + "</div></div>"
    )
    if number <= CARDS_SHOWN_OPEN:
        head, tag = f'<div class="head">{head}</div>', "article"
    else:
        head, tag = f'<summary class="head">{head}</summary>', "details"
    return f'<{tag} class="finding {css_class}" id="finding-{number}">{head}{body}</{tag}>'


def _card_facts(page: Page, finding: dict[str, Any]) -> str:
    interval = _interval(finding)
    length = _duration(interval.to_ms - interval.from_ms)
    culprit = [
        f"<span>{'GPU' if key == 'gpu' else escaped(_words(key))} {_name(value)}</span>"
        for key, value in (finding["culprit"] or {}).items()
        if value is not None
    ]
    facts = [
        ("Culprit", " ".join(culprit)),
        ("When", f"{escaped(page.clock.between(interval))}<small>{length}</small>"),
        ("Workload", _workload(finding["workload"]) if finding["workload"] else ""),
        ("Experiment", _name(finding["experiment"])),
        ("Team", _name(finding["team"])),
    ]
    rows = "".join(f"<dt>{name}</dt><dd>{fact}</dd>" for name, fact in facts if fact)
    return f'<dl class="facts">{rows}</dl>'


def _teams(page: Page) -> str:
    measure, teams = page.measure, page.answer["teams"]
    if not teams:
        return ""
    spent, wasted = measure.amounts(teams), measure.amounts(teams, "waste_")
    most = max(spent)
    rows = []
    for team, whole, waste in zip(teams, spent, wasted, strict=True):
        parts = [Part("f-waste", waste, "wasted"), Part("rest", whole - waste, "the rest")]
        name = team["team"] or "no team"
        label = f"{name}: {measure.text(whole)}, of it wasted {measure.text(waste)}"
        rows.append(
            f'<th scope="row">{_name(name)}</th>'
            + _chart_cell(parts, most, label)
            + _amount_cells(page, team, whole)
            + _cell(measure.number(waste))
            + _cell(percent(waste, whole))
        )
    heads = [("Team", ""), ("Bar", "chart"), *_amount_heads(page), ("Wasted", "n"), ("of spent", "n")]
    table = _table("teams", heads, rows)
    return f"<section><h2>Teams <small>spent, and of it wasted</small></h2>{table}</section>"


def _workloads(page: Page) -> str:
    """The largest workloads, each with a bar of its own time by state in reading order."""
    if not page.answer["workloads"]:
        return ""
    rows = []
    for row in page.answer["workloads"]:
        states, whole = row["states"], sum(row["states"].values())
        order = [*(name for name in STATE if name in states), *(name for name in states if name not in STATE)]
        shares = {name: f"{state_title(name)} {percent(states[name], whole)}" for name in order}
        parts = [Part(charts.state_class(name), states[name], shares[name]) for name in order]
        kind = row["workload"]["kind"] if row["workload"] else "free or broken GPUs"
        owner = " · ".join(_name(text) for text in (kind, row["experiment"], row["team"], *_standing(row)) if text)
        rows.append(
            f'<th scope="row">{_workload(row["workload"])}<small>{owner}</small></th>'
            + _chart_cell(parts, whole, ", ".join(shares.values()))
            + _amount_cells(page, row, row[page.measure.key] or 0)
            + _cell(percent(row["waste_" + page.measure.key] or 0, row[page.measure.key] or 0))
        )
    heads = [("Workload", ""), ("Bar", "chart"), *_amount_heads(page), ("Wasted", "n")]
    return (
        "<section><h2>Workloads <small>the largest by GPU time, and what they did with it</small></h2>"
        f"{_table('workloads', heads, rows)}</section>"
    )


def _standing(row: dict[str, Any]) -> Iterator[str]:
    """How long a workload waited, if that was long enough to mention, and how far it is, if it says so."""
    if (row["waited_ms"] or 0) >= WAITED_MS:
        yield f"waited {duration(row['waited_ms'])}"
    if row["progress"] is not None:
        yield f"{row['progress']:.0%} done"


def _queues(page: Page) -> str:
    """Who waited for GPUs; nothing where nobody did."""
    rows = [
        f'<th scope="row">{_name(row["queue"])}</th>'
        + _cell(f"{row['started']:,}")
        + _cell(_waited(row["waited_median_ms"]))
        + _cell(_waited(row["waited_longest_ms"]))
        + _cell(f"{row['waiting']:,}" if row["waiting"] else "–")
        + _cell(f"{row['waiting_gpus']:,g}" if row["waiting"] else "–")
        for row in page.answer["queues"]
        if waits(row)
    ]
    if not rows:
        return ""
    heads = [
        ("Queue", ""), ("Jobs started", "n"), ("waited, median", "n"), ("longest", "n"), ("Jobs waiting", "n"),
        ("for GPUs", "n"),
    ]  # fmt: skip
    return f"<section><h2>Queues <small>who waited for GPUs</small></h2>{_table('queues', heads, rows)}</section>"


def _waited(ms: int | None) -> str:
    return "–" if ms is None else duration(ms)


def _how_we_know(page: Page) -> str:
    """Which evidence there was, what more of it would show, and what the numbers rest on."""
    rows = []
    for key, name, shows, advice in EVIDENCE_KINDS:
        share = page.answer["evidence"].get(key, 0.0)
        missing_ms = page.answer["total"]["gpu_ms"] * (1 - share)
        gain = f"<p>{gpu_hours(missing_ms)} GPU-hours lack it. {advice}</p>" if missing_ms >= MS_PER_HOUR else ""
        bar = stacked_bar([Part("ink", round(share * 1000), "")], 1000, f"{name}: {share:.0%} of GPU time")
        rows.append(f"<div><dt>{name}<b>{share:.0%}</b></dt><dd>{bar}<p>{shows}</p>{gain}</dd></div>")
    return (
        "<footer><h2>How we know <small>share of GPU time with each kind of evidence</small></h2>"
        f'<dl class="evidence">{"".join(rows)}</dl>'
        '<p class="fine">Every GPU-millisecond of the window is in exactly one state, and none is in two '
        "findings. A finding may name time that is not waste: broken GPUs, slow starts, free GPUs that were "
        "asked for. Time without the evidence it needs is shown as unobserved, never guessed.</p>"
        f'<p class="fine">Made by pyrometer {__version__}: <code>pyrometer why -o html</code></p></footer>'
    )


def _table(css_class: str, heads: Sequence[tuple[str, str]], rows: Sequence[str]) -> str:
    head = "".join(f'<th scope="col" class="{css}"><span>{escaped(name)}</span></th>' for name, css in heads)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<table class="{css_class}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cell(text: str, css_class: str = "n") -> str:
    return f'<td class="{css_class}">{escaped(text)}</td>'


def _chart_cell(parts: Sequence[Part], whole: int, label: str) -> str:
    return f'<td class="chart">{stacked_bar(parts, whole, label)}</td>'


def _amount_heads(page: Page) -> list[tuple[str, str]]:
    return [("Spent", "n"), ("GPU-hours", "n hours")] if page.measure.is_money else [("GPU-hours", "n")]


def _amount_cells(page: Page, row: dict[str, Any], amount: int) -> str:
    """What `_amount_heads` announces; time without a price is shown as that, not as free of charge."""
    number = "no price" if row[page.measure.key] is None else page.measure.number(amount)
    return _cell(number) + (_cell(gpu_hours(row["gpu_ms"]), "n hours") if page.measure.is_money else "")


def _state_name(state: str) -> str:
    return f'<i class="key {charts.state_class(state)}"></i>{escaped(state_title(state))}'


def _workload(workload: dict[str, Any] | None) -> str:
    return f"{_name(workload['namespace'])}/<wbr>{_name(workload['name'])}" if workload else "nobody"


def _name(text: object) -> str:
    """Text that someone else wrote; `bdi` keeps its writing direction from turning ours around."""
    if isinstance(text, list | tuple):
        text = ", ".join(str(part) for part in text)
    return f"<bdi>{escaped(text)}</bdi>" if text is not None and text != "" else ""


def _words(name: str) -> str:
    return name.replace("_", " ")


def _interval(row: dict[str, Any]) -> charts.Window:
    return charts.Window(_time_ms(row["from"]), _time_ms(row["to"]))


def _time_ms(iso: str) -> int:
    return round(datetime.fromisoformat(iso).timestamp() * MS_PER_SECOND)


def _gpus(count: float) -> str:
    return "0" if count == 0 else f"{count:,.0f}" if count >= 9.95 else f"{count:.1f}"


def _duration(duration_ms: int) -> str:
    """On one line, whatever the width of the page."""
    return duration(duration_ms).replace(" ", "\u00a0")
