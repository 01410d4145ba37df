//! The programs of the model: the joint training step of autoencoder and forecaster, and their evaluation.

use super::config::{CHANNELS, CLOSE, EvaluationConfig, HORIZONS, ModelConfig, PATCH, TIMEFRAMES};
use super::context::context;
use super::diffusion::{Head, embedded_timesteps, signal_table};
use super::layers::{Net, Start};
use super::vae;
use crate::workload::Regions;
use pawl_graph::array::{Array, Data};
use pawl_graph::graph::{Builder, DType, GraphError, Init, Program, Role, StateDecl, Var};

/// Scope of the operations that cut windows from a data set on the device, which are computed in float32 at any
/// precision.
pub const CUTTING: &str = "windows";

/// Regions of the programs that compiler passes use.
pub const REGIONS: Regions = Regions {
    float32: &["timeframes.*/blocks.*/s4", CUTTING],
    float8: &[],
    blocks: &["timeframes.*/blocks.*"],
    sublayers: &["timeframes.*/blocks.*/s4", "timeframes.*/blocks.*/ffn"],
    rematerialized: &[],
};

/// Factors of the losses of reconstruction, velocity and return; that of the KL divergence is an input.
const VELOCITY_WEIGHT: f64 = 1.0;
const RETURN_WEIGHT: f64 = 0.1;
/// Share of a batch in the running standard deviation of the latents, and the least deviation.
const MOMENTUM: f64 = 0.01;
const LEAST_DEVIATION: f64 = 1e-3;
/// Timesteps at which velocities are evaluated, in tenths of the schedule.
const EVALUATED_TENTHS: std::ops::RangeInclusive<usize> = 1..=9;

/// The windows of a batch.
pub struct Windows<'b> {
    /// The patch that ends now and those that end at the horizons: (batch, 1 + horizons, 64, channels).
    pub patches: Var<'b>,
    /// Features of each timeframe: (batch, length, width).
    pub features: Vec<Var<'b>>,
}

/// Random numbers of a training step.
pub struct Draws<'b> {
    /// Standard normal: (batch, latent).
    pub posterior: Var<'b>,
    /// Timesteps from 1 on: (batch), U32.
    pub timesteps: Var<'b>,
    /// Standard normal: (batch, horizons, latent).
    pub noise: Var<'b>,
}

/// Inputs of the model code.
pub struct Model<'a> {
    /// Sizes.
    pub config: &'a ModelConfig,
    /// Number of time steps of each timeframe.
    pub lookback: [usize; TIMEFRAMES.len()],
    /// Five-minute bars of the data set, if it is kept on the device.
    pub resident_bars: Option<usize>,
    /// Ranks, whose batches make the running standard deviation of the latents together.
    pub world: usize,
}

