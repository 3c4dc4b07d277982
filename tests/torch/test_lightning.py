"""Lightning as it is, under both of its names: a module that is never called itself, its loops, metrics and resumes."""

from __future__ import annotations

import importlib
import pickle
import time
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="make setup installs torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset, IterableDataset  # noqa: E402

from pyrometer.train.run import lightning as entry  # noqa: E402
from tests.support.training_processes import install_hooks, watch_rank  # noqa: E402

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]  # warnings of the libraries


@pytest.fixture(scope="module", params=["lightning.pytorch", "pytorch_lightning"])
def pl(request):
    install_hooks()
    pytest.importorskip(request.param, reason="make test-all installs lightning")
    return importlib.import_module(request.param)


class Rows(Dataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, 1.0])


class Stream(IterableDataset):
    """Its length is not known: Lightning looks one batch ahead."""

    def __iter__(self):
        return (torch.tensor([row, 1.0]) for row in range(44))


def module_for(pl, *, copies=False, manual=False):
    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
            self.automatic_optimization = not manual
            self.saw: list[list[int]] = []

        def transfer_batch_to_device(self, batch, device, dataloader_idx):
            return batch.clone() if copies else batch

        def training_step(self, batch, number):
            self.saw.append([int(row) for row in batch[:, 0]])
            loss = self.body(batch / 100).square().mean()
            self.log("train/loss", loss, prog_bar=True)
            if manual:
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
            return loss

        def validation_step(self, batch, number):
            self.log("val_loss", self.body(batch / 100).square().mean())

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    return Module()


def trainer_for(pl, folder, **options):
    options = {"max_epochs": 2, "accelerator": "cpu", "devices": 1, "log_every_n_steps": 1, "logger": False, **options}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(default_root_dir=str(folder), **quiet, **options)


def collected(watched):
    reports = SimpleNamespace(run=[], window=[], span=[], batch=[], metric=[], event=[])
    for kind, message in watched.close():
        getattr(reports, kind).append(message)
    return reports


