"""Old data is never labeled "live" or "now" in the chip, the tiles and the counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pyrometer.model.human import date_time, staleness
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.store import Store
from tests.support import clusters
from tests.support.server_process import serving

END = datetime(2026, 10, 9, 8, tzinfo=UTC)
END_MS = round(END.timestamp() * 1000)
# How far behind, the origin of the data, the text of the chip and the text in the terminal.
AGES = [
    (0, None, "live", "Live", ""),
    (-30_000, None, "live", "Live", ""),
    (-MS_PER_HOUR, None, "live", "Live", ""),  # a clock that is slow
    (3 * MS_PER_MINUTE - 1, None, "live", "Live", ""),
    (3 * MS_PER_MINUTE, None, "behind", "3 min behind", "3 min behind"),
    (59 * MS_PER_MINUTE + 59_999, None, "behind", "59 min behind", "59 min behind"),
    (2 * MS_PER_HOUR, None, "behind", "2 h behind", "2 h behind"),
    (48 * MS_PER_HOUR - 1, None, "behind", "47 h behind", "47 h behind"),
    (40 * 24 * MS_PER_HOUR, None, "behind", "40 d behind", "40 d behind"),
    (60_000, "simulated", "live", "Live", ""),  # `demo --live`
    (40 * 24 * MS_PER_HOUR, "simulated", "recorded", "Simulated", "simulated"),
    (-40 * 24 * MS_PER_HOUR, "simulated", "recorded", "Simulated", "simulated"),
    (2 * MS_PER_HOUR, "recorded", "recorded", "Recorded", "recorded"),
]


def test_freshness_equals_staleness_in_the_terminal(looking, night_url):
    page = looking(night_url).at("/experiments")
    for behind_ms, origin, kind, text, in_terminal in AGES:
        shown = page.evaluate(
            """async ([to, origin, now]) => (await import("/page/freshness.js")).freshness({to, origin}, now)""",
            [END.isoformat(), origin, END_MS + behind_ms],
        )
        assert shown == {"kind": kind, "text": text}
        assert staleness(END_MS, END_MS + behind_ms, origin) == in_terminal
    nothing = "async () => (await import('/page/freshness.js')).freshness({to: null, origin: null}, 0).text"
    assert page.evaluate(nothing) == "Waiting for data"


@pytest.fixture
def cluster_url(tmp_path: Path):
    """Two hours of a cluster that is not simulated."""
    with Store(tmp_path, create=True) as store:
        store.append([*clusters.cluster(), *clusters.job(), *clusters.run()])
    with serving(tmp_path) as client:
        yield str(client.base_url)


def end_of(one) -> datetime:
    """The end of the data. The request waits until the ledger is built."""
    return datetime.fromisoformat(one.page.request.get(f"{one.url}/api/v1/burn?all=1").json()["rate"]["to"])


def test_live_chip_falls_behind_without_new_data(looking, cluster_url):
    one = looking(cluster_url)
    page = one.page
    end = end_of(one)
    page.clock.install(time=end + timedelta(seconds=40))
    one.at("/")
    page.clock.run_for(2_000)
    chip, tiles = page.locator("#pause"), page.locator(".tiles")
    chip.filter(has_text="Live").wait_for()
    assert tiles.locator("dt").first.inner_text() == "Now"
    assert "average of the last 5 min" in tiles.inner_text()
    one.at("/run")
    page.locator("h1", has_text="1 running now").wait_for()
    one.at("/")
    page.clock.run_for(7 * 60_000)
    chip.filter(has_text="7 min behind").wait_for()
    tiles.get_by_text(f"At {end:%H:%M}").wait_for()
    assert "is-behind" in chip.get_attribute("class")
    assert f"average of the 5 min before {end:%H:%M}" in tiles.inner_text()
    one.keep("behind")
    page.clock.run_for(2 * 3_600_000)
    chip.filter(has_text="2 h behind").wait_for()


def test_old_cluster_data_is_not_live(looking, cluster_url):
    one = looking(cluster_url)
    end = end_of(one)
    one.page.clock.install(time=end + timedelta(days=40))
    page = one.at("/run")
    page.locator("#pause", has_text="40 d behind").wait_for()
    page.locator("h1", has_text=f"1 running at {date_time(end)}").wait_for()
    page = one.at("/cluster?at=" + (end - timedelta(minutes=30)).isoformat().replace("+00:00", "Z"))
    assert page.get_by_role("link", name="Latest").is_visible()
    assert page.get_by_role("link", name="Now", exact=True).count() == 0


def test_simulated_data_is_labeled_with_its_end(looking, night_url):
    page = looking(night_url).at("/")
    chip = page.locator("#pause")
    chip.filter(has_text="Simulated until Oct 9, 08:00 UTC").wait_for()
    assert "is-live" not in chip.get_attribute("class")
    assert page.locator(".tiles dt").first.inner_text() == "At 08:00"
    assert "Now" not in page.locator(".tiles").inner_text()


def test_past_time_range_is_not_labeled_now(looking, cluster_url):
    one = looking(cluster_url)
    end = end_of(one)
    one.page.clock.install(time=end + timedelta(seconds=40))
    since, until = end - timedelta(minutes=60), end - timedelta(minutes=20)
    page = one.at(f"/?since={since:%Y-%m-%dT%H:%M:%SZ}&until={until:%Y-%m-%dT%H:%M:%SZ}")
    assert page.locator(".tiles dt").first.inner_text() == f"At {until:%H:%M}"
    assert f"average of the 5 min before {until:%H:%M}" in page.locator(".tiles").inner_text()


def test_ongoing_finding_of_a_past_range_has_a_time(looking, night_url):
    one = looking(night_url)
    page = one.at("/?since=2026-10-08T22:20:00Z&until=2026-10-09T02:12:00Z")
    assert page.locator(".ongoing").first.inner_text().strip() == "· ongoing at Oct 9, 02:12"


def test_running_label_has_the_time_of_old_data(looking, cluster_url):
    one = looking(cluster_url)
    end = end_of(one)
    one.page.clock.install(time=end + timedelta(seconds=40))
    assert one.at("/run?run=run").locator(".badge").first.inner_text() == "running now"
    one.page.clock.set_system_time(end + timedelta(days=40))
    assert one.at("/run?run=run").locator(".badge").first.inner_text() == f"running at {date_time(end)}"
