"""Every page as a user sees it: content, clicks, typing, going back, and links."""

from __future__ import annotations

import csv
import io
import json
import re
import urllib.request
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from pyrometer.model.human import dollars
from tests.support.traced_run import RUN

PAGES = ("/", "/experiments", "/worth", "/run", "/cluster", "/chargeback", "/pipelines")
EXPERIMENT = "/experiment?experiment=chat-api"
HANG = "moe-16x7b"


def answered(url: str, question: str) -> Any:
    with urllib.request.urlopen(f"{url}/api/v1/{question}", timeout=60) as answer:
        return json.load(answer)


def parameters_of(page: Any) -> dict[str, str]:
    """The parameters of the address."""
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


class TestBurn:
    def test_burn_page_shows_total_findings_and_links(self, looking, night_url):
        one = looking(night_url)
        page = one.at("/")
        assert page.locator("h1").inner_text() == "$12,136 burned, $1,839 wasted"
        one.drawn("Dollars per hour by state")
        one.drawn("From total cost to useful training: total cost $12,136")
        one.drawn("Teams and experiments")
        one.keep("burn")
        first = page.locator(".finding").first
        assert first.locator(".amount").inner_text() == "$984"
        assert "Rank 4" in first.inner_text() or "rank 4" in first.inner_text()
        assert "Caught at 23:58, it would have cost $3.73 instead of $984." in first.inner_text()
        assert page.get_by_text("each problem was detectable would have saved").count() == 1
        first.get_by_role("link", name="Open workload").click()
        one.shown()
        page.locator("h1", has_text=HANG).wait_for()
        page.go_back()
        one.shown()
        assert page.locator("h1").inner_text().startswith("$12,136")

    def test_notification_link_opens_its_finding(self, looking, night_url):
        last = answered(night_url, "why")["findings"][-1]["id"]
        page = looking(night_url).at(f"/#finding-{last}")
        page.wait_for_function(f"""() => {{
            const found = document.getElementById("finding-{last}"), place = found.getBoundingClientRect();
            return found.open && place.top >= 0 && place.top < innerHeight;
        }}""")
        assert page.locator(".finding[open]").count() == 1

    def test_dragging_the_chart_zooms_and_changes_the_address(self, looking, night_url):
        one = looking(night_url)
        page = one.at("/")
        box = one.drawn("Dollars per hour by state").bounding_box()
        y = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + box["width"] * 0.4, y)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.6, y, steps=6)
        page.mouse.up()
        page.wait_for_url("**since=**")
        one.shown()
        closer = page.locator("h1").inner_text()
        assert not closer.startswith("$12,136")
        assert {"since", "until"} <= set(parameters_of(page))
        other = looking(night_url)
        assert other.at(page.url.removeprefix(night_url)).locator("h1").inner_text() == closer

    def test_team_and_time_filters_apply(self, looking, night_url):
        one = looking(night_url)
        page = one.at("/")
        page.locator("#team").focus()
        page.locator("#team option[value=vision]").wait_for(state="attached")
        page.select_option("#team", "vision")
        page.wait_for_url("**team=vision**")
        one.shown()
        total = answered(night_url, "cost?by=team&last=12h")
        vision = next(row["usd"] for row in total["rows"] if row["team"] == "vision")
        assert page.locator("h1 b").inner_text() == f"${vision:,.0f}"
        page.select_option("#range", "1h")
        page.wait_for_url("**last=1h**")
        one.shown()
        assert "1 h" in page.locator(".lede").first.inner_text()

    def test_chart_switches_between_dollars_and_gpus(self, looking, night_url):
        one = looking(night_url)
        page = one.at("/")
        page.get_by_role("link", name="GPUs", exact=True).click()
        one.drawn("GPUs by state over time")
        assert parameters_of(page) == {"count": "gpus"}

    def test_chart_is_available_as_a_table(self, looking, night_url):
        page = looking(night_url).at("/")
        page.get_by_text("As a table").first.click()
        assert page.locator("details[open] table tbody tr").count() > 50

    def test_shares_of_dollars_are_equal_on_all_pages(self, looking, night_url):
        burned = answered(night_url, "burn")
        free = sum(row["usd_micro"] for row in burned["states"] if row["family"] == "platform")
        share = f"{100 * free / burned['total']['usd_micro']:.0f}%"
        one = looking(night_url)
        tile = one.at("/").locator(".tile").filter(has_text="Free or broken")
        assert tile.locator("dd").inner_text().split("\n") == [share, "$2,640"]
        tile = one.at("/chargeback").locator(".tile").filter(has_text="Paid by the platform")
        assert tile.locator("dd").inner_text().split("\n") == [share, "$2,640"]

    def test_unpriced_data_shows_shares_of_gpu_time(self, looking, unpriced_url):
        page = looking(unpriced_url).at("/?all=1")
        assert "of GPU time · " in page.locator(".tile").filter(has_text="Wasted").inner_text()
        assert "all amounts and shares are GPU time" in page.locator(".note").inner_text()

    def test_waste_is_split_and_evidence_is_shown(self, looking, night_url):
        waste = answered(night_url, "why")["waste"]
        page = looking(night_url).at("/")
        tile = page.locator(".tile.alarming")
        parts = [dollars(waste[part]["usd_micro"]) for part in ("explained", "unexplained")]
        assert f"{parts[0]} explained by findings, {parts[1]} unexplained" in tile.inner_text()
        assert page.get_by_text("Kubernetes 100%, GPU telemetry 100%, training SDK 59%").is_visible()

    def test_team_filter_hides_cluster_tiles(self, looking, night_url):
        tiles = looking(night_url).at("/?team=vision").locator(".tiles").inner_text()
        assert "Free or broken" not in tiles
        assert "GPUs held" not in tiles
        assert not re.search(r"\d+ of \d+", tiles)


