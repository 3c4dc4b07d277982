"""Which data made which update: both directions give the same, and a resume moves what counts."""

from __future__ import annotations

from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.runs.lineage import NotRecordedError, lineage_of_checkpoint, lineage_of_sample, lineage_of_step
from pyrometer.model.records import Batch, named_samples
from tests.support.traced_run import RUN, TrainingRecords

EVER = TimeRange(0, 2**62)


# -- which update counts ----------------------------------------------------------------------------------------------


# -- step, sample, step -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"ranks": 2, "accumulation": 1, "seed": 5}, {"ranks": 3, "batch": 7, "seed": 9}]
)
def test_lineage_leads_from_a_step_to_its_samples_and_back(tmp_path, options):
    trained = TrainingRecords(**{"attempts": ((0, 23), (20, 41)), **options})
    with trained.store(tmp_path / "data") as store:
        for (attempt, step), ranks in list(trained.consumed.items())[::13]:
            answer = lineage_of_step(store, RUN, step, EVER, zone=UTC, attempt=attempt)
            for update in answer["updates"]:
                truth = ranks[update["rank"]][update["micro_batch"]]
                assert [int(sample) for sample in update["samples"]] == truth
            assert len(answer["updates"]) == sum(map(len, ranks.values()))
            for update in answer["updates"][:2]:
                back = lineage_of_sample(store, RUN, update["samples"][0], EVER, zone=UTC)
                places = {(one["attempt"], one["step"]) for one in back["updates"]}
                sample = int(update["samples"][0])
                assert places == {place for place in trained.consumed if sample in trained.samples(*place)}


def test_repeated_steps_are_marked(store):
    answer = lineage_of_step(store, RUN, 75, EVER, zone=UTC)
    assert {(one["attempt"], one["lost"]) for one in answer["updates"]} == {(1, True), (2, False)}
    assert [(one["step"], one["attempt"], one["of_attempt"]) for one in answer["checkpoints"]] == [
        (80, 2, 2),
        (100, 2, 2),
        (120, 2, 2),
    ]


def test_step_before_the_resume_is_in_checkpoints_of_both_attempts(store):
    answer = lineage_of_step(store, RUN, 30, EVER, zone=UTC)
    assert [(one["step"], one["attempt"]) for one in answer["checkpoints"]] == [
        (40, 1),
        (60, 1),
        (80, 2),
        (100, 2),
        (120, 2),
    ]


def test_checkpoint_counts_its_steps_and_samples(store, trained):
    answer = lineage_of_checkpoint(store, RUN, 80, EVER, zone=UTC)
    assert [(part["attempt"], part["from_step"], part["to_step"]) for part in answer["parts"]] == [
        (1, 0, 60),
        (2, 60, 80),
    ]
    assert all(part["recorded_steps"] == part["steps"] for part in answer["parts"])
    assert sum(epoch["samples"] for epoch in answer["epochs"]) == 80 * 64
    assert answer["epochs"][0] == {
        "loader": 0,
        "dataset": "pairs.parquet",
        "epoch": 0,
        "first_step": 0,
        "last_step": 15,
        "batches": 256,
        "samples": 1_024,
        "unknown_batches": 0,
    }


def test_batches_of_a_checkpoint_are_paged(store):
    whole = lineage_of_checkpoint(store, RUN, 60, EVER, zone=UTC, limit=10_000)["updates"]
    pages = [lineage_of_checkpoint(store, RUN, 60, EVER, zone=UTC, limit=400, offset=at) for at in (0, 400, 800, 1_200)]
    assert [one for page in pages for one in page["updates"]] == whole
    assert {page["total"] for page in pages} == {len(whole)} == {960}


def test_unknown_checkpoint_suggests_near_ones(store):
    with pytest.raises(NotRecordedError, match=r"of step 50\. The nearest: 20, 40, 60, 80"):
        lineage_of_checkpoint(store, RUN, 50, EVER, zone=UTC)


def test_lineage_reports_unknown_batches(tmp_path):
    trained = TrainingRecords(attempts=((0, 12),))
    trained.records = [
        one._replace(rows=None) if isinstance(one, Batch) and one.micro_batch == 3 else one
        for one in trained.records
        if not (isinstance(one, Batch) and (one.rank, one.step) == (2, 5))
    ]
    with trained.store(tmp_path / "data") as store:
        answer = lineage_of_step(store, RUN, 5, EVER, zone=UTC)
        assert answer["unknown_batches"] == 3
        assert answer["ranks_without_batches"] == [{"attempt": 1, "rank": 2}]
        assert [one["samples"] for one in answer["updates"] if one["micro_batch"] == 3] == [None] * 3
        unknown = lineage_of_sample(store, RUN, "no-such", EVER, zone=UTC)
        assert (unknown["updates"], unknown["unknown_batches"], unknown["batches"]) == ([], 47, 188)
        unseen = lineage_of_step(store, RUN, 500, EVER, zone=UTC)
        assert (unseen["updates"], unseen["nearest"]) == ([], [8, 9, 10, 11])


# -- how samples are kept ---------------------------------------------------------------------------------------------

TEXTS = st.lists(st.one_of(st.integers(-(2**70), 2**70), st.text(max_size=9)), max_size=6)


@given(samples=TEXTS)
def test_samples_round_trip(samples):
    kept = named_samples(samples)
    assert [str(one) for one in next(iter(kept.values()))] == [str(one) for one in samples]
    if all(isinstance(one, int) and abs(one) < 2**63 for one in samples):
        assert kept.keys() == {"rows"}


@pytest.mark.parametrize("samples", [[7, 8, 9], ["shard-3/000017", "7"], [7, "007"], [2**70]])
def test_sample_is_found_in_hot_and_sealed_storage(tmp_path, samples):
    trained = TrainingRecords(attempts=((0, 1),))
    first = next(one for one in trained.records if isinstance(one, Batch))
    named = first._replace(send_index=999, loader=3, step=77, rows=None)._replace(**named_samples(samples))
    trained.records = [one for one in trained.records if not isinstance(one, Batch)] + [named]
    with trained.store(tmp_path / "data") as store:
        for sealed in (False, True):
            if sealed:
                store.seal()
            for sample in samples:
                (found,) = lineage_of_sample(store, RUN, str(sample), EVER, zone=UTC)["updates"]
                assert (found["step"], found["batch"]) == (77, "3/0/999")
            assert lineage_of_sample(store, RUN, "0007", EVER, zone=UTC)["updates"] == []
            assert lineage_of_step(store, RUN, 77, EVER, zone=UTC)["updates"][0]["samples"] == [*map(str, samples)]
