"""The chart of `worth`: letters, the Pareto front, axes, and the legend."""

from __future__ import annotations

from pyrometer.render.curves import ASCII, BRAILLE
from pyrometer.render.why_text import plain
from pyrometer.render.worth_chart import MAX_NAMED, chart_lines


def run(name, values, *, pareto=False, usd=1.0):
    curve = [
        [step, 1000 * step, value, 3600 * step, round(usd * 1e6 * step / len(values))]
        for step, value in enumerate(values, 1)
    ]
    return {
        "run": name,
        "started": "1970-01-01T00:00:00Z",
        "curve": curve,
        "pareto": pareto,
        "best": min(values),
        "final": values[-1],
        "gpu_hours": 1.0,
        "usd_micro": round(usd * 1e6),
        "to_target_ms": None,
        "to_target_usd_micro": None,
    }


def charted(runs, *, by="dollars", glyphs=BRAILLE, goal="min", width=80):
    answer = {"experiment": "e", "metric": "loss", "goal": goal, "target": None, "runs": runs}
    return list(chart_lines(answer, by, width=width, glyphs=glyphs, style=plain))


def test_pareto_runs_have_a_star_and_a_capital_letter():
    lines = charted([run("dear", [3.0, 2.0], usd=4.0), run("cheap", [2.0, 1.0], pareto=True)])
    assert "  a   dear   2 for $4.00" in lines
    assert "  B ★ cheap  1 for $1.00" in lines
    picture = "".join(lines[1:20])
    assert picture.count("a") == picture.count("B") == 1


def test_early_outliers_do_not_compress_the_axis():
    lines = charted([run("a", [100.0, *(3 - n / 100 for n in range(60))])])
    assert lines[2].startswith(" 3.0┤")
    assert any(line.endswith("Not drawn: values above 3, from the start of runs.") for line in lines)


def test_only_some_of_many_runs_have_letters():
    runs = [run(f"run-{n}", [9.0, 5.0 + n / 10, 8.0], pareto=n == 39) for n in range(40)]
    lines = charted(runs, glyphs=ASCII)
    legend = [line for line in lines if "run-" in line]
    assert len(legend) == MAX_NAMED
    assert legend[-1].split()[:3] == ["L", "*", "run-39"]
    assert " ".join(lines[-2:]).endswith("28 runs without a letter: a dot at the best value.")
    assert all(line.isascii() for line in lines)


def test_long_run_name_is_cut_to_the_width():
    lines = charted([run("x" * 200, [2.0, 1.0])], width=60)
    assert max(map(len, lines)) == 60
    assert any("x…  1 for $1.00" in line for line in lines)
