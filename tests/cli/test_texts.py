"""What people read: `why` on 80 columns, tables, the page, progress bars."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import time

import pytest

from pyrometer.cli import progress_bar as progress
from pyrometer.cli.progress_bar import progress_bar, waiting
from pyrometer.render.tables import print_table

WIDTH = 80


# -- why --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["recorded", "recorded_without_steps", "autumn", "unpriced"])
def test_why_fits_a_terminal(cached_pyrometer, request, folder):
    lines = cached_pyrometer("why", "--data", request.getfixturevalue(folder), "--all").lines
    assert [line for line in lines if len(line) > WIDTH] == []


def test_why_fits_a_terminal_in_any_zone(cached_pyrometer, autumn):
    first = cached_pyrometer("why", "--data", autumn, "--all", "--tz", "America/Argentina/ComodRivadavia").lines[0]
    assert len(first) <= WIDTH


def test_why_prints_who_when_how_much_and_what_to_do(cached_pyrometer, recorded):
    text = cached_pyrometer("why", "--data", recorded, "--all").out
    paragraphs = re.split(r"\n(?= +\$\d)", text)
    hangs = [" ".join(one.split()) for one in paragraphs if " hung for " in one]
    assert len(hangs) == 2
    for hang in hangs:
        assert "recording-a" in hang  # who
        assert "[recording" in hang  # whose
        assert re.search(r"hung for 20 s, from (Sun )?.*06:18", hang)  # since when
        assert hang.startswith("$0.0")  # how much
        assert "Rank 0 made no progress after step" in hang  # how we know
        assert "→ Set a timeout that ends such hangs within minutes" in hang  # what to do


def test_why_begins_with_the_time_range_and_the_total(cached_pyrometer, recorded):
    first, second = cached_pyrometer("why", "--data", recorded, "--all").lines[:2]
    assert first == "Nov 15, 2026, 06:15 – 06:20 UTC (5 min), recorded"
    assert re.fullmatch(r"\$0\.59 for 4\.5 GPU-minutes, \$0\.\d\d wasted \(\d\d%\)", second)


def test_why_notes_assumed_and_missing_prices(cached_pyrometer, recorded, unpriced):
    assert "Prices are assumed: public list prices" in cached_pyrometer("why", "--data", recorded, "--all").out
    text = cached_pyrometer("why", "--data", unpriced, "--all").out
    assert "No price is known for 30.0 GPU-hours" in text
    assert "assumed" not in text
    assert "$" not in text
    text = cached_pyrometer("why", "--data", unpriced, "--all", "--price", "2").out
    assert "$60 for 30.0 GPU-hours" in text
    assert "No price" not in text


def test_why_prints_the_evidence_coverage(cached_pyrometer, recorded, recorded_without_steps):
    assert re.search(r"SDK\s+9\d%", cached_pyrometer("why", "--data", recorded, "--all").out)
    assert re.search(r"SDK\s+0%", cached_pyrometer("why", "--data", recorded_without_steps, "--all").out)


def test_why_without_findings_prints_a_sentence(cached_pyrometer, unpriced):
    text = cached_pyrometer("why", "--data", unpriced, "--last", "5m").out
    assert "No waste with an identifiable cause" in text


def test_output_to_a_pipe_or_a_file_has_no_colors(cached_pyrometer, pyrometer, recorded, tmp_path):
    for name, *arguments in (("why",), ("cost",), ("runs",), ("show", "recording-a")):
        assert "\x1b" not in cached_pyrometer(name, *arguments, "--data", recorded, "--all").out
    pyrometer("why", "--data", recorded, "--all", "--file", tmp_path / "why.txt")
    assert "\x1b" not in (tmp_path / "why.txt").read_text()


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["table", "json", "html"])
def test_file_option_writes_what_would_have_been_printed(cached_pyrometer, pyrometer, recorded, tmp_path, form):
    printed = cached_pyrometer("why", "--data", recorded, "--all", "-o", form)
    path = tmp_path / "answer"
    path.write_text("what was there before" * 100_000)
    result = pyrometer("why", "--data", recorded, "--all", "-o", form, "--file", path)
    assert (result.code, result.out, result.err) == (0, "", "")
    assert path.read_text(encoding="utf-8") == printed.out


def test_html_report_fetches_nothing(cached_pyrometer, pyrometer, recorded, tmp_path):
    path = tmp_path / "why.html"
    pyrometer("why", "--data", recorded, "--all", "-o", "html", "--file", path)
    page = path.read_text(encoding="utf-8")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert "recording-a" in page
    assert re.search(r"""(?:src|href)=["']?https?:""", page) is None  # nothing is fetched


