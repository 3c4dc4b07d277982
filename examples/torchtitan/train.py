# pyrometer run --data runs -- torchrun --standalone --nproc-per-node 2 examples/torchtitan/train.py
"""torchtitan's own Trainer (FSDP2, its metrics, its checkpoints) on two processes. It does not use Pyrometer."""

from dataclasses import dataclass
from typing import Any

import cpu  # first: lets torchtitan run without GPUs
import torch
from torch.utils.data import Dataset, DistributedSampler
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.llama3 import model_registry
from torchtitan.tools.logging import init_logger
from torchtitan.trainer import Trainer

STEPS, BATCH, LENGTH = 12, 4, 32


class Counting(Dataset):
    """Rows of consecutive numbers, so that a model can learn the next one."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, row: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        tokens = (torch.arange(LENGTH + 1) + row) % 512
        return {"input": tokens[:-1]}, tokens[1:]


class Loader(ParallelAwareDataloader):
    """The data in torchtitan's loader, split among the ranks."""

    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        """No options."""

    def __init__(self, config: Config, *, dp_rank: int, dp_world_size: int, local_batch_size: int, **_: Any) -> None:
        sampler = DistributedSampler(data := Counting(), dp_world_size, dp_rank, seed=0)
        super().__init__(data, dp_rank, dp_world_size, sampler=sampler, batch_size=local_batch_size)


class NoTokenizer(BaseTokenizer):
    """The data consists of tokens."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        """No options."""

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__()

    def encode(self, *args: Any, **_: Any) -> list[int]:
        return list(args[0])

    def decode(self, *args: Any, **_: Any) -> str:
        return str(args[0])

    def get_vocab_size(self) -> int:
        return 512


def main() -> None:
    init_logger()
    spec = cpu.fitted(model_registry("debugmodel"))
    config = Trainer.Config(
        model_spec=spec,
        loss=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec)),
        tokenizer=NoTokenizer.Config(),
        dataloader=Loader.Config(),
        optimizer=default_adamw(lr=8e-4),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2),
        training=TrainingConfig(
            local_batch_size=BATCH,
            seq_len=LENGTH,
            steps=STEPS,
            disable_cuda_graphs=True,
            mixed_precision_param="float32",
        ),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"),  # the one that released PyTorch runs
        metrics=MetricsProcessor.Config(log_freq=1, disable_color_printing=True),
        checkpoint=CheckpointManager.Config(enable=True, interval=STEPS, last_save_model_only=False),
        dump_folder="outputs",
    )
    trainer = config.build()
    trainer.train()
    trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
