//! The context vector: a stack of S4 blocks for each timeframe, attention over their last time steps, and a fusion
//! network.

use super::config::{ModelConfig, TIMEFRAMES};
use super::layers::{Net, Start};
use super::s4;
use pawl_graph::graph::{GraphError, Init, Var, concat};

/// The context (batch, context) of the features of the timeframes, each (batch, length, width).
pub fn context<'b>(net: Net<'b>, config: &ModelConfig, features: &[Var<'b>]) -> Result<Var<'b>, GraphError> {
    let encoded = TIMEFRAMES.iter().zip(features).map(|(timeframe, &x)| {
        let name = timeframe.name;
        net.b.scope(&format!("timeframes.{name}"), || encoding(net, config, name, x))
    });
    let encoded = concat(&encoded.collect::<Result<Vec<_>, _>>()?, 1);
    Ok(net.b.scope("fusion", || {
        let (batch, count, width) = (encoded.dim(0), encoded.dim(1), encoded.dim(2));
        let attended = attended(net, config, encoded);
        let all = concat(&[encoded.reshape([batch, count * width]), attended], 1);
        let hidden = net.linear("encoder.fusion.0", all, 2 * config.context, Start::Uniform);
        let hidden = net.activated("encoder.fusion.1", hidden);
        net.activated("encoder.fusion.5", net.linear("encoder.fusion.4", hidden, config.context, Start::Uniform))
    }))
}

/// The last time step of a timeframe's stack: (batch, 1, width). Its last block computes no other one.
fn encoding<'b>(net: Net<'b>, config: &ModelConfig, timeframe: &str, x: Var<'b>) -> Result<Var<'b>, GraphError> {
    let mut x = x;
    for block in 0..config.blocks {
        let name = format!("encoder.blocks.{timeframe}.{block}");
        let last_only = block + 1 == config.blocks;
        x = net.b.scope(&format!("blocks.{block}"), || s4::block(net, config, &name, x, last_only))?;
    }
    Ok(net.layer_norm(&format!("encoder.norms.{timeframe}"), x))
}

/// Attention of one learned query over the encodings (batch, timeframes, width): (batch, width). With one query and a
/// key per timeframe, its products are sums of few elements, which one elementwise kernel computes.
fn attended<'b>(net: Net<'b>, config: &ModelConfig, encoded: Var<'b>) -> Var<'b> {
    let (batch, count, width, heads) = (encoded.dim(0), encoded.dim(1), encoded.dim(2), config.heads);
    let head = width / heads;
    let query = net.b.parameter("encoder.query", [1, 1, width], Init::Normal { deviation: 1.0 }).reshape([1, width]);
    let xavier = Init::Uniform { bound: (6.0 / (4 * width) as f64).sqrt() };
    let weight = net.b.parameter("encoder.attn.in_w", [3 * width, width], xavier);
    let bias = net.b.parameter("encoder.attn.in_b", [3 * width], Init::Fill(0.0));
    let projected = |x: Var<'b>, first: usize, parts: usize| {
        x.matmul_t(weight.slice(0, first * width, parts * width)) + bias.slice(0, first * width, parts * width)
    };
    let queries = projected(query, 0, 1).reshape([1, 1, heads, head]);
    let pairs = projected(encoded, 1, 2).reshape([batch, count, 2, heads, head]);
    let [keys, values] = [0, 1].map(|part| pairs.slice(2, part, 1).reshape([batch, count, heads, head]));
    let scores = (keys * queries).sum([3]).reshape([batch, count, heads]) * (1.0 / (head as f64).sqrt());
    let weights = net.drop("encoder.attn", scores.permute([0, 2, 1]).softmax());
    let weights = weights.permute([0, 2, 1]).reshape([batch, count, heads, 1]);
    let read = (weights * values).sum([1]).reshape([batch, width]);
    // The bias begins with zeros, unlike that of PyTorch's linear layers.
    let out = net.b.parameter(
        "encoder.attn.out.weight",
        [width, width],
        Init::Uniform { bound: 1.0 / (width as f64).sqrt() },
    );
    read.matmul_t(out) + net.b.parameter("encoder.attn.out.bias", [width], Init::Fill(0.0))
}
