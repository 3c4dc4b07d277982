"""Loaders and data sets of other libraries: which samples their batches had, and when the samples are unknown."""

from __future__ import annotations

import io
import tarfile

import pytest

torch = pytest.importorskip("torch", reason="make setup installs torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from tests.support.training_processes import watch_rank  # noqa: E402

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]  # warnings of the libraries
WORKERS = pytest.mark.parametrize("workers", [0, 2])


class Rows(Dataset):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, 1.0])


def trained_with(batches, rows_of, *, model=None, steps=None):
    """Trains with copies of the batches, as on a GPU; returns what each step was trained with."""
    model = model or nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trained = []
    for batch in batches:
        x = rows_of(batch).float()
        model(x.clone() / 100).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        trained.append([int(row) for row in x[:, 0]])
        if len(trained) == steps:
            break
    return trained


def samples(watched):
    batches = watched.messages("batch")
    assert [batch["step"] for batch in batches] == list(range(len(batches)))
    return [batch.get("samples") for batch in batches]


# -- torchdata ---------------------------------------------------------------------------------------------------------


@WORKERS
def test_stateful_loader_resumes_in_the_middle_of_an_epoch(tmp_path, workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="make test-all installs torchdata")

    def loader():
        generator = torch.Generator().manual_seed(3)
        return stateful.StatefulDataLoader(Rows(), batch_size=4, shuffle=True, num_workers=workers, generator=generator)

    with watch_rank(tmp_path / "one") as watched:
        first = loader()
        trained = trained_with(first, lambda batch: batch, steps=5)
        state = first.state_dict()
        assert samples(watched) == trained
    with watch_rank(tmp_path / "two") as watched:
        again = loader()
        again.load_state_dict(state)
        rest = trained_with(again, lambda batch: batch)
        assert len(rest) == 7
        assert sorted(row for batch in trained + rest for row in batch) == list(range(48))
        rest += trained_with(again, lambda batch: batch, model=nn.Linear(2, 1))  # and another epoch
        assert len(rest) == 19
        batches = watched.messages("batch")
    assert [batch.get("samples") for batch in batches] == rest


# -- Hugging Face datasets ---------------------------------------------------------------------------------------------


@WORKERS
def test_hugging_face_dataset_rows_are_those_before_shuffle_and_select(tmp_path, workers):
    datasets = pytest.importorskip("datasets", reason="make test-all installs datasets")
    whole = datasets.Dataset.from_dict({"x": [[float(row), 1.0] for row in range(60)]}).with_format("torch")
    part = whole.shuffle(seed=3).select(range(5, 45))
    with watch_rank(tmp_path) as watched:
        loader = DataLoader(part, batch_size=4, shuffle=True, num_workers=workers)
        trained = trained_with(loader, lambda batch: batch["x"])
        assert samples(watched) == trained
        assert len(trained) == 10
        names = {batch["dataset"] for batch in watched.messages("batch")}
    assert len(names) == 1
    assert names.pop().endswith(part._fingerprint)


def test_hugging_face_stream_is_named_by_a_hash_of_its_content(tmp_path):
    datasets = pytest.importorskip("datasets", reason="make test-all installs datasets")
    whole = datasets.Dataset.from_dict({"x": [[float(row), 1.0] for row in range(40)]})
    stream = whole.to_iterable_dataset().shuffle(seed=3, buffer_size=16).with_format("torch")
    with watch_rank(tmp_path) as watched:
        trained = trained_with(DataLoader(stream, batch_size=4), lambda batch: batch["x"])
        reported = samples(watched)
    assert len(reported) == len(trained) == len({name for (name,) in reported}) == 10
    assert all(name.startswith("hash:") for (name,) in reported)


# -- WebDataset --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    for number in range(4):
        with tarfile.open(folder / f"part-{number}.tar", "w") as shard:
            for row in range(12 * number, 12 * number + 12):
                text = str(row).encode()
                member = tarfile.TarInfo(f"{row:03d}.row.txt")
                member.size = len(text)
                shard.addfile(member, io.BytesIO(text))
    return f"{folder}/part-{{0..3}}.tar"


def pipeline(shards):
    webdataset = pytest.importorskip("webdataset", reason="make test-all installs webdataset")
    found = webdataset.WebDataset(shards, shardshuffle=False).shuffle(8).decode()
    return webdataset, found.map(lambda sample: {**sample, "x": torch.tensor([float(sample["row.txt"]), 1.0])})


@WORKERS
def test_webdataset_samples_are_named_by_shard_and_key(tmp_path, shards, workers):
    _, data = pipeline(shards)
    with watch_rank(tmp_path) as watched:
        loader = DataLoader(data.batched(4), batch_size=None, num_workers=workers)
        trained = trained_with(loader, lambda batch: torch.as_tensor(batch["x"]))
        reported = samples(watched)
    assert reported == [[f"part-{row // 12}.tar/{row:03d}" for row in rows] for rows in trained]
    assert len(reported) == 12


@WORKERS
def test_webdataset_tuples_are_named_by_their_key(tmp_path, shards, workers):
    webdataset, data = pipeline(shards)
    with watch_rank(tmp_path) as watched:
        loader = webdataset.WebLoader(data.to_tuple("x", "__key__").batched(4), batch_size=None, num_workers=workers)
        trained = trained_with(loader, lambda batch: batch[0])
        reported = samples(watched)
    assert reported == [[f"{row:03d}" for row in rows] for rows in trained]


@WORKERS
def test_webdataset_without_keys_is_named_by_a_hash_of_its_content(tmp_path, shards, workers):
    _, data = pipeline(shards)
    with watch_rank(tmp_path) as watched:
        loader = DataLoader(data.to_tuple("x").batched(4), batch_size=None, num_workers=workers)
        trained = trained_with(loader, lambda batch: batch[0])
        reported = samples(watched)
    assert len(trained) == len({name for (name,) in reported}) == 12
    assert all(name.startswith("hash:") for (name,) in reported)


def test_rebatched_samples_are_unknown(tmp_path, shards):
    webdataset, data = pipeline(shards)
    with watch_rank(tmp_path) as watched:
        loader = webdataset.WebLoader(data.to_tuple("x", "__key__").batched(4), batch_size=None)
        mixed = loader.unbatched().shuffle(8).batched(4)
        trained = trained_with(mixed, lambda batch: batch[0])
        reported = [batch.get("samples") for batch in watched.messages("batch")]
    assert len(trained) == 12
    assert all(names is None for names in reported)
