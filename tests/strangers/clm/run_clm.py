"""A causal language model by the Trainer: three dataclasses of options, a small configuration, generated text."""
import math
from dataclasses import dataclass, field

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments, set_seed


@dataclass
class ModelArguments:
    config_overrides: str = field(default="n_embd=64,n_layer=2,n_head=4", metadata={"help": "Override some settings of the config."})
    torch_dtype: str | None = field(default=None, metadata={"choices": ["auto", "bfloat16", "float16", "float32"]})


@dataclass
class DataTrainingArguments:
    block_size: int = field(default=64)
    max_train_samples: int = field(default=4096)
    max_eval_samples: int = field(default=64)


class Blocks(torch.utils.data.Dataset):
    def __init__(self, count, length, seed):
        generator = torch.Generator().manual_seed(seed)
        start = torch.randint(97, (count, 1), generator=generator)
        self.ids = (start + torch.arange(length) * 3) % 97

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    transformers.utils.logging.set_verbosity_warning()
    set_seed(training_args.seed)
    config = GPT2Config(vocab_size=97, n_positions=data_args.block_size)
    config.update_from_string(model_args.config_overrides)
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=training_args,
        train_dataset=Blocks(data_args.max_train_samples, data_args.block_size, 0) if training_args.do_train else None,
        eval_dataset=Blocks(data_args.max_eval_samples, data_args.block_size, 1) if training_args.do_eval else None,
    )
    if training_args.do_train:
        result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
        trainer.log_metrics("train", result.metrics)
    if training_args.do_eval:
        metrics = trainer.evaluate()
        metrics["perplexity"] = math.exp(metrics["eval_loss"])
        trainer.log_metrics("eval", metrics)


if __name__ == "__main__":
    main()
