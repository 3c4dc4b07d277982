"""A real Chromium with a real server. Errors that a page logs fail the test. Screenshots are kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyrometer.model.records import Price
from pyrometer.store import Store
from tests.support import clusters
from tests.support.server_process import serving
from tests.support.traced_run import TrainingRecords

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# No updates and no sandbox, so that it runs as root in a container.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
REPOSITORY = Path(__file__).parent.parent.parent
SCREENSHOTS = Path(os.environ.get("PYROMETER_SCREENSHOTS", REPOSITORY / ".screenshots"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all tests here as heavy: they need a browser and minutes."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.heavy)


@pytest.fixture(scope="session")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The browser's cache, so that it does not compile plotly (1.4 s) for every page."""
    return tmp_path_factory.mktemp("browser-profile")


# Per module: while it runs, asyncio has a running loop, and no test can run another.
@pytest.fixture(scope="module")
def browser(profile: Path) -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch_persistent_context(profile, executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield started
        started.close()


class BrowserPage:
    """A page in a browser, its logged errors, and screenshots."""

    def __init__(self, page: Any, url: str) -> None:
        self.page, self.url = page, url
        self.complaints: list[str] = []
        page.set_default_timeout(90_000)  # two browsers and their servers on two cores
        page.on("console", self._console)
        page.on("pageerror", self._error)

    def _console(self, message: Any) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

    def _error(self, error: Any) -> None:
        self.complaints.append(str(error))

    def leave(self) -> None:
        """Clears the session and all settings for the next test."""
        self.page.remove_listener("console", self._console)
        self.page.remove_listener("pageerror", self._error)
        self.page.unroute_all()
        self.page.context.clear_cookies()
        self.page.evaluate("localStorage.clear()")
        self.page.close()

    def at(self, path: str) -> Any:
        """Opens a path, and waits until the page is complete."""
        self.page.goto(self.url + path)
        return self.shown()

    def shown(self) -> Any:
        """Waits until the page is complete."""
        self.page.wait_for_function(
            "() => document.querySelector('main').dataset.shown === location.pathname + location.search"
            " && !document.querySelector('[aria-busy]')",
            timeout=90_000,
        )
        return self.page

    def drawn(self, chart: str) -> Any:
        """The chart whose label begins with `chart`, once it is drawn."""
        found = self.page.locator(f"[role=img][aria-label^='{chart}']")
        found.locator(".main-svg").first.wait_for(timeout=90_000)
        return found

    def keep(self, name: str) -> None:
        """Saves a screenshot of the whole page."""
        SCREENSHOTS.mkdir(exist_ok=True)
        self.page.wait_for_timeout(300)  # charts that move into place
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


@pytest.fixture
def looking(browser: Any) -> Iterator[Any]:
    """Opens pages for one test: `looking(url, width=…, dark=…)`. None may log an error."""
    looked: list[BrowserPage] = []

    def look(url: str, *, width: int = 1440, height: int = 900, dark: bool = False) -> BrowserPage:
        page = browser.new_page()
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme="dark" if dark else "light")
        looked.append(BrowserPage(page, url))
        return looked[-1]

    yield look
    for one in looked:
        one.leave()
    assert [one.complaints for one in looked if one.complaints] == []


def ran(*command: str | Path) -> None:
    """Runs a command of Pyrometer in another process."""
    subprocess.run([sys.executable, "-m", "pyrometer", *map(str, command)], check=True, capture_output=True)


@pytest.fixture(scope="session")
def night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's night: 304 GPUs, twelve hours."""
    folder = tmp_path_factory.mktemp("browser") / "night"
    ran("simulate", "overnight", "--seed", "38", "--out", folder)
    return folder


@pytest.fixture(scope="session")
def night_url(night: Path) -> Iterator[str]:
    with serving(night) as client:
        yield str(client.base_url)


@pytest.fixture(scope="session")
def kubeflow_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two pipeline runs, a sweep, and a TrainJob that only its controller reports."""
    folder = tmp_path_factory.mktemp("browser-kubeflow") / "night"
    ran("simulate", "kubeflow", "--out", folder)
    with serving(folder) as client:
        yield str(client.base_url)


@pytest.fixture(scope="session")
def unpriced_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A hung job on GPUs without a price."""
    folder = tmp_path_factory.mktemp("browser-unpriced")
    records = [
        *clusters.cluster(),
        *clusters.job(),
        *clusters.run(),
        *clusters.all_ranks(0, 40),
        *clusters.steps(0, 40, 41),
    ]
    with Store(folder, create=True) as store:
        store.append([record for record in records if not isinstance(record, Price)])
    with serving(folder) as client:
        yield str(client.base_url)


@pytest.fixture(scope="session")
def trained() -> TrainingRecords:
    return TrainingRecords()


@pytest.fixture(scope="session")
def trained_url(trained: TrainingRecords, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One run, traced and with its data: two attempts, a slow rank."""
    folder = tmp_path_factory.mktemp("browser-trained")
    trained.store(folder).close()
    with serving(folder) as client:
        yield str(client.base_url)


@pytest.fixture(scope="session")
def large_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Ten thousand GPUs, four hours."""
    folder = tmp_path_factory.mktemp("browser-large") / "large"
    ran("simulate", "scale", "--seed", "1", "--gpus", "10000", "--hours", "4", "--out", folder)
    ran("cost", "--data", folder)  # makes its ledger
    with serving(folder) as client:
        yield str(client.base_url)


@pytest.fixture(scope="session")
def empty_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("browser-empty")
    Store(folder, create=True).close()
    with serving(folder) as client:
        yield str(client.base_url)
