"""A script with the Trainer of Hugging Face that knows nothing of Pawl: its arguments are those of the Trainer."""

import time
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments, default_data_collator, set_seed


class Text(Dataset):
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(index, index + 8) % 16
        return {"input_ids": tokens, "labels": tokens}


def collate(items: list[Any]) -> Any:
    # The work of a step: the callback reports every 5 seconds at most.
    time.sleep(0.04)
    return default_data_collator(items)


[arguments] = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
set_seed(arguments.seed)
model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_layer=1, n_head=1, n_embd=8, n_positions=8))
trainer = Trainer(model, arguments, train_dataset=Text(), eval_dataset=Text(), data_collator=collate)
trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
