"""`pyrometer simulate`: what it prints, writes and refuses."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from itertools import pairwise

import pytest

from pyrometer.model.records import PipelineRun
from pyrometer.simulate.scenarios import SCENARIOS


def test_simulate_and_demo_refuse_a_foreign_folder(cached_pyrometer, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    for command in (["demo", "--no-serve"], ["simulate", "quiet"]):
        assert "was not made by a simulation" in cached_pyrometer(*command, "--out", tmp_path).failed(1)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.heavy
def test_simulate_replaces_an_earlier_simulation(cached_pyrometer, tmp_path):
    folder = tmp_path / "night"
    for seed in ("1", "2"):
        lines = cached_pyrometer("simulate", "gang_wait", "--seed", seed, "--hours", "4", "--out", folder).lines
        assert re.fullmatch(
            r"Simulated 320 GPU-hours, \$1,117 and \d planted faults? \(gang_wait, seed \d\)\.", lines[0]
        )
        assert json.loads((folder / "truth.json").read_text())["seed"] == int(seed)
    assert cached_pyrometer("check", folder).code == 0


def test_simulate_lists_scenarios_and_refuses_unknown_ones(cached_pyrometer, tmp_path):
    lines = cached_pyrometer("simulate", "list").lines
    assert [line.split()[0] for line in lines[1:]] == list(SCENARIOS)
    assert "'tsunami'" in cached_pyrometer("simulate", "tsunami", "--out", tmp_path / "x").failed(2)
    assert "--out" in cached_pyrometer("simulate", "quiet").failed(2)
    assert "79" in cached_pyrometer("simulate", "quiet", "--gpus", "79", "--out", tmp_path / "x").failed(2)
    assert not (tmp_path / "x").exists()


def test_simulate_with_too_few_gpus_names_the_minimum(pyrometer, tmp_path):
    error = pyrometer("simulate", "kubeflow", "--gpus", "80", "--out", tmp_path / "data").failed(1)
    assert error == "Too few GPUs for pipelines and a sweep. Pass --gpus 120 or more."


@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("hours", [4, 8])
def test_simulated_gpus_are_held_by_one_job_at_a_time(seed, hours):
    night = SCENARIOS["kubeflow"].make(seed, None, hours)
    assert len([record for record in night.records if isinstance(record, PipelineRun)]) == 2 * (2 if hours == 8 else 1)
    held = defaultdict(list)
    for job in night.jobs:
        for attempt in job.attempts:
            over_ms = attempt.ended_ms or night.to_ms
            assert attempt.activities[-1].to_ms == over_ms <= night.to_ms, job.name
            for number, place in enumerate(attempt.places):
                for gpu in place.gpus:
                    held[place.machine.uid, gpu].append((attempt.scheduled_ms[number], over_ms, job.name))
    for holds in held.values():
        for (_, to_ms, before), (from_ms, _, after) in pairwise(sorted(holds)):
            assert to_ms <= from_ms, (before, after)
