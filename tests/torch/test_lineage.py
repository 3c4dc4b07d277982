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


def told(watched) -> list[tuple[int, int, list[int | str] | None]]:
    return [(batch["step"], batch["micro_batch"], batch.get("samples")) for batch in watched.messages_of("batch")]


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
def test_every_batch_of_a_map_style_loader(tmp_path, options, copies):
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
        batches = watched.messages_of("batch")
    assert [(b["step"], b["micro_batch"], b["samples"]) for b in batches] == loop.trained
    assert len({(b["loader"], b["epoch"], b["send_index"]) for b in batches}) == len(batches)
    assert {b["epoch"] for b in batches} == {0, 1, 2}


def test_subsets_of_subsets_are_rows_of_the_whole(tmp_path):
    whole = Rows(64)
    part = Subset(Subset(whole, list(range(63, 0, -2))), torch.arange(20).tolist())
    with watch_rank(tmp_path) as watched:
        loop = Loop(copies=True)
        for x in DataLoader(part, batch_size=4, shuffle=True):
            loop.train(x)
        batches = watched.messages_of("batch")
    assert [(b["step"], b["micro_batch"], b["samples"]) for b in batches] == loop.trained
    assert {b["dataset"] for b in batches} == {"Rows"}


@pytest.mark.parametrize("is_part", [False, True])
def test_data_that_is_gone_before_anybody_looked_has_its_name_and_no_row_is_guessed(tmp_path, is_part):
    """A short program is over before its batches are handed on."""
    with watch_rank(tmp_path) as watched:
        loop = Loop(copies=True)
        for x in DataLoader(Subset(Rows(64), range(40, 60)) if is_part else Rows(20), batch_size=4, shuffle=True):
            loop.train(x)
        batches = watched.messages_of("batch")
    assert {b["dataset"] for b in batches} == {"Rows"}
    said = [(b["step"], b["micro_batch"], b.get("samples")) for b in batches]
    assert said == (unknown(loop.trained) if is_part else loop.trained)


def test_what_data_opens_when_it_is_asked_for_is_not_opened_by_us(tmp_path):
    """Files that are opened before workers are forked are shared by all of them: HDF5 reads rubbish then."""
    opened = []

    class Lazily(Rows):
        info = indices = _indices = _fingerprint = dataset = pipeline = property(opened.append)

    with watch_rank(tmp_path) as watched:
        loop = Loop(copies=True)
        for x in DataLoader(Lazily(20), batch_size=4):
            loop.train(x)
        batches = watched.messages_of("batch")
    assert {b["dataset"] for b in batches} == {"Lazily"}
    assert len(batches) == 5
    assert opened == []


@EVERY
def test_a_loop_in_another_thread_than_the_one_that_began(tmp_path, copies):
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
        assert told(watched) == loops[0].trained


def test_batches_that_another_thread_took_make_the_rest_unknown(tmp_path):
    data = Rows(20)
    with watch_rank(tmp_path) as watched:
        loop, batches = Loop(copies=True), iter(DataLoader(data, batch_size=4, shuffle=True))
        thread = threading.Thread(target=lambda: next(batches))
        thread.start()
        thread.join()
        for x in batches:
            loop.train(x)
        assert told(watched) == unknown(loop.trained)


@EVERY
def test_batches_that_are_drawn_together_and_used_one_by_one(tmp_path, copies):
    with watch_rank(tmp_path) as watched:
        loop = Loop(copies)
        for _ in range(2):
            batches = iter(DataLoader(Rows(44), batch_size=4, shuffle=True))
            while group := list(itertools.islice(batches, 4)):  # the last one has three
                for x in group:
                    loop.backward(x)
                loop.step()
        assert told(watched) == loop.trained


def fetching_ahead(loader):
    """As prefetchers do: a batch is drawn before the one before it is handed out."""
    batches = iter(loader)
    current = next(batches)
    for following in batches:
        yield current
        current = following
    yield current


def test_whoever_fetches_ahead_is_seen_through_where_tensors_are_the_same(tmp_path):
    loader = DataLoader(Rows(), batch_size=4, shuffle=True)
    with watch_rank(tmp_path) as watched:
        loop = Loop(copies=False)
        endless = fetching_ahead(
            itertools.chain.from_iterable(loader for _ in range(3))
        )  # over the ends of epochs, too
        for x in endless:
            loop.train(x)
        said = told(watched)
    assert said[1:] == loop.trained[1:]
    assert said[0] in (loop.trained[0], *unknown(loop.trained[:1]))  # the model is found at the end of the first step


