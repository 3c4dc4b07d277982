"""The page in a real browser: when something is painted, when everything is complete, and whether scrolling stutters.

Every page of a server, of the demo's night (304 GPUs, 12 h) and of a large cluster; each is opened in a browser of its
own, without anything cached. `painted` is the browser's first contentful paint; `answered` is when the headline,
figures and tables of the first answer are shown; `there` is when the last part and the last chart are drawn; `again`
the same once more in that browser. The peer is the report of the same server as one file without scripts (`/report`).
Of the cells of a cluster: the longest time that the browser could not draw while a pointer moves over them, and while
time moves.

    python benchmarks/page.py [--gpus 10000] [--hours 24] [--data DIR]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Browser, Page, sync_playwright

sys.path[:0] = [str(Path(__file__).parent)]

from pyrometer.serve.tasks.findings_task import SHOWN_FIRST, first_experiment  # noqa: E402
from serve import free_port, running  # noqa: E402 - in this folder

PATHS = ("/", "/experiments", "/worth", "/run", "/run?run={run}", "/step?run={run}", "/cluster", "/chargeback")
THERE = """() => document.querySelector('main').dataset.shown === location.pathname + location.search
    && !document.querySelector('[aria-busy]')
    && ![...document.querySelectorAll('.plot')].some((plot) => !plot.querySelector('svg'))"""
FIRST_ANSWER_SCRIPT = """new MutationObserver((_, observer) => {
    if (!document.querySelector('main')?.dataset.shown) return;
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => { window.answered_ms = performance.now(); }));
}).observe(document, {subtree: true, childList: true, attributes: true});"""
LONGEST = """() => {
    window.longest = 0;
    new PerformanceObserver((list) => list.getEntries().forEach((one) => {
        window.longest = Math.max(window.longest, one.duration);
    })).observe({entryTypes: ['longtask']});
}"""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "pyrometer", "serve", "--data", str(folder), "--listen", f"127.0.0.1:{port}"]
    with running(command, port) as url:
        yield url


def ask(url: str, question: str) -> dict:
    with urllib.request.urlopen(f"{url}/api/v1/{question}", timeout=600) as answer:
        return json.load(answer)


def opened(page: Page, url: str) -> tuple[float, float, float]:
    """Seconds until something is painted, until the first answer, and until the page is complete."""
    began_s = time.perf_counter()
    page.goto(url)
    page.wait_for_function(THERE, timeout=120_000)
    there_s = time.perf_counter() - began_s
    painted_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    return painted_ms / 1000, page.evaluate("window.answered_ms") / 1000, there_s


def look(browser: Browser, url: str, what: str) -> None:
    warmed_s = time.perf_counter()
    for question in ("why", *(f"{what}?{urlencode(dict(more))}" for what, more in SHOWN_FIRST)):
        ask(url, question)  # a server does so in the background; here it has
    ask(url, f"worth?{urlencode({'experiment': first_experiment(ask(url, 'worth'))})}")
    print(f"\n{what}; the server had worked out what it shows first after {time.perf_counter() - warmed_s:.1f} s")
    runs = ask(url, "runs?limit=1000")["rows"]
    run = max(runs, key=lambda row: (row["ranks"], row["steps"]))["run"]
    began_s = time.perf_counter()
    urllib.request.urlopen(f"{url}/report", timeout=600).read()
    report_s = time.perf_counter() - began_s
    print(f"  {'the report as one file':42} there {report_s:6.2f} s")
    for path in PATHS:
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        page.add_init_script(FIRST_ANSWER_SCRIPT)
        painted_s, answered_s, there_s = opened(page, url + path.format(run=run))
        *_, again_s = opened(page, url + path.format(run=run))
        anew = f"painted {painted_s:5.2f} s, answered {answered_s:5.2f} s, there {there_s:6.2f} s"
        print(f"  {path:20} {anew}, again {again_s:5.2f} s")
        context.close()
    cells(browser, url)


def cells(browser: Browser, url: str) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.add_init_script(FIRST_ANSWER_SCRIPT)
    opened(page, f"{url}/cluster")
    box = page.locator("#cells").bounding_box() or {"x": 0, "y": 0}
    page.evaluate(LONGEST)
    for step in range(200):
        page.mouse.move(box["x"] + 5 + step * 4, box["y"] + 40 + step * 2)
    pointer_ms = page.evaluate("window.longest")
    page.evaluate("window.longest = 0")
    for _ in range(3):
        before = page.url
        page.get_by_role("button", name="One hour earlier").click()
        page.wait_for_function("(before) => location.href !== before", arg=before)
        page.wait_for_function(THERE)
    time_ms = page.evaluate("window.longest")
    print(f"  cells: longest pause {pointer_ms:.0f} ms under the pointer, {time_ms:.0f} ms while time moves")
    context.close()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gpus", type=int, default=10_000)
    options.add_argument("--hours", type=int, default=24)
    options.add_argument("--data", type=Path, help="an existing data folder of a large cluster")
    args = options.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("benchmarks/page.py needs a browser: apt-get install chromium")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        small, large = Path(scratch) / "night", args.data or Path(scratch) / "large"
        simulate = [sys.executable, "-m", "pyrometer", "simulate"]
        subprocess.run([*simulate, "overnight", "--seed", "38", "--out", str(small)], check=True, capture_output=True)
        with serving(small) as url:
            look(browser, url, "The demo's night, 304 GPUs, 12 h")
        if args.data is None:
            size = ["--gpus", str(args.gpus), "--hours", str(args.hours)]
            subprocess.run([*simulate, "scale", *size, "--out", str(large)], check=True, capture_output=True)
        with serving(large) as url:
            look(browser, url, f"{args.gpus:,} GPUs, {args.hours} h" if args.data is None else str(large))
        browser.close()


if __name__ == "__main__":
    main()
