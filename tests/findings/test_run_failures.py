"""Why runs failed: the rank that was first, and its exception in one line. Findings end with their runs."""

from __future__ import annotations

import traceback
from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.act.finding_lifecycle import FindingTracker
from pyrometer.answers.runs.lifecycle import trace_run
from pyrometer.answers.runs.overview import runs, show
from pyrometer.answers.why import why
from pyrometer.findings.run_failures import MAX_HEADLINE, error_line
from pyrometer.model.records import Event
from pyrometer.model.settings import Settings
from pyrometer.render.why_text import render_text
from pyrometer.store import Store
from pyrometer.train.run.exits import describe
from tests.support.clusters import MINUTE, START_MS, all_ranks, at, cluster, event, explain, findings_of, job, pod, run


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """An exception as it is caught, with its traceback."""
    try:
        raise error from cause
    except BaseException as caught:
        return caught


class CheckpointError(RuntimeError):
    """Of a module: its name in a traceback is longer than its type's."""


KINDS = (ValueError, RuntimeError, KeyError, OSError, CheckpointError)
TEXTS = st.text(max_size=400)


@given(kind=st.sampled_from(KINDS), text=TEXTS, cause=st.none() | st.sampled_from(KINDS), grouped=st.booleans())
def test_exception_line_starts_with_its_own_type(kind, text, cause, grouped):
    error = raised(kind(text), cause and raised(cause("the cause")))
    if grouped:
        error = raised(ExceptionGroup("several", [error, ValueError("another")]))
    line = error_line(type(error).__name__, describe(error))
    assert line is not None
    assert type(error).__name__ in line.partition(":")[0]
    assert "Traceback" not in line or "Traceback" in text
    assert len(line) <= MAX_HEADLINE
    assert line.isprintable()
    words = "several (2 sub-exceptions)" if grouped else " ".join(traceback.format_exception_only(error)[0].split())
    assert grouped or len(words) > 100 or not words.isprintable() or words == line
    assert not grouped or words in line


@pytest.mark.parametrize(
    ("reason", "message", "line"),
    [
        (
            "RuntimeError",
            'Traceback (most recent call last):\n  File "a.py", line 1\nRuntimeError: planted crash\n',
            "RuntimeError: planted crash",
        ),
        ("RuntimeError", "Traceback (most recent call last):\nRuntimeError: two\nlines\n", "RuntimeError: two"),
        (
            "ValueError",
            "Traceback (most recent call last):\nKeyError: 1\n\nDuring handling of the above exception, "
            "another exception occurred:\n\nTraceback (most recent call last):\nValueError: last\n",
            "ValueError: last",
        ),
        (
            "OutOfMemoryError",
            "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory.\n",
            "torch.OutOfMemoryError: CUDA out of memory.",
        ),
        ("FileNotFoundError", "no such file", "FileNotFoundError: no such file"),
        ("RuntimeError", "redacted", "RuntimeError: redacted"),
        ("RuntimeError", None, "RuntimeError"),
        (None, None, None),
    ],
)
def test_failure_line_reads_reports_of_other_versions_and_sources(reason, message, line):
    assert error_line(reason, message) == line


def failed(rank_ends, **more):
    """A run of four ranks that trained for ten minutes; each ends as its number says: when, how, with what."""
    records = [*cluster(), *job(to_min=11), *all_ranks(0, 10)]
    for one in run():
        minute, outcome, error = rank_ends[one.rank]
        records.append(one._replace(time_ms=at(minute), ended_ms=at(minute), outcome=outcome, **more))
        if error is not None:
            records.append(event("exception", minute, one.rank, reason=error.partition(":")[0], message=error))
    return records


CLOSED = "RuntimeError: Connection closed by peer"
FIRST = {
    "the_first_exception": (
        [
            (10.02, "failed", CLOSED),
            (10, "failed", "ValueError: planted"),
            (10.05, "killed", None),
            (10.01, "failed", CLOSED),
        ],
        (1, 4, "ValueError: planted"),
    ),
    "an_exit_code_before_the_exceptions": (
        [(10.02, "failed", CLOSED), (10.01, "failed", CLOSED), (10, "failed", None), (10.02, "killed", None)],
        (2, 4, None),
    ),
    "killed_about_then_may_be_because_of_it": (
        [
            (10, "killed", None),
            (10.01, "failed", "ValueError: planted"),
            (10.05, "killed", None),
            (10.05, "killed", None),
        ],
        (1, 4, "ValueError: planted"),
    ),
    "killed_long_before": (
        [(10.2, "failed", CLOSED), (10, "killed", None), (10.2, "failed", CLOSED), (10.2, "failed", CLOSED)],
        (1, 4, None),
    ),
    "one_of_them": (
        [
            (10, "succeeded", None),
            (10, "succeeded", None),
            (10, "failed", "ValueError: planted"),
            (10, "succeeded", None),
        ],
        (2, 1, "ValueError: planted"),
    ),
    "all_were_killed": ([(10, "killed", None)] * 4, None),
    "an_exception_of_one_that_succeeded": (
        [
            (10, "succeeded", None),
            (10, "succeeded", "ValueError: shown in a notebook"),
            (10, "succeeded", None),
            (10, "succeeded", None),
        ],
        None,
    ),
}