def test_error_names_a_file_that_cannot_be_written(cached_pyrometer, pyrometer, recorded, tmp_path):
    for path in (tmp_path / "missing" / "why.html", tmp_path):
        assert str(path) in pyrometer("why", "--data", recorded, "--all", "-o", "html", "--file", path).failed(1)


# -- tables -----------------------------------------------------------------------------------------------------------


def test_table_aligns_names_left_and_figures_right(capsys):
    rows = [["a", None, 1], [{"namespace": "ml", "name": "x", "kind": "Job"}, "b", 10_000], ["total", "", 10_001]]
    print_table(["name", "more", "figure"], rows, figures=1, foot=True)
    assert capsys.readouterr().out.splitlines() == [
        "name        more  figure",
        "a           –          1",
        "ml/x (Job)  b      10000",
        "──────────  ────  ──────",
        "total              10001",
    ]


def test_empty_table_has_headings(capsys):
    print_table(["name", "figure"], [], figures=1)
    assert capsys.readouterr().out == "name  figure\n"


def test_cost_prints_its_rows_and_their_total(cached_pyrometer, autumn):
    result = cached_pyrometer("cost", "--data", autumn, "--all", "--by", "team")
    heading, *rows, _, total = result.out.splitlines()
    assert heading.split() == ["team", "GPU-hours", "cost"]
    assert [row.split()[0] for row in rows] == ["platform", "nlp", "vision"]
    assert total.split() == ["total", "90.0", "$413"]
    assert rows[2].split()[2] == "–"  # no price is known
    assert result.err == "30.0 GPU-hours have no price. Set one per GPU-hour with --price.\n"


def test_cost_by_two_groupings_has_two_columns(cached_pyrometer, recorded):
    heading, *rows, _, total = cached_pyrometer("cost", "--data", recorded, "--all", "--by", "team,state").lines
    assert heading.split() == ["team", "state", "GPU-hours", "cost", "kWh"]
    assert {row.split()[0] for row in rows} == {"recording", "platform"}
    assert total.split()[-2] == "$0.59"


@pytest.mark.parametrize(
    ("by", "named"),
    [
        ("teem", "Did you mean 'team'?"),
        ("zzz", "Known: team"),
        ("team,team", "twice"),
        ("", "no grouping"),
        (",", "no"),
    ],
)
def test_unknown_grouping_is_a_usage_error(cached_pyrometer, recorded, by, named):
    assert named in cached_pyrometer("cost", "--data", recorded, "--by", by).failed(2)


def test_runs_prints_one_row_per_run(cached_pyrometer, recorded):
    heading, row = cached_pyrometer("runs", "--data", recorded).lines
    assert heading.split()[0] == "run"
    assert row.split()[:3] == ["recording-a", "a", "recording"]
    assert "2,273" in row
    assert "$0.57" in row


def test_runs_without_runs_names_the_cost_command(cached_pyrometer, recorded_without_steps):
    result = cached_pyrometer("runs", "--data", recorded_without_steps)
    assert (result.code, result.err) == (0, "")
    assert "pyrometer cost --by workload" in result.out


