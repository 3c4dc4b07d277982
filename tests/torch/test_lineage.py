"""Which rows each micro-batch used: what the SDK says against what the model saw, over loaders and loops of all kinds.

Every sample carries its own row, and the model writes down which rows reach it. A loop that copies its batches is what
every loop is on a GPU: no tensor of the loader ever reaches the model.
"""

from __future__ import annotations

import itertools
import random
import threading
import time

import pytest

torch = pytest.importorskip("torch", reason="make setup installs torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset  # noqa: E402

from tests.support.training_processes import watch_rank  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded.*fork:DeprecationWarning"
)  # workers, from Python 3.12 on
EVERY = pytest.mark.parametrize("copies", [False, True], ids=["as it came", "copied"])


class Rows(Dataset):
    """Samples that say which row they are; some take longer."""

    def __init__(self, size: int = 48, nap_s: float = 0.0) -> None:
        self.size, self.nap_s = size, nap_s

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.nap_s * (index % 3))
        return torch.tensor([index, 1.0])


class Net(nn.Module):
    """A model that remembers which rows it was trained with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.saw: list[list[int]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            self.saw.append([int(row) for row in x[:, 0]])
        return self.layer(x / 100).square().mean()


class Loop:
    """A training loop, in pieces that tests put together."""

    def __init__(self, copies: bool) -> None:
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.copies = copies
        self.trained: list[tuple[int, int, list[int]]] = []
        self.step_number = self.micro_batch = 0

    def backward(self, x: torch.Tensor) -> None:
        self.model(x.clone() if self.copies else x).backward()
        self.trained.append((self.step_number, self.micro_batch, self.model.saw[-1]))
        self.micro_batch += 1

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step_number, self.micro_batch = self.step_number + 1, 0

    def train(self, x: torch.Tensor) -> None:
        self.backward(x)
        self.step()

    def evaluate(self, batches) -> None:
        with torch.no_grad():
            for x in batches:
                self.model(x)


def reported_batches(watched) -> list[tuple[int, int, list[int | str] | None]]:
    return [(batch["step"], batch["micro_batch"], batch.get("samples")) for batch in watched.messages("batch")]


def unknown(trained):
    return [(step, micro_batch, None) for step, micro_batch, _ in trained]


@EVERY
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 2, "in_order": False},
        {"batch_size": None, "sampler": [[5, 1, 3], [2, 0, 4]]},
    ],
    ids=["no workers", "workers", "persistent workers", "any order", "batches of the sampler's own"],
)
def test_map_style_loader_reports_the_samples_of_every_batch(tmp_path, options, copies):
    nap_s = 0.002 if "in_order" in options else 0.0
    data = Rows(nap_s=nap_s)
    if "sampler" in options:
        data.__class__ = type("Lists", (Rows,), {"__getitem__": lambda _, rows: torch.tensor([[r, 1.0] for r in rows])})
    else:
        options = {"batch_size": 4, "shuffle": True, **options}
    with watch_rank(tmp_path) as watched:
        loop, loader = Loop(copies), DataLoader(data, **options)
        for _ in range(3):
            for x in loader:
                loop.train(x)
        batches = watched.messages("batch")
    assert [(b["step"], b["micro_batch"], b["samples"]) for b in batches] == loop.trained
    assert len({(b["loader"], b["epoch"], b["send_index"]) for b in batches}) == len(batches)
    assert {b["epoch"] for b in batches} == {0, 1, 2}


def test_nested_subsets_are_reported_as_rows_of_the_whole_data_set(tmp_path):
    whole = Rows(64)
    part = Subset(Subset(whole, list(range(63, 0, -2))), torch.arange(20).tolist())
    with watch_rank(tmp_path) as watched:
        loop = Loop(copies=True)
        for x in DataLoader(part, batch_size=4, shuffle=True):
            loop.train(x)
        batches = watched.messages("batch")
    assert [(b["step"], b["micro_batch"], b["samples"]) for b in batches] == loop.trained
    assert {b["dataset"] for b in batches} == {"Rows"}


@pytest.mark.parametrize("is_part", [False, True])
def test_freed_data_set_keeps_its_name_and_has_unknown_rows(tmp_path, is_part):
    """A short program has ended before its batches are published."""
    with watch_rank(tmp_path) as watched:
        loop = Loop(copies=True)
        for x in DataLoader(Subset(Rows(64), range(40, 60)) if is_part else Rows(20), batch_size=4, shuffle=True):
            loop.train(x)
        batches = watched.messages("batch")
    assert {b["dataset"] for b in batches} == {"Rows"}
    reported = [(b["step"], b["micro_batch"], b.get("samples")) for b in batches]
    assert reported == (unknown(loop.trained) if is_part else loop.trained)


def test_properties_of_a_data_set_are_not_read(tmp_path):
    """Files that are opened before workers are forked are shared by all of them: HDF5 reads rubbish then."""
    opened = []

    class Lazily(Rows):
        info = indices = _indices = _fingerprint = dataset = pipeline = property(opened.append)

    with watch_rank(tmp_path) as watched:
        loop = Loop(copies=True)
        for x in DataLoader(Lazily(20), batch_size=4):
            loop.train(x)
        batches = watched.messages("batch")
    assert {b["dataset"] for b in batches} == {"Lazily"}
    assert len(batches) == 5
    assert opened == []


@EVERY
def test_training_loop_may_run_in_another_thread(tmp_path, copies):
    loops = []

    def train():
        loops.append(Loop(copies))
        for x in DataLoader(data, batch_size=4, shuffle=True):
            loops[0].train(x)

    data = Rows(20)
    with watch_rank(tmp_path) as watched:
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        assert reported_batches(watched) == loops[0].trained


def test_batch_taken_by_another_thread_makes_the_rest_unknown(tmp_path):
    data = Rows(20)
    with watch_rank(tmp_path) as watched:
        loop, batches = Loop(copies=True), iter(DataLoader(data, batch_size=4, shuffle=True))
        thread = threading.Thread(target=lambda: next(batches))
        thread.start()
        thread.join()
        for x in batches:
            loop.train(x)
        assert reported_batches(watched) == unknown(loop.trained)


@EVERY
def test_batches_drawn_in_groups_are_paired_with_their_steps(tmp_path, copies):
    with watch_rank(tmp_path) as watched:
        loop = Loop(copies)
        for _ in range(2):
            batches = iter(DataLoader(Rows(44), batch_size=4, shuffle=True))
            while group := list(itertools.islice(batches, 4)):  # the last one has three
                for x in group:
                    loop.backward(x)
                loop.step()
        assert reported_batches(watched) == loop.trained


def fetching_ahead(loader):
    """As prefetchers do: a batch is drawn before the one before it is handed out."""
    batches = iter(loader)
    current = next(batches)
    for following in batches:
        yield current
        current = following
    yield current


def test_prefetched_batches_are_paired_by_their_tensors(tmp_path):
    loader = DataLoader(Rows(), batch_size=4, shuffle=True)
    with watch_rank(tmp_path) as watched:
        loop = Loop(copies=False)
        endless = fetching_ahead(
            itertools.chain.from_iterable(loader for _ in range(3))
        )  # over the ends of epochs, too
        for x in endless:
            loop.train(x)
        reported = reported_batches(watched)
    assert reported[1:] == loop.trained[1:]
    assert reported[0] in (
        loop.trained[0],
        *unknown(loop.trained[:1]),
    )  # the model is found at the end of the first step


def test_prefetched_copies_are_unknown_and_never_wrong(tmp_path):
    loader = DataLoader(Rows(), batch_size=4, shuffle=True)
    with watch_rank(tmp_path) as watched:
        loop = Loop(copies=True)
        for x in fetching_ahead(itertools.chain.from_iterable(loader for _ in range(3))):
            loop.train(x)
        reported = reported_batches(watched)
    assert reported
    assert all(samples is None for _, _, samples in reported)


@pytest.mark.parametrize("skipped", [(0, 1, 2), (5,), (5, 9, 11)], ids=str)
def test_discarded_batch_is_never_assigned_to_a_step(tmp_path, skipped):
    """By copies it is unknown until the epoch ends; where tensors are the same it is known all the same."""
    for copies in (False, True):
        with watch_rank(tmp_path / str(copies)) as watched:
            loop, loader = Loop(copies), DataLoader(Rows(), batch_size=4, shuffle=True)
            for epoch in range(2):
                for number, x in enumerate(loader):
                    if epoch or number not in skipped:
                        loop.train(x)
            reported = {(step, micro_batch): samples for step, micro_batch, samples in reported_batches(watched)}
        right = {(step, micro_batch): samples for step, micro_batch, samples in loop.trained}
        first, steps = skipped[0], 12 - len(skipped)
        assert all(samples is None or samples == right[at] for at, samples in reported.items())
        known = [step for (step, _), samples in reported.items() if samples is not None]
        assert set(known) >= set(range(first)) | set(range(steps, steps + 12))
        if not copies:
            assert set(known) >= set(range(1, steps + 12))


def test_batch_discarded_from_a_group_is_never_assigned_to_a_step(tmp_path):
    with watch_rank(tmp_path) as watched:
        loop = Loop(copies=True)
        batches = iter(DataLoader(Rows(64), batch_size=4, shuffle=True))
        while group := list(itertools.islice(batches, 4)):
            for number, x in enumerate(group):
                if (loop.step_number, number) != (1, 1):
                    loop.backward(x)
            loop.step()
        reported = reported_batches(watched)
    assert reported[:4] == loop.trained[:4]
    assert reported[4:] == unknown(loop.trained[4:])


@EVERY
def test_zipped_loaders_and_reused_batches_are_paired_with_their_steps(tmp_path, copies):
    with watch_rank(tmp_path) as watched:
        loop = Loop(copies)
        pairs = zip(*(DataLoader(Rows(), batch_size=4, shuffle=True) for _ in range(2)), strict=True)
        for one, other in pairs:
            loop.train(torch.cat((one, other)))
        for x in DataLoader(Rows(), batch_size=4, shuffle=True):
            loop.backward(x)
            loop.backward(x)  # as a GAN does, or whoever divides a batch
            loop.step()
        reported = watched.messages("batch")
    together = {}
    for batch in reported:
        together.setdefault(batch["step"], []).extend(batch["samples"])
    assert [together[step] for step in range(12)] == [rows for _, _, rows in loop.trained[:12]]
    assert [together[step] for step in range(12, 24)] == [rows for _, _, rows in loop.trained[12::2]]


@EVERY
@pytest.mark.parametrize("batches", [1, 3, None])
def test_evaluation_batches_are_not_training_batches(tmp_path, copies, batches):
    """Before the first step the model is unknown, and loops over evaluation data may end anywhere."""
    with watch_rank(tmp_path) as watched:
        loop = Loop(copies)
        loader, other = (DataLoader(Rows(), batch_size=4, shuffle=True) for _ in range(2))
        next(iter(loader))  # only to see its shape
        loop.evaluate(itertools.islice(other, batches))
        for _ in range(2):
            for number, x in enumerate(loader):
                loop.train(x)
                if number % 4 == 3:
                    loop.evaluate(itertools.islice(other, batches))
        loop.evaluate(loader)
        reported = reported_batches(watched)
    assert reported == loop.trained


def test_batches_that_evaluate_an_untrained_model_are_not_training_batches(tmp_path):
    """An average of the weights, say: its calls are not watched."""
    with watch_rank(tmp_path) as watched:
        loop, average = Loop(copies=True), Net()
        loader, other = (DataLoader(Rows(), batch_size=4, shuffle=True) for _ in range(2))
        for number, x in enumerate(loader):
            loop.train(x)
            if number % 4 == 3:
                with torch.no_grad():
                    for y in itertools.islice(other, 1 + number // 4):
                        average(y)
        assert reported_batches(watched) == loop.trained


class Stream(IterableDataset):
    """Samples without rows."""

    def __init__(self, size: int = 24) -> None:
        self.size = size

    def __iter__(self):
        order = random.Random(7).sample(range(self.size), self.size)
        worker = torch.utils.data.get_worker_info()
        first, every = (worker.id, worker.num_workers) if worker else (0, 1)
        return (torch.tensor([row, 1.0]) for row in order[first::every])


@EVERY
@pytest.mark.parametrize("workers", [0, 2])
def test_streams_are_named_by_a_hash_of_their_content(tmp_path, copies, workers):
    with watch_rank(tmp_path) as watched:
        loop, loader = Loop(copies), DataLoader(Stream(), batch_size=4, num_workers=workers)
        for _ in range(2):
            for x in loader:
                loop.train(x)
        reported = reported_batches(watched)
    hashes = {}
    for (step, micro_batch, (name,)), (*at, rows) in zip(reported, loop.trained, strict=True):
        assert [step, micro_batch] == at
        assert name.startswith("hash:")
        hashes.setdefault(tuple(rows), set()).add(name)
    assert len(hashes) == 6  # both epochs have the same batches
    assert len(set.union(*hashes.values())) == 6


def test_model_trains_without_a_loader(tmp_path):
    with watch_rank(tmp_path) as watched:
        loop = Loop(copies=False)
        for number in range(4):
            loop.train(torch.tensor([[number, 1.0]]))
        assert reported_batches(watched) == []
