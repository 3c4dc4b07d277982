"""FSDP2 over two ranks: one of them is late in forward; its checkpoint is saved and loaded by torch's own functions.

sharded.py FOLDER [late] [resume]
"""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from nets import RANK, Net, answer, digest, loader
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

FOLDER = Path(sys.argv[1])
LATE_S = 0.05 if "late" in sys.argv else 0.0


class Late(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if RANK == 1:
            time.sleep(LATE_S)
        return super().forward(x)


def train() -> None:
    torch.manual_seed(11)
    model = Late()
    mesh = init_device_mesh("cpu", (2,))
    for layer in (model.middle, model.last):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if "resume" in sys.argv:
        of_model, of_optimizer = get_state_dict(model, optimizer)
        state = {"model": of_model, "optimizer": of_optimizer}
        dcp.load(state, checkpoint_id=FOLDER / "checkpoint")
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    losses = []
    for _, (x, y) in zip(range(10), loader(), strict=False):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    of_model, of_optimizer = get_state_dict(model, optimizer)
    dcp.save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=FOLDER / "checkpoint")
    answer([digest(model), losses])


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    # What is left of its work is let go of while Python is there. Else threads of PyTorch may do it when Python has
    # ended, and abort the process (one in forty under load, with Pyrometer and without; pytorch/pytorch#179291).
    gc.collect()
    dist.destroy_process_group()
