"""What one rank's hooks see of real PyTorch loops: phases that add up, steps, losses, saves, resumes."""

from __future__ import annotations

import copy
import gc
import io
import math
import pickle
import threading
import time
import weakref

import pytest

torch = pytest.importorskip("torch", reason="make setup installs torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from pyrometer.train.steps import ring  # noqa: E402
from pyrometer.train.steps.sample_lineage import MAX_LOADERS  # noqa: E402
from tests.support.training_processes import watch_rank  # noqa: E402

NAP_S = 0.02
NAP_NS = int(NAP_S * 1e9)


class Net(nn.Module):
    """A model that can be slow where it is asked to."""

    def __init__(self, forward_s: float = 0.0, backward_s: float = 0.0) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 2)
        self.forward_s, self.backward_s = forward_s, backward_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.forward_s)
        hidden = torch.relu(self.first(x))
        if self.backward_s and hidden.requires_grad:
            hidden.register_hook(lambda _: time.sleep(self.backward_s))
        return self.last(hidden)


class Rows(torch.utils.data.Dataset):
    def __init__(self, size: int = 64, nap_s: float = 0.0) -> None:
        self.x, self.y = torch.randn(size, 8), torch.randint(0, 2, (size,))
        self.nap_s = nap_s

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.nap_s and index % 8 == 0:
            time.sleep(self.nap_s)
        return self.x[index], self.y[index]


def train(model, loader, optimizer=None, *, epochs=1, copy_s=0.0, clip_s=0.0, after_s=0.0):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for x, y in loader:
            time.sleep(copy_s)
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            time.sleep(clip_s)
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(after_s)
    return optimizer


@pytest.mark.parametrize(
    ("phase", "model", "data", "loop"),
    [
        ("data", {}, {"nap_s": NAP_S}, {}),
        ("copy", {}, {}, {"copy_s": NAP_S}),
        ("forward", {"forward_s": NAP_S}, {}, {}),
        ("backward", {"backward_s": NAP_S}, {}, {}),
        ("optimizer", {}, {}, {"clip_s": NAP_S}),
        ("other", {}, {}, {"after_s": NAP_S}),
    ],
)
def test_delay_is_counted_in_its_phase(tmp_path, phase, model, data, loop):
    with watch_rank(tmp_path) as watched:
        train(Net(**model), DataLoader(Rows(**data), batch_size=8), **loop)
        watched.close()
        steps = [watched.amounts(number) for number in range(2, 8)]
    assert all(amounts[phase] >= NAP_NS for amounts in steps)
    least = {name: min(amounts[name] for amounts in steps) for name in steps[0]}  # whatever else the machine does
    assert max(amount for name, amount in least.items() if name != phase) < NAP_NS / 4


def test_phases_add_up_to_the_step_time(tmp_path):
    with watch_rank(tmp_path) as watched:
        train(Net(), DataLoader(Rows(), batch_size=8), epochs=2)
        watched.close()
        begins, ends = (watched.ring.column(column, 1, 16) for column in (11, 12))
        sums = [sum(watched.amounts(number).values()) for number in range(1, 16)]
    assert sums == [end - begin for begin, end in zip(begins, ends, strict=True)]
    assert list(begins[1:]) == list(ends[:-1])


def test_gradient_accumulation_is_one_step_with_several_micro_batches(tmp_path):
    model = Net()
    with watch_rank(tmp_path) as watched:
        optimizer = torch.optim.AdamW(model.parameters())
        for number, (x, y) in enumerate(DataLoader(Rows(64), batch_size=4)):
            (nn.functional.cross_entropy(model(x), y) / 4).backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
        messages = watched.close()
    batches = [message for kind, message in messages if kind == "batch"]
    assert watched.rank.recorder.count == 4
    assert [(b["step"], b["micro_batch"]) for b in batches] == [(s, m) for s in range(4) for m in range(4)]
    assert [b["samples"] for b in batches] == [list(range(4 * n, 4 * n + 4)) for n in range(16)]


