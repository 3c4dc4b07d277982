"""Samples and tokens of a step, by programs whose truth is known: a batch counts once, accumulated batches add up."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="make setup installs torch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from pyrometer.train.steps.ring import SAMPLES, TOKENS  # noqa: E402
from tests.support.training_processes import command_answer, start_run, watch_rank  # noqa: E402

BATCH, WIDTH, STEPS, LENGTH, WORDS = 8, 4, 6, 5, 20
Program = Callable[[], Iterator[None]]  # yields after each step, as the user counts steps


def adam(*modules: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(itertools.chain(*(module.parameters() for module in modules)), lr=1e-3)


def rows(size: int = BATCH) -> torch.Tensor:
    return torch.randn(size, WIDTH)


def words(size: int = BATCH) -> torch.Tensor:
    return torch.randint(0, WORDS, (size, LENGTH))


def linear(out: int = WIDTH) -> nn.Linear:
    return nn.Linear(WIDTH, out)


def plain() -> Iterator[None]:
    model = nn.Sequential(linear(), nn.ReLU(), linear(1))
    optimizer = adam(model)
    while True:
        model(rows()).mean().backward()
        optimizer.step()
        yield


def accumulation(micro_batches: int = 4) -> Iterator[None]:
    model = linear()
    optimizer = adam(model)
    while True:
        for _ in range(micro_batches):
            model(rows()).mean().backward()
        optimizer.step()
        yield


def chunks_of_one_batch() -> Iterator[None]:
    model = linear()
    optimizer = adam(model)
    for (x,) in DataLoader(TensorDataset(rows(BATCH * STEPS)), batch_size=BATCH):
        for chunk in x.chunk(4):
            model(chunk).mean().backward()
        optimizer.step()
        yield


def forwards_before_their_backwards() -> Iterator[None]:  # as in a pipeline
    model = linear()
    optimizer = adam(model)
    while True:
        losses = [model(rows()).mean() for _ in range(3)]
        for loss in losses:
            loss.backward()
        optimizer.step()
        yield


def one_buffer_that_is_filled_again() -> Iterator[None]:
    model, buffer = linear(), torch.empty(BATCH, WIDTH)
    optimizer = adam(model)
    while True:
        for _ in range(2):
            buffer.copy_(rows())
            model(buffer).mean().backward()
        optimizer.step()
        yield


def gan(*, noisy: bool = False, separate: bool = True, fake_first: bool = False, gradients: bool = True) -> Program:
    """As in PyTorch's DCGAN example and its common variants."""

    def program() -> Iterator[None]:
        g, d = linear(), linear(1)
        step_g, step_d = adam(g), adam(d)
        for (real,) in DataLoader(TensorDataset(rows(BATCH * STEPS)), batch_size=BATCH):
            with torch.set_grad_enabled(gradients):
                fake = g(rows()) if fake_first else None
            loss = d(real).mean()
            if separate:
                loss.backward()
                loss = torch.zeros(())
            with torch.set_grad_enabled(gradients):
                fake = g(rows()) if fake is None else fake
            (loss - d(fake.detach() * 1.0).mean()).backward()
            step_d.step()
            if noisy or not gradients:
                fake = g(rows())
            d(fake).mean().backward()
            step_g.step()
            yield

    return program


def wasserstein() -> Iterator[None]:
    """With a gradient penalty and a backward for each of its parts; the critic is trained more often."""
    g, d = linear(), linear(1)
    step_g, step_d = adam(g), adam(d)
    while True:
        for _ in range(2):
            real, fake = rows(), g(rows()).detach()
            d(real).mean().backward()
            d(fake).mean().neg().backward()
            mixed = (real + fake).requires_grad_()
            (grad,) = torch.autograd.grad(d(mixed).sum(), mixed, create_graph=True)
            grad.norm().backward()
            step_d.step()
            yield
        d(g(rows())).mean().backward()
        step_g.step()


