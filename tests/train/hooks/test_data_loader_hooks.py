"""Data loaders in this process. `tests/torch/test_lineage.py` has workers, prefetching and more."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="make setup installs torch")
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from tests.support.training_processes import watch_rank  # noqa: E402


def test_batches_have_the_rows_that_the_sampler_returned(tmp_path):
    data = TensorDataset(torch.ones(12, 4))
    model = torch.nn.Linear(4, 1)
    with watch_rank(tmp_path) as watched:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (x,) in DataLoader(data, batch_size=4):
            model(x).sum().backward()
            optimizer.step()
        batches = watched.messages("batch")
        amounts = watched.amounts(1)
    assert [batch["samples"] for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert [batch["step"] for batch in batches] == [0, 1, 2]
    assert {(batch["dataset"], batch["loader"], batch["epoch"]) for batch in batches} == {("TensorDataset", 0, 0)}
    assert amounts["data"] > 0


def test_loader_works_without_a_rank(tmp_path):
    data = TensorDataset(torch.arange(4.0))
    with watch_rank(tmp_path) as watched:
        watched.close()
        assert [x.tolist() for (x,) in DataLoader(data, batch_size=2)] == [[0.0, 1.0], [2.0, 3.0]]


def test_failing_data_set_raises_the_error_of_the_program(tmp_path):
    class Broken(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            raise KeyError("row 0")

    with watch_rank(tmp_path) as watched:
        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        with pytest.raises(KeyError, match="row 0"):
            next(iter(DataLoader(Broken())))
        assert not watched.rank.recorder.inside
        assert watched.hooks.rank is not None
