"""A diffusion model of the package diffusers, trained with Accelerate: a progress bar with the loss."""
import argparse

import torch
from accelerate import Accelerator
from diffusers import DDPMScheduler, UNet2DModel
from torch.nn import functional as F
from tqdm.auto import tqdm


def parse_args():
    parser = argparse.ArgumentParser(description="Simple example of a training script.")
    parser.add_argument("--output_dir", type=str, default="ddpm-model")
    parser.add_argument("--resolution", type=int, default=16)
    parser.add_argument("--train_batch_size", type=int, default=4, help="Batch size (per device) for the training dataloader.")
    parser.add_argument("--dataloader_num_workers", type=int, default=0, help="The number of subprocesses to use for data loading.")
    parser.add_argument("--num_epochs", type=int, default=20)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--mixed_precision", type=str, default="no", choices=["no", "fp16", "bf16"])
    return parser.parse_args()


def main(args):
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps, mixed_precision=args.mixed_precision, cpu=True)
    torch.manual_seed(0)
    model = UNet2DModel(sample_size=args.resolution, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(16, 32),
                        norm_num_groups=8, down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"))
    noise_scheduler = DDPMScheduler(num_train_timesteps=100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    images = torch.rand(800, 1, args.resolution, args.resolution)
    loader = torch.utils.data.DataLoader(images, batch_size=args.train_batch_size, shuffle=True, num_workers=args.dataloader_num_workers)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    global_step = 0
    for epoch in range(args.num_epochs):
        progress_bar = tqdm(total=len(loader), disable=not accelerator.is_local_main_process)
        progress_bar.set_description(f"Epoch {epoch}")
        for clean_images in loader:
            noise = torch.randn_like(clean_images)
            timesteps = torch.randint(0, 100, (clean_images.shape[0],))
            with accelerator.accumulate(model):
                loss = F.mse_loss(model(noise_scheduler.add_noise(clean_images, noise, timesteps), timesteps).sample, noise)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                progress_bar.update(1)
                global_step += 1
            progress_bar.set_postfix(loss=loss.detach().item(), lr=args.learning_rate, step=global_step)
        progress_bar.close()


if __name__ == "__main__":
    main(parse_args())