class TestExperiments:
    def test_experiments_table_sorts_by_keyboard(self, looking, night_url):
        one = looking(night_url)
        page = one.at("/experiments")
        one.keep("experiments")
        names = page.locator("tbody th")
        assert names.first.inner_text() == "llama-70b"  # the most expensive
        page.get_by_role("button", name="goodput").focus()
        page.keyboard.press("Enter")
        page.wait_for_url("**sort=-goodput")
        one.shown()
        assert page.locator("th[aria-sort=descending]").inner_text().startswith("goodput")
        shares = [float(text.rstrip("%")) for text in page.locator("tbody tr td:nth-child(6)").all_inner_texts()]
        assert shares == sorted(shares, reverse=True)
        page.get_by_role("link", name="lr-sweep").click()
        one.shown()
        assert "for lr-sweep" in page.locator("h1").inner_text()

    def test_comparing_runs_is_kept_in_the_address(self, looking, night_url):
        one = looking(night_url)
        page = one.at("/worth?experiment=lr-sweep")
        one.drawn("loss of")
        page.get_by_role("link", name="step", exact=True).click()
        page.wait_for_url("**x=step**")
        one.shown()
        boxes = page.locator("tbody input[type=checkbox]")
        boxes.nth(0).check()
        page.wait_for_url("**runs=**")
        one.shown()
        boxes.nth(1).check()
        page.wait_for_function("() => new URLSearchParams(location.search).get('runs').includes(',')")
        one.shown()
        assert one.drawn("loss of 2 runs against step").locator(".scatterlayer .trace").count() == 2
        page.fill("#target", "3")
        page.keyboard.press("Enter")
        page.wait_for_url("**target=3**")
        one.shown()
        assert page.get_by_role("button", name="to target").is_visible()
        one.keep("worth")
        again = looking(night_url)
        again.at(page.url.removeprefix(night_url))
        assert again.drawn("loss of 2 runs against step").count() == 1
        worth = answered(night_url, "worth?experiment=lr-sweep&target=3")
        front = [row for row in worth["runs"] if row["pareto"]]
        assert page.get_by_text(f"{len(front)} on the Pareto front").is_visible()