@pytest.mark.parametrize("copies", [False, True], ids=["as it came", "copied"])
@pytest.mark.parametrize(("manual", "accumulation"), [(False, 1), (False, 2), (True, 1)])
def test_fit_reports_training_and_resume(pl, tmp_path, manual, accumulation, copies):
    loaders = DataLoader(Rows(44), batch_size=4, shuffle=True), DataLoader(Rows(12), batch_size=4)
    with watch_rank(tmp_path / "one") as watched:
        module = module_for(pl, manual=manual, copies=copies)
        saving = pl.callbacks.ModelCheckpoint(tmp_path / "saved", every_n_epochs=1, save_top_k=-1)
        trainer = trainer_for(pl, tmp_path, callbacks=[saving], accumulate_grad_batches=accumulation)
        trainer.fit(module, *loaders)
        reports = collected(watched)
        amounts = [watched.amounts(number) for number in range(1, trainer.global_step)]
    each = -(-11 // accumulation)
    assert [event for event in reports.event if event["kind"] == "sdk_error"] == []
    assert watched.rank.recorder.count == trainer.global_step == 2 * each
    steps = [
        (epoch * each + number // accumulation, number % accumulation) for epoch in range(2) for number in range(11)
    ]
    batches = [(b["step"], b["micro_batch"], b.get("samples")) for b in reports.batch]
    assert batches == [(*at, rows) for at, rows in zip(steps, module.saw, strict=True)]
    first = 4 // accumulation  # the module is never called itself: what is called is found step by step
    for phase in ("data", "forward", "backward", "optimizer"):
        assert all(of_step[phase] > 0 for of_step in amounts[first:]), phase
    assert [number for number, of_step in enumerate(amounts, 1) if of_step["evaluate"]] == [each]
    assert [event["step"] for event in reports.event if event["kind"] == "checkpoint_saved"] == [each, 2 * each]
    assert watched.rank.identity["framework"] == "lightning"
    logged = [(m["name"], m["step"]) for m in reports.metric]
    # as Lightning's own loggers number them: steps are counted from 0, a validation has the number of the step before
    assert [step for name, step in logged if name == "train/loss"] == list(range(2 * each))
    assert [step for name, step in logged if name == "val_loss"] == [each - 1, 2 * each - 1]
    assert "loss" not in {name for name, step in logged if step > 1}  # the program logs one

    with watch_rank(tmp_path / "two") as watched:
        module = module_for(pl, manual=manual, copies=copies)
        trainer = trainer_for(pl, tmp_path, accumulate_grad_batches=accumulation, enable_checkpointing=False)
        (path,) = (tmp_path / "saved").glob("epoch=0*")
        trainer.fit(module, *loaders, ckpt_path=path, weights_only=False)
        reports = collected(watched)
    assert [message["resumed_step"] for message in reports.run if "resumed_step" in message] == [each]
    assert [b["step"] for b in reports.batch] == [at[0] for at in steps[11:]]
    assert [b.get("samples") for b in reports.batch] == module.saw


@pytest.mark.parametrize("copies", [False, True], ids=["as it came", "copied"])
def test_prefetched_stream_is_paired_with_its_steps(pl, tmp_path, copies):
    with watch_rank(tmp_path) as watched:
        module = module_for(pl, copies=copies)
        trainer = trainer_for(pl, tmp_path, enable_checkpointing=False)
        trainer.fit(module, DataLoader(Stream(), batch_size=4), DataLoader(Rows(12), batch_size=4))
        reports = collected(watched)
    hashes = {}
    assert [b["step"] for b in reports.batch] == list(range(22))
    for batch, rows in zip(reports.batch, module.saw, strict=True):
        hashes.setdefault(tuple(rows), set()).update(batch["samples"])
    assert len(hashes) == len(set.union(*hashes.values())) == 11


def test_callback_marks_the_begin_and_end_of_a_validation(pl, tmp_path, monkeypatch):
    name = "callbacks" if pl.__name__ == "lightning.pytorch" else "callbacks_of_pytorch_lightning"
    factory = getattr(entry, name)
    monkeypatch.setattr(entry.boot, "_hooks", None)
    for variable in ("PYROMETER_ENDPOINT", "PYROMETER_SPOOL"):
        monkeypatch.delenv(variable, raising=False)
    assert factory() == []  # no target is configured
    module = module_for(pl)
    module.validation_step = lambda *_: time.sleep(0.05)  # nothing of the model
    with watch_rank(tmp_path) as watched:
        monkeypatch.setattr(entry.boot, "_hooks", watched.hooks)
        trainer = trainer_for(pl, tmp_path, callbacks=factory(), max_epochs=3, enable_checkpointing=False)
        trainer.fit(module, DataLoader(Rows(24), batch_size=4), DataLoader(Rows(8), batch_size=4))
        collected(watched)
        evaluated_ms = [watched.amounts(number)["evaluate"] // 1_000_000 for number in range(1, trainer.global_step)]
    assert [number for number, ms in enumerate(evaluated_ms, 1) if ms >= 100] == [6, 12]
    assert sum(evaluated_ms[:5]) == 0


def test_spawned_processes_get_a_plain_callback(pl, tmp_path, monkeypatch):
    """`ddp_spawn` and `ddp_notebook` pickle the Trainer with its callbacks."""
    with watch_rank(tmp_path) as watched:
        monkeypatch.setattr(entry.boot, "_hooks", watched.hooks)
        (callback,) = entry._callbacks(pl.__name__)
    spawned = pickle.loads(pickle.dumps(trainer_for(pl, tmp_path, callbacks=[callback])))
    assert type(callback).__name__ == "Pyrometer"
    assert pl.callbacks.Callback in map(type, spawned.callbacks)
    assert all(type(one).__module__.startswith(pl.__name__) for one in spawned.callbacks)


def test_value_logged_to_several_loggers_is_reported_once(pl, tmp_path):
    pytest.importorskip("tensorboard", reason="make test-all installs tensorboard")
    loggers = [pl.loggers.TensorBoardLogger(tmp_path, name="board"), pl.loggers.CSVLogger(tmp_path, name="csv")]
    with watch_rank(tmp_path) as watched:
        trainer = trainer_for(pl, tmp_path, logger=loggers, max_epochs=1, enable_checkpointing=False)
        trainer.fit(module_for(pl), DataLoader(Rows(24), batch_size=4))
        reports = collected(watched)
    assert [(m["step"], m["goal"]) for m in reports.metric if m["name"] == "train/loss"] == [
        (step, "min") for step in range(6)
    ]
    assert {m["name"] for m in reports.metric} <= {"train/loss", "loss"}
    assert len((tmp_path / "csv" / "version_0" / "metrics.csv").read_text().splitlines()) == 7


def test_lightning_weights_are_the_same_to_the_last_bit(pl, tmp_path):
    def weights():
        pl.seed_everything(3, verbose=False)
        module = module_for(pl)
        trainer_for(pl, tmp_path, enable_checkpointing=False).fit(
            module, DataLoader(Rows(44), batch_size=4, shuffle=True)
        )
        return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])

    without = weights()
    with watch_rank(tmp_path):
        assert torch.equal(without, weights())
