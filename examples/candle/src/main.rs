//! Trains a small network on images that are made on the spot, with Candle.
//!
//!     cargo run --release -p pawl-example-candle     by hand
//!     pawl run examples/candle/cpu.yaml              measured by Pawl

use candle_core::{DType, Device, Tensor};
use candle_nn::{Activation, Module, ParamsAdamW, Sequential, VarBuilder, VarMap, linear, loss, seq};
use pawl_candle::{AdamW, Result, Run};
use serde::Deserialize;
use std::f32::consts::PI;
use std::process::ExitCode;

const CLASSES: usize = 8;
const SIZE: usize = 12;
const TRAINING: usize = 2048;
const HELD_OUT: usize = 256;

/// `workload.config` of the manifest.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    hidden: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { hidden: 64 }
    }
}

/// Noisy gratings, one row each; the class is their direction.
fn images(first: usize, count: usize, device: &Device) -> Result<(Tensor, Tensor)> {
    let mut pixels = Vec::with_capacity(count * SIZE * SIZE);
    let mut labels = Vec::with_capacity(count);
    for image in first..first + count {
        // A number generator whose state is the index of the image: the same data in every launch.
        let mut state = image as u64;
        let mut random = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1u64 << 24) as f32
        };
        random();
        let label = (random() * CLASSES as f32) as usize % CLASSES;
        let (sin, cos) = (label as f32 * PI / CLASSES as f32).sin_cos();
        let phase = 2.0 * PI * random();
        for pixel in 0..SIZE * SIZE {
            let (x, y) = ((pixel % SIZE) as f32 - 5.5, (pixel / SIZE) as f32 - 5.5);
            pixels.push(((cos * x + sin * y) * 1.2 + phase).sin() + 2.0 * random() - 1.0);
        }
        labels.push(label as u32);
    }
    Ok((Tensor::from_vec(pixels, (count, SIZE * SIZE), device)?, Tensor::from_vec(labels, count, device)?))
}

fn network(hidden: usize, vars: VarBuilder<'_>) -> Result<Sequential> {
    Ok(seq()
        .add(linear(SIZE * SIZE, hidden, vars.pp("input"))?)
        .add(Activation::Relu)
        .add(linear(hidden, hidden, vars.pp("hidden"))?)
        .add(Activation::Relu)
        .add(linear(hidden, CLASSES, vars.pp("head"))?))
}

fn train(run: &mut Run) -> Result<()> {
    let config: Config = run.config()?;
    run.batch_size(32);
    let params = ParamsAdamW {
        lr: run.setting("learningRate")?.unwrap_or(2e-3),
        weight_decay: run.setting("weightDecay")?.unwrap_or(0.01),
        ..ParamsAdamW::default()
    };
    let rate = params.lr;
    let warmup = run.setting("warmupSteps")?.unwrap_or(0u64);
    let dtype = match run.one_of("workload.arithmetic", &["f32", "f64"])?.as_str() {
        "f64" => DType::F64,
        _ => DType::F32,
    };
    let device = run.device().clone();
    let (pixels, labels) = images(0, TRAINING, &device)?;
    let (held_out, held_out_labels) = images(TRAINING, HELD_OUT, &device)?;
    let (pixels, held_out) = (pixels.to_dtype(dtype)?, held_out.to_dtype(dtype)?);

    let vars = VarMap::new();
    let model = network(config.hidden, run.var_builder(&vars, dtype))?;
    let optimizer = AdamW::over(&vars, params)?;
    let evaluate = || {
        let logits = model.forward(&held_out)?.to_dtype(DType::F32)?;
        let hits = logits.argmax(1)?.eq(&held_out_labels)?.to_dtype(DType::F32)?.mean_all()?;
        let loss = loss::cross_entropy(&logits, &held_out_labels)?;
        Ok([("loss", loss.to_scalar::<f32>()?.into()), ("accuracy", hits.to_scalar::<f32>()?.into())])
    };

    let mut training = run.training(&vars, optimizer, TRAINING as u64)?;
    while training.next(evaluate)? {
        if warmup > 0 {
            let factor = ((training.steps() + 1) as f64 / warmup as f64).min(1.0);
            candle_nn::Optimizer::set_learning_rate(training.optimizer(), rate * factor);
        }
        for _ in 0..training.accumulation_steps() {
            let (x, y) = training.load(|indices| {
                let indices = Tensor::new(indices, &device)?;
                Ok((pixels.index_select(&indices, 0)?, labels.index_select(&indices, 0)?))
            })?;
            training.backward(&loss::cross_entropy(&model.forward(&x)?, &y)?)?;
        }
        training.step()?;
    }
    Ok(())
}

fn main() -> ExitCode {
    pawl_candle::main(train)
}
