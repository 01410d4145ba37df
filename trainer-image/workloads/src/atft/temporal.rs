//! The temporal fusion transformer: variable selection, a recurrent network and attention over the days of a window,
//! mixed by a gate.

use super::config::ModelConfig;
use super::layers::{Net, lstm, uniform, xavier};
use super::selection;
use pawl_graph::array::{Array, Data};
use pawl_graph::graph::{AttentionSpec, GraphError, Init, Var, concat};

/// What the transformer makes of windows.
pub struct Temporal<'b> {
    /// (rows, days, hidden)
    pub states: Var<'b>,
    /// Mean weight of the features of a row: (rows).
    pub weights: Var<'b>,
}

/// The states of windows `x` (rows, days, features).
///
/// # Errors
/// Only on a bug in this code.
pub fn temporal<'b>(net: Net<'b>, config: &ModelConfig, x: Var<'b>) -> Result<Temporal<'b>, GraphError> {
    let (b, rows, days, hidden) = (net.b, x.dim(0), x.dim(1), config.hidden);
    let flat = x.reshape([rows * days, x.dim(2)]);
    let (selected, weights) = b.scope("selection", || selection::select(net, config, flat));
    let inputs = b.scope("projection", || {
        let projected = net.layer_norm("tft.project.1", net.linear("tft.project.0", selected, hidden));
        net.linear("tft.inp", net.drop("tft.project.2", projected, config.dropout), hidden)
    });
    let inputs = inputs.reshape([rows, days, hidden]);
    let recurrent = b.scope("lstm", || lstm(net, "tft.lstm", inputs, hidden));
    let positions = b.constant(positions(days, hidden)?);
    let attended = b.scope("attention", || {
        let attended = attention(net, config, inputs + positions);
        net.layer_norm("tft.norm1", attended + inputs)
    });
    let forward = b.scope("ffn", || {
        let wide = net.linear("tft.ff.0", attended, 4 * hidden).relu();
        let narrow = net.linear("tft.ff.3", net.drop("tft.ff.2", wide, config.dropout), hidden);
        net.layer_norm("tft.norm2", narrow + attended)
    });
    let states = b.scope("gate", || {
        net.gated_residual("tft.gate", concat(&[recurrent, forward], 2), hidden, hidden, config.dropout)
    });
    Ok(Temporal { states, weights: weights.reshape([rows, days]).mean([1]).reshape([rows]) })
}

/// Attention of each day of a window (rows, days, hidden) to all of its days.
fn attention<'b>(net: Net<'b>, config: &ModelConfig, x: Var<'b>) -> Var<'b> {
    let (rows, days, hidden, heads) = (x.dim(0), x.dim(1), config.hidden, config.heads);
    let head = hidden / heads;
    let weight = net.b.parameter("tft.attn.qkv.weight", [3 * hidden, hidden], xavier([3 * hidden, hidden]));
    let bias = net.b.parameter("tft.attn.qkv.bias", [3 * hidden], Init::Fill(0.0));
    let all = (x.matmul_t(weight) + bias).reshape([rows, days, 3, heads, head]).permute([2, 0, 3, 1, 4]);
    let [queries, keys, values] = [0, 1, 2].map(|part| all.slice(0, part, 1).reshape([rows, heads, days, head]));
    let scale = 1.0 / (head as f64).sqrt();
    // The operator of attention has no dropout.
    let read = if net.counter.is_some() && config.dropout > 0.0 {
        let weights = (queries.matmul_t(keys) * scale).softmax();
        net.drop("tft.attn", weights, config.dropout).matmul(values)
    } else {
        queries.attention(keys, values, AttentionSpec { scale, causal: false })
    };
    let joined = read.permute([0, 2, 1, 3]).reshape([rows, days, hidden]);
    // The bias begins with zeros, unlike that of PyTorch's linear layers.
    let weight = net.b.parameter("tft.attn.out.weight", [hidden, hidden], uniform(hidden));
    joined.matmul_t(weight) + net.b.parameter("tft.attn.out.bias", [hidden], Init::Fill(0.0))
}

/// Sines and cosines of the place of a day at wavelengths that grow with the channel: (days, hidden).
fn positions(days: usize, hidden: usize) -> Result<Array, GraphError> {
    let value = |i: usize| {
        let (day, channel) = (i / hidden, i % hidden);
        let angle = day as f64 * libm::exp((channel / 2 * 2) as f64 * -(10_000f64.ln()) / hidden as f64);
        (if channel.is_multiple_of(2) { libm::sin(angle) } else { libm::cos(angle) }) as f32
    };
    Array::new([days, hidden], Data::F32((0..days * hidden).map(value).collect()))
}
