"""The Hugging Face Trainer and accelerate, as they are: steps, data, metrics, checkpoints, resumes."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="make setup installs torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from tests.support.training_processes import install_hooks, watch_rank  # noqa: E402

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]  # warnings of the libraries
MISSING = "make test-all installs transformers and accelerate"


@pytest.fixture(scope="module")
def hf():
    install_hooks()  # first: they take functions out of modules when they are imported
    pytest.importorskip("accelerate", reason=MISSING)
    return pytest.importorskip("transformers", reason=MISSING)


class Rows(Dataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor([index, 1.0]), "labels": torch.tensor(float(index % 2))}


class Net(nn.Module):
    def __init__(self, copies: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.copies = copies
        self.saw: list[list[int]] = []

    def forward(self, x, labels=None):
        if torch.is_grad_enabled():
            self.saw.append([int(row) for row in x[:, 0]])
        out = self.layer(x / 100)[:, 0]
        return {"loss": (out - labels).square().mean(), "logits": out}


def trainer_for(hf, folder, model, **options):
    class Trainer(hf.Trainer):
        def _prepare_inputs(self, inputs):
            inputs = super()._prepare_inputs(inputs)
            return {name: part.clone() for name, part in inputs.items()} if self.model.copies else inputs

    options = {
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "remove_unused_columns": False,
        "disable_tqdm": True,
        "eval_strategy": "steps",
        "eval_steps": 3,
        "save_steps": 4,
        "optim": "adamw_torch",
        "seed": 3,
        **options,
    }
    arguments = hf.TrainingArguments(output_dir=str(folder), **options)
    return Trainer(model, arguments, train_dataset=Rows(44), eval_dataset=Rows(8))


def divided(saw, accumulation, first=0, of_epoch=11):
    """What the model saw, by step and micro-batch: a step ends with the epoch, whether it is full or not."""
    trained, step = [], first
    for start in range(0, len(saw), of_epoch):
        epoch = saw[start : start + of_epoch]
        for group in (epoch[at : at + accumulation] for at in range(0, len(epoch), accumulation)):
            trained += [(step, number, rows) for number, rows in enumerate(group)]
            step += 1
    return trained


def collected(watched):
    reports = SimpleNamespace(run=[], window=[], span=[], batch=[], metric=[], event=[])
    for kind, message in watched.close():
        getattr(reports, kind).append(message)
    return reports


@pytest.mark.parametrize("copies", [False, True], ids=["as it came", "copied"])
@pytest.mark.parametrize(("accumulation", "workers"), [(1, 0), (4, 0), (4, 2)])
def test_trainer_reports_training_and_resume(hf, tmp_path, accumulation, workers, copies):
    options = {"gradient_accumulation_steps": accumulation, "dataloader_num_workers": workers}
    with watch_rank(tmp_path / "one") as watched:
        model = Net(copies)
        trainer = trainer_for(hf, tmp_path / "out", model, **options)
        trainer.train()
        reports = collected(watched)
        amounts = [watched.amounts(number) for number in range(1, trainer.state.global_step)]
    steps = 22 if accumulation == 1 else 6
    assert [e for e in reports.event if e["kind"] == "sdk_error"] == []
    assert watched.rank.recorder.count == trainer.state.global_step == steps
    assert [(b["step"], b["micro_batch"], b.get("samples")) for b in reports.batch] == divided(model.saw, accumulation)
    for phase in ("data", "forward", "backward", "optimizer"):
        assert all(of_step[phase] > 0 for of_step in amounts), phase
    evaluated = [number for number, of_step in enumerate(amounts, 1) if of_step["evaluate"]]
    assert evaluated == list(range(3, steps, 3))
    saved = [event["step"] for event in reports.event if event["kind"] == "checkpoint_saved"]
    assert saved == sorted({*range(4, steps + 1, 4), steps})
    assert watched.rank.identity["framework"] == "transformers"
    logged = [
        (entry["step"], name, float(value))
        for entry in trainer.state.log_history
        for name, value in entry.items()
        if name not in ("step", "total_flos")  # its own callback takes that away
    ]
    assert [(m["step"], m["name"], m["value"]) for m in reports.metric if m["step"]][-len(logged) :] == logged

    with watch_rank(tmp_path / "two") as watched:
        model = Net(copies)
        trainer = trainer_for(hf, tmp_path / "out", model, **options)
        trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
        reports = collected(watched)
    assert [message["resumed_step"] for message in reports.run if "resumed_step" in message] == [4]
    assert [event["step"] for event in reports.event if event["kind"] == "restored"] == [4]
    rest = divided([[]] * (4 if accumulation == 1 else 12) + model.saw, accumulation)
    if accumulation == 4:  # the first epoch has three steps: the fourth is the first of the second epoch
        rest = divided([[]] * 11 + [[]] * 4 + model.saw, accumulation)
    assert [(b["step"], b["micro_batch"], b.get("samples")) for b in reports.batch] == [one for one in rest if one[2]]
    assert watched.rank.recorder.count == steps - 4


def test_trainer_logs_to_several_trackers_are_reported_once(hf, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="make test-all installs tensorboard")
    mlflow = pytest.importorskip("mlflow", reason="make test-all installs mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.set_experiment("several")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))

    class Own(hf.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            mlflow.log_metric("own", 10.0 + state.global_step, step=state.global_step)

    with watch_rank(tmp_path) as watched:
        trainer = trainer_for(hf, tmp_path / "out", Net(), report_to=["tensorboard", "mlflow"], max_steps=6)
        trainer.add_callback(Own())
        trainer.train()
        reports = collected(watched)
    mlflow.end_run()
    times = [(m["name"], m["step"]) for m in reports.metric if m["step"]]
    assert {name for name, _ in times} == {
        "loss",
        "grad_norm",
        "learning_rate",
        "epoch",
        "own",
        "eval_loss",
        "eval_runtime",
        "eval_samples_per_second",
        "eval_steps_per_second",
        "train_runtime",
        "train_samples_per_second",
        "train_steps_per_second",
        "train_loss",
    }
    for name in ("loss", "grad_norm", "eval_loss"):
        assert len([step for other, step in times if other == name]) == len(
            {step for other, step in times if other == name}
        )
    assert {m["goal"] for m in reports.metric if m["name"] == "eval_loss"} == {"min"}
    assert {step for name, step in times if name == "own"} == set(range(1, 7))


def test_language_model_learns_the_same_to_the_last_bit(hf, tmp_path):
    """GPT-2 from its configuration, two layers: tokens are counted, weights are as without us."""
    config = hf.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=64, n_positions=16)
    texts = [{"input_ids": row, "labels": row} for row in torch.randint(0, 64, (32, 16)).tolist()]

    def weights(folder):
        hf.set_seed(5)
        arguments = hf.TrainingArguments(
            output_dir=str(folder),
            max_steps=6,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
            seed=5,
            logging_steps=1,
        )
        model = hf.GPT2LMHeadModel(config)
        hf.Trainer(model, arguments, train_dataset=texts, data_collator=hf.default_data_collator).train()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    without = weights(tmp_path / "a")
    with watch_rank(tmp_path) as watched:
        with_us = weights(tmp_path / "b")
        reports = collected(watched)
        assert list(watched.ring.column(14, 1, 6)) == [2 * 4 * 16] * 5
    assert torch.equal(without, with_us)
    assert [len(batch["samples"]) for batch in reports.batch] == [4] * 12


# -- accelerate --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copies", [False, True], ids=["as it came", "copied"])
@pytest.mark.parametrize("workers", [0, 2])
def test_accelerate_loaders_report_their_batches(hf, tmp_path, workers, copies):
    from accelerate import Accelerator

    with watch_rank(tmp_path) as watched:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, step_scheduler_with_optimizer=False)
        model = Net()
        loaders = [DataLoader(Rows(size), batch_size=4, shuffle=True, num_workers=workers) for size in (44, 12)]
        prepared, optimizer, loader, other = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), *loaders)
        for _ in range(2):
            for batch in loader:
                with accelerator.accumulate(prepared):
                    batch = {name: part.clone() for name, part in batch.items()} if copies else batch
                    accelerator.backward(prepared(**batch)["loss"])
                    optimizer.step()
                    optimizer.zero_grad()
            with torch.no_grad():
                for batch in other:
                    prepared(**batch)
        reports = collected(watched)
        amounts = [watched.amounts(number) for number in range(1, 12)]
    assert watched.rank.recorder.count == 12
    assert [(b["step"], b["micro_batch"], b.get("samples")) for b in reports.batch] == divided(model.saw, 2)
    assert watched.rank.identity["framework"] == "accelerate"
    assert [number for number, of_step in enumerate(amounts, 1) if of_step["evaluate"]] == [6]
    for phase in ("data", "forward", "backward", "optimizer"):
        assert all(of_step[phase] > 0 for of_step in amounts), phase


def test_batches_skipped_by_accelerate_have_no_step(hf, tmp_path):
    from accelerate import Accelerator, skip_first_batches

    with watch_rank(tmp_path) as watched:
        accelerator, model = Accelerator(cpu=True), Net()
        loader = DataLoader(Rows(44), batch_size=4, shuffle=True)
        prepared, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
        for number, batch in enumerate(itertools.chain(skip_first_batches(loader, 3), loader)):
            if number != 4:
                accelerator.backward(prepared(**{name: part.clone() for name, part in batch.items()})["loss"])
                optimizer.step()
                optimizer.zero_grad()
        reports = collected(watched)
    right = dict(enumerate(model.saw))
    assert all(batch.get("samples") in (None, right[batch["step"]]) for batch in reports.batch)
    known = [batch["step"] for batch in reports.batch if "samples" in batch]
    assert {0, 1, 2, 3} <= set(known)
    assert set(range(7, 18)) <= set(known)


def test_accelerate_logs_are_reported_once(hf, tmp_path):
    pytest.importorskip("tensorboard", reason="make test-all installs tensorboard")
    from accelerate import Accelerator

    with watch_rank(tmp_path) as watched:
        accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=str(tmp_path))
        accelerator.init_trackers("x")
        for step in range(3):
            accelerator.log({"loss": 1.0 / (step + 1), "lr": 0.1}, step=step)
        accelerator.end_training()
        reports = collected(watched)
    assert [(m["name"], m["step"], m["value"]) for m in reports.metric] == [
        (name, step, value) for step in range(3) for name, value in (("loss", 1.0 / (step + 1)), ("lr", 0.1))
    ]