def test_two_optimizers_share_a_step(tmp_path):
    model = Net()
    with watch_rank(tmp_path) as watched:
        first = torch.optim.SGD(model.first.parameters(), lr=0.01)
        last = torch.optim.AdamW(model.last.parameters())
        for x, y in DataLoader(Rows(32), batch_size=8):
            nn.functional.cross_entropy(model(x), y).backward()
            first.step()
            last.step()
        for x, y in DataLoader(Rows(32), batch_size=8):  # as a GAN does: each after its own backward
            for optimizer in (first, last):
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        watched.close()
    assert watched.rank.recorder.count == 8


def test_skipped_update_is_a_flagged_step(tmp_path):
    model = Net()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with watch_rank(tmp_path) as watched:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number, (x, y) in enumerate(DataLoader(Rows(40), batch_size=8)):
            loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            if number == 2:
                model.last.weight.grad[0, 0] = math.inf
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        messages = watched.close()
        flags = list(watched.ring.column(15, 0, 5))
    assert flags == [0, 0, 1, 0, 0]
    losses = [message["value"] for kind, message in messages if kind == "metric"]
    assert all(0.3 < loss < 1.2 for loss in losses)  # as it was before it was scaled


def test_evaluation_time_includes_its_own_data(tmp_path):
    model = Net()
    data = DataLoader(Rows(32), batch_size=8)
    with watch_rank(tmp_path) as watched:
        optimizer = train(model, data)
        with torch.no_grad():
            for x, _ in DataLoader(Rows(32, nap_s=NAP_S), batch_size=8):
                model(x)
        train(model, data, optimizer)
        watched.close()
        amounts = watched.amounts(4)
    assert amounts["evaluate"] >= 4 * NAP_NS
    assert amounts["data"] < NAP_NS
    assert watched.rank.recorder.count == 8


def test_save_is_a_checkpoint_and_resume_begins_at_its_step(tmp_path):
    model = Net()
    path = tmp_path / "last.pt"
    with watch_rank(tmp_path / "one") as watched:
        optimizer = train(model, DataLoader(Rows(32), batch_size=8), torch.optim.AdamW(model.parameters()))
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        (saved,) = (event for event in watched.messages("event") if event["kind"] == "checkpoint_saved")
    assert (saved["step"], saved["message"], int(saved["reason"])) == (4, str(path), path.stat().st_size)
    with watch_rank(tmp_path / "two") as watched:
        again = torch.optim.AdamW(model.parameters())
        again.load_state_dict(torch.load(path)["optimizer"])
        train(model, DataLoader(Rows(32), batch_size=8), again)
        messages = watched.close()
    (restored,) = (message for kind, message in messages if message.get("kind") == "restored")
    (window,) = (message for kind, message in messages if kind == "window")
    resumed = [message["resumed_step"] for kind, message in messages if kind == "run" and "resumed_step" in message]
    assert (restored["kind"], restored["step"], restored["message"]) == ("restored", 4, str(path))
    assert resumed == [4]
    assert (window["first_step"], window["steps"]) == (5, 3)


def test_garbage_collection_is_not_counted_in_the_interrupted_phase(tmp_path):
    class Collecting(Net):
        def forward(self, x):
            gc.collect()
            return super().forward(x)

    with watch_rank(tmp_path) as watched:
        train(Collecting(), DataLoader(Rows(32), batch_size=8))
        watched.close()
        amounts = watched.amounts(3)
    assert amounts["garbage"] > amounts["forward"]


def test_nonfinite_loss_is_reported(tmp_path):
    model = Net()
    with watch_rank(tmp_path) as watched:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number, (x, y) in enumerate(DataLoader(Rows(40), batch_size=8)):
            loss = nn.functional.cross_entropy(model(x), y)
            (loss * math.nan if number == 3 else loss).backward()
            optimizer.zero_grad()
            optimizer.step()
        events = [
            (event["kind"], event["step"]) for event in watched.messages("event") if event["kind"] != "configured"
        ]
    assert events == [("nonfinite_loss", 3), ("finite_loss", 4)]


def test_weights_are_the_same_with_and_without_the_sdk(tmp_path):
    def weights(watch: bool):
        torch.manual_seed(7)
        model = Net()
        data = DataLoader(Rows(64), batch_size=8, shuffle=True)
        if watch:
            with watch_rank(tmp_path):
                train(model, data, torch.optim.AdamW(model.parameters()), epochs=2)
        else:
            train(model, data, torch.optim.AdamW(model.parameters()), epochs=2)
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    assert torch.equal(weights(False), weights(True))


