"""A crawler follows links of all pages, experiments and workloads. None leads to an error."""

from __future__ import annotations

import json
import re
import urllib.request
from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

PAGES = ("/", "/experiments", "/worth", "/run", "/cluster", "/chargeback", "/pipelines")
# Pages about a subject: each subject is followed once. Of all other links, one of each kind.
SUBJECTS = {"/experiment": "experiment", "/worth": "experiment", "/workload": "workload", "/run": "workload"}
# Errors of a page and of its parts.
ERRORS = ".trouble, main [role=alert]"
SLOW = re.compile(r"/api/v1/(why|signals)\?")
GO = """(path) => { history.pushState(null, "", path); dispatchEvent(new Event("placechange")); }"""
SHOWN = "() => document.querySelector('main').dataset.shown === location.pathname + location.search"
LINKS = """() => [...document.querySelectorAll("a[href]")]
    .filter((a) => a.origin === location.origin && !a.hasAttribute("download") && !a.hash)
    .map((a) => a.getAttribute("href"))"""


def answered(url: str, question: str) -> Any:
    with urllib.request.urlopen(f"{url}/api/v1/{question}", timeout=60) as answer:
        return json.load(answer)


def kind_of(path: str) -> tuple[str, ...]:
    """The kind of a link: equal for links that differ only in their subject."""
    parts = urlsplit(path)
    return (parts.path, *sorted(name for name, _ in parse_qsl(parts.query)))


def key_of(path: str) -> tuple[str, ...]:
    """The key of a link: equal for links to the same page."""
    parts = urlsplit(path)
    subject = dict(parse_qsl(parts.query)).get(SUBJECTS.get(parts.path, ""))
    return kind_of(path) if subject is None else (parts.path, subject)


def crawled(
    one: Any, starts: list[str], *, follow: bool = True, same: Callable[[str], tuple[str, ...]] = key_of
) -> tuple[list[str], list[tuple[str, str]]]:
    """Every address that was reached, and the errors.

    Without `follow`, only the starts are opened. Of links that are the `same`, one is followed.
    The first of a kind is loaded completely. The slow parts of others are not loaded.
    """
    page, answers = one.page, []
    page.route(SLOW, lambda route: None if quick else route.continue_())  # held until the page is left
    quick = False
    page.on("response", lambda answer: answers.append((answer.status, answer.url)))
    page.goto(one.url + starts[0])
    seen, whole, reached, wrong = set(), set(), [], []
    waiting = deque(starts)
    while waiting:
        path = waiting.popleft()
        if path.startswith("/api/"):
            status = page.request.get(one.url + path).status
            wrong += [(path, str(status))] if status >= 400 else []
            continue
        answers.clear()
        quick = kind_of(path) in whole
        page.evaluate(GO, path)
        if quick:
            page.wait_for_function(SHOWN)
        else:
            whole.add(kind_of(path))
            one.shown()
        reached.append(urlsplit(page.url)._replace(scheme="", netloc="").geturl())
        wrong += [(path, text) for text in page.locator(ERRORS).all_inner_texts() if text]
        wrong += [(path, f"{status} {url}") for status, url in answers if status >= 400]
        for href in page.evaluate(LINKS) if follow else ():
            if not {same(href), kind_of(href)} <= seen:
                seen |= {same(href), kind_of(href)}
                waiting.append(href)
    return reached, wrong


def holders(url: str, *times: str) -> set[str]:
    """The workloads that hold or wait for a GPU on the cluster page, where a click opens `/run?workload=…`."""
    found = set()
    for at in times:
        cluster = answered(url, f"cluster?{urlencode({'at': at})}" if at else "cluster")
        for row in (*cluster["holders"], *cluster["queue"]):
            found.add(row["workload"]["uid"] if row["workload"] else row["pod_uid"])
    return found


def test_every_link_of_the_demo_opens_a_page(looking, night_url):
    workloads = holders(night_url, "2026-10-08T23:00:00Z", "")
    experiments = {row["experiment"] for row in answered(night_url, "cost?by=experiment&all=1")["rows"]} - {None}
    starts = [*PAGES, *(f"/run?{urlencode({'workload': uid})}" for uid in sorted(workloads))]
    starts += [f"/worth?{urlencode({'experiment': name})}" for name in sorted(experiments)]  # by the filter
    reached, wrong = crawled(looking(night_url), starts)
    assert wrong == []
    assert [path for path in reached if path.startswith("/run?workload=")] == []  # it led to the run or the workload
    shown = {dict(parse_qsl(urlsplit(path).query)).get("experiment") for path in reached if "/experiment?" in path}
    assert shown >= experiments
    assert len(workloads) > 15
    assert len(experiments) > 15


OTHER_TIMES = ("last=5m", "month=2026-08", "since=2026-10-08T21:00:00Z&until=2026-10-08T21:30:00Z")


@pytest.mark.parametrize("window", OTHER_TIMES)
def test_time_range_without_data_is_not_an_error(looking, night_url, window):
    uid = next(iter(holders(night_url, "2026-10-08T20:10:00Z")))
    subjects = ("/experiment?experiment=tts-multi", "/worth?experiment=tts-multi", f"/workload?workload={uid}")
    paths = (*PAGES, *subjects, "/run?run=trainjob-moe-16x7b")
    starts = [f"{path}{'&' if '?' in path else '?'}{window}" for path in paths]
    _, wrong = crawled(looking(night_url), starts, follow=False)  # links are the same as in the crawl of the demo
    assert wrong == []


