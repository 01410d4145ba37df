//! Diffusion of the latents of future patches: the noise schedule, the network that predicts velocities, and sampling.

use super::config::{HORIZONS, ModelConfig};
use super::layers::{Net, Start};
use pawl_graph::array::{Array, Data};
use pawl_graph::graph::{Builder, DType, GraphError, Init, Var, concat};
use std::f64::consts::FRAC_PI_2;

/// Offset of the cosine schedule.
const OFFSET: f64 = 0.008;
/// Smallest share of the signal.
const LEAST: f64 = 1e-12;
/// Longest wavelength of the timestep embedding, in units of 2 pi timesteps.
const WAVELENGTH: f64 = 10_000.0;

/// The variance of the signal that is left after `t` of `steps` timesteps: 1 at 0, near 0 at the end.
pub fn signal(t: usize, steps: usize) -> f64 {
    let at = |t: usize| libm::pow(libm::cos((t as f64 / steps as f64 + OFFSET) / (1.0 + OFFSET) * FRAC_PI_2), 2.0);
    (at(t) / at(0)).clamp(LEAST, 1.0)
}

/// [`signal`] of all timesteps from 0 on, as a table of the program.
pub fn signal_table(b: &Builder, steps: usize) -> Result<Var<'_>, GraphError> {
    let values = (0..=steps).map(|t| signal(t, steps) as f32).collect();
    Ok(b.constant(Array::new([steps + 1], Data::F32(values))?))
}

/// The embedding (count, width) of timesteps (count, U32): sines and cosines by turns.
pub fn embedded_timesteps<'b>(timesteps: Var<'b>, width: usize) -> Result<Var<'b>, GraphError> {
    let (b, count) = (timesteps.builder(), timesteps.dim(0));
    let rates =
        (0..width / 2).map(|i| libm::exp(-libm::log(WAVELENGTH) * (2 * i) as f64 / width as f64) as f32).collect();
    let rates = b.constant(Array::new([width / 2], Data::F32(rates))?);
    let angles = timesteps.cast(DType::F32).reshape([count, 1]) * rates;
    let pair = |x: Var<'b>| x.reshape([count, width / 2, 1]);
    Ok(concat(&[pair(angles.sin()), pair(angles.cos())], 2).reshape([count, width]))
}

/// The network, given a context: predicts the velocity of noisy latents.
pub struct Head<'m, 'b> {
    net: Net<'b>,
    config: &'m ModelConfig,
    /// The parts of the first layer's weight for the noisy latent and the timestep.
    latent: Var<'b>,
    timestep: Var<'b>,
    /// What the context, the horizon and the bias add to the first layer: (batch, 1, horizons, hidden).
    fixed: Var<'b>,
}

impl<'m, 'b> Head<'m, 'b> {
    /// The network for contexts (batch, context).
    ///
    /// The first layer of the concatenated latent, timestep, context and horizon is the sum of products with parts of
    /// its weight: the context and the horizons are multiplied once, however many latents there are.
    pub fn new(net: Net<'b>, config: &'m ModelConfig, context: Var<'b>) -> Self {
        let widths = [config.latent, config.timestep, config.context, config.horizon];
        let (hidden, count) = (config.head[0], HORIZONS.len());
        let (weight, bias) = net.linear_weights("head.0", hidden, widths.iter().sum(), Start::Uniform);
        let part = |index: usize| weight.slice(1, widths[..index].iter().sum(), widths[index]);
        let embeddings =
            net.b.parameter("horizon_emb.weight", [count, config.horizon], Init::Normal { deviation: 1.0 });
        let of_context = context.matmul_t(part(2)).reshape([context.dim(0), 1, 1, hidden]);
        let of_horizon = embeddings.matmul_t(part(3)).reshape([1, 1, count, hidden]);
        Self { net, config, latent: part(0), timestep: part(1), fixed: of_context + (of_horizon + bias) }
    }

    /// The velocities of noisy latents (batch, samples, horizons, latent) at timesteps whose embeddings are (batch or
    /// 1, samples or 1, width).
    pub fn velocity(&self, noisy: Var<'b>, timesteps: Var<'b>) -> Var<'b> {
        let Self { net, config, .. } = *self;
        net.b.scope("head", || {
            let hidden = config.head[0];
            let of_timestep = timesteps.matmul_t(self.timestep);
            let of_timestep = of_timestep.reshape([timesteps.dim(0), timesteps.dim(1), 1, hidden]);
            let first = noisy.matmul_t(self.latent) + of_timestep + self.fixed;
            let mut x = net.activated("head.1", first);
            // Layers are numbered as in the reference: a linear layer, its normalisation, activation and dropout.
            for (index, &width) in config.head.iter().enumerate().skip(1) {
                let linear = net.linear(&format!("head.{}", 4 * index), x, width, Start::Uniform);
                x = net.activated(&format!("head.{}", 4 * index + 1), linear);
            }
            net.linear(&format!("head.{}", 4 * config.head.len()), x, config.latent, Start::Uniform)
        })
    }

    /// Latents sampled from noise (batch, samples, horizons, latent) by DDIM without randomness, in `steps` evenly
    /// spaced steps from the last timestep to 0.
    pub fn sampled(&self, noise: Var<'b>, steps: usize) -> Result<Var<'b>, GraphError> {
        let b = self.net.b;
        let timestep = |step: usize| self.config.timesteps * (steps - step) / steps;
        let mut noisy = noise;
        for step in 0..steps {
            let now = b.constant(Array::new([1], Data::U32(vec![timestep(step) as u32]))?);
            let embedded = embedded_timesteps(now, self.config.timestep)?.reshape([1, 1, self.config.timestep]);
            let velocity = self.velocity(noisy, embedded);
            let [kept, next] = [timestep(step), timestep(step + 1)].map(|t| signal(t, self.config.timesteps));
            let (signal, noise) = (kept.sqrt(), (1.0 - kept).sqrt());
            let clean = noisy * signal - velocity * noise;
            let estimate = noisy * noise + velocity * signal;
            noisy = clean * next.sqrt() + estimate * (1.0 - next).sqrt();
        }
        Ok(noisy)
    }
}
