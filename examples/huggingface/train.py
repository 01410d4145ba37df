"""Trains a small GPT-2 on text that is made on the spot, with the Trainer of Hugging Face: from its configuration, or a pretrained
one, whole or by LoRA (PEFT).

python train.py              by hand
pawl run cpu.yaml            measured by Pawl (SCRIPTS: the directory of this file)
"""

import os
import random
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import pawl_launch
from pawl_launch import hf

VOCABULARY = 64
LENGTH = 32


class Sums(Dataset):
    """Sequences of tokens, each the sum of the two before it by the modulus, with a few errors."""

    def __init__(self, count: int, length: int, seed: int, modulus: int = 61) -> None:
        source = random.Random(seed)
        self.sequences = []
        for _ in range(count):
            tokens = [source.randrange(8), source.randrange(8)]
            while len(tokens) < length:
                exact = (tokens[-1] + tokens[-2]) % modulus
                tokens.append(exact if source.random() < 0.95 else source.randrange(modulus))
            self.sequences.append(torch.tensor(tokens))

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.sequences[index], "labels": self.sequences[index]}


def pretrain(model: GPT2LMHeadModel, steps: int, directory: Path) -> None:
    """Trains the model on sums by another modulus, once per job: as a model that others would download."""
    path = directory / f"pretrained-{steps}.pt"
    if not path.exists():
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        sums = Sums(2048, model.config.n_positions, seed=0, modulus=53)
        loader = DataLoader(sums, batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(0))
        done = 0
        while done < steps:
            for batch in loader:
                if done == steps:
                    break
                model(**batch).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                done += 1
        # Other ranks make the same file.
        directory.mkdir(parents=True, exist_ok=True)
        part = directory / f"{path.name}.{os.getpid()}"
        torch.save(model.state_dict(), part)
        part.rename(path)
    model.load_state_dict(torch.load(path))


def main() -> None:
    run = pawl_launch.init()
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": LENGTH} | run.config.get("model", {})
    # No dropout: its random draws would depend on the batch size, which is to change nothing but the speed.
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = GPT2Config(vocab_size=VOCABULARY, **no_dropout, **shape)
    torch.manual_seed(run.seed)
    model = GPT2LMHeadModel._from_config(config, **hf.model_arguments())
    if "pretrainedSteps" in run.config:
        pretrain(model, run.config["pretrainedSteps"], run.data)
    rank = run.settings.workload.get("loraRank", 0)
    if rank:
        from peft import LoraConfig, get_peft_model

        layers = ["c_attn", "c_proj", "c_fc"]
        lora = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=layers, fan_in_fan_out=True, task_type="CAUSAL_LM")
        model = get_peft_model(model, lora)
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