class TestRun:
    def test_run_charts_share_one_axis_and_keep_the_zoom(self, looking, night_url):
        one = looking(night_url)
        page = one.at("/run?run=trainjob-moe-16x7b")
        chart = one.drawn("trainjob-moe-16x7b over time")
        one.keep("run")
        assert chart.locator(".subplot").count() >= 5
        assert page.locator(".finding").count() >= 2
        chart.evaluate("(plot) => Plotly.relayout(plot, {'xaxis.range': ['2026-10-08 23:30', '2026-10-09 00:30']})")
        page.wait_for_url("**from=**")
        assert parameters_of(page)["from"] == "2026-10-08T23:30:00.000Z"
        ranks = one.drawn("step time (ms) of each of 48 ranks").evaluate(
            "(plot) => plot.layout.xaxis.range.map(String)"
        )
        assert "23:30" in ranks[0]
        again = looking(night_url)
        again.at(page.url.removeprefix(night_url))
        zoomed = again.drawn("trainjob-moe-16x7b over time").evaluate("(plot) => plot.layout.xaxis.range.map(String)")
        assert zoomed[0].startswith("2026-10-08")
        assert "23:30" in zoomed[0]

    def test_rank_heatmap_switches_measures(self, looking, night_url):
        one = looking(night_url)
        page = one.at("/run?run=trainjob-moe-16x7b")
        one.drawn("step time (ms) of each of 48 ranks")
        page.get_by_role("link", name="GPU utilization").click()
        page.wait_for_url("**heat=gpu_util**")
        one.drawn("GPU utilization of each of 48 ranks")

    def test_workload_with_one_run_redirects_to_it(self, looking, night_url):
        one = looking(night_url)
        page = one.at("/run?run=trainjob-moe-16x7b")
        workload = answered(night_url, "show?run=trainjob-moe-16x7b&without=windows,findings")["workload"]["uid"]
        page.evaluate(
            """(path) => { history.pushState(null, "", path); dispatchEvent(new Event("placechange")); }""",
            f"/run?workload={workload}",
        )
        page.wait_for_url("**/run?run=**")
        one.shown()
        page.wait_for_timeout(400)  # longer than the delay of the loading text
        assert "moe-16x7b" in page.locator("h1").inner_text()

    def test_failed_run_shows_its_exception_first(self, looking, night_url):
        failed = next(row for row in answered(night_url, "runs")["rows"] if (row["failure"] or {}).get("error"))
        one = looking(night_url)
        page = one.at(f"/run?run={failed['run']}")
        assert failed["failure"]["error"] in page.locator("p.alarm").inner_text()
        assert page.get_by_role("cell", name=failed["failure"]["error"]).count() >= 1

    def test_runs_list_opens_a_run(self, looking, night_url):
        one = looking(night_url)
        page = one.at("/run")
        one.keep("runs")
        assert page.locator("h1 b").inner_text() == str(len(answered(night_url, "runs")["rows"]))
        page.get_by_role("link", name="pytorchjob-llama-70b-sft").click()
        one.shown()
        assert page.locator("h1").inner_text() == "pytorchjob-llama-70b-sft"


class TestStep:
    def test_step_page_moves_between_slow_steps(self, looking, trained_url):
        one = looking(trained_url)
        page = one.at(f"/step?run={RUN}")
        chart = one.drawn("Step ")
        one.keep("step")
        slowest = answered(trained_url, f"trace?run={RUN}")["traced"]["slowest"]
        assert page.locator("h1 b").inner_text() == str(slowest[0]["step"])
        trace = answered(trained_url, f"trace?run={RUN}&step={slowest[0]['step']}")
        rows = chart.evaluate("(plot) => plot._fullLayout.yaxis._categories")
        assert rows == [f"rank {rank['rank']}" for rank in trace["ranks"]]
        assert page.get_by_text(f"critical path of rank {trace['critical_path'][0]['rank']}").is_visible()
        page.locator("#faster").click()
        one.shown()
        assert page.locator("h1 b").inner_text() == str(slowest[1]["step"])
        page.locator("#slower").click()
        one.shown()
        assert page.locator("h1 b").inner_text() == str(slowest[0]["step"])

    def test_step_downloads_for_perfetto(self, looking, trained_url):
        page = looking(trained_url).at(f"/step?run={RUN}")
        with page.expect_download() as started:
            page.get_by_role("link", name="Download for Perfetto").click()
        events = json.loads(started.value.path().read_text())["traceEvents"]
        assert {event["ph"] for event in events} >= {"X"}

    def test_untraced_step_names_the_nearest_traced_steps(self, looking, trained_url):
        page = looking(trained_url).at(f"/step?run={RUN}&step=33")
        assert page.get_by_text("Nearest traced steps").is_visible()