@pytest.mark.parametrize("name", FIRST)
def test_answers_name_the_rank_that_failed_first(tmp_path, name):
    ends, first = FIRST[name]
    window = TimeRange(START_MS, START_MS + 120 * MINUTE)
    answer = explain(tmp_path / "data", failed(ends))
    with Store(tmp_path / "data") as store:
        (row,) = runs(store, window, zone=UTC)["rows"]
        shown = show(store, "run", window, Settings(), zone=UTC)
        (attempt,) = trace_run(store, "run", window, zone=UTC)["attempts"]
    failures = [row["failure"], shown["failure"], attempt["failure"]]
    failures.append(answer["failures"][0] if answer["failures"] else None)
    assert [one and (one["rank"], one["ranks"], one["error"]) for one in failures] == [first] * 4
    assert row["outcome"] == attempt["outcome"]
    if first is not None:
        assert f"llama: rank {first[0]} failed" in render_text(answer | {"window": answer["window"]})
    errors = [one["error"] for one in shown["lifecycle"] if one["what"] == "exception"]
    assert errors == [end[2] for end in sorted(ends, key=lambda end: end[0]) if end[2]]
    assert [one["what"] for one in shown["lifecycle"]][-1] in ("failed", "killed", "succeeded", "exception")


def test_failure_event_follows_all_earlier_events(tmp_path):
    records = [
        *failed([(10, "failed", "ValueError: x")] * 4),
        event("configured", 10, 0, reason="ab"),
        event("sdk_error", 10, 0, reason="KeyError", message="KeyError: 1"),
    ]
    with Store(tmp_path / "data", create=True) as store:
        store.append(records)
        build(store, Settings(), now_ms=at(60))
        shown = show(store, "run", TimeRange(START_MS, at(60)), Settings(), zone=UTC)
    assert [one["what"] for one in shown["lifecycle"]][-1] == "failed"


# -- a finding ends with its run or pod -----------------------------------------------------------------


def hung(to_min: float | None = None, **ended):
    """A run that stands still from minute 10 on; its pods may end, and so may its ranks."""
    records = [*cluster(), *job(to_min=to_min), *all_ranks(0, 10)]
    records += [one._replace(time_ms=at(to_min or 30) if ended else one.time_ms, **ended) for one in run()]
    records += [Event(at(10), "stuck", run="run", attempt=1, rank=rank, step=1000, reason="comm") for rank in range(4)]
    return records + [Event(at(minute), "alive", run="run", attempt=1, rank=0) for minute in range(11, 31)]


def hang_until(folder, records, minute: float) -> dict:
    """The finding about a hang, as of a minute without reports since."""
    with Store(folder, create=True) as store:
        store.append(records)
        build(store, Settings(), now_ms=at(minute))
        (finding,) = findings_of("hang", why(store, TimeRange(START_MS, at(minute)), Settings(), zone=UTC))
    return finding


@pytest.mark.parametrize(
    ("records", "ongoing"),
    [
        (hung(), True),
        (hung(to_min=30), False),
        ([r._replace(phase="Failed") if type(r).__name__ == "Pod" else r for r in hung(to_min=30)], False),
        (hung(ended_ms=at(30), outcome="killed"), False),  # the pods go on
        ([*hung(to_min=None), *run(attempt=2, started_min=31)], True),  # of the first attempt no end is known
        ([*hung(ended_ms=at(30), outcome="failed"), *run(attempt=2, started_min=30.5)], False),
    ],
)
def test_hang_of_an_ended_run_is_not_ongoing(tmp_path, records, ongoing):
    finding = hang_until(tmp_path / "data", records, 30)
    assert (finding["ongoing"], finding["ended"]) == (ongoing, not ongoing)
    assert ("since" in finding["title"]) == ongoing
    lives = FindingTracker()
    lives.look({"window": {"to": finding["to"]}, "findings": [finding]})
    assert [life.is_over for life in lives.all()] == [not ongoing]  # and notifications say so


def test_hang_is_ongoing_while_some_ranks_hang(tmp_path):
    records = hung()
    records += [one._replace(time_ms=at(20), ended_ms=at(20), outcome="killed") for one in run()[:2]]
    assert hang_until(tmp_path / "data", records, 30)["ongoing"]


def test_crash_loop_is_ongoing_between_two_pods(tmp_path):
    records = [*cluster(), *job(pods=0)]
    for number in range(4):
        start = 30 * number
        (made, *held) = pod(f"llama-{number}", "llama", "n0", from_min=start, to_min=start + 30)
        records += [made._replace(phase="Failed", attempt=number + 1), *held]
    answer = explain(tmp_path, records)
    (finding,) = findings_of("crash_loop", answer)
    assert (finding["ongoing"], finding["ended"]) == (True, False)
