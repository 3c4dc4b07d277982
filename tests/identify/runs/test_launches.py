"""Launches: the identity of ranks, plausible starts, and which launches replace others."""

from __future__ import annotations

from pyrometer.collect.otlp.messages import RankIdentity, RankStatus, WindowMessage
from pyrometer.identify.runs.launches import (
    MAX_AGE_MS,
    SILENT_MS,
    Launch,
    RankState,
    end_of,
    identity_of,
    merge_identity,
    start_of,
    supersedes,
)
from pyrometer.identify.runs.rank_locations import RankLocation
from pyrometer.model.records import Run

T0 = 1_790_000_000_000


def launch(name: str, run: str, attempt: int, *, own: bool = True, last_report_ms: int = T0) -> Launch:
    """A launch of one rank, which holds its device itself or runs in a pod."""
    made = Launch(name)
    made.run, made.attempt, made.started_ms = run, attempt, last_report_ms
    made.ranks[0] = RankState(RankIdentity(name, 0), RankLocation("n0", 0, "p0", own=own))
    made.ranks[0].last_report_ms = last_report_ms
    return made


def test_merge_identity_adds_what_the_first_report_lacks() -> None:
    first = RankIdentity("l", 0, ranks=1, experiment="e")
    merged = merge_identity(first, RankIdentity("l", 0, ranks=4, experiment="other", framework="torch"))
    assert (merged.ranks, merged.experiment, merged.framework) == (4, "e", "torch")
    assert merge_identity(first, first) is first


def test_identity_of_a_record_keeps_run_and_launch() -> None:
    who = identity_of(Run(T0, "r", 2, 3, T0, ranks=8, launch="l", experiment="e"))
    assert (who.launch, who.rank, who.ranks, who.run, who.experiment) == ("l", 3, 8, "r", "e")


def test_start_of_ignores_an_implausible_clock() -> None:
    messages = [RankStatus(T0 + 5_000), RankStatus(T0 + 1_000)]
    assert start_of(RankIdentity("l", 0, started_ms=T0), messages) == T0
    assert start_of(RankIdentity("l", 0), messages) == T0 + 1_000
    assert start_of(RankIdentity("l", 0, started_ms=T0 - 2 * MAX_AGE_MS), messages) == T0 + 1_000
    assert start_of(RankIdentity("l", 0, started_ms=T0 + 2 * SILENT_MS), messages) == T0 + 1_000


def test_end_of_a_window_is_its_last_moment() -> None:
    assert end_of(WindowMessage(T0, T0 + 10_000, 0, 10)) == T0 + 10_000
    assert end_of(RankStatus(T0 + 3_000)) == T0 + 3_000


def test_last_report_of_a_launch_is_that_of_its_latest_rank() -> None:
    assert Launch("l").last_report_ms == 0
    assert launch("l", "r", 1, last_report_ms=T0 + 7).last_report_ms == T0 + 7


def test_later_attempt_supersedes_an_earlier_one() -> None:
    first, second = launch("a", "r", 1), launch("b", "r", 2)
    assert supersedes(second, first, local=False)
    assert not supersedes(first, second, local=False)
    assert not supersedes(first, first, local=False)
    first.over = True
    assert not supersedes(second, first, local=False)


def test_kubernetes_reports_the_end_of_a_launch_in_pods() -> None:
    assert not supersedes(launch("b", "r", 2), launch("a", "r", 1, own=False), local=False)


def test_silent_launch_of_another_run_is_superseded_on_the_same_machine_only() -> None:
    silent, now = launch("a", "r", 1), launch("b", "other", 1, last_report_ms=T0 + SILENT_MS + 1)
    assert supersedes(now, silent, local=True)
    assert not supersedes(now, silent, local=False)
    assert not supersedes(launch("c", "other", 1, last_report_ms=T0 + SILENT_MS), silent, local=True)
