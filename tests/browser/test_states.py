"""Empty, loading, error and signed-out states, accessibility, and keyboard navigation."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

from pyrometer.questions.tokens import Tokens
from pyrometer.store import Store
from tests.support import clusters
from tests.support.server_process import serving
from tests.support.traced_run import RUN

PAGES = ("/", "/experiments", "/worth", "/run", "/cluster", "/chargeback", "/pipelines")


def refused(one, *statuses):
    """Drops expected errors: the browser logs every response with such a status."""
    one.complaints[:] = [text for text in one.complaints if not any(str(status) in text for status in statuses)]


@pytest.mark.parametrize("path", ["/", "/run", "/cluster"])
def test_empty_server_shows_no_data(looking, empty_url, path):
    one = looking(empty_url)
    page = one.at(path)
    assert page.locator("h1").inner_text() == "No data yet"
    assert "updates automatically" in page.locator("main").inner_text()
    if path == "/":
        one.keep("empty")
    refused(one, 409)


def test_loading_and_error_states(looking, night_url):
    one = looking(night_url)
    held = []
    one.page.route("**/api/v1/burn?*", lambda route: held.append(route))
    one.page.goto(night_url + "/")
    one.page.get_by_text("Loading…").wait_for()
    one.keep("loading")
    held[0].fulfill(status=500, json={"error": "The disk is full."})
    one.page.locator(".trouble").wait_for()
    assert "The disk is full." in one.page.locator(".trouble").inner_text()
    one.keep("error")
    one.page.unroute("**/api/v1/burn?*")
    one.page.get_by_role("button", name="Try again").click()
    one.shown()
    assert one.page.locator("h1").inner_text().startswith("$12,136")
    refused(one, 500)


def test_invalid_time_range_shows_the_servers_error(looking, night_url):
    one = looking(night_url)
    page = one.at("/?last=soon")
    assert "--last 'soon'" in page.locator(".trouble").inner_text()
    refused(one, 400)


def test_stopped_server_shows_disconnected_and_keeps_the_page(looking, tmp_path: Path):
    with Store(tmp_path, create=True) as store:
        store.append([*clusters.cluster(), *clusters.job()])
    one = looking("")
    with serving(tmp_path) as client:
        one.url = str(client.base_url)
        page = one.at("/?all=1")
        page.locator(".is-live, .is-behind").wait_for()
        shown = page.locator("h1").inner_text()
    page.get_by_text("Disconnected").wait_for()
    assert page.locator("h1").inner_text() == shown  # what was there stays
    one.complaints.clear()


def test_page_updates_when_data_arrives(looking, tmp_path: Path):
    """Rows come in as they do from a cluster; here the next server continues with the folder, as after an upgrade."""
    with Store(tmp_path, create=True) as store:
        store.append([*clusters.cluster(hours=1), *clusters.job(to_min=30)])
    one = looking("")
    with serving(tmp_path) as client:
        port = client.base_url.port
        one.url = str(client.base_url)
        page = one.at("/?all=1")
        before = page.locator("h1").inner_text()
    with Store(tmp_path) as store:
        store.append(clusters.cluster(hours=2))
    with serving(tmp_path, port=port):
        moved = "(before) => document.querySelector('h1').innerText !== before"
        page.wait_for_function(moved, arg=before, timeout=90_000)
    one.complaints.clear()


class TestSignIn:
    def test_team_viewer_signs_in_sees_its_team_and_signs_out(self, looking, night: Path, tmp_path: Path):
        folder = tmp_path / "night"
        shutil.copytree(night, folder, ignore=shutil.ignore_patterns("server.json"))  # another server has the first
        tokens = Tokens(folder)
        everything = tokens.create("platform-engineer", "viewer", 0)
        vision = tokens.create("lead", "team_viewer", 0, team="vision")
        with serving(folder) as client:
            url = str(client.base_url)
            one = looking(url)
            page = one.at("/")
            page.get_by_label("Token").fill("pyr_guessed")
            page.keyboard.press("Enter")
            page.get_by_role("alert").filter(has_text="oken").wait_for()
            one.keep("sign-in")
            page.get_by_label("Token").fill(everything)
            page.keyboard.press("Enter")
            page.get_by_text("$12,136").first.wait_for()
            one.shown()
            page.get_by_role("button", name="Sign out").click()
            page.get_by_label("Token").fill(vision)
            page.keyboard.press("Enter")
            page.get_by_text("burned,").first.wait_for()
            one.shown()
            assert "$12,136" not in page.locator("main").inner_text()
            assert page.locator("#team").is_disabled()
            page.goto(f"{url}/run?run=trainjob-moe-16x7b")  # of another team
            one.shown()
            assert re.search(r"Run .* not found", page.locator(".trouble").inner_text())
            refused(one, 401, 404)


def violations(page):
    """Violations of the rules of axe. A chart counts as one named image."""
    found = Axe().run(page, context={"exclude": [[".plot svg"]]}).response["violations"]
    return [(rule["id"], [node["html"][:120] for node in rule["nodes"]][:3]) for rule in found]


RUN_PAGE, SWEEP = "/run?run=trainjob-moe-16x7b", "/worth?experiment=lr-sweep"
EXPERIMENT, WORKLOAD = "/experiment?experiment=chat-api", "/workload?workload=trainjob-moe-16x7b"
EMPTY = "/experiment?experiment=chat-api&month=2026-08"


LIGHT = (*PAGES, RUN_PAGE, SWEEP, EXPERIMENT, WORKLOAD, EMPTY)


@pytest.mark.parametrize(("path", "dark"), [*((path, False) for path in LIGHT), ("/", True), (EXPERIMENT, True)])
def test_pages_have_no_accessibility_violations(looking, night_url, path, dark):
    one = looking(night_url, dark=dark)
    one.at(path)
    assert violations(one.page) == []


@pytest.mark.parametrize("path", [f"/step?run={RUN}", f"/lineage?run={RUN}&step=70"])
def test_run_pages_have_no_accessibility_violations(looking, trained_url, path):
    one = looking(trained_url)
    one.at(path)
    assert violations(one.page) == []


@pytest.mark.parametrize("path", ["/pipelines", "/pipelines?run=nightly%202026-10-08", "/pipelines?run=lr-search"])
def test_pipelines_on_a_phone_have_no_accessibility_violations(looking, kubeflow_url, path):
    one = looking(kubeflow_url, width=390, height=844)
    page = one.at(path)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert violations(page) == []


def test_keyboard_navigation(looking, night_url):
    one = looking(night_url)
    page = one.at("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("5")
    page.wait_for_url("**/cluster")
    one.shown()
    page.keyboard.press("1")
    page.wait_for_function("() => location.pathname === '/'")
    one.shown()
    finding = page.locator(".finding summary").nth(1)
    finding.focus()
    page.keyboard.press("Enter")
    assert page.locator(".finding").nth(1).get_attribute("open") is not None
