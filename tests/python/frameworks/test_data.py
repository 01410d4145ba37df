"""A resumed launch continues in its data where it was, with each library."""

import json
from typing import Any

import pytest
from conftest import Launch

HEAD = """
import json, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import pawl_launch
from pawl_launch import pytorch

class Counted(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return torch.tensor([float(index)]), torch.zeros(1)

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 1)
    def forward(self, x):
        with open("seen.jsonl", "a") as file:
            print(json.dumps([x.flatten().tolist(), torch.rand(1).item()]), file=file)
        return self.linear(x / 100)

run = pawl_launch.init(batch_per_gpu=4)
torch.manual_seed(run.seed)
"""
PYTORCH = """
network = Network()
optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
loader = LOADER
pytorch.resume(run, network, optimizer)
for x, y in run.steps(loader, evaluate=lambda: {"loss": 1.0}):
    loss = nn.functional.mse_loss(network(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    run.step(items=len(x), loss=loss)
    pytorch.save(run, network, optimizer)
"""
ACCELERATE = """
from accelerate import Accelerator
import pawl_launch.accelerate
accelerator = Accelerator(**pawl_launch.accelerate.arguments())
network = Network()
optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
model, optimizer, loader = accelerator.prepare(network, optimizer, LOADER)
pawl_launch.accelerate.resume(accelerator)
for x, y in run.steps(loader, evaluate=lambda: {"loss": 1.0}):
    loss = nn.functional.mse_loss(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    run.step(items=len(x), loss=loss)
    pawl_launch.accelerate.save(accelerator)
"""
LIGHTNING = """
import lightning
import pawl_launch.lightning
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = Network()
    def training_step(self, batch, index):
        return nn.functional.mse_loss(self.network(batch[0]), batch[1])
    def validation_step(self, batch, index):
        self.log("val_loss", batch[1].mean() + 1.0)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
trainer = lightning.Trainer(**pawl_launch.lightning.arguments())
held_out = DataLoader(Counted(), batch_size=40)
trainer.fit(Module(), LOADER, held_out, ckpt_path=pawl_launch.lightning.checkpoint())
"""
HUGGING_FACE = """
from transformers import Trainer, TrainingArguments
from pawl_launch import hf
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = Network()
    def forward(self, x, labels):
        if not self.training:
            return {"loss": labels.mean() + 1.0}
        return {"loss": nn.functional.mse_loss(self.network(x), labels)}
data = [{"x": torch.tensor([float(index)]), "labels": torch.zeros(1)} for index in range(40)]
arguments = TrainingArguments(**hf.arguments(output_dir="out", optim="sgd", per_device_train_batch_size=4))
trainer = Trainer(Model(), arguments, train_dataset=data, eval_dataset=data, callbacks=[hf.PawlCallback()])
trainer.train(resume_from_checkpoint=hf.checkpoint())
"""
SEEDED = "DataLoader(Counted(), shuffle=True, **pytorch.loader_arguments(run))"
UNSEEDED = "DataLoader(Counted(), shuffle=True, batch_size=run.batch_size)"


def seen(launch: Launch, script: str, *items: int) -> list[Any]:
    for end in items:
        launch.train(items=end)
        code, report = launch.run(HEAD + script)
        assert (code, report["items"]) == (0, end)
    return [json.loads(line) for line in (launch.directory / "seen.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("loader", [SEEDED, UNSEEDED], ids=["seeded", "unseeded"])
@pytest.mark.parametrize(
    "script", [PYTORCH, ACCELERATE, LIGHTNING, HUGGING_FACE], ids=["pytorch", "accelerate", "lightning", "huggingface"]
)
def test_no_batch_is_repeated_or_left_out(
    launch: Launch, tmp_path_factory: pytest.TempPathFactory, script: str, loader: str
) -> None:
    script = script.replace("LOADER", loader)
    at_once = seen(Launch(tmp_path_factory.mktemp("whole")), script, 100)
    assert len(at_once) == 25
    # Stopped within an epoch, at the end of one, and again within the next.
    parts = seen(launch, script, 12, 40, 68, 100)
    if script.startswith((PYTORCH[:20], ACCELERATE[:20])):
        assert parts == at_once
        return
    # Evaluations draw from the generators, and there are more of them. With a seed, the order does not depend on that.
    for epoch in (parts[:10], parts[10:20]):
        assert sorted(item for batch, _ in epoch for item in batch) == list(range(40))
    if loader == SEEDED:
        assert [batch for batch, _ in parts] == [batch for batch, _ in at_once]


def test_a_least_number_of_epochs_or_steps_does_not_lengthen_a_measurement_with_lightning(launch: Launch) -> None:
    script = LIGHTNING.replace("Trainer(**", "Trainer(min_epochs=4, min_steps=30, **").replace("LOADER", SEEDED)
    code, report = launch.run(HEAD + script)
    trained = len((launch.directory / "seen.jsonl").read_text().splitlines())
    assert (code, report["steps"], trained) == (0, 7, 7)
