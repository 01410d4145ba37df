"""Fine-tuning on instructions, as many repositories do it: one required option, a collator that pads, the Trainer."""
import json
from dataclasses import dataclass, field

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer


@dataclass
class DataArguments:
    data_path: str = field(metadata={"help": "Path to the training data."})


@dataclass
class TrainingArguments(transformers.TrainingArguments):
    model_max_length: int = field(default=96, metadata={"help": "Maximum sequence length. Sequences will be right padded."})


class SupervisedDataset(torch.utils.data.Dataset):
    def __init__(self, path, limit):
        self.items = [self.encoded(item, limit) for item in json.load(open(path))]

    @staticmethod
    def encoded(item, limit):
        prompt, answer = item["instruction"].encode(), item["output"].encode()
        ids = torch.tensor(list(prompt + answer)[:limit])
        labels = ids.clone()
        labels[: len(prompt)] = -100
        return {"input_ids": ids, "labels": labels}

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def collate(items):
    pad = torch.nn.utils.rnn.pad_sequence
    ids = pad([item["input_ids"] for item in items], batch_first=True)
    labels = pad([item["labels"] for item in items], batch_first=True, padding_value=-100)
    return {"input_ids": ids, "labels": labels, "attention_mask": ids.ne(0)}


def train():
    parser = transformers.HfArgumentParser((DataArguments, TrainingArguments))
    data_args, training_args = parser.parse_args_into_dataclasses()
    transformers.set_seed(training_args.seed)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=training_args.model_max_length, n_embd=96, n_layer=2, n_head=4))
    model.config.use_cache = False
    dataset = SupervisedDataset(data_args.data_path, training_args.model_max_length)
    trainer = Trainer(model=model, args=training_args, train_dataset=dataset, data_collator=collate)
    trainer.train()
    trainer.save_state()


if __name__ == "__main__":
    train()
