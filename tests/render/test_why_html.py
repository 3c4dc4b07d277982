"""The HTML report of `why`: its content for readers, and its safety against hostile names."""

from __future__ import annotations

import copy
import re
from html.parser import HTMLParser
from importlib.resources import files
from xml.etree import ElementTree

import pytest

from pyrometer.model.human import dollars
from pyrometer.model.states import FAMILIES, STATE, STATES
from pyrometer.render.why_html import CARDS_SHOWN_OPEN, render_html
from tests.support.why_answers import BUCKET_MS, half_priced, nothing, why

HOSTILE = "<script>alert(1)</script>\"'&"
HOSTILE_ATTRIBUTE = "\" onload=alert(1) x=' onerror=alert(1) "


class Reader(HTMLParser):
    """A parsed page: elements, attributes, and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def values(self, name: str) -> list[str]:
        return [attributes[name] or "" for _, attributes in self.elements if name in attributes]


ANSWERS = {
    "a night": why(),
    "without prices": why(priced=False),
    "half priced": half_priced(),
    "nothing": nothing(),
    "no findings": why(findings=0),
    "forty findings": why(findings=40),
    "one bucket": why(hours=0.25, findings=1),
    "a month": why(hours=720),
}
every_answer = pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())


def plant(value, poison: str):
    """The answer with a hostile suffix in every text that does not come from accounting (times, families)."""
    if isinstance(value, dict):
        kept = ("from", "to", "family")
        return {key: child if key in kept else plant(child, poison) for key, child in value.items()}
    if isinstance(value, list):
        return [plant(child, poison) for child in value]
    return value + poison if isinstance(value, str) else value


def drawings(page: str) -> list[str]:
    """The outermost <svg> elements, as text."""
    found, depth, begin = [], 0, 0
    for tag in re.finditer(r"<svg\b|</svg>", page):
        if tag[0] == "</svg>":
            depth -= 1
            if depth == 0:
                found.append(page[begin : tag.end()])
        else:
            begin = begin if depth else tag.start()
            depth += 1
    assert depth == 0
    return found


def table_rows(page: str, css_class: str) -> list[list[str]]:
    """The cells' text of a table's body."""
    body = re.search(rf'<table class="{css_class}">.*?<tbody>(.*?)</tbody>', page, re.S)[1]
    return [
        [Reader(cell).text for cell in re.findall(r"<t[hd]\b.*?</t[hd]>", row, re.S)]
        for row in re.findall(r"<tr>(.*?)</tr>", body, re.S)
    ]


@pytest.mark.parametrize(
    "poison", [HOSTILE, HOSTILE_ATTRIBUTE, "</style></title></svg><img src=x>", "\x00\ud800\u202e"]
)
@pytest.mark.parametrize("priced", [True, False])
def test_no_text_of_the_answer_becomes_markup(poison, priced):
    answer = why(findings=40, priced=priced)
    hostile = plant(answer, poison) | {"timezone": "UTC" + poison}
    hostile["findings"][0]["culprit"] = {poison: poison, "pod": [poison, poison]}
    hostile["timeline"]["rows"][0]["states"][poison] = BUCKET_MS
    hostile["workloads"][0]["states"][poison] = BUCKET_MS
    hostile["queues"][0]["queue"] = poison
    harmless = copy.deepcopy(hostile)

    page = Reader(render_html(hostile))
    assert harmless == hostile, "rendering must not change the answer"
    assert {tag for tag, _ in page.elements} == {tag for tag, _ in Reader(render_html(plant(answer, ""))).elements} | {
        "details",
        "summary",
    }
    attributes = {name for _, found in page.elements for name in found}
    assert not [name for name in attributes if name.startswith("on") or name in ("x=", "src", "style")]
    render_html(hostile).encode("utf-8")


def test_planted_names_are_still_readable():
    text = Reader(render_html(plant(why(), HOSTILE))).text
    for name in ("llama-0", "llama-sft", "nlp", "vision", "n12", "PyTorchJob", "hang", "cordon n12."):
        assert name + HOSTILE in text


@every_answer
def test_report_loads_no_resources_and_runs_no_scripts(answer):
    page = render_html(answer)
    for reference in ("http://", "https://", "src=", "@import", "javascript:", "//cdn"):
        assert reference not in page
    assert set(re.findall(r"url\(([^)]*)\)", page)) <= {"#hatch"}
    assert not {"script", "link", "iframe", "img", "object", "form"} & {tag for tag, _ in Reader(page).elements}
    assert "default-src 'none'" in page


@every_answer
def test_every_drawing_is_well_formed_and_named(answer):
    found = drawings(render_html(answer))
    assert found
    for drawing in found:
        for svg in ElementTree.fromstring(drawing).iter("svg"):
            assert svg.attrib.get("aria-label") or svg.attrib.get("aria-hidden") == "true"


@every_answer
def test_report_tags_are_balanced_and_links_have_targets(answer):
    page = render_html(answer)
    body = re.search(r"<main>.*</main>", page, re.S)[0].replace("<wbr>", "")
    ElementTree.fromstring(body)  # well-formed even as XML
    reader = Reader(page)
    ids = reader.values("id")
    assert len(ids) == len(set(ids))
    assert {link.removeprefix("#") for link in reader.values("href")} <= set(ids)


@every_answer
def test_report_is_small_enough_for_email(answer):
    assert len(render_html(answer).encode()) < 120_000


def test_headline_shows_energy_next_to_gpu_hours():
    assert "GPUs on average · 412 kWh · 0.16 t CO2e" in render_html(why())


def test_headline_shows_total_cost_and_waste():
    answer = why()
    text = Reader(render_html(answer)).text
    wasted = sum(row["usd"] for row in answer["states"] if row["family"] == "waste")
    assert f"${answer['total']['usd']:,.0f} burned in 12\u00a0h, ${wasted:,.0f} wasted." in text
    assert "Nov 14, 2026, 20:00 – Nov 15, 2026, 08:00 UTC" in text


def test_report_amounts_have_the_common_format():
    """Each amount is rounded alone, as in the terminal and on the page, so that it never has two values."""
    answer = why()
    page = render_html(answer)
    total, states = answer["total"], answer["states"]
    wasted = sum(row["usd_micro"] for row in states if row["family"] == "waste")
    assert f"<b>{dollars(total['usd_micro'])}</b> burned" in page
    assert f"<em>{dollars(wasted)}</em> wasted" in page
    assert [row[3] for row in table_rows(page, "states")] == [dollars(row["usd_micro"]) for row in states]
    assert [row[2] for row in table_rows(page, "teams")] == [dollars(row["usd_micro"]) for row in answer["teams"]]
    amounts = re.findall(r'<span class="amount">(.*?)</span>', page)
    assert amounts == [dollars(row["usd_micro"]) for row in answer["findings"]]


def test_share_next_to_dollars_is_a_share_of_dollars():
    answer = why()
    answer["workloads"][0] |= {"usd_micro": 400_000_000, "waste_usd_micro": 40_000_000}  # half of its time is hung
    assert table_rows(render_html(answer), "workloads")[0][-1] == "10%"
    answer = why(priced=False)
    answer["workloads"][0] |= {"gpu_ms": 400, "waste_gpu_ms": 100}
    assert table_rows(render_html(answer), "workloads")[0][-1] == "25%"
    assert "all amounts and shares are GPU time" in render_html(answer)


def test_waste_is_split_into_explained_and_unexplained():
    answer = why()
    answer["waste"] = {"explained": {"usd_micro": 1_330_000_000}, "unexplained": {"usd_micro": 509_000_000}}
    assert "$1,330 explained by findings, $509 unexplained" in Reader(render_html(answer)).text


def test_small_amounts_are_not_shown_as_zero():
    answer = why()
    row = {"state": "starved", "family": "waste", "gpu_ms": 1000, "usd_micro": 831, "usd": 0.0}
    answer["states"].append(row)
    answer["total"]["unpriced_gpu_ms"] = answer["findings"][-1]["gpu_ms"] = 1
    page = render_html(answer)
    assert table_rows(page, "states")[-1][3:] == ["<$0.01", "<0.1", "<0.1%"]
    assert "<0.1 GPU-hours have no price" in Reader(page).text
    ElementTree.fromstring(re.search(r"<main>.*</main>", page, re.S)[0].replace("<wbr>", ""))


def test_report_times_are_in_the_readers_zone():
    text = Reader(render_html(why() | {"timezone": "Asia/Tokyo"})).text
    assert "Nov 15, 2026, 05:00 – 17:00 Asia/Tokyo" in text


def test_report_without_prices_is_in_gpu_hours():
    text = Reader(render_html(why(priced=False))).text
    body = text[text.index("burned in 12") - 40 :]
    assert "$" not in body
    assert "3,600 GPU-hours burned" in body
    assert "No price is known" in body
    assert "by GPU-hours, largest first" in body


def test_unpriced_time_is_labeled_and_never_zero_dollars():
    page = render_html(half_priced())
    rows = {row[0]: row for row in table_rows(page, "states")}
    assert rows["Hung"][3] == "no price"
    assert rows["Hung"][4] == "768"
    assert "768 GPU-hours have no price" in Reader(page).text
    assert table_rows(page, "teams")[-1][2] == "no price"
    assert table_rows(page, "workloads")[-1][2] == "no price"
    assert page.count('<span class="amount">no price</span>') == 1


def test_unexplained_waste_is_shown():
    answer = why()
    whole = answer["total"]["usd_micro"]
    row = {"state": "comm_stall", "gpu_ms": 3_600_000, "usd_micro": whole // 10, "usd": whole / 1e7}
    assert "of the waste is unexplained: Communication" in Reader(render_html(answer | {"unexplained": [row]})).text
    crumb = row | {"usd_micro": whole // 1000}
    assert "of the waste is unexplained" not in Reader(render_html(answer | {"unexplained": [crumb]})).text


def test_simulated_night_is_labeled():
    assert "· simulated" in Reader(render_html(why() | {"origin": "simulated"})).text
    assert "simulated" not in Reader(render_html(why())).text


@pytest.mark.parametrize("assumed", [True, False])
def test_assumed_prices_are_labeled(assumed):
    text = Reader(render_html(why() | {"prices_assumed": assumed})).text
    assert ("Prices are assumed" in text) == assumed


def test_empty_window_is_labeled_and_claims_nothing():
    text = Reader(render_html(nothing())).text
    assert "No GPU time in this time range." in text
    assert "wasted" not in text[text.index("No GPU time in this time range.") :]


def test_report_without_findings_is_labeled():
    page = render_html(why(findings=0))
    assert "No waste with an identifiable cause" in Reader(page).text
    assert 'href="#finding' not in page


def test_night_without_waste_has_no_blame():
    answer = why(findings=0)
    for row in answer["states"]:
        row["family"] = "useful"
    assert "no waste found" in Reader(render_html(answer)).text


def test_every_finding_has_a_card_in_order_and_the_long_tail_is_folded():
    page = render_html(why(findings=40))
    cards = [(tag, found["id"]) for tag, found in Reader(page).elements if "finding-" in (found.get("id") or "")]
    assert [name for _, name in cards] == [f"finding-{number}" for number in range(1, 41)]
    assert [tag for tag, _ in cards] == ["article"] * CARDS_SHOWN_OPEN + ["details"] * (40 - CARDS_SHOWN_OPEN)


def test_finding_card_shows_owner_time_cause_and_remedy():
    text = Reader(render_html(why(findings=1))).text
    for expected in (
        "llama-0 has been hung in an all-reduce since 23:41.",
        "rank 0 node n12 GPU 3",
        "Nov 14, 20:00 – 23:00",
        "3\u00a0h",
        "nlp/llama-0",
        "llama-sft",
        "97% confidence",
        "No rank has finished a step since 23:41:07.",
        "What to do",
        "Delete the pod of rank 5 and cordon n12.",
        "Caught at 23:43, it would have cost $12 instead of $2,950.",
        "Caught in time, $9 of the $10 would have been saved.",
    ):
        assert expected in text


def test_findings_without_room_in_the_chart_are_counted():
    page = render_html(why(findings=40))
    marked = page.count('<a class="span')
    assert 6 <= marked < 40
    assert f"{40 - marked} more do not fit here." in page


def test_missing_evidence_is_shown_with_advice():
    text = Reader(render_html(why())).text
    assert "Not covered: 1,080 GPU-hours. With the steps of every run" in text
    assert "read access to every cluster" not in text  # Kubernetes has seen everything


def colors(dark: bool) -> dict[str, str]:
    """The color of each CSS class or variable, in the light or dark scheme."""
    css = files("pyrometer.render").joinpath("colors.css").read_text(encoding="utf-8")
    both = r"light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)"
    found = {name: pair[dark] for name, *pair in re.findall(rf"(--[a-z]+): {both};", css)}
    for selectors, *pair in re.findall(rf"([^{{}}]+)\{{ --c: {both};", css):
        found |= {selector.strip(): pair[dark] for selector in selectors.split(",")}
    return found


def contrast(one: str, other: str) -> float:
    """WCAG contrast ratio."""

    def luminance(color: str) -> float:
        parts = [int(color[index : index + 2], 16) / 255 for index in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_each_state_has_its_own_color_with_readable_text(dark):
    found = colors(dark)
    of_states = [found[f".s-{name}"] for name in STATE]
    assert len(set(of_states)) == len(STATES)
    assert all(f".f-{family}" in found for family in FAMILIES)
    for text in ("--ink", "--soft", "--alarm", "--link"):
        for ground in ("--paper", "--card"):
            assert contrast(found[text], found[ground]) >= 4.5, (text, ground)
