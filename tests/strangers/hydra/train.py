"""Options by hydra, lines by logging."""
import logging

import hydra
import torch
from omegaconf import DictConfig
from torch import nn

log = logging.getLogger(__name__)


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    torch.manual_seed(cfg.seed)
    x = torch.rand(20_000, 128)
    data = torch.utils.data.TensorDataset(x, x @ torch.rand(128, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=cfg.data.batch_size, shuffle=True, num_workers=cfg.data.num_workers)
    layers = [nn.Linear(128, cfg.model.hidden), nn.ReLU()]
    for _ in range(cfg.model.layers):
        layers += [nn.Linear(cfg.model.hidden, cfg.model.hidden), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(cfg.model.hidden, 4))
    if cfg.trainer.compile:
        model = torch.compile(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.optimizer.lr)
    step = 0
    while step < cfg.trainer.max_steps:
        for features, target in loader:
            loss = nn.functional.mse_loss(model(features), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % cfg.trainer.log_every == 0:
                log.info(f"step {step} train/loss {loss.item():.5f}")
            if step >= cfg.trainer.max_steps:
                break


if __name__ == "__main__":
    main()
