"""Hostile names are shown as text on every page and never become markup."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from pyrometer.model.records import Batch, Metric, Span
from pyrometer.store import Store
from tests.support import clusters
from tests.support.server_process import serving
from tests.support.traced_run import RUN, TrainingRecords

ATTACK = "<img src=x onerror=window.pwned=1><script>window.pwned=1</script><b>\"'"
# Fields that people choose.
CHOSEN = {
    "run",
    "experiment",
    "team",
    "name",
    "namespace",
    "user",
    "queue",
    "message",
    "reason",
    "dataset",
    "pool",
    "gpu_model",
}


def hostile(record: Any) -> Any:
    """The same record, with an attack in every name that a person chooses."""
    chosen = CHOSEN - ({"name"} if isinstance(record, Span) else set())
    changed = {field: ATTACK + value for field in chosen if isinstance(value := getattr(record, field, None), str)}
    if isinstance(record, Batch) and record.rows:
        changed |= {"rows": None, "samples": tuple(f"{ATTACK}{row}" for row in record.rows)}
    if isinstance(record, Metric):
        changed["name"] = ATTACK + record.name
    return record._replace(**changed)


@pytest.fixture(scope="module")
def hostile_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("hostile")
    records = [*TrainingRecords().records]
    records += [*clusters.cluster(), *clusters.job("llama", user="mallory", queue="queue"), *clusters.run()]
    records += [*clusters.all_ranks(0, 40), *clusters.steps(0, 40, 41)]
    with Store(folder, create=True) as store:
        store.append([hostile(record) for record in records])
    with serving(folder, PYROMETER_FINDING_MIN_USD_MICRO="0") as client:
        yield str(client.base_url)


RUN_ID = quote(ATTACK + RUN)
OF_RUN = ("/run?", "/step?", "/step?step=33&", "/lineage?", "/lineage?step=70&", "/lineage?checkpoint=80&")
PATHS = (
    "/?all=1",
    "/?all=1&findings=all",
    f"/?all=1&team={quote(ATTACK + 'speech')}",
    "/experiments",
    "/worth",
    f"/worth?experiment={quote(ATTACK + 'sft')}",
    "/run",
    *(f"{path}run={RUN_ID}" for path in OF_RUN),
    f"/lineage?run={RUN_ID}&sample={quote(ATTACK + '5')}",
    "/cluster",
    "/chargeback?all=1",
    f"/experiment?experiment={quote(ATTACK + 'llama-sft')}",
    "/workload?workload=llama",
)


@pytest.mark.parametrize("path", PATHS)
def test_hostile_names_are_shown_as_text(looking, hostile_url, path):
    one = looking(hostile_url)
    page = one.at(path)
    assert not page.locator(".trouble").count(), page.locator(".trouble").inner_text()
    page.wait_for_function("() => ![...document.querySelectorAll('.plot')].some((plot) => !plot.querySelector('svg'))")
    for plot in page.locator(".plot").all():  # tooltips contain names, too
        if box := plot.bounding_box():
            page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    for summary in page.locator("summary").all():
        if summary.is_visible():
            summary.click()
    assert page.evaluate("window.pwned") is None
    assert page.locator("main img, main script, main b >> text=/^\"'/").count() == 0
    if path != "/cluster":
        assert re.search(r"<img src=x onerror=", page.locator("main").inner_text())


def test_hostile_address_is_shown_as_text(looking, hostile_url):
    one = looking(hostile_url)
    page = one.at(f"/run?run={quote('<img src=x onerror=window.pwned=1>')}")
    assert "Run '<img src=x" in page.locator(".trouble").inner_text()
    assert page.evaluate("window.pwned") is None
    one.complaints[:] = [text for text in one.complaints if "404" not in text]


def test_foreign_scripts_do_not_run(looking, hostile_url):
    one = looking(hostile_url)
    page = one.at("/experiments")
    inline = "Object.assign(document.createElement('script'), {textContent: 'window.pwned = 1'})"
    page.evaluate(f"document.body.append({inline})")
    assert page.evaluate("window.pwned") is None
    assert any("Content Security Policy" in text for text in one.complaints)
    one.complaints.clear()


def test_screenshot_of_hostile_names(looking, hostile_url, tmp_path: Path):
    one = looking(hostile_url)
    one.at("/?all=1")
    one.keep("hostile")
