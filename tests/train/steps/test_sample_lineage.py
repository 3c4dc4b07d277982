"""Pairs of batches and micro-batches. `tests/torch/test_lineage.py` has real loaders and loops."""

from __future__ import annotations

from pyrometer.train.steps.sample_lineage import MAX_QUEUED_BATCHES, Lineage, WatchedLoader


class Rows:
    pass


def train(lineage: Lineage, loader: WatchedLoader, number: int) -> None:
    """One step on one batch, whose sample has the number of the step."""
    lineage.before_draw(loader)
    lineage.drawn(loader, number, [number], ())
    lineage.forward(number, number, [], gradients=True)
    lineage.backward(number, number)


def pairs(lineage: Lineage) -> list[tuple[int, int, object]]:
    return [(used.number, used.micro_batch, used.drawn.samples) for used in lineage.used]


def test_batches_are_paired_with_the_steps_that_follow_them():
    lineage, rows = Lineage(), Rows()
    loader = lineage.loader(rows)
    loader.begin_epoch()
    for number in range(5):
        train(lineage, loader, number)
    loader.exhausted()
    lineage.finish()
    assert pairs(lineage) == [(number, 0, [number]) for number in range(5)]


def test_data_that_is_only_evaluated_is_not_paired():
    lineage, rows = Lineage(), Rows()
    loader = lineage.loader(rows)
    loader.begin_epoch()
    for number in range(3):
        lineage.before_draw(loader)
        lineage.drawn(loader, number, [number], ())
        lineage.forward(0, number, [], gradients=False)
    loader.exhausted()
    lineage.finish()
    assert pairs(lineage) == []


def test_loader_keeps_a_weak_reference_and_the_name_of_its_data_set():
    lineage, rows = Lineage(), Rows()
    loader = lineage.loader(rows)
    assert loader.dataset is rows
    del rows
    assert loader.dataset is None
    assert loader.name == "Rows"


def test_queue_of_unused_batches_is_bounded():
    lineage, rows = Lineage(), Rows()
    loader = lineage.loader(rows)
    loader.begin_epoch()
    for number in range(2 * MAX_QUEUED_BATCHES):
        lineage.drawn(loader, number, [number], ())
    assert len(loader.queue) <= MAX_QUEUED_BATCHES


def test_new_epoch_resets_the_count_of_drawn_batches():
    lineage, rows = Lineage(), Rows()
    loader = lineage.loader(rows)
    for epoch in range(2):
        loader.begin_epoch()
        assert (loader.epoch, loader.drawn_count) == (epoch, 0)
        loader.missed()
        assert loader.drawn_count == 1
