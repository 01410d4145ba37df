//! The variational autoencoder of patches of candles: convolutions along time.

use super::config::{CHANNELS, ModelConfig, PATCH};
use super::layers::{Net, Start};
use pawl_graph::graph::Var;

/// Range of the logarithm of the posterior's variance.
const LOG_VARIANCE: [f64; 2] = [-20.0, 10.0];

/// Means and logarithms of the variances of the posteriors of patches (batch, 64, channels): both (batch, latent).
pub fn encode<'b>(net: Net<'b>, config: &ModelConfig, patches: Var<'b>) -> (Var<'b>, Var<'b>) {
    net.b.scope("encoder", || {
        let channels = config.encoder_channels();
        let strides = channels.iter().map(|&outputs| (outputs, 2)).chain(channels.last().map(|&outputs| (outputs, 1)));
        let mut x = patches;
        for (stage, (outputs, stride)) in strides.enumerate() {
            let name = format!("vae.encoder.{stage}");
            x = net.group_norm(&format!("{name}.1"), net.convolution(&format!("{name}.0"), x, outputs, stride)).silu();
        }
        // The reference flattens channel by channel.
        let flat = x.transpose().reshape([x.dim(0), x.dim(1) * x.dim(2)]);
        let [low, high] = LOG_VARIANCE;
        let of = |name: &str| net.linear(name, flat, config.latent, Start::Kaiming);
        (of("vae.fc_mu"), of("vae.fc_logvar").maximum(low).minimum(high))
    })
}

/// Patches (batch, 64, channels) of latents (batch, latent).
pub fn decode<'b>(net: Net<'b>, config: &ModelConfig, latents: Var<'b>) -> Var<'b> {
    net.b.scope("decoder", || {
        let (batch, length) = (latents.dim(0), PATCH >> config.vae_stages);
        let widest = config.encoder_channels().last().copied().unwrap_or(CHANNELS);
        let flat = net.linear("vae.fc_dec", latents, widest * length, Start::Kaiming);
        let mut x = flat.reshape([batch, widest, length]).transpose();
        for (stage, outputs) in config.decoder_channels().into_iter().enumerate() {
            let name = format!("vae.decoder.{stage}");
            x = net.group_norm(&format!("{name}.1"), net.upsampling(&format!("{name}.0"), x, outputs)).silu();
        }
        net.convolution(&format!("vae.decoder.{}", config.vae_stages), x, CHANNELS, 1)
    })
}
