"""`pyrometer lineage`: its JSON and what it prints about steps, samples and spikes."""

from __future__ import annotations

import pytest

from tests.support.traced_run import RUN

LINEAGE = {"run", "step", "updates", "checkpoints"}


UPDATE = {"rank", "micro_batch", "epoch", "dataset", "samples"}


@pytest.mark.parametrize("about", [("--step", "70"), ("--sample", "137"), ("--checkpoint", "80"), ("--spikes",)])
def test_lineage_json_has_the_documented_keys(cached_pyrometer, trained_folder, about):
    answer = cached_pyrometer("lineage", RUN, *about, "--data", trained_folder, "-o", "json").json
    assert answer.keys() >= LINEAGE
    updates = [*answer["updates"], *(one for spike in answer.get("spikes", ()) for one in spike["updates"])]
    assert updates
    needed = UPDATE - {"samples"} if "--sample" in about else UPDATE
    assert all(update.keys() >= needed for update in updates)


def test_spikes_name_the_bad_sample(cached_pyrometer, trained_folder, trained):
    first = cached_pyrometer("lineage", RUN, "--spikes", "--data", trained_folder).lines[1]
    assert first.startswith(f"Sample {trained.training.bad_sample} of pairs.parquet is behind all ")


def test_lineage_of_a_sample_counts_its_uses(cached_pyrometer, trained_folder):
    text = cached_pyrometer("lineage", RUN, "--sample", "137", "--data", trained_folder).out
    assert f"{RUN} consumed sample 137 11 times in 2,400 recorded batches" in text
    assert text.count(" 1† ") == 2