impl Model<'_> {
    /// One training micro-step of `batch` windows. Inputs: those of [`Model::windows`]; `kl_weight`, the factor of the
    /// KL divergence; `counter`. Outputs: see [`Model::losses`].
    ///
    /// # Errors
    /// Only on a bug in this code.
    pub fn training(&self, batch: usize) -> Result<Program, GraphError> {
        let b = Builder::new("training");
        let windows = self.windows(&b, batch)?;
        let kl_weight = b.input("kl_weight", DType::F32, []);
        let counter = b.input("counter", DType::U32, []);
        let latent = self.config.latent;
        let uniform = b.random("timesteps", counter, [batch]);
        let draws = Draws {
            posterior: b.normal("posterior", counter, [batch, latent]),
            timesteps: ((uniform * self.config.timesteps as f64).floor() + 1.0).cast(DType::U32),
            noise: b.normal("noise", counter, [batch, HORIZONS.len(), latent]),
        };
        let counter = (self.config.dropout > 0.0).then_some(counter);
        self.losses(&b, &windows, &draws, kl_weight, counter)?;
        b.finish()
    }

    /// `batch` windows. Inputs: `patches` and `features.*` (see [`Windows`]); or, where the data set is kept on the
    /// device, `bars` (batch), the bar with which each window ends.
    ///
    /// # Errors
    /// Only on a bug in this code.
    pub fn windows<'b>(&self, b: &'b Builder, batch: usize) -> Result<Windows<'b>, GraphError> {
        if let Some(bars) = self.resident_bars {
            return self.cut_windows(b, batch, bars);
        }
        let patches = b.input("patches", DType::F32, [batch, 1 + HORIZONS.len(), PATCH, CHANNELS]);
        let feature = |(timeframe, &length): (&super::config::Timeframe, &usize)| {
            b.input(&format!("features.{}", timeframe.name), DType::F32, [batch, length, self.config.width])
        };
        Ok(Windows { patches, features: TIMEFRAMES.iter().zip(&self.lookback).map(feature).collect() })
    }

    /// Appends the forward pass of training. Outputs: `loss`, and its parts `reconstruction`, `kl`, `velocity` and
    /// `returns`, without their factors. Updates the running standard deviation of the latents, and the factor of the
    /// KL divergence that evaluation uses.
    ///
    /// # Errors
    /// Only on a bug in this code.
    pub fn losses<'b>(
        &self,
        b: &'b Builder,
        windows: &Windows<'b>,
        draws: &Draws<'b>,
        kl_weight: Var<'b>,
        counter: Option<Var<'b>>,
    ) -> Result<(), GraphError> {
        let net = Net { b, dropout: self.config.dropout, counter };
        let batch = windows.patches.dim(0);
        let (reconstruction, kl) = b.scope("vae", || {
            let now = windows.now();
            let (mean, log_variance) = vae::encode(net, self.config, now);
            let latent = mean + (log_variance * 0.5).exp() * draws.posterior;
            let error = (vae::decode(net, self.config, latent) - now).square();
            (error.mean_all(), divergence(mean, log_variance).mean_all())
        });
        let future = self.future(net, windows);
        let scale = self.updated_scale(b, future);
        let context = context(net, self.config, &windows.features)?;
        let velocity = b.scope("diffusion", || {
            let clean = future / scale;
            let share = signal_table(b, self.config.timesteps)?.gather(0, draws.timesteps).reshape([batch, 1, 1]);
            let (signal, noise) = (share.sqrt(), (-share + 1.0).sqrt());
            let noisy = (signal * clean + noise * draws.noise).reshape([batch, 1, HORIZONS.len(), self.config.latent]);
            let embedded = embedded_timesteps(draws.timesteps, self.config.timestep)?;
            let head = Head::new(net, self.config, context);
            let predicted = head.velocity(noisy, embedded.reshape([batch, 1, self.config.timestep]));
            let error = predicted.reshape(future.shape()) - (signal * draws.noise - noise * clean);
            weighted(error.square().mean([0, 2]))
        })?;
        let returns =
            b.scope("returns", || weighted((self.returns(net, future) - windows.returns()).square().mean([0])))?;
        b.output("loss", reconstruction + kl_weight * kl + velocity * VELOCITY_WEIGHT + returns * RETURN_WEIGHT);
        for (name, value) in
            [("reconstruction", reconstruction), ("kl", kl), ("velocity", velocity), ("returns", returns)]
        {
            b.output(name, value);
        }
        b.update(last_kl_weight(b), kl_weight);
        Ok(())
    }

    /// Evaluation of `batch` windows, without dropout, with fixed timesteps and noise that is the same for all windows.
    /// Inputs: as for training, without `kl_weight` and `counter`. Outputs: the losses of each window (batch), as in
    /// training; and `samples` of the returns (batch, samples, horizons).
    ///
    /// # Errors
    /// Only on a bug in this code.
    pub fn evaluation(&self, batch: usize, evaluation: &EvaluationConfig) -> Result<Program, GraphError> {
        let b = Builder::new("evaluation");
        let windows = self.windows(&b, batch)?;
        let net = Net { b: &b, dropout: 0.0, counter: None };
        let (reconstruction, kl) = b.scope("vae", || {
            let now = windows.now();
            let (mean, log_variance) = vae::encode(net, self.config, now);
            let error = (vae::decode(net, self.config, mean) - now).square().mean([1, 2]);
            (error.reshape([batch]), divergence(mean, log_variance))
        });
        let future = self.future(net, &windows);
        let scale = latent_scale(&b);
        let context = context(net, self.config, &windows.features)?;
        let head = Head::new(net, self.config, context);
        let velocity = b.scope("diffusion", || self.evaluated_velocity(&head, future / scale))?;
        let error = (self.returns(net, future) - windows.returns()).square();
        let returns = (error * horizon_weights(&b)?).sum([1]).reshape([batch]);
        let kl_weight = last_kl_weight(&b);
        b.output("loss", reconstruction + kl_weight * kl + velocity * VELOCITY_WEIGHT + returns * RETURN_WEIGHT);
        for (name, value) in
            [("reconstruction", reconstruction), ("kl", kl), ("velocity", velocity), ("returns", returns)]
        {
            b.output(name, value);
        }
        let noise = self.fixed_noise(&b, "sampling", evaluation.samples);
        let noise = noise.broadcast([batch, evaluation.samples, HORIZONS.len(), self.config.latent]);
        b.output("samples", self.sampled(&head, noise, evaluation.steps)?);
        b.finish()
    }

    /// Forecasts of `batch` windows, for other programs. Inputs: those of [`Model::windows`], of which `patches` has no
    /// effect; `noise` (batch, samples, horizons, latent), standard normal. Output: `returns` (batch, samples,
    /// horizons).
    ///
    /// # Errors
    /// Only on a bug in this code.
    pub fn inference(&self, batch: usize, evaluation: &EvaluationConfig) -> Result<Program, GraphError> {
        let b = Builder::new("forecasts");
        let windows = self.windows(&b, batch)?;
        let shape = [batch, evaluation.samples, HORIZONS.len(), self.config.latent];
        let noise = b.input("noise", DType::F32, shape);
        b.output("returns", self.forecasts(&windows, noise, evaluation.steps)?);
        b.finish()
    }

    /// Appends the sampling of forecasts, given their noise (batch, samples, horizons, latent): returns (batch,
    /// samples, horizons).
    ///
    /// # Errors
    /// Only on a bug in this code.
    pub fn forecasts<'b>(&self, windows: &Windows<'b>, noise: Var<'b>, steps: usize) -> Result<Var<'b>, GraphError> {
        let net = Net { b: noise.builder(), dropout: 0.0, counter: None };
        let context = context(net, self.config, &windows.features)?;
        self.sampled(&Head::new(net, self.config, context), noise, steps)
    }

    fn sampled<'b>(&self, head: &Head<'_, 'b>, noise: Var<'b>, steps: usize) -> Result<Var<'b>, GraphError> {
        let b = noise.builder();
        b.scope("sampling", || {
            let net = Net { b, dropout: 0.0, counter: None };
            Ok(self.returns(net, head.sampled(noise, steps)? * latent_scale(b)))
        })
    }

    /// Mean squared errors of velocities at several timesteps, weighted by horizon: (batch).
    fn evaluated_velocity<'b>(&self, head: &Head<'_, 'b>, clean: Var<'b>) -> Result<Var<'b>, GraphError> {
        let (b, batch, horizons, latent) = (clean.builder(), clean.dim(0), HORIZONS.len(), self.config.latent);
        let timesteps: Vec<u32> = EVALUATED_TENTHS.map(|tenths| (tenths * self.config.timesteps / 10) as u32).collect();
        let count = timesteps.len();
        let timesteps = b.constant(Array::new([count], Data::U32(timesteps))?);
        let share = signal_table(b, self.config.timesteps)?.gather(0, timesteps).reshape([1, count, 1, 1]);
        let (signal, noise) = (share.sqrt(), (-share + 1.0).sqrt());
        let drawn = self.fixed_noise(b, "velocity", count);
        let clean = clean.reshape([batch, 1, horizons, latent]);
        let embedded = embedded_timesteps(timesteps, self.config.timestep)?.reshape([1, count, self.config.timestep]);
        let predicted = head.velocity(signal * clean + noise * drawn, embedded);
        let error = (predicted - (signal * drawn - noise * clean)).square().mean([1, 3]).reshape([batch, horizons]);
        Ok((error * horizon_weights(b)?).sum([1]).reshape([batch]))
    }

    /// Normal draws (1, count, horizons, latent) that are the same in every evaluation.
    fn fixed_noise<'b>(&self, b: &'b Builder, name: &str, count: usize) -> Var<'b> {
        let counter = b.scalar(0.0, DType::U32);
        b.normal(&format!("evaluation.{name}"), counter, [1, count, HORIZONS.len(), self.config.latent])
    }

    /// Latents of the patches at the horizons (batch, horizons, latent): means of the posteriors, through which no
    /// gradient flows.
    fn future<'b>(&self, net: Net<'b>, windows: &Windows<'b>) -> Var<'b> {
        let (batch, horizons) = (windows.patches.dim(0), HORIZONS.len());
        net.b.scope("future", || {
            let patches = windows.patches.slice(1, 1, horizons).reshape([batch * horizons, PATCH, CHANNELS]);
            let (mean, _) = vae::encode(net, self.config, patches);
            mean.stop_gradient().reshape([batch, horizons, self.config.latent])
        })
    }

    /// Returns of latents (.., latent): without the last axis.
    fn returns<'b>(&self, net: Net<'b>, latents: Var<'b>) -> Var<'b> {
        let shape = latents.shape();
        net.linear("target_proj", latents, 1, Start::Uniform).reshape(shape.dims()[..shape.rank() - 1].to_vec())
    }

    /// The running standard deviation of latents, with those of this batch.
    fn updated_scale<'b>(&self, b: &'b Builder, future: Var<'b>) -> Var<'b> {
        b.scope("scale", || {
            let count = future.shape().elements() as f64;
            let squares = (future - future.mean([0, 1, 2])).square().sum_all();
            let deviation = (squares * (1.0 / (count - 1.0))).sqrt().maximum(LEAST_DEVIATION);
            let deviation = match self.world {
                1 => deviation,
                ranks => deviation.all_reduce() * (1.0 / ranks as f64),
            };
            let scale = latent_scale(b);
            let next = scale + (deviation - scale) * MOMENTUM;
            b.update(scale, next);
            next
        })
    }
}