def test_copied_and_pickled_models_contain_no_trace_of_the_sdk(tmp_path):
    model = Net()
    with watch_rank(tmp_path):
        train(model, DataLoader(Rows(32), batch_size=8))
        file = io.BytesIO()
        torch.save(model, file)
        assert b"pyrometer" not in file.getvalue()
        assert b"pyrometer" not in pickle.dumps(copy.deepcopy(model))
        assert not model._forward_hooks
        assert not model._forward_pre_hooks


@pytest.mark.heavy
def test_sdk_does_not_change_the_number_of_compiled_graphs(tmp_path):
    from torch._dynamo.utils import counters

    def graphs(watch: bool):
        torch._dynamo.reset()
        counters.clear()
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Sequential(nn.Linear(16, 2)))
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        data = DataLoader(TensorDataset(torch.randn(32, 8), torch.randint(0, 2, (32,))), batch_size=8)
        if watch:
            with watch_rank(tmp_path) as watched:
                train(compiled, data)
                kinds = [event["kind"] for event in watched.messages("event")]
                assert "compiled" in kinds
                assert watched.amounts(0)["compile"] > watched.amounts(3)["forward"] > 0
        else:
            train(compiled, data)
        return dict(counters["stats"]), dict(counters["graph_break"])

    assert graphs(True) == graphs(False)


def test_sdk_error_disables_hooks_and_is_reported(tmp_path, monkeypatch):
    with watch_rank(tmp_path) as watched:
        monkeypatch.setattr(watched.hooks.lineage, "forward", lambda *args, **kwargs: 1 / 0)
        train(Net(), DataLoader(Rows(32), batch_size=8))
        assert watched.hooks.rank is None
        (event,) = (event for event in watched.messages("event") if event["kind"] == "sdk_error")
    assert event["reason"] == "ZeroDivisionError"


def test_flops_of_one_step_are_applied_to_all_steps(tmp_path):
    width, batch = 32, 8
    model = nn.Sequential(nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False))
    with watch_rank(tmp_path) as watched:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for _ in range(10):
            model(torch.randn(batch, width)).square().mean().backward()
            optimizer.step()
        (window,) = watched.messages("window")
    forward = 2 * 2 * batch * width * width
    backward = 3 * 2 * batch * width * width  # the first layer's input needs no gradient
    assert window["flops"] == 9 * (forward + backward)


def test_tokens_and_flops_of_a_token_model(tmp_path):
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50))
    with watch_rank(tmp_path) as watched:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for _ in range(10):
            model(torch.randint(0, 50, (4, 16))).square().mean().backward()
            optimizer.step()
        (window,) = watched.messages("window")
    assert (window["samples"], window["tokens"]) == (9 * 4, 9 * 4 * 16)
    assert window["flops"] == 9 * 4 * 16 * (2 * 8 * 50 * 3)


def test_hooked_functions_accept_keyword_arguments(tmp_path):
    model = Net()
    with watch_rank(tmp_path) as watched:
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), torch.amp.GradScaler("cpu")
        for x, y in DataLoader(Rows(32), batch_size=8):
            loss = nn.functional.cross_entropy(model(x), y)
            torch.autograd.backward(tensors=scaler.scale(outputs=loss))
            scaler.step(optimizer=optimizer)
            scaler.update()
        optimizer.load_state_dict(state_dict=optimizer.state_dict())
        torch.save(obj={"step": 4}, f=tmp_path / "last.pt")
        torch.load(f=tmp_path / "last.pt")
        events = watched.messages("event")
    assert watched.rank.recorder.count == 4
    assert [event["kind"] for event in events if event["kind"] != "configured"] == ["checkpoint_saved"]


def test_freed_models_and_data_sets_are_not_kept_alive(tmp_path):
    class Own(Net):
        pass

    with watch_rank(tmp_path) as watched:
        model, rows = Own(), Rows(32)
        train(model, DataLoader(rows, batch_size=8))
        assert "__call__" in vars(Own)
        gone = weakref.ref(model), weakref.ref(rows)
        del model, rows
        watched.rank.publish()
        gc.collect()
        assert [one() for one in gone] == [None, None]
        assert "__call__" not in vars(Own)  # as it was