def cycle_gan() -> Iterator[None]:
    there, back, judge_a, judge_b = linear(), linear(), linear(1), linear(1)
    steps = adam(there, back), adam(judge_a), adam(judge_b)
    while True:
        a, b = rows(), rows()
        fake_b, fake_a = there(a), back(b)
        loss = judge_b(fake_b).mean() + judge_a(fake_a).mean() + (back(fake_b) - a + there(fake_a) - b).mean()
        loss.backward()
        steps[0].step()
        for judge, real, fake, step in ((judge_a, a, fake_a, steps[1]), (judge_b, b, fake_b, steps[2])):
            ((judge(real) - judge(fake.detach())).mean() / 2).backward()
            step.step()
        yield


class ActorCritic(nn.Module):
    """Has no forward: its parts are called by methods."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.actor, self.critic = linear(), linear(2), linear(1)

    def evaluate(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.trunk(x)
        return self.actor(hidden).mean() + self.critic(hidden).mean()


def ppo() -> Iterator[None]:
    model = ActorCritic()
    optimizer = adam(model)
    while True:
        with torch.no_grad():
            for _ in range(3):
                model.evaluate(rows(1))
        model.evaluate(rows()).backward()
        optimizer.step()
        yield


def actor_and_critic_with_optimizers_of_their_own() -> Iterator[None]:
    actor, first, second = linear(), linear(1), linear(1)
    step_actor, step_critic = adam(actor), adam(first, second)
    while True:
        states = rows()
        (first(states) + second(states)).mean().backward()
        step_critic.step()
        action = actor(states)
        torch.min(first(action), second(action)).mean().backward()
        step_actor.step()
        yield


def actor_and_critic_with_a_backward_each() -> Iterator[None]:
    actor, critic = linear(), linear(1)
    optimizer = adam(actor, critic)
    while True:
        states = rows()
        actor(states).mean().backward()
        critic(states).mean().backward()
        optimizer.step()
        yield


def two_encoders() -> Iterator[None]:
    images, texts = linear(), nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Flatten(), nn.Linear(WIDTH * LENGTH, WIDTH))
    optimizer = adam(images, texts)
    while True:
        (images(rows()) @ texts(words()).T).mean().backward()
        optimizer.step()
        yield


def two_encoders_with_accumulation() -> Iterator[None]:
    images, texts = linear(), linear()
    optimizer = adam(images, texts)
    while True:
        for _ in range(2):
            (images(rows()) @ texts(rows()).T).mean().backward()
        optimizer.step()
        yield


def recurrent() -> Iterator[None]:
    """A cell for each character, and one readout of all of them together."""
    embedding, cell, readout = nn.Embedding(WORDS, WIDTH), nn.RNNCell(WIDTH, WIDTH), linear(WORDS)
    optimizer = adam(embedding, cell, readout)
    while True:
        x, hidden, outputs = embedding(words()), torch.zeros(BATCH, WIDTH), []
        for at in range(LENGTH):
            hidden = cell(x[:, at], hidden)
            outputs.append(hidden)
        readout(torch.stack(outputs).flatten(0, 1)).mean().backward()
        optimizer.step()
        yield


def two_views() -> Iterator[None]:
    model = linear()
    optimizer = adam(model)
    while True:
        x = rows()
        (model(x + rows()) * model(x + rows())).mean().backward()
        optimizer.step()
        yield


class Named(nn.Module):
    """Takes its input by keywords and gives back a mapping, as models of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, WIDTH), linear(WORDS)

    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = self.head(self.embedding(input_ids))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def keywords() -> Iterator[None]:
    model = Named()
    optimizer = adam(model)
    while True:
        for _ in range(2):
            x = words()
            model(input_ids=x, attention_mask=torch.ones_like(x), labels=x)["loss"].backward()
        optimizer.step()
        yield


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = linear(), linear(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(checkpoint(self.first, x, use_reentrant=False))


def checkpointed() -> Iterator[None]:
    model = Checkpointed()
    optimizer = adam(model)
    while True:
        checkpoint(model, rows(), use_reentrant=False).mean().backward()
        optimizer.step()
        yield


def evaluation_between() -> Iterator[None]:
    model = linear()
    optimizer = adam(model)
    for (x,) in DataLoader(TensorDataset(rows(BATCH * STEPS)), batch_size=BATCH):
        with torch.no_grad():
            for (y,) in DataLoader(TensorDataset(rows(6 * BATCH)), batch_size=3 * BATCH):
                model(y)
        for chunk in x.chunk(2):
            model(chunk).mean().backward()
        optimizer.step()
        yield


def two_optimizers_of_one_model() -> Iterator[None]:
    model = nn.Sequential(linear(), linear(1))
    first, last = adam(model[0]), adam(model[1])
    while True:
        for _ in range(2):
            model(rows()).mean().backward()
        first.step()
        last.step()
        yield


def closure() -> Iterator[None]:
    model = linear(1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, tolerance_grad=0, tolerance_change=0)
    while True:
        x = rows()

        def loss(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            value = (model(x) - x.sum(1, keepdim=True) ** 2).square().mean()
            value.backward()
            return value

        optimizer.step(loss)
        yield


def the_same_batch_twice() -> Iterator[None]:  # sharpness-aware minimization
    model = linear(1)
    optimizer = adam(model)
    while True:
        x = rows()
        model(x).square().mean().backward()
        with torch.no_grad():
            model.weight.add_(model.weight.grad, alpha=0.05)
        model(x).square().mean().backward()
        optimizer.step()
        yield


def attacked() -> Iterator[None]:
    """Adversarial training: the backward passes of the attack do not count."""
    model = linear(1)
    optimizer = adam(model)
    while True:
        x = rows()
        for _ in range(3):
            x = x.detach().requires_grad_()
            model(x).mean().backward()
            x = x + x.grad.sign()
        optimizer.zero_grad()
        model(x.detach()).mean().backward()
        optimizer.step()
        yield


class Timed(nn.Module):
    """Takes a time step first, as some diffusion models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear()

    def forward(self, time: torch.Tensor | float, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).mean() * time


def a_number_first(time: torch.Tensor | float) -> Program:
    def program() -> Iterator[None]:
        model = Timed()
        optimizer = adam(model)
        while True:
            model(time, rows()).backward()
            model(time, x=rows()).backward()
            optimizer.step()
            yield

    return program


def evaluation_with_gradients() -> Iterator[None]:  # its author forgot `torch.no_grad`
    model = linear()
    optimizer = adam(model)
    while True:
        for _ in range(2):
            model(rows()).mean().backward()
        optimizer.step()
        yield
        model.eval()
        for _ in range(3):
            model(rows(3 * BATCH))
        model.train()


def a_frozen_part_in_evaluation_mode() -> Iterator[None]:
    backbone, head = linear().eval(), linear(1)
    optimizer = adam(backbone, head)
    while True:
        for _ in range(2):
            head(backbone(rows()).repeat_interleave(3, 0)).mean().backward()
        optimizer.step()
        yield


def compiled() -> Iterator[None]:
    images, texts = (torch.compile(linear(), backend="eager") for _ in range(2))
    optimizer = adam(images, texts)
    while True:
        (images(rows()) @ texts(rows()).T).mean().backward()
        optimizer.step()
        yield


PROGRAMS: dict[str, tuple[Program, int]] = {
    "plain": (plain, BATCH),
    "accumulation": (accumulation, 4 * BATCH),
    "chunks of one batch": (chunks_of_one_batch, BATCH),
    "forwards before their backwards": (forwards_before_their_backwards, 3 * BATCH),
    "one buffer that is filled again": (one_buffer_that_is_filled_again, 2 * BATCH),
    "dcgan": (gan(), BATCH),
    "gan, one backward": (gan(separate=False), BATCH),
    "gan, new noise": (gan(noisy=True), BATCH),
    "gan, images made first": (gan(fake_first=True), BATCH),
    "gan, images without gradients": (gan(gradients=False), BATCH),
    "gan, images made first without gradients": (gan(fake_first=True, gradients=False), BATCH),
    "cycle gan": (cycle_gan, BATCH),
    "ppo": (ppo, BATCH),
    "soft actor and critics": (actor_and_critic_with_optimizers_of_their_own, BATCH),
    "a backward each": (actor_and_critic_with_a_backward_each, BATCH),
    "two encoders": (two_encoders, BATCH),
    "two encoders with accumulation": (two_encoders_with_accumulation, 2 * BATCH),
    "recurrent": (recurrent, BATCH),
    "two views": (two_views, BATCH),
    "keywords": (keywords, 2 * BATCH),
    "checkpointed": (checkpointed, BATCH),
    "evaluation between": (evaluation_between, BATCH),
    "two optimizers of one model": (two_optimizers_of_one_model, 2 * BATCH),
    "closure": (closure, BATCH),
    "the same batch twice": (the_same_batch_twice, BATCH),
    "attacked": (attacked, BATCH),
    "a time step first": (a_number_first(torch.tensor(0.5)), 2 * BATCH),
    "a number first": (a_number_first(0.5), 2 * BATCH),
    "evaluation with gradients": (evaluation_with_gradients, 2 * BATCH),
    "a frozen part in evaluation mode": (a_frozen_part_in_evaluation_mode, 2 * BATCH),
    "compiled": (compiled, BATCH),
}
OF_TOKENS = {"two encoders": BATCH * LENGTH, "recurrent": BATCH * LENGTH, "keywords": 2 * BATCH * LENGTH}
SETTLED = 2  # first steps, in which the modules that are called are still being found


@pytest.mark.parametrize("name", PROGRAMS)
def test_batch_counts_once(tmp_path, name):
    program, samples = PROGRAMS[name]
    with watch_rank(tmp_path) as watched:
        for _ in itertools.islice(program(), STEPS):
            pass
        watched.close()
        assert watched.rank.recorder.count == STEPS
        counted = watched.ring.column(SAMPLES, SETTLED, STEPS)
        tokens = watched.ring.column(TOKENS, SETTLED, STEPS)
    assert list(counted) == [samples] * (STEPS - SETTLED)
    assert list(tokens) == [OF_TOKENS.get(name, 0)] * (STEPS - SETTLED)


def test_each_critic_update_is_a_step_with_its_own_batch(tmp_path):
    with watch_rank(tmp_path) as watched:
        for _ in itertools.islice(wasserstein(), STEPS):
            pass
        watched.close()
        counted = watched.ring.column(SAMPLES, SETTLED, watched.rank.recorder.count)
    assert set(counted) == {BATCH}


def test_reported_samples_override_measured_ones(tmp_path):
    with watch_rank(tmp_path) as watched:
        for _ in itertools.islice(accumulation(), STEPS):
            watched.rank.log({"samples": 3}, None, None)
        watched.close()
        counted = watched.ring.column(SAMPLES, SETTLED, STEPS)
    assert list(counted) == [3] * (STEPS - SETTLED)


def test_flops_include_all_modules_and_backward_passes_of_a_step(tmp_path):
    with watch_rank(tmp_path) as watched:
        for _ in itertools.islice(gan()(), STEPS):
            pass
        (window,) = watched.messages("window")
    g, d = 2 * BATCH * WIDTH * WIDTH, 2 * BATCH * WIDTH
    forward = g + 3 * d
    weights = g + 3 * d  # the discriminator also gets gradients from the generator's loss
    inputs = d  # only the images of the generator's own loss need gradients
    assert window["samples"] == (STEPS - 1) * BATCH
    assert window["flops"] == (STEPS - 1) * (forward + weights + inputs)


@pytest.mark.heavy
def test_reported_percentiles_match_those_of_the_program(tmp_path):
    program = Path(__file__).parent / "programs" / "uneven.py"
    process = start_run([sys.executable, str(program)], "--data", str(tmp_path), "--run", "uneven")
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    took_ms = [1000 * took for took in json.loads(out)]
    (row,) = command_answer(tmp_path, "runs")["rows"]
    shown = command_answer(tmp_path, "show", "uneven")
    for name, percent in (("step_p50_ms", 50), ("step_p99_ms", 99), ("step_max_ms", 100)):
        assert shown[name] == row[name] == pytest.approx(np.percentile(took_ms, percent), rel=0.05, abs=0.5)