impl<'b> Windows<'b> {
    /// The patch that ends now.
    fn now(&self) -> Var<'b> {
        self.patches.slice(1, 0, 1).reshape([self.patches.dim(0), PATCH, CHANNELS])
    }

    /// The returns at the horizons (batch, horizons): the last close of each future patch, which is relative to the
    /// present one.
    fn returns(&self) -> Var<'b> {
        let last = self.patches.slice(1, 1, HORIZONS.len()).slice(2, PATCH - 1, 1).slice(3, CLOSE, 1);
        last.reshape([self.patches.dim(0), HORIZONS.len()])
    }
}

/// The KL divergence of posteriors (batch, latent) from the standard normal distribution, in nats: (batch).
fn divergence<'b>(mean: Var<'b>, log_variance: Var<'b>) -> Var<'b> {
    let each = mean.square() + log_variance.exp() - log_variance - 1.0;
    (each.sum([1]) * 0.5).reshape([mean.dim(0)])
}

fn horizon_weights(b: &Builder) -> Result<Var<'_>, GraphError> {
    let weights = HORIZONS.iter().map(|horizon| horizon.weight as f32).collect();
    Ok(b.constant(Array::new([HORIZONS.len()], Data::F32(weights))?))
}

/// The weighted sum of a value per horizon, a scalar.
fn weighted(of_horizons: Var<'_>) -> Result<Var<'_>, GraphError> {
    Ok((of_horizons.reshape([HORIZONS.len()]) * horizon_weights(of_horizons.builder())?).sum_all())
}

fn buffer<'b>(b: &'b Builder, name: &str, start: f64) -> Var<'b> {
    b.state(StateDecl::f32(name, [], Role::Buffer, Init::Fill(start)))
}

/// The running standard deviation of the latents.
fn latent_scale(b: &Builder) -> Var<'_> {
    buffer(b, "latent_scale", 1.0)
}

/// The factor of the KL divergence in the last training step: the loss of the evaluation is that of training.
fn last_kl_weight(b: &Builder) -> Var<'_> {
    buffer(b, "kl_weight", 0.0)
}
