"""`pyrometer why`: its text, files, and `--send`, which sends a summary to a webhook."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyrometer.act import webhook
from pyrometer.store import Store
from tests.support import clusters
from tests.support.webhook_receiver import SECRET, receiving


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Store(tmp_path / "data", create=True) as store:
        store.append([*clusters.cluster(), *clusters.job()])
    return tmp_path / "data"


def test_why_send_prints_the_answer_and_sends_a_summary(pyrometer, folder, tmp_path, monkeypatch):
    with receiving() as receiver:
        (tmp_path / "url").write_text(receiver.url)
        (folder / "settings.yaml").write_text(f"webhook_url_file: {tmp_path / 'url'}\n")
        monkeypatch.setattr(webhook, "RETRY_PAUSES_S", (0.0,))
        receiver.answers = [(503, {}, b"")]
        result = pyrometer("why", "--data", folder, "--all", "--send")
        assert (result.code, result.err) == (0, "")
        assert "$29 for 8.0 GPU-hours" in result.out
        assert receiver.heads == ["What burned: $29 for 8.0 GPU-hours, no waste found"]
        receiver.answers = [(410, {}, b"channel_is_archived")] * 2
        result = pyrometer("why", "--data", folder, "--all", "--send")
    assert result.code == 1
    assert (
        result.err
        == f"Error: The webhook of {tmp_path / 'url'} did not receive the summary: HTTP 410, channel_is_archived.\n"
    )
    assert SECRET not in result.out + result.err


def test_why_send_without_a_webhook_is_a_usage_error(pyrometer, folder):
    text = pyrometer("why", "--data", folder, "--send").failed(2)
    assert text == "--send needs a webhook: set webhook_url_file to a file with its URL."


WIDTH = 80


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
        assert re.search(r"hung for 20 s, from (Sun )?.*06:18", hang)  # when
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