def test_every_link_of_pipelines_and_sweeps_opens_a_page(looking, kubeflow_url):
    starts = [*PAGES, *(f"/run?workload={uid}" for uid in holders(kubeflow_url, ""))]
    _, wrong = crawled(looking(kubeflow_url), starts, same=kind_of)
    assert wrong == []


def test_every_link_of_a_traced_run_opens_a_page(looking, trained_url):
    _, wrong = crawled(looking(trained_url), list(PAGES), same=kind_of)
    assert wrong == []


def test_gpu_without_a_run_opens_its_workload(looking, night_url):
    one = looking(night_url)
    page = one.at("/cluster?at=2026-10-09T01:00:00Z")
    cells, description = page.locator("#cells"), page.locator("#cell-description")
    cells.focus()
    for _ in range(304):
        page.keyboard.press("ArrowRight")
        if "infer" in description.inner_text():
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/workload?**")
    one.shown()
    assert page.locator("h1").inner_text().startswith("$")
    assert page.locator("tbody").last.is_visible()


def test_experiment_page_shows_cost_owner_and_workloads(looking, night_url):
    one = looking(night_url)
    page = one.at("/chargeback")
    page.get_by_role("link", name="chat-api", exact=True).click()
    one.shown()
    assert page.locator("h1").inner_text() == "$398 for chat-api"
    assert "team search · user ines" in page.locator(".lede").first.inner_text()
    one.drawn("Dollars per hour by state")
    one.keep("experiment")
    page.get_by_role("link", name="chat-api", exact=True).click()
    page.wait_for_url("**/workload?**")
    one.shown()
    assert "Deployment team-search/chat-api" in page.locator(".lede").first.inner_text()
    pods = page.get_by_role("region", name="Table: Pods").locator("tbody tr")
    assert pods.count() == len(answered(night_url, "cost?by=pod,node&all=1&experiment=chat-api")["rows"])
    one.keep("workload")


def test_experiment_without_gpus_shows_its_last_gpu_time(looking, night_url):
    one = looking(night_url)
    page = one.at("/experiment?experiment=chat-api&month=2026-08")
    assert "No GPU time in this time range. The last GPU time was on Oct 9, 2026." in page.locator("main").inner_text()
    page.get_by_role("link", name="Show all time").click()
    page.wait_for_url("**all=1**")
    one.shown()
    assert page.locator("h1").inner_text() == "$398 for chat-api"


def test_unknown_name_is_an_error(looking, night_url):
    one = looking(night_url)
    page = one.at("/experiment?experiment=nosuch")
    assert "no experiment 'nosuch'" in page.locator(".trouble").inner_text()
    page = one.at("/workload?workload=nosuch")
    assert "Workload 'nosuch' not found" in page.locator(".trouble").inner_text()
    one.complaints[:] = [text for text in one.complaints if "404" not in text]


# A page about one thing, and a choice in its frame that this thing has no part in.
CHOICES = (
    ("/run?run=trainjob-moe-16x7b", "team", "speech", "/run?team=speech"),
    ("/run?run=trainjob-moe-16x7b", "experiment", "llama-70b", "/run?experiment=llama-70b"),
    ("/step?run=trainjob-moe-16x7b&step=25000", "team", "speech", "/step?team=speech"),
    ("/lineage?run=trainjob-moe-16x7b", "team", "vision", "/lineage?team=vision"),
    ("/lineage?run=trainjob-moe-16x7b", "range", "1h", "/lineage?run=trainjob-moe-16x7b&last=1h"),
    ("/cluster?at=2026-10-08T22:00:00Z", "range", "1h", "/cluster?last=1h"),
    ("/?experiment=chat-api", "team", "speech", "/?team=speech"),
    ("/worth?experiment=moe-16x7b&metric=loss&target=2", "team", "speech", "/worth?team=speech"),
    ("/worth?experiment=moe-16x7b&metric=loss", "experiment", "lr-sweep", "/worth?experiment=lr-sweep"),
)


def test_changing_filters_never_ends_in_an_error(looking, night_url):
    one = looking(night_url)
    for path, name, value, expected in CHOICES:
        page = one.at(path)
        field = page.locator(f"#{name}")
        field.focus()  # loads the options
        page.locator(f"#{name} option[value='{value}'], #{name} option:text-is('{value}')").first.wait_for(
            state="attached"
        )
        field.select_option(value)
        page.wait_for_function("(before) => location.pathname + location.search !== before", arg=path)
        one.shown()
        assert urlsplit(page.url)._replace(scheme="", netloc="").geturl() == expected
        assert page.locator(ERRORS).all_inner_texts() == []


def test_leaving_a_page_early_logs_no_error(looking, night_url):
    one = looking(night_url)
    page = one.at("/experiments")
    for path in ("/", "/experiment?experiment=moe-16x7b", "/run?run=trainjob-moe-16x7b", "/cluster") * 4:
        page.evaluate(GO, path)
        page.wait_for_timeout(40)
    one.at("/experiments")


def test_time_range_fits_a_phone(looking, night_url):
    page = looking(night_url, width=390).at("/?since=2026-10-08T22:20:51.577Z&until=2026-10-09T02:12:00.000Z")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("#range option:checked").inner_text() == "Oct 8, 22:20 – Oct 9, 02:12"
