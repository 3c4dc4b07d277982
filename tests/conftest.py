"""Fixtures for all tests, and the summary at the end of a run."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import duckdb
import pytest
from hypothesis import settings

from tests.support.effort import DETERMINISTIC, THOROUGH

# Property tests look at the same examples every time, so that a green run stays green;
# `--hypothesis-profile=explore` looks further.
settings.register_profile("steady", derandomize=DETERMINISTIC, deadline=None, max_examples=100 if THOROUGH else 40)
settings.register_profile("explore", max_examples=500, deadline=None)
settings.load_profile("steady")

pytest_plugins = ("tests.support.nvml_library", "tests.support.source_reading")

REPOSITORY = Path(__file__).parent.parent

# A data folder syncs what it writes, and a disk takes longer for that than the test. So folders of tests are in memory
# where there is plenty; PYTEST_DEBUG_TEMPROOT or --basetemp puts them elsewhere.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


# A shell starts background jobs with SIGINT and SIGQUIT ignored, and `nohup` ignores SIGHUP. Child processes inherit
# that, and tests that send these signals would wait forever. A handler is not inherited: children get the default.
for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)


@pytest.fixture(scope="session", autouse=True)
def _one_thread_per_worker(worker_id: str) -> Iterator[None]:
    """One DuckDB thread per worker, so that parallel workers share the cores."""
    if worker_id == "master":
        yield
        return
    connect = duckdb.connect
    duckdb.connect = lambda *args, config=None, **more: connect(*args, config={"threads": 1, **(config or {})}, **more)
    yield
    duckdb.connect = connect


@pytest.fixture(scope="session")
def h200() -> Path:
    """The recording of one H200 that ships with the repository."""
    return REPOSITORY / "tests" / "data" / "h200"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Public traces that do not ship with the repository."""
    folder = os.environ.get("PYROMETER_TEST_DATA")
    if not folder:
        pytest.skip("needs public traces: set PYROMETER_TEST_DATA to a folder with openb/ and philly/")
    return Path(folder)


# `make test` runs the first examples of each file that builds nights, `make test-all` runs all of them. A night takes a
# third of a second.
NIGHT_FOLDERS = ("/causes/", "/findings/", "/answers/", "/render/")
MAX_VARIANTS = 1  # of one parametrized test
MAX_EXAMPLES = 7  # of one file: the first ones define a cause, later ones test its limits


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks further examples of tests that build a night of their own as heavy."""
    seen: Counter[str] = Counter()
    for item in items:
        test = item.nodeid.partition("[")[0]
        file = test.partition("::")[0]
        if any(folder in file for folder in NIGHT_FOLDERS) and "tmp_path" in getattr(item, "fixturenames", ()):
            seen[test] += 1
            seen[file] += seen[test] == 1
            if seen[test] > MAX_VARIANTS or seen[file] > MAX_EXAMPLES:
                item.add_marker(pytest.mark.heavy)


_left_out = 0


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Remembers what `-m 'not heavy'` leaves out."""
    global _left_out
    _left_out += sum(item.get_closest_marker("heavy") is not None for item in items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker process reports its count to the process that prints the summary."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = _left_out


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Every worker collects the same tests, so the count of any worker is right."""
    global _left_out
    _left_out = getattr(node, "workeroutput", {}).get("left_out", _left_out)


def _training_libraries() -> str:
    """The training libraries that the SDK was tested with, and how to install the others."""
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = ["torch", *(re.split(r"[<>=[]", wanted)[0] for wanted in extras["heavy"])]
    there, missing = [], []
    for name in names:
        try:
            there.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    without = f"; without {', '.join(missing)}: `make test-all` installs them" if missing else ""
    return f"with {', '.join(there) or 'no library of training programs'}{without}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What ran, what was skipped, and how to enable it."""
    ran = Counter(Path(report.nodeid.split("::")[0]).parts[1] for report in terminalreporter.stats.get("passed", ()))
    skipped = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", ()))
    terminalreporter.section("what ran", sep="-")
    terminalreporter.write_line(", ".join(f"{part} {count}" for part, count in sorted(ran.items())) or "nothing")
    for reason, count in skipped.items():
        terminalreporter.write_line(f"skipped {count}: {reason.removeprefix('Skipped: ')}")
    terminalreporter.write_line(_training_libraries())
    if _left_out:
        terminalreporter.write_line(f"left out {_left_out} heavy tests: `make test-all` runs them")