def test_show_prints_cost_lifecycle_and_metrics(cached_pyrometer, recorded):
    text = cached_pyrometer("show", "recording-a", "--data", recorded).out
    for words in (
        "recording-a",
        "$0.57",
        "2 attempt",
        "06:18:40",
        "stuck (step 2,272)",
        "resumed (step 1,106)",
        "loss:",
    ):
        assert words in text
    spark = next(line for line in text.splitlines() if "▁" in line)
    assert spark.rstrip().endswith("×")  # the loss is not a number at the end


# -- progress bars ----------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """A stderr that says it is a terminal, or that it is not."""

    def __init__(self, is_terminal):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal


def drawn(monkeypatch, *, is_terminal, quiet_s, steps=4):
    monkeypatch.setattr(progress, "QUIET_S", quiet_s)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stderr", Terminal(is_terminal))
    with progress_bar("Accounting") as report:
        for done in range(steps + 1):
            report(done, steps)
    return sys.stderr.getvalue()


def test_progress_bar_is_drawn_for_slow_work_on_a_terminal(monkeypatch):
    text = drawn(monkeypatch, is_terminal=True, quiet_s=-1)
    assert "Accounting" in text
    assert "%" in text


def test_progress_bar_is_not_drawn_for_short_work(monkeypatch):
    assert drawn(monkeypatch, is_terminal=True, quiet_s=1_000) == ""


def test_progress_bar_is_not_drawn_for_finished_work(monkeypatch):
    assert drawn(monkeypatch, is_terminal=True, quiet_s=-1, steps=0) == ""


def test_progress_bar_is_not_drawn_without_a_terminal(monkeypatch):
    assert drawn(monkeypatch, is_terminal=False, quiet_s=-1) == ""


def test_progress_bar_is_erased_when_work_fails(monkeypatch):
    monkeypatch.setattr(progress, "QUIET_S", -1)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal(True))

    def fail():
        with progress_bar("Accounting") as report:
            report(0, 2)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert sys.stderr.getvalue().endswith("\x1b[2K")  # the line is wiped: what comes next begins on a clean one


def waited(monkeypatch, *, is_terminal, quiet_s, until=lambda text: True):
    monkeypatch.setattr(progress, "QUIET_S", quiet_s)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal(is_terminal))
    with waiting("Looking for causes"):
        deadline_s = time.monotonic() + 10
        while not until(sys.stderr.getvalue()) and time.monotonic() < deadline_s:
            time.sleep(0.01)
    return sys.stderr.getvalue()


def test_waiting_shows_a_spinner_for_slow_work(monkeypatch):
    printed = "Looking for causes"
    assert printed in waited(monkeypatch, is_terminal=True, quiet_s=0, until=lambda text: printed in text)


def test_waiting_shows_nothing_for_short_work_or_without_a_terminal(monkeypatch):
    assert waited(monkeypatch, is_terminal=True, quiet_s=1_000) == ""
    assert waited(monkeypatch, is_terminal=False, quiet_s=0) == ""


IMPATIENT = "import sys; from pyrometer.cli import main, progress_bar; progress_bar.QUIET_S = -1; main(sys.argv[1:])"


@pytest.mark.heavy
def test_import_draws_a_progress_bar_on_a_terminal(h200, tmp_path):
    """The bar goes to the terminal on stderr, and the answer alone to stdout."""
    terminal, stderr = pty.openpty()
    command = [sys.executable, "-c", IMPATIENT, "import", "recording", str(h200), "--out", str(tmp_path / "data")]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=environment) as running:
        os.close(stderr)
        shown = b""
        while True:
            try:
                read = os.read(terminal, 4096)
            except OSError:  # Linux: the other end is closed
                break
            if not read:
                break
            shown += read
        out = running.stdout.read().decode()
    os.close(terminal)
    assert running.returncode == 0, shown
    assert "Accounting" in shown.decode()
    assert "Accounting" not in out
    assert "GPU-minutes" in out


@pytest.mark.heavy
def test_import_draws_no_progress_bar_without_a_terminal(h200, tmp_path):
    command = [sys.executable, "-c", IMPATIENT, "import", "recording", str(h200), "--out", str(tmp_path / "data")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stderr == ""
