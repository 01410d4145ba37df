"""Trains a small GPT-2 from its configuration on text that is made on the spot, with the Trainer of Hugging Face.

python train.py              by hand
pawl run cpu.yaml            measured by Pawl (SCRIPTS: the directory of this file)
"""

import random

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import pawl_launch
from pawl_launch import hf

VOCABULARY = 64
LENGTH = 32


class Sums(Dataset):
    """Sequences of tokens, each the sum of the two before it modulo 61, with a few errors."""

    def __init__(self, count: int, length: int, seed: int) -> None:
        source = random.Random(seed)
        self.sequences = []
        for _ in range(count):
            tokens = [source.randrange(8), source.randrange(8)]
            while len(tokens) < length:
                tokens.append((tokens[-1] + tokens[-2]) % 61 if source.random() < 0.95 else source.randrange(61))
            self.sequences.append(torch.tensor(tokens))

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.sequences[index], "labels": self.sequences[index]}


def main() -> None:
    run = pawl_launch.init()
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": LENGTH} | run.config.get("model", {})
    # No dropout: its random draws would depend on the batch size, which is to change nothing but the speed.
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = GPT2Config(vocab_size=VOCABULARY, **no_dropout, **shape)
    torch.manual_seed(run.seed)
    model = GPT2LMHeadModel._from_config(config, **hf.model_arguments())
    length = shape["n_positions"]
    arguments = hf.arguments(
        output_dir="out", per_device_train_batch_size=8, learning_rate=3e-3, num_train_epochs=1, report_to="none"
    )
    trainer = Trainer(
        model,
        TrainingArguments(**arguments),
        train_dataset=Sums(run.config.get("sequences", 2048), length, seed=1),
        eval_dataset=Sums(128, length, seed=2),
        callbacks=[hf.PawlCallback()],
    )
    trainer.train(resume_from_checkpoint=hf.checkpoint())


if __name__ == "__main__":
    main()