def test_second_model_is_watched(tmp_path):
    class Another(Net):
        pass

    with watch_rank(tmp_path) as watched:
        for model in (Net(), Another(forward_s=NAP_S)):
            train(model, DataLoader(Rows(64), batch_size=8))
        watched.close()
        amounts = [watched.amounts(number)["forward"] for number in (10, 11, 12, 13)]
    assert min(amounts) >= NAP_NS


def test_loaders_of_earlier_epochs_are_forgotten(tmp_path):
    model, rows = Net(), Rows(16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch_rank(tmp_path) as watched:
        for _ in range(MAX_LOADERS + 4):
            train(model, DataLoader(rows, batch_size=8), optimizer)
        assert len(watched.rank.lineage.loaders) <= MAX_LOADERS
        batches = watched.messages("batch")
    steps = range(2 * (MAX_LOADERS + 4))
    assert [(batch["loader"], batch["step"]) for batch in batches] == [(step // 2, step) for step in steps]


def test_state_initialization_of_an_optimizer_is_not_a_step(tmp_path):
    from torch.distributed.checkpoint import state_dict

    model = Net()
    with watch_rank(tmp_path) as watched:
        watched.hooks.install("torch.distributed.checkpoint.state_dict", state_dict)
        optimizer = torch.optim.AdamW(model.parameters())
        _, held = state_dict.get_state_dict(model, optimizer)
        assert held["state"]
        train(model, DataLoader(Rows(32), batch_size=8), optimizer)
        watched.close()
    assert watched.rank.recorder.count == 4


def test_short_steps_are_marked_by_sampling(tmp_path):
    model = Net(forward_s=NAP_S / 4)
    with watch_rank(tmp_path) as watched:
        recorder = watched.rank.recorder
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x, y = torch.randn(8, 8), torch.randint(0, 2, (8,))
        for number in range(40):
            if number == 8:
                recorder.every = 4
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        (window,) = watched.messages("window")
        flags = list(watched.ring.column(15, 0, 40))
    light = [number for number, flag in enumerate(flags) if flag]
    assert light == [number for number in range(9, 40) if number % 4]
    assert (window["steps"], window["samples"]) == (39, 39 * 8)
    # The first of the 16 marked steps is before the window. How much more than these 15 say the others get depends on
    # what else a marked step waited for: on a busy machine far less than their number.
    assert 15 * NAP_S / 4 * 1000 < window["forward_ms"] <= window["to_ms"] - window["time_ms"]


def test_late_loader_is_paired_from_its_first_batch(tmp_path):
    model = Net()
    with watch_rank(tmp_path) as watched:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(12):
            watched.rank.recorder.every = 8
            model(torch.randn(8, 8)).sum().backward()
            optimizer.step()
        train(model, DataLoader(Rows(64), batch_size=8), optimizer)
        batches = watched.messages("batch")
    assert [(batch["step"], batch["samples"]) for batch in batches] == [
        (12 + n, list(range(8 * n, 8 * n + 8))) for n in range(8)
    ]


def test_optimizer_of_another_thread_is_ignored(tmp_path):
    """Two threads that train two models: the first one is watched, the other one runs as ever."""
    with watch_rank(tmp_path) as watched:
        mine, other = Net(), Net()
        optimizer = torch.optim.SGD(mine.parameters(), lr=0.01)
        others = torch.optim.SGD(other.parameters(), lr=0.01)
        failed = []

        def train_other():
            try:
                for _ in range(5):
                    other(torch.randn(8, 8)).sum().backward()
                    others.step()
            except Exception as error:
                failed.append(error)

        mine(torch.randn(8, 8)).sum().backward()
        optimizer.step()
        thread = threading.Thread(target=train_other)
        thread.start()
        thread.join()
        for _ in range(4):
            mine(torch.randn(8, 8)).sum().backward()
            optimizer.step()
        events = watched.messages("event")
        count = watched.ring.view[ring.COUNT]
    assert not failed
    assert count == 5
    assert "sdk_error" not in {message["kind"] for message in events}
