"""The lines of `top`: columns are dropped by importance, and names are safe for a terminal."""

from __future__ import annotations

from rich.cells import cell_len

from pyrometer.render.top_text import COLUMNS, SORTINGS, chosen_rows, detail, fitting, header, safe, table


def row(name: str, **more):
    return {
        "workload": {"kind": "Job", "namespace": "ml", "name": name},
        "team": "vision",
        "user": None,
        "experiment": None,
        "run": None,
        "state": "train",
        "states": {"train": 0.5, "hang": 0.5},
        "spark": [0.0, 1.0],
        "gpus": 8,
        "usd_micro_per_hour": 32_000_000,
        "usd_micro": 64_000_000,
        "goodput": 0.5,
        "running_ms": 7_200_000,
        "progress": None,
        "metric": None,
        **more,
    }


def test_table_without_a_limit_has_all_columns():
    lines = table([row("llama")], None)
    assert all(column.heading in lines[0].plain for column in COLUMNS)
    assert "llama" in lines[1].plain
    assert "$32" in lines[1].plain


def test_table_fits_narrow_terminals():
    for width in (60, 80, 120):
        assert all(cell_len(line.plain) <= width for line in table([row("x" * 90)], width))


def test_fitting_keeps_the_most_important_columns():
    kept, _ = fitting([20] * len(COLUMNS), 50)
    assert {COLUMNS[place].heading for place in kept} >= {"workload", "$/h"}


def test_rows_are_filtered_and_sorted():
    rows = [row("b", gpus=4), row("a", gpus=16), row("c", team="speech")]
    by_name = next(sorting for sorting in SORTINGS if sorting.name == "name")
    by_gpus = next(sorting for sorting in SORTINGS if sorting.name == "GPUs")
    assert [one["workload"]["name"] for one in chosen_rows(rows, "", by_name)] == ["a", "b", "c"]
    assert [one["workload"]["name"] for one in chosen_rows(rows, "VISION", by_gpus)] == ["a", "b"]


def test_header_shows_rate_waste_and_waiting_pods():
    answer = {
        "at": "2026-10-08T20:00:00+00:00",
        "rate": {
            "gpus": 10,
            "held_gpus": 8,
            "free_gpus": 1,
            "unhealthy_gpus": 1,
            "usd_micro_per_hour": 40_000_000,
            "wasted_usd_micro_per_hour": 10_000_000,
        },
        "queue": {"pods": 2, "gpus": 16, "longest_ms": 60_000},
    }
    lines = [line.plain for line in header(answer, "demo", "no \x1b[31manswer", now_ms=1_791_489_600_000)]
    assert "$10 per hour wasted (25%)" in lines[1]
    assert lines[2] == "2 pods wait for 16 GPUs, the longest for 1 min"
    assert "\x1b" not in lines[3]


def test_detail_names_workload_and_states():
    assert detail(row("llama")).plain == "Job ml/llama: train 50%, hang 50%"
    assert detail(row("llama", states={})).plain.endswith("no data yet")


def test_safe_replaces_control_characters():
    assert safe("a\x1b[2Jb\n") == "a·[2Jb·"
