//! S4 blocks: a diagonal state-space model as a causal convolution along time, and a feed-forward network.

use super::config::ModelConfig;
use super::layers::{Net, Start};
use pawl_graph::array::{Array, Data};
use pawl_graph::graph::{DType, GraphError, Init, Var};

/// Powers are products of one of this many fine ones and a coarse one.
const FINE: usize = 32;
/// Time steps of a block of the causal convolution. Per channel it stores a matrix of length x 64; larger blocks would
/// read the input less often, and a larger matrix more often.
const BLOCK: usize = 64;

/// Smallest and largest initial time step of a channel.
const TIME_STEP: [f64; 2] = [1e-3, 0.1];

/// The block `name`: (batch, length, width) to the same, or to (batch, 1, width), the last time step, with `last_only`.
pub fn block<'b>(
    net: Net<'b>,
    config: &ModelConfig,
    name: &str,
    x: Var<'b>,
    last_only: bool,
) -> Result<Var<'b>, GraphError> {
    let (length, width) = (x.dim(1), x.dim(2));
    let mixed = net.b.scope("s4", || {
        let normed = net.layer_norm(&format!("{name}.norm1"), x);
        let mixed = state_space(net, config, &format!("{name}.s4"), normed, last_only)?;
        Ok::<_, GraphError>(net.drop(&format!("{name}.s4"), mixed))
    })?;
    let x = if last_only { x.slice(1, length - 1, 1) } else { x } + mixed;
    Ok(net.b.scope("ffn", || {
        let normed = net.layer_norm(&format!("{name}.norm2"), x);
        let hidden = net.linear(&format!("{name}.ffn.0"), normed, 4 * width, Start::Uniform).gelu();
        let hidden = net.drop(&format!("{name}.ffn.2"), hidden);
        let out = net.linear(&format!("{name}.ffn.3"), hidden, width, Start::Uniform);
        x + net.drop(&format!("{name}.ffn.4"), out)
    }))
}

/// `y_h[t] = sum over s <= t of K_h[t - s] x_h[s] + D_h x_h[t]` for every channel h, or for the last t only.
fn state_space<'b>(
    net: Net<'b>,
    config: &ModelConfig,
    name: &str,
    x: Var<'b>,
    last_only: bool,
) -> Result<Var<'b>, GraphError> {
    let (length, width) = (x.dim(1), x.dim(2));
    let direct = net.b.parameter(&format!("{name}.D"), [width], Init::Normal { deviation: 1.0 });
    if last_only {
        let reversed = kernel(net, config, name, width, length, true)?.transpose();
        return Ok((x * reversed).sum([1]) + direct * x.slice(1, length - 1, 1));
    }
    let kernel = kernel(net, config, name, width, length, false)?;
    Ok(x.permute([2, 0, 1]).causal_conv(kernel, BLOCK).permute([1, 2, 0]) + direct * x)
}

/// The impulse response `K_h[t] = sum over n of C_hn (e^a_hn - 1) / lambda_n B_n e^(a_hn t)` with `a_hn = dt_h
/// lambda_n`: (width, length); with `reversed`, from the latest time step on.
fn kernel<'b>(
    net: Net<'b>,
    config: &ModelConfig,
    name: &str,
    width: usize,
    length: usize,
    reversed: bool,
) -> Result<Var<'b>, GraphError> {
    let (b, states) = (net.b, config.state);
    let of_states = |part: &str, values: Vec<f32>| {
        let values = Array::new([states], Data::F32(values))?;
        Ok::<_, GraphError>(b.parameter(&format!("{name}.{part}"), [states], Init::Array(values)))
    };
    let [low, high] = TIME_STEP.map(f64::ln);
    let logarithm = of_states("log_neg_lambda", (1..=states).map(|n| (n as f64).ln() as f32).collect())?;
    let input = of_states("B", (0..states).map(|n| ((2 * n + 1) as f64).sqrt() as f32).collect())?;
    let output = b.parameter(&format!("{name}.C"), [width, states], Init::Normal { deviation: 1.0 });
    let step = b.parameter(&format!("{name}.log_dt"), [width], Init::UniformBetween { low, high });
    let lambda = -logarithm.exp();
    let a = step.exp().reshape([width, 1]) * lambda;
    // e^a - 1 without cancellation: a is near 0 for slow states.
    let grown = (a * 0.5).tanh() * (a.exp() + 1.0);
    let weight = output * (grown / lambda * input);

    let fine = FINE.min(length);
    let coarse = length.div_ceil(fine);
    let exponents = |count: usize, factor: usize| {
        let index = b.iota(0, [count]).cast(DType::F32);
        let index = if reversed { -index + (count - 1) as f64 } else { index };
        (a.reshape([width, states, 1]) * (index * factor as f64)).exp()
    };
    let weighted = weight.reshape([width, states, 1]) * exponents(coarse, fine);
    let all = weighted.t_matmul(exponents(fine, 1)).reshape([width, coarse * fine]);
    let unused = coarse * fine - length;
    Ok(all.slice(1, if reversed { unused } else { 0 }, length))
}
