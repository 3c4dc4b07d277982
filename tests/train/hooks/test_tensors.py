"""Finding tensors in batches and arguments."""

from __future__ import annotations

from types import SimpleNamespace

from pyrometer.train.hooks.tensors import MAX_DEPTH, MAX_TENSORS, collect_tensors, local_loss


class Tensor:
    """A stand-in: the functions only look at the type."""


def collected(value: object) -> list[Tensor]:
    found: list[Tensor] = []
    collect_tensors(value, Tensor, found)
    return found


def test_collect_tensors_looks_into_lists_tuples_and_mappings():
    one, two, three = Tensor(), Tensor(), Tensor()
    assert collected(one) == [one]
    assert collected({"x": [one, "text"], "y": (two, {"z": three}), "n": None}) == [one, two, three]
    assert collected("text") == []


def test_collect_tensors_has_limits():
    assert len(collected([Tensor() for _ in range(2 * MAX_TENSORS)])) == MAX_TENSORS
    nested: object = Tensor()
    for _ in range(MAX_DEPTH):
        nested = [nested]
    assert len(collected(nested)) == 1
    assert collected([nested]) == []


def test_local_loss_of_a_distributed_tensor_needs_the_whole_value():
    local = Tensor()
    assert local_loss(local, Tensor) is local
    assert local_loss(0.5, Tensor) is None
    for replicated, loss in ((True, local), (False, None)):
        placement = SimpleNamespace(is_replicate=lambda replicated=replicated: replicated)
        assert local_loss(SimpleNamespace(placements=[placement], to_local=lambda: local), Tensor) is loss
