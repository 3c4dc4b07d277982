"""Trains in all the ways that a hook could disturb, one after the other; says losses and weights, bit for bit."""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import sys

import torch
import torch.distributed as dist
from nets import RANKS, Net, answer, digest, loader
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

loss_of = nn.functional.cross_entropy


def ddp(model: nn.Module, **more) -> nn.Module:
    return DistributedDataParallel(model, **more) if RANKS > 1 else model


def plain(model, optimizer, steps: int = 8) -> list[float]:
    losses = []
    for _, (x, y) in zip(range(steps), loader(), strict=False):
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def of_ddp():
    model = ddp(Net())
    return model, plain(model, adam(model))


def of_unused_parameters():
    model = ddp(Net(sometimes=True), find_unused_parameters=True) if RANKS > 1 else Net(sometimes=True)
    return model, plain(model, adam(model))


def of_static_graph():
    model = ddp(Net(), static_graph=True) if RANKS > 1 else Net()
    return model, plain(model, adam(model))


def of_accumulation():
    model = ddp(Net())
    optimizer, losses = adam(model), []
    for number, (x, y) in enumerate(loader()):
        last = number % 4 == 3
        with contextlib.nullcontext() if last or RANKS == 1 else model.no_sync():
            loss = loss_of(model(x), y) / 4
            loss.backward()
        losses.append(loss.item())
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    return model, losses


def of_a_scaler():
    model = ddp(Net())
    optimizer, losses = adam(model), []
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    for number, (x, y) in enumerate(loader()):
        loss = loss_of(model(x), y)
        scaler.scale(loss * math.inf if number == 2 else loss).backward()
        scaler.step(optimizer=optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses += [loss.item(), scaler.get_scale()]
    return model, losses


def of_a_comm_hook():
    model = ddp(Net())
    optimizer = adam(model)
    losses = plain(model, optimizer, 4)
    called = []

    def hook(state, bucket):
        called.append(1)
        return allreduce_hook(state, bucket)

    if RANKS > 1:
        model.register_comm_hook(None, hook)
    return model, [*losses, *plain(model, optimizer, 4), len(called)]


def of_two_optimizers():
    model = ddp(Net())
    inner = model.module if RANKS > 1 else model
    optimizers = [torch.optim.SGD(inner.first.parameters(), 0.1), adam(inner.middle), adam(inner.last)]
    losses = []
    for x, y in loader():
        loss = loss_of(model(x), y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return model, losses


def compiled(build):
    """With the number of graphs and of breaks."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    model = build()
    losses = plain(model, adam(model))
    return model, [*losses, dict(counters["stats"]), dict(counters["graph_break"]), dict(counters["frames"])]


def of_compiling_ddp():  # whose forward is several graphs, with or without the SDK
    return compiled(lambda: torch.compile(ddp(Net()), fullgraph=RANKS == 1, backend="aot_eager"))


def of_ddp_of_compiled():
    return compiled(lambda: ddp(torch.compile(Net(), fullgraph=True, backend="aot_eager")))


def of_compiling_in_place():
    def build():
        model = ddp(Net())
        model.compile(fullgraph=RANKS == 1, backend="aot_eager")
        return model

    return compiled(build)


def of_compiling_beside_another():
    other = Net()  # of the same class, and not compiled
    plain(other, adam(other))
    model, found = compiled(lambda: torch.compile(Net(), fullgraph=True, backend="aot_eager"))
    return model, [*found, digest(other)]


def update(optimizer: torch.optim.Optimizer, _: torch.Tensor) -> None:
    optimizer.step()
    optimizer.zero_grad()


def of_an_optimizer_for_each_parameter():
    """They step inside of the backward."""
    model = ddp(Net())
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.01)
        parameter.register_post_accumulate_grad_hook(functools.partial(update, optimizer))
    losses = []
    for x, y in loader():
        loss = loss_of(model(x), y)
        torch.autograd.backward(tensors=loss)
        losses.append(loss.item())
    return model, losses


WAYS = {name[3:]: way for name, way in list(globals().items()) if name.startswith("of_")}


def main() -> None:
    if RANKS > 1:
        dist.init_process_group("gloo")
    found = {}
    for name in sys.argv[2:] or WAYS:
        torch.manual_seed(11)
        model, losses = WAYS[name]()
        found[name] = [digest(model), losses]
        del model
        gc.collect()
    answer(found)
    if RANKS > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
