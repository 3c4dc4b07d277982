"""The samples and tokens of a step, from calls of root modules."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="make setup installs torch")

from pyrometer.train.steps.ring import COLUMNS, SAMPLES, TOKENS  # noqa: E402
from pyrometer.train.steps.step_work import Work  # noqa: E402


def step(work: Work, *micro_batches: list[tuple[int, list]]) -> tuple[int, int]:
    """Samples and tokens of a step: each micro-batch is a list of calls, as module and tensors."""
    row = [0] * COLUMNS
    for calls in micro_batches:
        for module, tensors in calls:
            work.forward(module, tensors, training=True)
        work.backward()
    work.optimizer(row)
    return row[SAMPLES], row[TOKENS]


def test_one_forward_counts_its_first_dimension():
    assert step(Work(), [(1, [torch.ones(8, 4)])]) == (8, 0)


def test_two_dimensional_integers_are_tokens():
    assert step(Work(), [(1, [torch.ones(4, 16, dtype=torch.int64)])]) == (4, 64)


def test_scalar_inputs_are_skipped():
    assert step(Work(), [(1, [torch.tensor(3.0), torch.ones(8, 4)])]) == (8, 0)
    assert step(Work(), [(1, [torch.tensor(3.0)])]) == (0, 0)


def test_accumulated_micro_batches_are_added():
    assert step(Work(), *([(1, [torch.ones(8, 4)])] for _ in range(3))) == (24, 0)


def test_modules_of_one_micro_batch_share_their_samples():
    assert step(Work(), [(1, [torch.ones(8, 4)]), (2, [torch.ones(8, 2)])]) == (8, 0)


def test_micro_batches_of_different_modules_share_their_samples():
    assert step(Work(), [(1, [torch.ones(8, 4)])], [(2, [torch.ones(8, 4)])]) == (8, 0)


def test_repeated_tensor_is_counted_once_after_the_first_step():
    work = Work()
    for _ in range(2):
        x = torch.ones(8, 4)
        counted = step(work, [(1, [x])], [(1, [x])])
    assert counted == (8, 0)


def test_reported_amounts_replace_counted_ones():
    work = Work()
    work.reported.add("samples")
    assert step(work, [(1, [torch.ones(4, 16, dtype=torch.int64)])]) == (0, 64)


def test_step_without_calls_has_no_samples():
    assert step(Work()) == (0, 0)