def test_whoever_fetches_ahead_unseen_makes_batches_unknown_and_never_wrong(tmp_path):
    loader = DataLoader(Rows(), batch_size=4, shuffle=True)
    with watch_rank(tmp_path) as watched:
        loop = Loop(copies=True)
        for x in fetching_ahead(itertools.chain.from_iterable(loader for _ in range(3))):
            loop.train(x)
        said = told(watched)
    assert said
    assert all(samples is None for _, _, samples in said)


@pytest.mark.parametrize("skipped", [(0, 1, 2), (5,), (5, 9, 11)], ids=str)
def test_a_batch_that_is_thrown_away_is_never_anybodys(tmp_path, skipped):
    """By copies it is unknown until the epoch ends; where tensors are the same it is known all the same."""
    for copies in (False, True):
        with watch_rank(tmp_path / str(copies)) as watched:
            loop, loader = Loop(copies), DataLoader(Rows(), batch_size=4, shuffle=True)
            for epoch in range(2):
                for number, x in enumerate(loader):
                    if epoch or number not in skipped:
                        loop.train(x)
            said = {(step, micro_batch): samples for step, micro_batch, samples in told(watched)}
        right = {(step, micro_batch): samples for step, micro_batch, samples in loop.trained}
        first, steps = skipped[0], 12 - len(skipped)
        assert all(samples is None or samples == right[at] for at, samples in said.items())
        known = [step for (step, _), samples in said.items() if samples is not None]
        assert set(known) >= set(range(first)) | set(range(steps, steps + 12))
        if not copies:
            assert set(known) >= set(range(1, steps + 12))


def test_a_batch_that_is_thrown_away_in_a_group_is_never_anybodys(tmp_path):
    with watch_rank(tmp_path) as watched:
        loop = Loop(copies=True)
        batches = iter(DataLoader(Rows(64), batch_size=4, shuffle=True))
        while group := list(itertools.islice(batches, 4)):
            for number, x in enumerate(group):
                if (loop.step_number, number) != (1, 1):
                    loop.backward(x)
            loop.step()
        said = told(watched)
    assert said[:4] == loop.trained[:4]
    assert said[4:] == unknown(loop.trained[4:])


@EVERY
def test_two_loaders_side_by_side_and_one_that_trains_twice_with_each_batch(tmp_path, copies):
    with watch_rank(tmp_path) as watched:
        loop = Loop(copies)
        pairs = zip(*(DataLoader(Rows(), batch_size=4, shuffle=True) for _ in range(2)), strict=True)
        for one, other in pairs:
            loop.train(torch.cat((one, other)))
        for x in DataLoader(Rows(), batch_size=4, shuffle=True):
            loop.backward(x)
            loop.backward(x)  # as a GAN does, or whoever divides a batch
            loop.step()
        said = watched.messages_of("batch")
    together = {}
    for batch in said:
        together.setdefault(batch["step"], []).extend(batch["samples"])
    assert [together[step] for step in range(12)] == [rows for _, _, rows in loop.trained[:12]]
    assert [together[step] for step in range(12, 24)] == [rows for _, _, rows in loop.trained[12::2]]


@EVERY
@pytest.mark.parametrize("batches", [1, 3, None])
def test_data_that_evaluates_is_not_data_that_trains(tmp_path, copies, batches):
    """Before the first step nobody knows the model yet, and loops over evaluation data end where they like."""
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
        said = told(watched)
    assert said == loop.trained


def test_data_that_evaluates_a_model_that_is_not_trained_itself(tmp_path):
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
        assert told(watched) == loop.trained


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
def test_streams_are_told_by_their_content(tmp_path, copies, workers):
    with watch_rank(tmp_path) as watched:
        loop, loader = Loop(copies), DataLoader(Stream(), batch_size=4, num_workers=workers)
        for _ in range(2):
            for x in loader:
                loop.train(x)
        said = told(watched)
    hashes = {}
    for (step, micro_batch, (name,)), (*at, rows) in zip(said, loop.trained, strict=True):
        assert [step, micro_batch] == at
        assert name.startswith("hash:")
        hashes.setdefault(tuple(rows), set()).add(name)
    assert len(hashes) == 6  # both epochs have the same batches
    assert len(set.union(*hashes.values())) == 6


def test_the_model_needs_no_loader(tmp_path):
    with watch_rank(tmp_path) as watched:
        loop = Loop(copies=False)
        for number in range(4):
            loop.train(torch.tensor([[number, 1.0]]))
        assert told(watched) == []