class TestLineage:
    def test_lineage_links_steps_samples_and_checkpoints(self, looking, trained_url):
        one = looking(trained_url)
        page = one.at(f"/lineage?run={RUN}")
        page.fill("#q-step", "70")
        page.keyboard.press("Enter")
        page.wait_for_url("**step=70**")
        one.shown()
        one.keep("lineage")
        chip = page.locator(".chips a").first
        sample = chip.inner_text()
        chip.click()
        page.wait_for_url(f"**sample={sample}**")
        one.shown()
        went = answered(trained_url, f"lineage?run={RUN}&sample={sample}")
        steps = {row["step"] for row in went["updates"]}
        assert 70 in steps
        shown = {int(text) for text in page.locator("tbody tr th a").all_inner_texts()}
        assert steps <= shown
        page.locator("table").last.get_by_role("link").first.click()
        page.wait_for_url("**checkpoint=**")
        one.shown()
        assert page.get_by_role("heading", name="By epoch").is_visible()


class TestCluster:
    def test_cluster_page_shows_past_states_and_cell_details(self, looking, night_url):
        one = looking(night_url)
        page = one.at("/cluster?at=2026-10-09T01:00:00Z")
        one.keep("cluster")
        assert page.locator("h1 b").inner_text() == "304"
        legend = page.locator(".legend button").filter(has_text="hang")
        assert "48" in legend.inner_text()
        legend.click()
        page.wait_for_url("**state=hang**")
        one.shown()
        cells = page.locator("#cells")
        cells.focus()
        description = page.locator("#cell-description")
        for _ in range(300):
            page.keyboard.press("ArrowRight")
            if "hang" in description.inner_text():
                break
        assert HANG in description.inner_text()
        page.keyboard.press("Enter")
        page.wait_for_url("**/run?**")
        one.shown()
        page.locator("h1", has_text=HANG).wait_for()

    def test_time_buttons_move_the_cluster_page(self, looking, night_url):
        one = looking(night_url)
        page = one.at("/cluster")
        page.get_by_role("button", name="One hour earlier").click()
        page.wait_for_url("**at=**")
        one.shown()
        assert "2026, 06:59:00 UTC" in page.locator("h1").inner_text()
        page.get_by_role("link", name="Latest").click()
        one.shown()
        assert "2026, 07:59:00 UTC" in page.locator("h1").inner_text()

    def test_tooltip_names_the_gpu(self, looking, night_url):
        one = looking(night_url)
        page = one.at("/cluster?at=2026-10-09T01:00:00Z")
        box = page.locator("#cells").bounding_box()
        page.mouse.move(box["x"] + 8, box["y"] + 45)
        assert page.locator(".tip b").inner_text().startswith("GPU 0 of a100-01")


class TestChargeback:
    def test_downloads_equal_the_page(self, looking, night_url):
        one = looking(night_url)
        page = one.at("/chargeback")
        one.drawn("Cost per day")
        one.keep("chargeback")
        assert page.locator("tfoot").inner_text().split()[-2] == "$12,136.32"
        with page.expect_download() as started:
            page.get_by_role("link", name="CSV", exact=True).click()
        rows = list(csv.DictReader(io.StringIO(started.value.path().read_text())))
        assert sum(int(row["usd_micro"]) for row in rows) == 12_136_320_000
        with page.expect_download() as started:
            page.get_by_role("link", name="FOCUS 1.2", exact=True).click()
        focus = list(csv.DictReader(io.StringIO(started.value.path().read_text())))
        assert round(sum(float(row["BilledCost"]) for row in focus), 2) == 12136.32

    def test_month_filter_applies(self, looking, night_url):
        one = looking(night_url)
        page = one.at("/chargeback")
        page.fill("#month", "2026-09")
        page.wait_for_url("**month=2026-09**")
        one.shown()
        assert page.get_by_text("No GPU time in this time range").is_visible()


@pytest.mark.parametrize("path", [*PAGES, EXPERIMENT])
@pytest.mark.parametrize(("width", "dark"), [(390, False), (1440, True)])
def test_every_page_fits_its_width_and_theme(looking, night_url, path, width, dark):
    one = looking(night_url, width=width, height=844, dark=dark)
    page = one.at(path)
    page.wait_for_function("() => ![...document.querySelectorAll('.plot')].some((plot) => !plot.querySelector('svg'))")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    one.keep(f"{path.strip('/').partition('?')[0] or 'burn'}-{'dark' if dark else 'narrow'}")
    dark_now = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 22, 21)"
    assert dark_now is dark


def test_theme_choice_is_kept(looking, night_url):
    one = looking(night_url)
    page = one.at("/experiments")
    page.get_by_role("button", name="Switch theme").click()
    one.shown()
    page.reload()
    one.shown()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 22, 21)"
