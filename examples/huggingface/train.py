# pyrometer run --data runs -- torchrun --standalone --nproc-per-node 2 examples/huggingface/train.py
"""The Hugging Face Trainer with a small GPT-2 on two processes. It does not use Pyrometer."""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

ROWS, LENGTH, BATCH = 256, 32, 8


class Counting(Dataset):
    """Rows of consecutive numbers, so that a model can learn the next one."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(LENGTH) + row) % 128
        return {"input_ids": tokens, "labels": tokens}


class Printing(TrainerCallback):
    """Prints each log entry of the Trainer on one line."""

    def on_log(self, args, state, control, logs=None, **kwargs):  # type: ignore[no-untyped-def]
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}")


if __name__ == "__main__":
    arguments = TrainingArguments(
        output_dir="checkpoints/huggingface",
        num_train_epochs=2,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-2,
        logging_steps=1,
        eval_strategy="epoch",
        report_to="none",
        disable_tqdm=True,
        seed=0,
        use_cpu=not torch.cuda.is_available(),
        ddp_backend=None if torch.cuda.is_available() else "gloo",
    )
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=128, n_positions=LENGTH))
    Trainer(model, arguments, train_dataset=Counting(), eval_dataset=Counting(), callbacks=[Printing()]).train()
